# SPDX-License-Identifier: Apache-2.0
"""Random sequences of driver calls, right and wrong ones, that can be replayed on any driver.

A call is a list `[number, kind, *arguments]`. What a call makes is referred to by the call's number, so that
addresses and handles never appear, and a sequence stays meaningful when calls are left out of it. A pointer
is `[number, offset]`. The generator believes in a simple model of what is there; most calls are right.
"""

import random

from random_weights import THEMES, WEIGHTS

GRANULE = 2 << 20


class Range:
    """What the generator believes of a reservation."""

    def __init__(self, number, granules):
        self.number, self.granules = number, granules
        self.mapped = {}  # first granule to number of granules

    def free_places(self, granules):
        taken = {g for first, n in self.mapped.items() for g in range(first, first + n)}
        places = range(self.granules - granules + 1)
        return [p for p in places if not taken & set(range(p, p + granules))]


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.calls = []
        self.ranges, self.chunks = [], {}
        self.memory = {kind: [] for kind in ("plain", "host", "managed", "pooled")}
        self.dead = []  # numbers of ranges and memory
        self.streams, self.events, self.pools = [], [], []
        self.graphs, self.executables = [], []
        self.capturing = []

    # --- drawing ---

    def chance(self, probability):
        return self.random.random() < probability

    def pick(self, choices):
        return self.random.choice(choices)

    def add(self, kind, *arguments):
        self.calls.append([len(self.calls), kind, *arguments])
        return len(self.calls) - 1

    def stream_of(self):
        special = ["null", "legacy", "per thread"]
        return self.pick(self.streams) if self.streams and self.chance(0.8) else self.pick(special)

    def any_memory(self):
        return [n for kind in self.memory.values() for n in kind]

    def pointer(self):
        """A pointer that is mostly good, with a number of bytes that mostly fit."""
        choice = self.random.random()
        if choice < 0.04:
            return ["null", 0]
        if choice < 0.08:
            return ["buffer", self.pick([0, 64])]
        if choice < 0.16 and self.dead:
            return [self.pick(self.dead), self.pick([0, 4096])]
        numbers = self.any_memory()
        mapped = [r for r in self.ranges if r.mapped]
        if mapped and (not numbers or self.chance(0.5)):
            held = self.pick(mapped)
            first = self.pick(list(held.mapped))
            inside = self.pick([0, 0, 4096, GRANULE - 8])
            return [held.number, first * GRANULE + inside]
        if self.ranges and self.chance(0.1):
            held = self.pick(self.ranges)
            return [held.number, self.pick(range(held.granules)) * GRANULE]
        if numbers:
            return [self.pick(numbers), self.pick([0, 0, 0, 16, 1])]
        return ["buffer", 0]

    # --- virtual memory ---

    def reserve(self):
        granules = self.pick([1, 1, 2, 3, 4])
        size = granules * GRANULE if self.chance(0.9) else self.pick([0, 1, 4096, 3 << 20])
        align = self.pick([0, 0, GRANULE, 4096, 1 << 25]) if self.chance(0.95) else 3
        hint = None
        if self.ranges and self.chance(0.2):
            held = self.pick(self.ranges)
            hint = [held.number, self.pick([held.granules * GRANULE, 0])]
        elif self.dead and self.chance(0.1):
            hint = [self.pick(self.dead), 0]
        number = self.add("reserve", size, align, hint, int(self.chance(0.03)))
        if size == granules * GRANULE:
            self.ranges.append(Range(number, granules))

    def create(self):
        granules = self.pick([1, 1, 1, 2, 3])
        size = granules * GRANULE if self.chance(0.93) else self.pick([0, 1, 3 << 20, 1 << 60])
        place = (
            "DEVICE:0"
            if self.chance(0.85)
            else self.pick(["HOST:0", "HOST_NUMA:0", "DEVICE:99", "HOST_NUMA:99"])
        )
        handle = self.pick(["POSIX_FILE_DESCRIPTOR", "POSIX_FILE_DESCRIPTOR", "NONE"])
        number = self.add("create", size, place, handle, int(self.chance(0.03)))
        if size == granules * GRANULE:
            self.chunks[number] = granules

    def map(self):
        if not self.ranges or not self.chunks:
            return self.pick([self.reserve, self.create])()
        held, chunk = self.pick(self.ranges), self.pick(list(self.chunks))
        granules = self.chunks[chunk]
        places = held.free_places(granules)
        if places and self.chance(0.85):
            place = self.pick(places)
            held.mapped[place] = granules
            self.add("map", [held.number, place * GRANULE], granules * GRANULE, 0, chunk, 0)
            if self.chance(0.5):
                self.add(
                    "set_access",
                    [held.number, place * GRANULE],
                    granules * GRANULE,
                    ["DEVICE:0"],
                    ["READWRITE"],
                )
        else:
            offset = self.pick([0, 1, 2]) * GRANULE + self.pick([0, 0, 4096])
            size = self.pick([granules, granules, 1, 2]) * GRANULE
            number = held.number if self.chance(0.9) or not self.dead else self.pick(self.dead)
            self.add(
                "map", [number, offset], size, self.pick([0, 0, GRANULE, 4096]), chunk, int(self.chance(0.1))
            )

    def span(self):
        """A stretch of a reservation: mostly one mapping, or neighbouring ones."""
        held = self.pick(self.ranges)
        if held.mapped and self.chance(0.8):
            first = self.pick(list(held.mapped))
            last = first + held.mapped[first]
            while last in held.mapped and self.chance(0.6):
                last += held.mapped[last]
            return held, first, last - first
        first = self.pick(range(held.granules))
        return held, first, self.pick([1, 1, 2, held.granules])

    def unmap(self):
        if not self.ranges:
            return self.reserve()
        held, first, granules = self.span()
        inside = [p for p in held.mapped if first <= p < first + granules]
        if all(p + held.mapped[p] <= first + granules for p in inside):
            for place in inside:
                del held.mapped[place]
        odd = self.pick([0, 0, 0, 0, 0, 0, 4096])
        self.add("unmap", [held.number, first * GRANULE + odd], granules * GRANULE)

    def set_access(self):
        if not self.ranges:
            return self.reserve()
        held, first, granules = self.span()
        places = ["DEVICE:0"] if self.chance(0.85) else [self.pick(["DEVICE:99", "HOST:0", "HOST_NUMA:0"])]
        if self.chance(0.1):
            places.append("DEVICE:0")
        if self.chance(0.03):
            places = []
        flags = [self.pick(["READWRITE", "READWRITE", "READWRITE", "READ", "NONE"]) for _ in places]
        odd = self.pick([0] * 12 + [4096])
        self.add("set_access", [held.number, first * GRANULE + odd], granules * GRANULE, places, flags)

    def get_access(self):
        if not self.ranges:
            return self.reserve()
        held, first, _ = self.span()
        place = self.pick(["DEVICE:0"] * 6 + ["DEVICE:99", "HOST:0", "HOST_NUMA:0"])
        self.add("get_access", [held.number, first * GRANULE + self.pick([0, 4096])], place)

    def release(self):
        if not self.chunks:
            return self.create()
        chunk = self.pick(list(self.chunks))
        if self.chance(0.85):
            del self.chunks[chunk]
        self.add("release", chunk)

    def retain(self):
        if not self.ranges:
            return self.reserve()
        if self.chance(0.15):
            return self.add("retain", self.pointer())
        held, first, _ = self.span()
        number = self.add("retain", [held.number, first * GRANULE + self.pick([0, 4096])])
        if first in held.mapped:
            self.chunks[number] = held.mapped[first]

    def share(self):
        if not self.chunks:
            return self.create()
        chunk = self.pick(list(self.chunks))
        self.chunks[self.add("share", chunk)] = self.chunks[chunk]

    def properties(self):
        if not self.chunks:
            return self.create()
        self.add("properties", self.pick(list(self.chunks)))

    def granularity(self):
        self.add("granularity", self.pick(["DEVICE:0", "HOST:0", "HOST_NUMA:0", "DEVICE:99", "INVALID:0"]))

    def free_range(self):
        if not self.ranges:
            return self.reserve()
        held = self.pick(self.ranges)
        if self.chance(0.75):
            if not held.mapped:
                self.ranges.remove(held)
                self.dead.append(held.number)
            self.add("free_range", [held.number, 0], held.granules * GRANULE)
        else:
            number = self.pick(self.dead) if self.dead and self.chance(0.5) else held.number
            self.add("free_range", [number, self.pick([0, GRANULE, 4096])], self.pick([0, 1, 2, 4]) * GRANULE)

    # --- plain, host and managed memory ---

    def made(self, kind, number, size):
        if 0 < size < 1 << 40:
            self.memory[kind].append(number)

    def alloc(self):
        size = self.pick([16, 1000, 4096, 65536, GRANULE]) if self.chance(0.9) else self.pick([0, 1 << 60])
        self.made("plain", self.add("alloc", size), size)

    def alloc_host(self):
        size = self.pick([16, 1000, 4096, 65536]) if self.chance(0.93) else 0
        flags = self.pick([None, 0, 1, 2, 4, 7]) if self.chance(0.95) else 8
        self.made("host", self.add("alloc_host", size, flags), size)

    def alloc_managed(self):
        size = self.pick([4096, 65536]) if self.chance(0.93) else 0
        self.made("managed", self.add("alloc_managed", size, self.pick([1, 1, 1, 2, 7])), size)

    def leave(self, numbers):
        number = self.pick(numbers)
        if self.chance(0.9):
            numbers.remove(number)
            self.dead.append(number)
        return number

    def free(self):
        kind = self.pick(["plain", "plain", "plain", "managed", "pooled"])
        if self.memory[kind] and self.chance(0.85):
            return self.add("free", [self.leave(self.memory[kind]), 0])
        self.add("free", self.pointer())

    def free_host(self):
        if self.memory["host"] and self.chance(0.8):
            return self.add("free_host", [self.leave(self.memory["host"]), 0])
        self.add("free_host", self.pointer())

    def free_async(self):
        kind = (
            "pooled"
            if self.memory["pooled"] and self.chance(0.85)
            else self.pick(["plain", "host", "managed"])
        )
        if self.memory[kind] and self.chance(0.85):
            return self.add("free_async", [self.leave(self.memory[kind]), 0], self.stream_of())
        self.add("free_async", self.pointer(), self.stream_of())

    def host_flags(self):
        self.add("host_flags", [self.pick(self.memory["host"]), 0] if self.memory["host"] else self.pointer())

    def device_pointer(self):
        good = self.memory["host"] and self.chance(0.7)
        self.add("device_pointer", [self.pick(self.memory["host"]), 0] if good else self.pointer())

    def register(self):
        self.add(
            "register",
            self.pick([0, 0, 4096, 64]),
            self.pick([4096, 65536, 100, 0]),
            self.pick([0, 0, 1, 2, 3, 16]),
        )

    def unregister(self):
        self.add("unregister", self.pick([0, 0, 0, 4096, 64]))

    def managed_pointer(self):
        good = self.memory["managed"] and self.chance(0.85)
        return [self.pick(self.memory["managed"]), 0] if good else self.pointer()

    def prefetch(self):
        place = self.pick(
            ["DEVICE:0", "DEVICE:0", "HOST:0", "HOST_NUMA:0", "DEVICE:99", "HOST_NUMA_CURRENT:0"]
        )
        bytes_ = self.pick([4096, 4096, 100, 0, 1 << 20])
        self.add("prefetch", self.managed_pointer(), bytes_, place, int(self.chance(0.05)), self.stream_of())

    def advise(self):
        place = self.pick(["DEVICE:0", "DEVICE:0", "HOST:0", "HOST_NUMA:0", "DEVICE:99"])
        self.add(
            "advise",
            self.managed_pointer(),
            self.pick([4096, 4096, 0, 1 << 20]),
            self.pick(range(1, 7)),
            place,
        )

    def range_attribute(self):
        name = self.pick(["READ_MOSTLY", "PREFERRED_LOCATION", "LAST_PREFETCH_LOCATION"])
        self.add("range_attribute", self.managed_pointer(), self.pick([4096, 4096, 0, 1 << 20]), name)

    # --- pools ---

    def pool(self):
        kind = "PINNED:DEVICE:0"
        if self.chance(0.2):
            kind = self.pick(["PINNED:HOST:0", "PINNED:HOST_NUMA:0", "PINNED:DEVICE:99", "MANAGED:DEVICE:0"])
        number = self.add(
            "pool", kind, self.pick(["NONE", "NONE", "POSIX_FILE_DESCRIPTOR"]), self.pick([0, 0, 64 << 20])
        )
        if not kind.endswith("99"):
            self.pools.append(number)

    def pool_alloc(self):
        if not self.pools:
            return self.pool()
        size = (
            self.pick([16, 256, 1000, 4096, 1 << 20, 3 << 20])
            if self.chance(0.93)
            else self.pick([0, 1 << 60])
        )
        number = self.add("pool_alloc", size, self.pick(self.pools), self.stream_of())
        self.made("pooled", number, size)

    def alloc_async(self):
        size = self.pick([16, 4096, 1 << 20]) if self.chance(0.95) else 0
        self.made("pooled", self.add("alloc_async", size, self.stream_of()), size)

    def with_pool(self, kind, *arguments):
        if not self.pools:
            return self.pool()
        self.add(kind, self.pick(self.pools), *arguments)

    def pool_attribute(self):
        self.with_pool(
            "pool_attribute", self.pick(["USED_MEM_CURRENT"] * 3 + ["USED_MEM_HIGH", "RELEASE_THRESHOLD"])
        )

    def pool_reserved(self):
        self.with_pool("pool_reserved")

    def set_pool_attribute(self):
        name = self.pick(["RELEASE_THRESHOLD", "RELEASE_THRESHOLD", "USED_MEM_HIGH", "USED_MEM_CURRENT"])
        self.with_pool("set_pool_attribute", name, self.pick([0, 0, 1 << 62, 5]))

    def trim(self):
        self.with_pool("trim", self.pick([0, 0, 32 << 20]))

    def pool_access(self):
        flag = self.pick(["READWRITE", "READWRITE", "READ", "NONE"])
        self.with_pool("pool_access", self.pick(["DEVICE:0", "DEVICE:0", "DEVICE:99", "HOST:0"]), flag)

    def get_pool_access(self):
        self.with_pool(
            "get_pool_access", self.pick(["DEVICE:0", "DEVICE:0", "DEVICE:99", "HOST:0", "HOST_NUMA:0"])
        )

    def destroy_pool(self):
        if not self.pools:
            return self.pool()
        number = self.pick(self.pools)
        self.pools.remove(number)
        self.add("destroy_pool", number)

    # --- streams and events ---

    def stream(self):
        number = self.add("stream", self.pick([1, 1, 0, 0, 7]) if self.chance(0.2) else self.pick([1, 1, 0]))
        if self.calls[-1][2] != 7:
            self.streams.append(number)

    def event(self):
        flags = self.pick([0, 2, 2, 1]) if self.chance(0.95) else self.pick([4, 64])
        number = self.add("event", flags)
        if flags < 4:
            self.events.append(number)

    def with_event(self, kind, *arguments):
        if not self.events:
            return self.event()
        self.add(kind, self.pick(self.events), *arguments)

    def record(self):
        self.with_event("record", self.stream_of())

    def wait(self):
        self.with_event("wait", self.stream_of(), int(self.chance(0.04)) * 2)

    def query_event(self):
        self.with_event("query_event")

    def sync_event(self):
        self.with_event("sync_event")

    def elapsed(self):
        if self.events:
            self.with_event("elapsed", self.pick(self.events))

    def destroy_event(self):
        if self.events:
            number = self.pick(self.events)
            self.events.remove(number)
            self.add("destroy_event", number)

    def query_stream(self):
        self.add("query_stream", self.stream_of())

    def sync_stream(self):
        self.add("sync_stream", self.stream_of())

    def sync_context(self):
        self.add("sync_context")

    def stream_facts(self):
        self.add("stream_facts", self.stream_of())

    def host_function(self):
        self.add("host_function", self.stream_of())

    def destroy_stream(self):
        if len(self.streams) > 1:
            number = self.pick(self.streams)
            self.streams.remove(number)
            self.add("destroy_stream", number)

    # --- captures ---

    def begin(self):
        if self.capturing and self.chance(0.7):
            return self.end()
        stream = self.stream_of()
        self.capturing.append(stream)
        self.add("begin", stream, self.pick(["GLOBAL", "THREAD_LOCAL", "RELAXED", "RELAXED"]))

    def end(self):
        if not self.capturing:
            return self.begin()
        stream = self.pick(self.capturing) if self.chance(0.9) else self.stream_of()
        if stream in self.capturing:
            self.capturing.remove(stream)
        self.graphs.append(self.add("end", stream))

    def whole_graph(self):
        """A capture of some work on one stream, and launches of it."""
        stream = self.pick(self.streams) if self.streams else "per thread"
        self.add("begin", stream, "RELAXED")
        for _ in range(self.pick([1, 2, 3])):
            size = self.pick([256, 4096, 1 << 20])
            number = self.add("alloc_async", size, stream)
            if self.chance(0.8):
                self.add("fill_async", 8, [number, 0], self.random.randrange(256), 64, stream)
            if self.chance(0.7):
                self.add("free_async", [number, 0], stream)
            else:
                self.memory["pooled"].append(number)
        self.graphs.append(self.add("end", stream))
        self.executables.append(self.add("instantiate", self.graphs[-1], self.pick([0, 0, 1])))
        for _ in range(self.pick([1, 1, 2])):
            self.add("launch", self.executables[-1], self.stream_of())

    def status(self):
        self.add(
            "status", self.pick(self.capturing) if self.capturing and self.chance(0.6) else self.stream_of()
        )

    def exchange(self):
        self.add("exchange", self.pick(["GLOBAL", "THREAD_LOCAL", "RELAXED"]))

    def instantiate(self):
        if not self.graphs:
            return self.begin()
        self.executables.append(self.add("instantiate", self.pick(self.graphs), self.pick([0, 0, 1])))

    def launch(self):
        if not self.executables:
            return self.instantiate()
        self.add("launch", self.pick(self.executables), self.stream_of())

    def graph_nodes(self):
        if self.graphs:
            self.add("graph_nodes", self.pick(self.graphs))

    def destroy_graph(self):
        if self.graphs and self.chance(0.5):
            number = self.pick(self.graphs)
            self.graphs.remove(number)
            self.add("destroy_graph", number)

    def destroy_executable(self):
        if self.executables and self.chance(0.7):
            number = self.pick(self.executables)
            self.executables.remove(number)
            self.add("destroy_executable", number)

    # --- use of memory ---

    def bytes_of_use(self):
        return self.pick([16, 16, 16, 64]) if self.chance(0.9) else self.pick([0, 4096, GRANULE, 1 << 30])

    def fill(self):
        self.add(
            "fill", self.pick([8, 8, 16, 32]), self.pointer(), self.random.randrange(256), self.bytes_of_use()
        )

    def fill_async(self):
        width = self.pick([8, 8, 16, 32])
        self.add(
            "fill_async",
            width,
            self.pointer(),
            self.random.randrange(256),
            self.bytes_of_use(),
            self.stream_of(),
        )

    def copy(self):
        form = self.pick(["DtoD", "HtoD", "DtoH", "any"])
        self.add("copy", form, self.pointer(), self.pointer(), self.bytes_of_use())

    def copy_async(self):
        form = self.pick(["DtoD", "HtoD", "DtoH", "any", "any"])
        self.add("copy_async", form, self.pointer(), self.pointer(), self.bytes_of_use(), self.stream_of())

    def read(self):
        self.add("read", self.pointer())

    def attributes(self):
        self.add("attributes", self.pointer())

    def address_range(self):
        self.add("address_range", self.pointer())

    # --- the whole ---

    def sequence(self, length):
        name = self.pick(list(THEMES))
        theme = THEMES[name]
        self.stream()
        if name in ("virtual", "mixed") and self.chance(0.8):
            self.reserve()
            self.create()
            self.map()
        if name in ("pool", "mixed") and self.chance(0.8):
            self.pool()
            self.pool_alloc()
        if name in ("plain", "capture", "stream") and self.chance(0.8):
            self.pick([self.alloc, self.alloc, self.alloc_host, self.alloc_managed])()
        if name in ("capture", "stream") and self.chance(0.8):
            self.event()
        while len(self.calls) < length:
            group = self.random.choices(list(theme), list(theme.values()))[0]
            kinds = WEIGHTS[group]
            getattr(self, self.random.choices(list(kinds), list(kinds.values()))[0])()
        return self.calls


def sequence(seed, length=24):
    """The sequence of a seed."""
    return Generator(seed).sequence(length)
