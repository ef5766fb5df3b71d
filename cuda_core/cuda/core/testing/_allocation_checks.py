# SPDX-License-Identifier: Apache-2.0
"""What an allocation has to be: its size, address, place, owner; and what is refused."""

import inspect
import itertools

import pytest

from cuda.core.testing._bytes import get, memory_of, pattern, put
from cuda.core.testing._contract import ContractBroken, call, require, shown

__all__ = ["AllocationChecks"]


class AllocationChecks:
    """Checks of ``allocate``."""

    def test_it_says_what_its_memory_is(self, resource):
        """The flags are booleans, the device is a number, and asking does not depend on an allocation."""
        for name in ("is_device_accessible", "is_host_accessible", "is_managed"):
            value = call(
                lambda name=name: getattr(resource, name),
                f"{name} is a property that says whether it is so",
            )
            require(
                isinstance(value, bool), f"{name} is True or False", f"{type(value).__name__}: {shown(value)}"
            )
        require(
            resource.is_device_accessible or resource.is_host_accessible,
            "the memory can be used by a device or by the host",
            "is_device_accessible and is_host_accessible are both False",
        )
        try:
            device = resource.device_id
        except RuntimeError:
            device = -1  # memory of the host has no device, and may say so
        require(
            isinstance(device, int) and not isinstance(device, bool) and device >= -1,
            "device_id is the ordinal of a device; for memory of the host it is -1, or raises a RuntimeError",
            f"{type(device).__name__}: {shown(device)}",
        )

    def test_it_can_be_called_by_hand(self, resource):
        """Whoever has an address and a size calls ``deallocate(ptr, size)``; with a stream if it is stream-ordered."""
        try:
            signature = inspect.signature(resource.deallocate)
        except (TypeError, ValueError):
            pytest.skip("this deallocate does not say how it is called")
        for given in ({"stream": None},) if self.stream_ordered else ({}, {"stream": None}):
            wanted = "deallocate can be called with and without a stream: deallocate(self, ptr, size, *, stream=None)"
            call(lambda given=given: signature.bind(0, 0, **given), wanted)

    def test_a_buffer_owns_what_was_asked_for(self, resource, stream):
        """Each size gives an OWNED buffer of this resource with that size."""
        for size in self.sizes:
            buffer = self.take(resource, size, stream)
            require(
                buffer.size == self.rounded(size),
                f"a buffer is as large as was asked for, rounded up to a multiple of {self.granularity} (granularity)",
                f"{buffer.size} bytes for {size}",
            )
            require(buffer.handle != 0, "memory has an address", "the address is 0")
            self.close(buffer)

    def test_addresses_are_aligned(self, resource, stream):
        """As many libraries expect: 256 bytes for devices, 8 for the host, unless ``alignment`` says otherwise."""
        alignment = self.alignment or (256 if resource.is_device_accessible else 8)
        buffers = [self.take(resource, size, stream) for size in self.sizes for _ in range(3)]
        for buffer in buffers:
            require(
                buffer.handle % alignment == 0,
                f"an address is a multiple of {alignment} (alignment)",
                f"{buffer.handle:#x}",
            )
        for buffer in buffers:
            self.close(buffer)

    def test_no_bytes(self, resource, stream):
        """``allocate(0)`` gives an empty buffer, or raises where the resource says that it has none."""
        if not self.supports_zero:
            with self.all_returned(resource, "an allocation that raises has taken nothing"):
                try:
                    buffer = resource.allocate(0, stream=stream)
                except Exception:
                    return
                raise ContractBroken(
                    "allocate(0) raises, as supports_zero is False", f"it returned {shown(buffer)}"
                )
        buffers = [self.take(resource, 0, stream) for _ in range(3)]
        for buffer in buffers:
            require(buffer.size == 0, "allocate(0) gives an empty buffer", f"it has {buffer.size} bytes")
        for buffer in buffers:
            self.close(buffer)

    def test_more_than_there_is(self, resource, stream, refusals_allowed):
        """A size that cannot be had raises, takes nothing, and leaves the resource as good as before."""
        with self.all_returned(
            resource,
            "an allocation that raises has taken nothing",
            warm_up=lambda: self.one_round(resource, stream),
        ):
            try:
                buffer = resource.allocate(self.too_large, stream=stream)
            except Exception:
                pass
            else:
                raise ContractBroken(
                    f"what cannot be had raises; {self.too_large} bytes (too_large) were asked for",
                    f"it returned {shown(buffer)}",
                )
        self.one_round(resource, stream)

    def test_every_byte_can_be_used(self, resource, stream):
        """What is written to a buffer, from its first byte to its last, can be read back."""
        for seed, size in enumerate(self.sizes):
            buffer = self.take(resource, size, stream)
            data = pattern(buffer.size, seed)
            call(
                lambda buffer=buffer, data=data: put(buffer, data, stream),
                f"all {buffer.size} bytes of a buffer are there to be written",
            )
            require(
                get(buffer, stream) == data,
                "bytes stay as they were written while the buffer is open",
                f"others came back from {buffer.size} bytes at {buffer.handle:#x}",
            )
            self.close(buffer)

    def test_the_driver_agrees_where_the_memory_is(self, resource, stream):
        """The flags and the device are what the driver says of the address. It knows nothing of pageable memory."""
        buffer = self.take(resource, self.sizes[-1], stream)
        kind, device = memory_of(buffer.handle)
        host, on_device = resource.is_host_accessible, resource.is_device_accessible
        said = (
            f"the driver says that it is memory of the {kind}; " if kind else "the driver does not know it; "
        )
        said += f"is_host_accessible is {host}, is_device_accessible {on_device}, is_managed {resource.is_managed}"
        wanted = "the flags of a resource say who can use its memory"
        require(host or kind in ("device", "managed"), wanted, said)
        require(on_device or kind != "device", wanted, said)
        require(not (host and kind == "device"), wanted, said)
        require(resource.is_managed == (kind == "managed"), wanted, said)
        if kind == "device":
            require(
                resource.device_id == device,
                "device_id is the device whose memory it is",
                f"device_id is {resource.device_id}, and the driver says {device}",
            )
        self.close(buffer)

    def test_open_buffers_do_not_overlap(self, resource, stream):
        """No byte belongs to two buffers that are open at once, and none is changed through another."""
        buffers = [self.take(resource, size, stream) for _ in range(3) for size in self.sizes]
        spans = sorted((buffer.handle, buffer.handle + buffer.size) for buffer in buffers)
        for (_, end), (begin, _) in itertools.pairwise(spans):
            require(
                end <= begin, "buffers that are open at once have no byte in common", f"two have {begin:#x}"
            )
        for seed, buffer in enumerate(buffers):
            put(buffer, pattern(buffer.size, seed), stream)
        for seed, buffer in enumerate(buffers):
            require(
                get(buffer, stream) == pattern(buffer.size, seed),
                "buffers that are open at once have no byte in common",
                f"writing to others changed {buffer.size} bytes at {buffer.handle:#x}",
            )
        for buffer in buffers:
            self.close(buffer)

    @pytest.mark.parametrize("size", [-1, "4096", 1.5, None], ids=repr)
    def test_a_size_that_is_none(self, resource, stream, size, refusals_allowed):
        """It raises and takes nothing."""
        with self.all_returned(
            resource,
            "an allocation that raises has taken nothing",
            warm_up=lambda: self.one_round(resource, stream),
        ):
            try:
                buffer = resource.allocate(size, stream=stream)
            except Exception:
                return
            raise ContractBroken(f"a size of {shown(size)} is refused", f"allocate returned {shown(buffer)}")

    @pytest.mark.parametrize("what", ["no stream", "a closed stream"])
    def test_a_stream_that_is_none(self, resource, device, stream, what):
        """It raises and takes nothing: where ``Buffer.from_handle`` raises, the memory is still the author's."""
        wrong = "stream"
        if what == "a closed stream":
            wrong = device.create_stream()
            wrong.close()
        with self.all_returned(
            resource,
            "an allocation that raises has taken nothing: if Buffer.from_handle raises, free what it was given",
            warm_up=lambda: self.one_round(resource, stream),
        ):
            try:
                buffer = resource.allocate(self.sizes[-1], stream=wrong)
            except Exception:
                return
            raise ContractBroken(
                f"{what} is refused, as Buffer.from_handle(..., stream=stream) does",
                f"allocate returned {shown(buffer)}",
            )
