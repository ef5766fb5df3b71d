# SPDX-License-Identifier: Apache-2.0
"""The work that is timed, through the public interface of cuda.core.

The same code measures this package and a released cuda-core. Every method returns nanoseconds for one operation. What
only prepares or cleans up is not timed.
"""

from time import perf_counter_ns

import bare_object
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    Device,
    DeviceMemoryResource,
    MemoryResource,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)


def check(answer):
    result, *values = answer
    if result != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver answered {result.name}")
    return values[0] if values else None


class PythonResource(MemoryResource):
    """A resource written in Python that does as little as one can."""

    def allocate(self, size, *, stream=None):
        raise MemoryError("this resource only takes back")

    def deallocate(self, ptr, size, *, stream=None):
        pass

    @property
    def is_device_accessible(self):
        return True

    @property
    def is_host_accessible(self):
        return False

    @property
    def device_id(self):
        return 0


class Workloads:
    def __init__(self, device=0):
        self.device = Device(device)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.resource = VirtualMemoryResource(self.device)
        self.python_resource = PythonResource()
        self.address = int(check(driver.cuMemAlloc(4096)))

    def allocate_and_close(self, count, size):
        allocate, stream = self.resource.allocate, self.stream
        start = perf_counter_ns()
        for _ in range(count):
            allocate(size, stream=stream).close()
        return (perf_counter_ns() - start) / count

    def pool_pair(self, count, size):
        resource = DeviceMemoryResource(self.device, {})  # of its own, so that nothing is kept afterwards
        allocate, stream = resource.allocate, self.stream
        start = perf_counter_ns()
        for _ in range(count):
            allocate(size, stream=stream).close()
        elapsed = perf_counter_ns() - start
        stream.sync()
        resource.close()
        return elapsed / count

    pool_pair_beside_captures = pool_pair  # which is what it always does; the floor is another

    def pool_pair_of_a_bare_object(self, count, size):
        """Not this package: what any Python object takes that makes the two calls."""
        pool = bare_object.load().BarePool(int(check(driver.cuDeviceGetMemPool(0))), int(self.stream.handle))
        allocate, stream = pool.allocate, self.stream
        start = perf_counter_ns()
        for _ in range(count):
            allocate(size, stream=stream).close()
        elapsed = perf_counter_ns() - start
        stream.sync()
        return elapsed / count

    def grow_in_place(self, count, size, step):
        resource = self._reserving(size + count * step)
        grow = resource.modify_allocation
        sizes = [size + i * step for i in range(1, count + 1)]
        buffer = resource.allocate(size, stream=self.stream)
        address = int(buffer.handle)
        times = []
        for new_size in sizes:
            start = perf_counter_ns()
            buffer = grow(buffer, new_size)
            times.append(perf_counter_ns() - start)
        assert int(buffer.handle) == address
        buffer.close()
        # The median: a driver that clears what was freed before lets one of them wait for tens of milliseconds.
        return sorted(times)[count // 2]

    def grow_by_moving(self, count, chunks, step):
        elapsed = 0
        for _ in range(count):
            resource, buffer = self._of_chunks(chunks, step)
            address = int(buffer.handle)
            # Where the driver does not grant the addresses behind the buffer, somebody else blocks them already.
            behind = int(check(driver.cuMemAddressReserve(step, 0, address + chunks * step, 0)))
            start = perf_counter_ns()
            grown = resource.modify_allocation(buffer, (chunks + 1) * step)
            elapsed += perf_counter_ns() - start
            assert int(grown.handle) != address
            check(driver.cuMemAddressFree(behind, step))
            grown.close()
        return elapsed / count

    def release(self, count, chunks, step):
        elapsed = 0
        for _ in range(count):
            _resource, buffer = self._of_chunks(chunks, step)
            start = perf_counter_ns()
            buffer.close()
            elapsed += perf_counter_ns() - start
        return elapsed / count

    def release_geometric(self, count, grows, step):
        """Release what has grown as often; mapping ahead has made few chunks of it."""
        options = VirtualMemoryResourceOptions(reserve_size=2 * grows * step, growth="geometric")
        resource = VirtualMemoryResource(self.device, options)
        elapsed = 0
        for _ in range(count):
            buffer = resource.allocate(step, stream=self.stream)
            for number in range(2, grows + 1):
                buffer = resource.modify_allocation(buffer, number * step)
            start = perf_counter_ns()
            buffer.close()
            elapsed += perf_counter_ns() - start
        return elapsed / count

    def borrow_and_close(self, count):
        from_handle, address = Buffer.from_handle, self.address
        start = perf_counter_ns()
        for _ in range(count):
            from_handle(address, 4096).close()
        return (perf_counter_ns() - start) / count

    def python_resource_and_close(self, count):
        from_handle, address, resource = Buffer.from_handle, self.address, self.python_resource
        start = perf_counter_ns()
        for _ in range(count):
            from_handle(address, 4096, mr=resource).close()
        return (perf_counter_ns() - start) / count

    def _reserving(self, size):
        return VirtualMemoryResource(self.device, VirtualMemoryResourceOptions(reserve_size=size))

    def _of_chunks(self, chunks, step):
        """Return a resource and its buffer of as many chunks, with no room left in the reservation."""
        resource = self._reserving(chunks * step)
        buffer = resource.allocate(step, stream=self.stream)
        for number in range(2, chunks + 1):
            buffer = resource.modify_allocation(buffer, number * step)
        return resource, buffer
