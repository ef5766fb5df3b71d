# SPDX-License-Identifier: Apache-2.0
"""What a resource may be able to do beyond the contract: order by streams, export, grow, check frees by hand."""

import multiprocessing

import pytest

from cuda.core import LegacyPinnedMemoryResource, Ownership, OwnershipError, TransferredTo
from cuda.core.testing._bytes import get, pattern, put
from cuda.core.testing._child import peer
from cuda.core.testing._contract import call, require, shown

__all__ = ["CapabilityChecks"]

_SECONDS = 120


class CapabilityChecks:
    """Checks of capabilities that a test class claims by its attributes."""

    def test_stream_order(self, resource, device, stream, driver_calls):
        """With ``stream_ordered``: memory is used on its stream and closed without a wait, again and again."""
        if not self.stream_ordered:
            pytest.skip("stream_ordered is False")
        size, rounds = self.sizes[0], 20
        results = LegacyPinnedMemoryResource().allocate(self.rounded(size) * rounds)
        other = device.create_stream()
        with driver_calls.hold():
            for number in range(rounds):
                at = stream if number % 2 else other
                buffer = self.take(resource, size, at)
                buffer.fill(number + 1, stream=at)
                with results[number * buffer.size : (number + 1) * buffer.size] as slot:
                    buffer.copy_to(slot, stream=at)
                self.close(buffer)
            stream.sync()
            other.sync()
        with memoryview(results) as seen:
            for number in range(rounds):
                part = bytes(seen[number * self.rounded(size) : (number + 1) * self.rounded(size)])
                require(
                    part == bytes([number + 1]) * len(part),
                    "memory is allocated and freed in the order of the stream (stream_ordered): work that was "
                    "submitted before the close sees it untouched",
                    f"buffer {number} of {rounds} was overwritten before its last use",
                )
        results.close()
        other.close()

    def test_export(self, resource, stream):
        """With ``exportable``: another process reads and writes a buffer that is sent to it."""
        if not self.exportable:
            pytest.skip("exportable is False")
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=peer, args=(there,), daemon=True)
        process.start()
        there.close()
        buffer = self.take(resource, self.sizes[-1], stream)
        put(buffer, pattern(buffer.size, 6), stream)
        try:
            call(
                lambda: here.send((buffer, pattern(buffer.size, 7))),
                "a buffer can be sent to another process (exportable)",
            )
            arrived = here.poll(_SECONDS)
            require(arrived, "another process imports the buffer (exportable)", "it does not answer")
            read = call(here.recv, "another process imports the buffer (exportable)")
            require(
                read == pattern(buffer.size, 6),
                "the other process sees the bytes of the buffer",
                "it read others",
            )
            require(
                get(buffer, stream) == pattern(buffer.size, 7),
                "what the other process wrote is in the buffer",
                "it is not",
            )
            here.send("seen")
        finally:
            here.close()
            process.join(_SECONDS)
        require(process.exitcode == 0, "the other process ends well", f"exit code {process.exitcode}")
        self.close(buffer)

    def test_growth(self, resource, stream):
        """With ``growable``: a grown buffer keeps its bytes, and the old one is TRANSFERRED."""
        if not self.growable:
            pytest.skip("growable is False")
        with self.all_returned(
            resource,
            "all memory of a grown buffer is returned by its close",
            warm_up=lambda: self.one_round(resource, stream),
        ):
            buffer = self.take(resource, self.sizes[0], stream)
            kept = pattern(buffer.size, 8)
            put(buffer, kept, stream)
            for factor in (2, 3, 8):
                size = self.sizes[0] * factor
                if size <= buffer.size:
                    size = buffer.size + 1
                old, buffer = (
                    buffer,
                    call(
                        lambda buffer=buffer, size=size: resource.modify_allocation(buffer, size),
                        "modify_allocation(buffer, new_size) grows a buffer (growable)",
                    ),
                )
                require(
                    buffer.size == self.rounded(size),
                    "a grown buffer has its new size",
                    f"{buffer.size}, not {size}",
                )
                require(
                    (old.ownership, old.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.GROWN),
                    "growing transfers the memory to the new buffer",
                    f"the old one is {shown(old)}",
                )
                require(
                    get(buffer, stream, len(kept)) == kept,
                    "growing keeps all bytes",
                    "others came back",
                )
            self.close(buffer)

    def test_frees_by_hand(self, resource, stream):
        """With ``checks_frees``: ``deallocate`` by hand spares what a buffer owns, and frees what was detached."""
        if not self.checks_frees:
            pytest.skip("checks_frees is False")
        with self.all_returned(
            resource,
            "a deallocate by hand frees what was detached",
            warm_up=lambda: self.one_round(resource, stream),
        ):
            buffer = self.take(resource, self.sizes[0], stream)
            address, size = buffer.handle, buffer.size
            try:
                resource.deallocate(address, size, stream=stream)
            except OwnershipError:
                pass
            else:
                buffer.detach().handed_over()  # it is freed: the buffer must not do it again
                require(
                    False,
                    "deallocate by hand is refused with an OwnershipError while an open buffer owns the address "
                    "(checks_frees): put `with self.checked_free(ptr, size):` around the free",
                    "it freed the memory of an open buffer",
                )
            require(
                buffer.ownership is Ownership.OWNED,
                "a deallocate that is refused leaves the buffer as it is",
                f"it is {buffer.ownership.name}",
            )
            allocation = buffer.detach()
            call(
                lambda: resource.deallocate(address, size, stream=stream),
                "deallocate by hand frees what was detached (checks_frees)",
            )
            require(
                allocation.ownership is Ownership.TRANSFERRED,
                "an Allocation that is freed by hand counts as handed over (checks_frees): put "
                "`with self.checked_free(ptr, size):` around the free",
                f"it is {allocation.ownership.name}",
            )
