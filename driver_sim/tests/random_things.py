# SPDX-License-Identifier: Apache-2.0
"""What the calls of a random sequence have made, by the number of the call."""

import ctypes
import mmap
import time

from cuda.bindings import driver as d

GRANULE = 2 << 20
BUFFER_SIZE = 1 << 20
RELAXED = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


class Skip(Exception):
    """The call must not be made."""


def name(result):
    """Without the prefix. What is not ready yet is a matter of time."""
    text = result.name.removeprefix("CUDA_ERROR_").removeprefix("CUDA_")
    return "SUCCESS" if text == "NOT_READY" else text


def location(place):
    kind, number = place.split(":")
    result = d.CUmemLocation()
    result.type = getattr(d.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{kind}")
    result.id = int(number)
    return result


def access(place, flag):
    result = d.CUmemAccessDesc()
    result.location = location(place)
    result.flags = getattr(d.CUmemAccess_flags, f"CU_MEM_ACCESS_FLAGS_PROT_{flag}")
    return result


def properties_at(place, handle="NONE"):
    result = d.CUmemAllocationProp()
    result.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    result.location = location(place)
    result.requestedHandleTypes = getattr(d.CUmemAllocationHandleType, f"CU_MEM_HANDLE_TYPE_{handle}")
    return result


class Thing:
    """What a call has made. An address that something newer got makes it `reused`."""

    def __init__(self, kind, value, size=0):
        self.kind, self.value, self.size = kind, value, size
        self.dead = self.reused = False
        self.placed = False  # a reservation where it was asked for
        self.freed_in_order = False  # plain memory given to cuMemFreeAsync
        self.chunk = None  # of a reference to a chunk

    def holds(self, address):
        return self.value <= address < self.value + self.size


class Chunk:
    """Physical memory, with what this process holds of it."""

    def __init__(self):
        self.references, self.mappings = 1, 0


class Things:
    """What the calls of one sequence have made, and what is known of it."""

    def __init__(self):
        self.things = {}
        self.mappings = {}  # address to size and chunk
        self.known = {}  # address to the byte that the 16 bytes there hold
        self.memory = mmap.mmap(-1, BUFFER_SIZE)
        self.buffer = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.registered = set()
        self.captured_streams = set()

    # --- looking things up ---

    def thing(self, number, kind=None, dead=False):
        found = self.things.get(number)
        if found is None or found.reused or (found.dead and not dead) or (kind and found.kind != kind):
            raise Skip
        return found

    def address(self, pointer, host_side=False, bytes_=0):
        """The address of a pointer. Where it may be host memory, the driver touches what it does not know."""
        number, offset = pointer
        if number == "null":
            if host_side:
                raise Skip
            return 0
        if number == "buffer":
            if host_side and offset + bytes_ > BUFFER_SIZE:
                raise Skip
            return self.buffer + offset
        found = self.things.get(number)
        if found is None or found.reused or found.freed_in_order or not isinstance(found.value, int):
            raise Skip
        if found.kind in ("chunk", "pool", "stream", "event", "graph", "executable"):
            raise Skip
        if found.kind != "range" and offset >= found.size:
            raise Skip  # whatever comes next there
        if host_side:
            unmapped = found.kind == "range" and not self.mapping_of(found.value + offset)
            if found.dead or unmapped or (found.kind != "range" and offset + bytes_ > found.size):
                raise Skip
        return found.value + offset

    def stay(self, pointer, bytes_):
        """Whether something follows the end of a reservation is chance, unless it was put there."""
        found = self.things.get(pointer[0])
        if found is None or found.kind != "range":
            return
        end, wanted = found.value + found.size, found.value + pointer[1] + bytes_
        while end < wanted or end <= found.value + pointer[1]:
            follows = [t for t in self.things.values() if t.kind == "range" and t.value == end and t.placed]
            if not follows or follows[0].dead:
                raise Skip
            end += follows[0].size

    def stream_handle(self, stream):
        special = {"null": 0, "legacy": 1, "per thread": 2}
        return special[stream] if stream in special else self.thing(stream, "stream").value

    def mapping_of(self, address):
        return next(
            (base for base, (size, _) in self.mappings.items() if base <= address < base + size), None
        )

    def make(self, number, result, kind, size=0, value=None):
        """Remember what a call has made, if it did."""
        if result[0] == 0:
            value = int(result[1]) if value is None else value
            if size:
                for other in self.things.values():
                    sized = other.size and isinstance(other.value, int)
                    if sized and other.value < value + size and value < other.value + other.size:
                        other.reused = True
                self.known = {a: b for a, b in self.known.items() if not value - 16 < a < value + size}
            self.things[number] = Thing(kind, value, size)
        return [result[0]]

    def pointer_ends(self, pointer, result):
        found = self.things.get(pointer[0])
        if result[0] == 0 and found is not None and pointer[1] == 0:
            found.dead = True

    def settle(self, stream=None):
        """Let work that was submitted finish, without a call that a capture would notice."""
        mode = d.cuThreadExchangeStreamCaptureMode(RELAXED)[1]
        handles = [t.value for n, t in self.things.items() if t.kind == "stream" and not t.dead]
        for handle in handles:
            if handle in self.captured_streams:
                continue
            status = d.cuStreamIsCapturing(handle)
            end = time.monotonic() + 2
            while status[0] == 0 and int(status[1]) == 0 and time.monotonic() < end:
                if d.cuStreamQuery(handle)[0] != d.CUresult.CUDA_ERROR_NOT_READY:
                    break
        if stream in (0, 1, 2):
            time.sleep(0.003)
        d.cuThreadExchangeStreamCaptureMode(mode)

    # --- the end ---

    def close(self):
        """Give everything back. False when this process should not be used for another sequence."""
        d.cuThreadExchangeStreamCaptureMode(d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        streams = [t.value for t in self.things.values() if t.kind == "stream" and not t.dead]
        for handle in [*streams, 2]:
            error, graph = d.cuStreamEndCapture(handle)
            if error == 0:
                d.cuGraphDestroy(graph)
        healthy = d.cuCtxSynchronize()[0] == 0
        for kind, give_back in (("executable", d.cuGraphExecDestroy), ("graph", d.cuGraphDestroy)):
            for found in self.things.values():
                if found.kind == kind and not found.dead:
                    give_back(found.value)
        if not healthy:
            return False
        for found in self.things.values():
            if found.dead or found.reused or found.freed_in_order:
                continue
            if found.kind in ("plain", "managed", "pooled"):
                d.cuMemFree(found.value)
            elif found.kind == "host":
                d.cuMemFreeHost(found.value)
        for base, (size, _) in self.mappings.items():
            d.cuMemUnmap(base, size)
        for found in self.things.values():
            if found.kind == "range" and not found.dead:
                d.cuMemAddressFree(found.value, found.size)
            if found.kind == "chunk":
                while found.chunk.references:
                    found.chunk.references -= 1
                    d.cuMemRelease(found.value)
        for offset in self.registered:
            d.cuMemHostUnregister(self.buffer + offset)
        for kind, give_back in (
            ("pool", lambda p: d.cuMemPoolDestroy(d.CUmemoryPool(p))),
            ("event", d.cuEventDestroy),
            ("stream", d.cuStreamDestroy),
        ):
            for found in self.things.values():
                if found.kind == kind and not found.dead:
                    give_back(found.value)
        plain = d.cuMemAlloc(16)
        return plain[0] == 0 and d.cuMemFree(plain[1])[0] == 0 and d.cuCtxSynchronize()[0] == 0
