# SPDX-License-Identifier: Apache-2.0
"""Input that must be refused, as data: a name, a call, and the error that it gets.

Run as a program it prints what each call raised, so that a run under ``python -O`` can be compared with a plain one.
"""

from cuda.core import (
    Buffer,
    Device,
    MemoryResource,
    OwnershipError,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)
from support import GRANULE

MAX = 2**63 - 1
BEYOND = MAX + 2 - GRANULE  # rounded up to the granularity it is 2**63
NOT_SIZES = {
    "negative": (-1, ValueError),
    "very negative": (-(2**70), (ValueError, OverflowError)),
    "float": (2.0, TypeError),
    "text": ("2097152", TypeError),
    "None": (None, TypeError),
    "bool": (True, TypeError),
    "list": ([GRANULE], TypeError),
    "beyond when rounded": (BEYOND, OverflowError),
    "largest": (MAX, OverflowError),
    "2**63": (2**63, OverflowError),
    "2**64": (2**64, OverflowError),
    "2**64 + 2 MiB": (2**64 + GRANULE, OverflowError),
}
NOT_STREAMS = {"number": 7, "text": "stream", "object": object(), "tuple": (0, 0)}

# (option, value, error): refused by the constructor, by the dict form, and when assigned.
WRONG_OPTIONS = [
    ("allocation_type", "managed", ValueError),
    ("allocation_type", "pageable", ValueError),
    ("allocation_type", 1, TypeError),
    ("allocation_type", None, (TypeError, ValueError)),
    ("location_type", "moon", ValueError),
    ("location_type", 1, TypeError),
    ("handle_type", "posix", ValueError),
    ("handle_type", "win32", ValueError),
    ("handle_type", "win32_kmt", ValueError),
    ("handle_type", 1, TypeError),
    ("granularity", "huge", ValueError),
    ("granularity", GRANULE, TypeError),
    ("gpu_direct_rdma", "yes", TypeError),
    ("gpu_direct_rdma", 1, TypeError),
    ("addr_hint", -GRANULE, ValueError),
    ("addr_hint", 1.5, TypeError),
    ("addr_hint", "0", TypeError),
    ("addr_hint", True, TypeError),
    ("addr_align", 3, ValueError),
    ("addr_align", 3 * GRANULE, ValueError),
    ("addr_align", -2, ValueError),
    ("addr_align", 2.0, TypeError),
    ("addr_align", True, TypeError),
    ("peers", 1, TypeError),
    ("peers", ("one",), TypeError),
    ("peers", (1.0,), TypeError),
    ("peers", (True,), TypeError),
    ("peers", (-1,), ValueError),
    ("self_access", "w", ValueError),
    ("self_access", 3, TypeError),
    ("peer_access", "rwx", ValueError),
    ("peer_access", 1, TypeError),
    ("reserve_size", -1, ValueError),
    ("reserve_size", 1.0, TypeError),
    ("reserve_size", "1", TypeError),
    ("reserve_size", True, TypeError),
    ("reserve_size", None, TypeError),
    ("reserve_size", 2**63, OverflowError),
    ("growth", "fast", ValueError),
    ("growth", 2, TypeError),
    ("growth", None, TypeError),
    ("numa_id", 0, ValueError),  # of another location than "host_numa"
    ("numa_id", -1, ValueError),
    ("numa_id", 2**31, ValueError),
    ("numa_id", "0", TypeError),
    ("numa_id", 0.0, TypeError),
    ("numa_id", False, TypeError),
    ("wait_on_close", None, TypeError),
    ("wait_on_close", 1, TypeError),
]


class Owner:
    """Something that a borrowed buffer keeps alive."""


class Things:
    """An open, an empty, a closed, a transferred, a borrowed and a foreign buffer, and who made them."""

    def __init__(self):
        self.device = Device(0)
        self.device.set_current()
        self.resource = VirtualMemoryResource(self.device)
        self.open = self.resource.allocate(GRANULE)
        self.empty = self.resource.allocate(0)
        self.closed = self.resource.allocate(GRANULE)
        self.closed.close()
        self.transferred = self.resource.allocate(GRANULE)
        self.grown = self.resource.modify_allocation(self.transferred, 2 * GRANULE)
        self.borrowed = Buffer.from_handle(self.open.handle, self.open.size, owner=Owner())
        self.other = VirtualMemoryResource(self.device)
        self.foreign = self.other.allocate(GRANULE)
        self.foreign_empty = self.other.allocate(0)

    def state(self):
        """What no refused call may change."""
        names = ("open", "empty", "closed", "transferred", "grown", "borrowed", "foreign", "foreign_empty")
        buffers = [getattr(self, name) for name in names]
        return [
            (name, b.ownership, b.transferred_to, b.handle, b.size, b.memory_resource, b.owner, b.is_closed)
            for name, b in zip(names, buffers, strict=True)
        ] + [repr(self.resource.config)]

    def close(self):
        for buffer in (self.borrowed, self.open, self.empty, self.grown, self.foreign, self.foreign_empty):
            buffer.close()


def _calls():
    for name, (size, error) in NOT_SIZES.items():
        yield f"allocate size {name}", lambda t, s=size: t.resource.allocate(s), error
        yield f"grow to size {name}", lambda t, s=size: t.resource.modify_allocation(t.open, s), error
        yield f"grow empty to size {name}", lambda t, s=size: t.resource.modify_allocation(t.empty, s), error
        if name not in (
            "beyond when rounded",
            "largest",
        ):  # nothing is rounded here, and both are addresses' sizes
            yield f"from_handle size {name}", lambda t, s=size: Buffer.from_handle(0, s), error
    for name, stream in NOT_STREAMS.items():
        yield f"allocate stream {name}", lambda t, s=stream: t.resource.allocate(GRANULE, stream=s), TypeError
        yield (
            f"allocate nothing, stream {name}",
            lambda t, s=stream: t.resource.allocate(0, stream=s),
            TypeError,
        )
        yield f"close stream {name}", lambda t, s=stream: t.open.close(s), TypeError
        yield f"set stream {name}", lambda t, s=stream: t.open.set_deallocation_stream(s), TypeError
        yield (
            f"from_handle stream {name}",
            lambda t, s=stream: Buffer.from_handle(t.open.handle, GRANULE, MemoryResource(), stream=s),
            TypeError,
        )
    yield "set stream None", lambda t: t.open.set_deallocation_stream(None), TypeError

    for name, thing in (("None", None), ("number", 4096), ("text", "buffer"), ("bytes", b"bytes")):
        yield f"grow {name}", lambda t, b=thing: t.resource.modify_allocation(b, GRANULE), TypeError
    for name, error in (
        ("closed", OwnershipError),
        ("transferred", OwnershipError),
        ("borrowed", OwnershipError),
        ("foreign", ValueError),
        ("foreign_empty", ValueError),
    ):
        for size in (0, GRANULE, 4 * GRANULE):
            yield (
                f"grow {name} to {size // GRANULE} granules",
                lambda t, n=name, s=size: t.resource.modify_allocation(getattr(t, n), s),
                error,
            )
    for name in ("closed", "transferred"):
        yield (
            f"set stream of {name}",
            lambda t, n=name: getattr(t, n).set_deallocation_stream(None),
            Exception,
        )

    for option, value, error in WRONG_OPTIONS:
        label = f"{option}={value!r}"
        yield label, lambda t, o=option, v=value: VirtualMemoryResourceOptions(**{o: v}), error
        yield (
            f"resource with {label}",
            lambda t, o=option, v=value: VirtualMemoryResource(t.device, {o: v}),
            error,
        )
        yield (
            f"grow with {label}",
            lambda t, o=option, v=value: t.resource.modify_allocation(t.open, 2 * GRANULE, config={o: v}),
            error,
        )
        yield (
            f"assign {label}",
            lambda t, o=option, v=value: setattr(VirtualMemoryResourceOptions(), o, v),
            error,
        )
    yield "unknown option", lambda t: VirtualMemoryResourceOptions(size=1), TypeError
    yield "unknown option in a dict", lambda t: VirtualMemoryResource(t.device, {"size": 1}), TypeError
    for name, config in (("number", 5), ("text", "pinned"), ("list", [])):
        yield f"config {name}", lambda t, c=config: VirtualMemoryResource(t.device, c), TypeError
        yield (
            f"grow config {name}",
            lambda t, c=config: t.resource.modify_allocation(t.open, 2 * GRANULE, config=c),
            TypeError,
        )
    yield (
        "grow to another location",
        lambda t: t.resource.modify_allocation(t.open, 2 * GRANULE, config={"location_type": "host_numa"}),
        ValueError,
    )
    for name, device, error in (
        ("text", "0", TypeError),
        ("float", 0.0, TypeError),
        ("negative", -1, ValueError),
    ):
        yield f"resource on device {name}", lambda t, d=device: VirtualMemoryResource(d), error

    yield (
        "from_handle with mr and owner",
        lambda t: Buffer.from_handle(t.open.handle, GRANULE, t.resource, Owner()),
        ValueError,
    )
    yield "from_handle with a wrong mr", lambda t: Buffer.from_handle(0, 1, "mr"), TypeError
    yield "from_handle of text", lambda t: Buffer.from_handle("0", 1), TypeError
    yield "from_handle of a float", lambda t: Buffer.from_handle(0.5, 1), TypeError
    yield "from_handle of a negative", lambda t: Buffer.from_handle(-1, 1), (ValueError, OverflowError)
    yield "from_handle beyond", lambda t: Buffer.from_handle(2**64, 1), (ValueError, OverflowError)
    yield "Buffer()", lambda t: Buffer(), (RuntimeError, TypeError)


CALLS = list(_calls())


def kind_of_error(call, things):
    try:
        call(things)
    except Exception as error:
        return type(error).__name__
    return "nothing"


if __name__ == "__main__":
    things = Things()
    for name, call, _ in CALLS:
        print(f"{name}: {kind_of_error(call, things)}")
    print(f"asserts: {'on' if __debug__ else 'off'}")
    things.close()
