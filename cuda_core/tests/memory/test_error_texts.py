# SPDX-License-Identifier: Apache-2.0
"""Errors tell of the offending value, whatever it is: an integer beyond what Python prints, a failing ``__repr__``."""

import threading

import numpy
import pytest

from buffer_kinds import BUILT_IN
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    Buffer,
    CUDAError,
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    GraphMemoryResource,
    Host,
    LegacyPinnedMemoryResource,
    ManagedMemoryResourceOptions,
    PinnedMemoryResourceOptions,
    Stream,
    StreamOptions,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
    utils,
)
from support import attempt

HUGE = 10**5000  # more digits than str() gives


class Unprintable:
    def __repr__(self):
        raise ZeroDivisionError("repr")


class Endless:
    def __repr__(self):
        return "x" * 1_000_000


class Tall:
    def __repr__(self):
        return "many\nlines\n\twith gaps"


class UnprintableFunction(Unprintable):
    def __init__(self, error=None):
        self.error = error

    def __call__(self, ptr, size, stream):
        if self.error is not None:
            raise self.error


@pytest.fixture
def buffer(device):
    with LegacyPinnedMemoryResource().allocate(4096) as made:
        yield made


VALUES = {
    "huge": HUGE,
    "huge negative": -HUGE,
    "unprintable": Unprintable(),
    "endless": Endless(),
    "tall": Tall(),
}
# A call, and what an integer out of range gets where that is not a TypeError: beyond, and below.
CALLS = {
    "allocate": (lambda b, v: VirtualMemoryResource(0).allocate(v), OverflowError, ValueError),
    "allocate, stream": (lambda b, v: b.memory_resource.allocate(64, stream=v), None, None),
    "grow": (
        lambda b, v: VirtualMemoryResource(0).modify_allocation(VirtualMemoryResource(0).allocate(0), v),
        OverflowError,
        ValueError,
    ),
    "grow something": (lambda b, v: VirtualMemoryResource(0).modify_allocation(v, 64), None, None),
    "deallocate": (lambda b, v: b.memory_resource.deallocate(v, 64), OverflowError, ValueError),
    "deallocate, size": (lambda b, v: b.memory_resource.deallocate(0, v), OverflowError, ValueError),
    "from_handle": (lambda b, v: Buffer.from_handle(v, 64), OverflowError, ValueError),
    "from_handle, size": (lambda b, v: Buffer.from_handle(0, v), OverflowError, ValueError),
    "from_handle, mr": (lambda b, v: Buffer.from_handle(0, 64, v), None, None),
    "from_handle, stream": (lambda b, v: Buffer.from_handle(0, 64, stream=v), None, None),
    "adopt": (lambda b, v: Buffer.adopt(v), None, None),
    "move_to": (lambda b, v: b.move_to(v), None, None),
    "copy_to": (lambda b, v: b.copy_to(v, stream=Device(0).default_stream), None, None),
    "fill": (lambda b, v: b.fill(v, stream=Device(0).default_stream), OverflowError, OverflowError),
    "slice": (lambda b, v: b[v], None, None),
    "step": (lambda b, v: b[::v], ValueError, ValueError),
    "array_view": (lambda b, v: b.array_view(v), ValueError, ValueError),
    "dlpack, stream": (lambda b, v: b.__dlpack__(stream=v), ValueError, ValueError),
    "dlpack, device": (lambda b, v: b.__dlpack__(dl_device=v), None, None),
    "dlpack, copy": (lambda b, v: b.__dlpack__(copy=v), None, None),
    "view": (
        lambda b, v: utils.StridedMemoryView.from_buffer(b, (v,), itemsize=1),
        OverflowError,
        OverflowError,
    ),
    "view, itemsize": (
        lambda b, v: utils.StridedMemoryView.from_buffer(b, (1,), itemsize=v),
        OverflowError,
        ValueError,
    ),
    "view of": (lambda b, v: utils.StridedMemoryView.from_buffer(v, (1,), itemsize=1), None, None),
    "batch": (lambda b, v: utils.copy_batch(Device(0).create_stream(), [v], [b]), None, None),
    "device": (lambda b, v: Device(v), ValueError, ValueError),
    "device of a resource": (lambda b, v: VirtualMemoryResource(v), ValueError, ValueError),
    "options of a resource": (lambda b, v: DeviceMemoryResource(0, v), None, None),
    "reserve_size": (
        lambda b, v: VirtualMemoryResourceOptions(reserve_size=v),
        OverflowError,
        ValueError,
    ),
    "location_type": (lambda b, v: VirtualMemoryResourceOptions(location_type=v), None, None),
    "peers": (lambda b, v: VirtualMemoryResourceOptions(peers=v), None, None),
    "peer": (lambda b, v: VirtualMemoryResource(0, {"peers": (v,)}), ValueError, ValueError),
    "max_size": (lambda b, v: DeviceMemoryResourceOptions(max_size=v), OverflowError, ValueError),
    "ipc_enabled": (lambda b, v: DeviceMemoryResourceOptions(ipc_enabled=v), None, None),
    "numa_id": (lambda b, v: PinnedMemoryResourceOptions(numa_id=v), ValueError, ValueError),
    "preferred_location": (
        lambda b, v: ManagedMemoryResourceOptions(preferred_location=v),
        ValueError,
        ValueError,
    ),
    "priority": (
        lambda b, v: Device(0).create_stream(options=StreamOptions(priority=v)),
        OverflowError,
        OverflowError,
    ),
    "handle of a stream": (lambda b, v: Stream.from_handle(v), OverflowError, OverflowError),
    "src_access_order": (lambda b, v: utils.CopyOptions(src_access_order=v), ValueError, ValueError),
}
NOT_TYPE_ERRORS = {"array_view", "src_access_order"}  # whatever is no name there is a ValueError


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("call", CALLS)
def test_a_value_that_cannot_be_printed_gets_the_error_that_it_deserves(buffer, call, value):
    function, beyond, below = CALLS[call]
    wanted = {"huge": beyond, "huge negative": below}.get(value) or TypeError
    if call in NOT_TYPE_ERRORS:
        wanted = ValueError
    if call == "step" and value in ("unprintable", "endless", "tall"):
        wanted = TypeError  # Python's own
    _, error = attempt(lambda: function(buffer, VALUES[value]))
    assert type(error) is wanted, error
    assert "Exceeds the limit" not in str(error)
    assert len(str(error)) < 500
    assert "\n" not in str(error)
    assert buffer.ownership.name == "OWNED"


def test_a_huge_node_is_a_place_that_no_machine_has(buffer):
    with pytest.raises(ValueError, match="bits"):
        Host(-HUGE)
    assert Host(HUGE).numa_id == HUGE


def test_the_text_says_what_can_be_said():
    _, error = attempt(lambda: Buffer.from_handle(HUGE, 1))
    assert f"an integer of {HUGE.bit_length()} bits" in str(error)
    _, error = attempt(lambda: Buffer.from_handle(0, 1, Unprintable()))
    assert "got Unprintable: an object whose repr() raises ZeroDivisionError" in str(error)


def test_a_function_that_cannot_be_printed_frees_all_the_same(buffer):
    """Its name is in every text about the buffer, and none of them may fail over it."""
    lent = Buffer.from_handle(buffer.handle, 64, deallocate=UnprintableFunction())
    _, error = attempt(lambda: lent.move_to(buffer.memory_resource))
    assert type(error) is ValueError
    assert "whose repr() raises ZeroDivisionError" in str(error)
    lent.close()
    _, error = attempt(lambda: lent.move_to(buffer.memory_resource))
    assert "Buffer has been closed" in str(error)


def test_a_report_about_a_function_that_cannot_be_printed_is_made(buffer):
    from support import warnings_seen

    lent = Buffer.from_handle(buffer.handle, 64, deallocate=UnprintableFunction(RuntimeError("not today")))
    with warnings_seen() as seen:
        del lent
    [warning] = seen
    assert "not today" in str(warning.message)
    assert "whose repr() raises ZeroDivisionError" in str(warning.message)


@pytest.mark.parametrize("name", ["src", "dst"])
@pytest.mark.parametrize("kind", ["array", "of strings", "bytes", "memoryview"])
def test_memory_that_is_no_buffer_is_told_how_to_become_one(buffer, name, kind):
    memory = {
        "array": numpy.arange(4096, dtype=numpy.float64).reshape(64, 64),
        "of strings": numpy.array(["x" * 1000] * 50),
        "bytes": bytes(4096),
        "memoryview": memoryview(bytearray(4096)),
    }[kind]
    copy = buffer.copy_from if name == "src" else buffer.copy_to
    with pytest.raises(TypeError) as caught:
        copy(memory, stream=Device(0).default_stream)
    text = str(caught.value)
    assert text.startswith(
        f"{name} must be a Buffer, got {type(memory).__name__}; wrap memory that is yours with "
        "Buffer.from_handle(address, size, owner=array), or stage it in pinned memory: "
    )
    assert len(text) < 400
    assert "\n" not in text


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("kind", [*BUILT_IN, "grow"])
def test_who_lacks_memory_says_who_was_asked_and_for_how_much(device, kind):
    """Whatever the driver call was that failed: the caller knows the size, and may not know who was asked."""
    stream = device.create_stream()
    size = 1 << 45
    if kind == "grow":
        resource = VirtualMemoryResource(device)
        buffer = resource.allocate(1)

        def ask():
            resource.modify_allocation(buffer, size)

    else:
        resource = BUILT_IN[kind](device).resource

        def ask():
            resource.allocate(size, stream=stream)

    with pytest.raises(
        CUDAError, match=f"; {type(resource).__name__} could not allocate {size} bytes$"
    ) as caught:
        ask()
    assert caught.value.result_name == "CUDA_ERROR_OUT_OF_MEMORY"
    assert str(caught.value).startswith("CUDA_ERROR_OUT_OF_MEMORY: ")
    if kind == "grow":
        buffer.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_graph_that_lacks_memory_says_the_same(device, driver_watch):
    builder = device.create_graph_builder().begin_building()
    with driver_watch.fail("cuMemAllocAsync", result="CUDA_ERROR_OUT_OF_MEMORY"):
        with pytest.raises(CUDAError, match=r"; GraphMemoryResource could not allocate 4096 bytes$"):
            GraphMemoryResource(device).allocate(4096, stream=builder)
    builder.end_building().close()


WITHOUT_A_CONTEXT = {
    "pinned": lambda b, s: LegacyPinnedMemoryResource().allocate(64),
    "a stream": lambda b, s: Device(0).create_stream(),
    "an event": lambda b, s: Device(0).create_event(),
    "sync of the device": lambda b, s: Device(0).sync(),
    "sync": lambda b, s: LEGACY_DEFAULT_STREAM.sync(),
    "priority": lambda b, s: LEGACY_DEFAULT_STREAM.priority,
    "fill": lambda b, s: b.fill(1, stream=LEGACY_DEFAULT_STREAM),
    "copy": lambda b, s: b.copy_to(b, stream=LEGACY_DEFAULT_STREAM),
    "record": lambda b, s: LEGACY_DEFAULT_STREAM.record(),
    "wait": lambda b, s: s.wait(LEGACY_DEFAULT_STREAM),
    "let the default wait": lambda b, s: LEGACY_DEFAULT_STREAM.wait(s),
}


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("call", WITHOUT_A_CONTEXT)
def test_what_needs_a_context_says_how_to_get_one(buffer, device, call):
    stream = device.create_stream()
    seen = []

    def work():  # on a thread that has none
        seen.append(attempt(lambda: WITHOUT_A_CONTEXT[call](buffer, stream))[1])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "set_current()" in str(seen[0])
    stream.close()
