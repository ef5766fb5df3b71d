# SPDX-License-Identifier: Apache-2.0
"""Keep a key-value cache in one virtual buffer: grow it while work uses it, pause it for another job, and go on.

    python examples/kv_cache.py [--driver auto|sim|gpu] [--library auto|torch|cupy|none] [--steps N] [--block MIB]

Beside it runs what one does without virtual memory: allocate a larger buffer, copy, free the old one. Both do the same
work in each step: write a block of new entries, then read the whole cache. The work is done by PyTorch or CuPy through
DLPack where there is a GPU and the library; otherwise by copies and fills of cuda.core.

Then another job wants the memory. The virtual cache is paused and resumed at the same address, so that a captured graph
still fits; the other one has to be copied to the host by hand, freed, and allocated again wherever there is room.

Prints the time of each step and the most memory taken, side by side. Ends with exit code 1, and says what is wrong,
when the contents, an address or the memory is not as it should be.
"""

import argparse
import sys
import time
from pathlib import Path

MIB = 1 << 20


def from_grow_buffer(*names):
    """Return parts of the first example, which lies beside this one."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    try:
        import grow_buffer
    finally:
        del sys.path[0]
    return [getattr(grow_buffer, name) for name in names]


def expect(true, text):
    if not true:
        raise SystemExit(f"not as it should be: {text}")


# --- the work -----------------------------------------------------------------------------------------------------


class PlainWork:
    """Writes with fills, and reads by copying all of it to the host."""

    name = "copies and fills of cuda.core"

    def __init__(self, stream, most):
        from cuda.core import LegacyPinnedMemoryResource

        self.stream = stream
        self.staging = LegacyPinnedMemoryResource().allocate(most)

    def step(self, buffer, begin, end, value):
        """Write ``value`` into the new entries, and return the sum of all entries so far."""
        import numpy

        with buffer[begin:end] as new:
            new.fill(value, stream=self.stream)
        with buffer[:end] as entries, self.staging[:end] as there:
            entries.copy_to(there, stream=self.stream)
            self.stream.sync()
            return int(numpy.frombuffer(there, dtype=numpy.uint8).sum(dtype=numpy.int64))

    def close(self):
        self.staging.close()


class TorchWork:
    """Kernels of PyTorch on tensors that borrow the buffer; each goes away with the step, and its loan with it."""

    def __init__(self, stream, most):
        import torch

        self.torch = torch
        self.name = f"kernels of PyTorch {torch.__version__}"
        self.stream = torch.cuda.ExternalStream(int(stream.handle))

    def step(self, buffer, begin, end, value):
        with self.torch.cuda.stream(self.stream):
            entries = self.torch.from_dlpack(buffer)
            entries[begin:end].fill_(value)
            return int(entries[:end].sum(dtype=self.torch.int64))

    def close(self):
        self.torch.cuda.empty_cache()


class CupyWork:
    """The same with CuPy."""

    def __init__(self, stream, most):
        import cupy

        self.cupy = cupy
        self.name = f"kernels of CuPy {cupy.__version__}"
        newer = hasattr(cupy.cuda.Stream, "from_external")  # CuPy 14
        self.stream = (
            cupy.cuda.Stream.from_external(stream) if newer else cupy.cuda.ExternalStream(int(stream.handle))
        )

    def step(self, buffer, begin, end, value):
        with self.stream:
            entries = self.cupy.from_dlpack(buffer)
            entries[begin:end].fill(value)
            return int(entries[:end].sum(dtype=self.cupy.int64))

    def close(self):
        self.cupy.get_default_memory_pool().free_all_blocks()


def choose_work(library, on_gpu, stream, most):
    kinds = {"torch": TorchWork, "cupy": CupyWork, "none": PlainWork}
    if library != "auto":
        return kinds[library](stream, most)
    for name in ("torch", "cupy") if on_gpu else ():
        try:
            return kinds[name](stream, most)
        except ImportError:
            pass
    return PlainWork(stream, most)


# --- the two caches -----------------------------------------------------------------------------------------------


class VirtualCache:
    """One virtual buffer. Addresses for the largest size are reserved ahead, which takes no memory."""

    title = "virtual memory"

    def __init__(self, device, stream, most):
        from cuda.core import VirtualMemoryResource

        self.resource = VirtualMemoryResource(device, {"reserve_size": most})
        self.stream = stream
        self.buffer = None

    def grow(self, size):
        """Make room for more entries. Work that is in flight goes on; nothing waits and nothing is copied."""
        if self.buffer is None:
            self.buffer = self.resource.allocate(size, stream=self.stream)
        else:
            self.buffer = self.resource.modify_allocation(self.buffer, size)

    def make_room(self, graph):
        self.resource.pause(self.buffer, keep_contents=True)
        return graph

    def come_back(self, graph):
        self.resource.resume(self.buffer)
        return graph

    def close(self):
        self.buffer.close()


class CopiedCache:
    """A new buffer for each size, and a copy of what there was."""

    title = "allocate and copy"

    def __init__(self, device, stream, most):
        from cuda.core import LegacyPinnedMemoryResource, VirtualMemoryResource

        self.resource = VirtualMemoryResource(device)
        self.at_host = LegacyPinnedMemoryResource()
        self.device, self.stream = device, stream
        self.buffer = self.kept = None
        self.look = lambda: None  # measures the memory that is taken while there are two

    def grow(self, size):
        new = self.resource.allocate(size, stream=self.stream)
        if self.buffer is not None:
            with new[: self.buffer.size] as beginning:
                self.buffer.copy_to(beginning, stream=self.stream)
            self.look()
            self.buffer.close()  # which waits for the copy
        self.buffer = new

    def make_room(self, graph):
        """Also without the graph: it keeps the memory, and has an address that will not be the cache's again."""
        self.kept = self.at_host.allocate(self.buffer.size, stream=self.stream)
        self.buffer.copy_to(self.kept, stream=self.stream)
        graph.close()
        while self.buffer.loans:  # the driver tells a thread that the graph is gone
            time.sleep(0.001)
        self.buffer.close()

    def come_back(self, graph):
        self.buffer = self.resource.allocate(self.kept.size, stream=self.stream)
        self.buffer.copy_from(self.kept, stream=self.stream)
        self.kept.close()
        return capture(self.device, self)

    def close(self):
        self.buffer.close()


class Meter:
    """Measures time, and the device memory that is taken beyond what was taken at the start."""

    def __init__(self, driver):
        self.driver = driver
        self.free = driver.free_memory()
        self.most = 0

    def look(self):
        self.most = max(self.most, self.free - self.driver.free_memory())

    def timed(self, function, *arguments):
        """Return what a function returns, and how many milliseconds it took."""
        begin = time.perf_counter()
        result = function(*arguments)
        milliseconds = (time.perf_counter() - begin) * 1000
        self.look()
        return result, milliseconds


# --- the comparison -----------------------------------------------------------------------------------------------


class Result:
    """What became of one way to keep the cache."""

    def __init__(self):
        self.steps = []  # (milliseconds to grow, milliseconds of work) of each
        self.most = 0  # bytes of device memory
        self.away = self.back = 0.0  # milliseconds to make room and to come back
        self.same_address = False


def run(kind, driver, device, stream, work, steps, block):
    """Fill a cache step by step, and give its memory to another job for a while."""
    result, meter = Result(), Meter(driver)
    cache = kind(device, stream, steps * block)
    cache.look = meter.look
    total = 0
    for step in range(steps):
        value = step % 100 + 1
        _, growing = meter.timed(cache.grow, (step + 1) * block)
        found, working = meter.timed(work.step, cache.buffer, step * block, (step + 1) * block, value)
        total += value * block
        expect(found == total, f"{cache.title} holds what was written up to step {step}")
        result.steps.append((growing, working))
    result.most = meter.most

    graph = capture(device, cache)
    address, size, taken = cache.buffer.handle, cache.buffer.size, driver.free_memory()
    graph, result.away = meter.timed(cache.make_room, graph)
    expect(driver.free_memory() - taken >= size, f"{cache.title} gives its memory to another job")
    other_job(device, stream, size)
    graph, result.back = meter.timed(cache.come_back, graph)
    result.same_address = cache.buffer.handle == address
    graph.launch(stream)
    total += (101 - 1) * MIB  # the graph writes over the first entries, which were 1
    found = work.step(cache.buffer, size - 1, size, steps % 100)
    total += steps % 100 - ((steps - 1) % 100 + 1)
    expect(found == total, f"{cache.title} holds what it held before the other job")
    graph.close()
    while cache.buffer.loans:
        time.sleep(0.001)
    cache.close()
    return result


def capture(device, cache):
    """Capture work that has the cache's address in it."""
    builder = device.create_graph_builder().begin_building()
    with cache.buffer[:MIB] as beginning:
        beginning.fill(101, stream=builder)
    graph = builder.end_building().complete()
    builder.close()
    return graph


def other_job(device, stream, size):
    """Use as much memory as the cache had."""
    from cuda.core import VirtualMemoryResource

    with VirtualMemoryResource(device).allocate(size, stream=stream) as theirs:
        theirs.fill(255, stream=stream)


def print_results(block, virtual, copied):
    """Print both side by side."""
    print(f"{'':>22}  {VirtualCache.title:>24}  {CopiedCache.title:>24}")
    print(f"{'':>22}  {'grow':>11}  {'work':>11}  {'grow':>11}  {'work':>11}")
    print(f"{'-' * 22}  {'-' * 24}  {'-' * 24}")
    for step, times in enumerate(zip(virtual.steps, copied.steps, strict=True)):
        cells = "  ".join(f"{milliseconds:8.3f} ms" for pair in times for milliseconds in pair)
        print(f"{'cache of ' + str((step + 1) * block // MIB) + ' MiB':>22}  {cells}")
    for text, value in (
        ("grow, all steps", lambda result: f"{sum(grow for grow, _ in result.steps):.3f} ms"),
        ("most memory taken", lambda result: f"{result.most // MIB} MiB"),
        ("memory given away in", lambda result: f"{result.away:.3f} ms"),
        ("and taken back in", lambda result: f"{result.back:.3f} ms"),
        ("at the same address", lambda result: "yes" if result.same_address else "no"),
    ):
        print(f"{text:>22}  {value(virtual):>24}  {value(copied):>24}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Keep a key-value cache in one virtual buffer.")
    parser.add_argument("--driver", choices=("auto", "sim", "gpu"), default="auto")
    parser.add_argument("--library", choices=("auto", "torch", "cupy", "none"), default="auto")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--block", type=int, default=4, metavar="MIB", help="what each step adds; even")
    options = parser.parse_args(arguments)
    if options.steps < 2 or options.block < 2 or options.block % 2:
        parser.error("at least 2 steps are needed, and blocks of an even number of MiB")
    choose_driver, Driver = from_grow_buffer("choose_driver", "Driver")
    chosen = choose_driver(options.driver)
    print(f"driver: {chosen}")
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    driver = Driver()
    stream = device.create_stream()
    block = options.block * MIB
    work = choose_work(options.library, chosen != "the simulated driver", stream, options.steps * block)
    print(f"work: {work.name}\n")
    # A first round of everything, so that what a library loads and keeps is not measured.
    for kind in (CopiedCache, VirtualCache):
        run(kind, driver, device, stream, work, 2, block)
    free = driver.free_memory()
    copied = run(CopiedCache, driver, device, stream, work, options.steps, block)
    virtual = run(VirtualCache, driver, device, stream, work, options.steps, block)
    print_results(block, virtual, copied)
    expect(virtual.same_address, "the virtual cache is where it was")
    expect(virtual.most == options.steps * block, "the virtual cache has taken no more than its size")
    work.close()
    expect(driver.free_memory() >= free, "all memory is back")
    stream.close()
    print("\nthe contents are right, and all memory is back")


if __name__ == "__main__":
    main()
