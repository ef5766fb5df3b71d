# SPDX-License-Identifier: Apache-2.0
"""Time allocate and close through each adaptor of ``cuda.core.adaptors``, against the resource inside.

    python benchmarks/adaptors.py [--driver auto|sim|gpu] [--rounds N]

The sides take turns in one process. What counts is the ratio, and what an adaptor adds; a minimal wrapper written in
Python stands beside them, since that is what most of the cost is.
"""

import argparse
import logging
import statistics
import sys
from pathlib import Path
from time import perf_counter_ns

SIZE = 1024
COUNT = 2000


def minimal_wrapper(inner):
    """The least that a wrapper can do: keep the inner buffer in a table, and close it."""
    from cuda.core import Buffer, MemoryResource

    class Minimal(MemoryResource):
        is_device_accessible, is_host_accessible, device_id = True, False, 0

        def __init__(self):
            self.buffers = {}

        def allocate(self, size, *, stream=None):
            buffer = inner.allocate(size, stream=stream)
            address = buffer.handle
            self.buffers[address] = buffer
            return Buffer.from_handle(address, size, mr=self, stream=stream)

        def deallocate(self, ptr, size, *, stream=None):
            self.buffers.pop(ptr).close(stream)

    return Minimal()


def sides(pool):
    from cuda.core.adaptors import (
        FailingAdaptor,
        LimitAdaptor,
        LoggingAdaptor,
        MemoryResourceAdaptor,
        StatisticsAdaptor,
        TrackingAdaptor,
    )

    silent = logging.Logger("silent", logging.WARNING)
    return {
        "the pool itself": pool,
        "a minimal wrapper in Python": minimal_wrapper(pool),
        "MemoryResourceAdaptor": MemoryResourceAdaptor(pool),
        "StatisticsAdaptor": StatisticsAdaptor(pool),
        "LimitAdaptor": LimitAdaptor(pool, 1 << 30),
        "LoggingAdaptor, level off": LoggingAdaptor(pool, silent),
        "FailingAdaptor, no request": FailingAdaptor(pool),
        "TrackingAdaptor, 8 frames": TrackingAdaptor(pool),
        "TrackingAdaptor, no frames": TrackingAdaptor(pool, frames=0),
    }


def time_pairs(resource, stream):
    """Return nanoseconds for one allocation and its close."""
    allocate = resource.allocate
    start = perf_counter_ns()
    for _ in range(COUNT):
        allocate(SIZE, stream=stream).close()
    return (perf_counter_ns() - start) / COUNT


def main():
    parser = argparse.ArgumentParser(description="Time allocate and close through the adaptors.")
    parser.add_argument("--driver", choices=("auto", "sim", "gpu"), default="auto")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
    from grow_buffer import choose_driver

    print(f"driver: {choose_driver(options.driver)}")
    from cuda.core import Device, DeviceMemoryResource

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    pool = DeviceMemoryResource(device, {})
    times = {name: [] for name in sides(pool)}
    timed = sides(pool)
    for number in range(options.rounds + 1):
        for name, resource in timed.items():
            taken = time_pairs(resource, stream)
            if number:  # the first round warms up
                times[name].append(taken)
    base = statistics.median(times["the pool itself"])
    print(f"{'allocate 1 KiB and close':<30}{'median us':>10}{'ratio':>8}{'adds us':>9}")
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"{name:<30}{middle / 1e3:>10.2f}{middle / base:>8.2f}{(middle - base) / 1e3:>9.2f}")
    timed.clear()
    stream.sync()
    pool.close()


if __name__ == "__main__":
    main()
