# SPDX-License-Identifier: Apache-2.0
"""Let CuPy take the memory of all its arrays from a memory resource, and show that all of it comes back.

    python examples/cupy_allocator.py [--resource pool|virtual|managed]

Needs a GPU and CuPy. Ends with exit code 1, and says what is wrong, when an array lies elsewhere, a value is wrong, or
memory has not come back.

How it works: ``cupy.cuda.set_allocator`` takes a function from a size to a ``MemoryPointer``. The function below
allocates a buffer in the order of CuPy's current stream, and gives it to ``UnownedMemory`` as the owner. CuPy drops the
owner with the last array that uses the memory; that ends the buffer, which returns the memory in the order of the
stream. So nothing has to be told when an array dies, and an array may outlive the resource.
"""

import argparse
import gc
import sys
import threading
import weakref

MIB = 1 << 20


class CupyAllocator:
    """An allocator for ``cupy.cuda.set_allocator`` that takes memory from a resource of ``cuda.core``.

    Parameters
    ----------
    resource : MemoryResource
        Where the memory comes from. The device must be able to use it.
    device : Device
        The device whose arrays are allocated.

    Notes
    -----
    Safe from any thread. An allocation that fails raises the resource's own exception in the CuPy call that asked
    for memory. A stream of CuPy may end before its arrays: the buffer keeps it.
    """

    def __init__(self, resource, device):
        self.resource = resource
        self.device = device
        self.served = 0
        self._open = weakref.WeakValueDictionary()  # looks, and keeps nothing alive
        self._lock = threading.Lock()
        self._thread = threading.local()

    def __call__(self, size):
        import cupy

        device_id = cupy.cuda.runtime.getDevice()
        if device_id != self.device.device_id:
            raise ValueError(
                f"CuPy's current device is {device_id}, the resource serves device {self.device.device_id}"
            )
        if not hasattr(self._thread, "has_context"):
            # CuPy makes a context current with its first launch, which may come after the first allocation.
            self.device.set_current()
            self._thread.has_context = True
        stream = self.device.create_stream(cupy.cuda.get_current_stream())
        buffer = self.resource.allocate(size, stream=stream)
        address = int(buffer.handle)
        if address:
            self._open[address] = buffer
        with self._lock:
            self.served += 1
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, size, buffer, device_id), 0)

    def open_buffers(self):
        """Return the open buffers by their addresses."""
        return {address: buffer for address, buffer in self._open.items() if not buffer.is_closed}

    def holds(self, array):
        """Tell whether all bytes of an array lie in an open buffer of this allocator."""
        first = array.data.ptr
        return any(
            address <= first and first + array.nbytes <= address + buffer.size
            for address, buffer in self.open_buffers().items()
        )


def expect(true, text):
    if not true:
        raise SystemExit(f"not as it should be: {text}")


def make_resource(kind, device):
    from cuda.core import (
        DeviceMemoryResource,
        DeviceMemoryResourceOptions,
        ManagedMemoryResource,
        ManagedMemoryResourceOptions,
        VirtualMemoryResource,
    )

    if kind == "virtual":
        return VirtualMemoryResource(device)
    if kind == "managed":
        return ManagedMemoryResource(ManagedMemoryResourceOptions())
    return DeviceMemoryResource(device, DeviceMemoryResourceOptions())


def free_memory():
    """Bytes of device memory that nobody has taken."""
    from cuda.bindings import driver

    result, free, _total = driver.cuMemGetInfo()
    expect(result == driver.CUresult.CUDA_SUCCESS, f"the driver answered {result.name}")
    return free


def used_bytes(resource):
    """Bytes in use by the driver's own count, of a resource that is a pool; None of others."""
    attributes = getattr(resource, "attributes", None)
    return None if attributes is None else attributes.used_mem_current


def calculate(xp):
    """Arithmetic on integers, so that NumPy and CuPy must agree in every bit."""
    numbers = xp.arange(1 << 18, dtype=xp.int64)
    shuffled = (numbers * 7919) % 104729
    ordered = xp.sort(shuffled)
    table = ordered.reshape(512, 512)
    product = table.astype(xp.float64)[:64] @ xp.ones((512, 64))
    return [shuffled, ordered, xp.cumsum(ordered), table.T.copy(), product, table.sum(axis=0)]


def main_job(allocator, resource):
    """Run CuPy on the allocator; every line that is printed was checked before."""
    import cupy
    import numpy

    right = calculate(numpy)
    with cupy.cuda.Stream() as stream:  # a stream of CuPy's own, which ends before the arrays do
        arrays = calculate(cupy)
    stream.synchronize()
    for array, expected in zip(arrays, right, strict=True):
        expect(numpy.array_equal(cupy.asnumpy(array), expected), "CuPy's values are NumPy's in every element")
    print(f"{len(arrays)} arrays, all values as NumPy has them; {allocator.served} allocations served")

    expect(
        all(allocator.holds(array) for array in arrays), "every array lies in an open buffer of the resource"
    )
    held = sum(buffer.size for buffer in allocator.open_buffers().values())
    wanted = sum(array.nbytes for array in arrays)
    expect(held >= wanted, "the buffers are as large as the arrays")
    used = used_bytes(resource)
    expect(used is None or used >= held, "the driver counts as much")
    expect(cupy.get_default_memory_pool().total_bytes() == 0, "CuPy's own pool was never used")
    print(f"{wanted / MIB:.1f} MiB of arrays in {len(allocator.open_buffers())} buffers, none elsewhere")

    part = arrays[1][1000:2000]
    kept = part.data.ptr
    del stream, arrays[1], array
    gc.collect()
    expect(allocator.holds(part), "a part of an array keeps the memory of the whole")
    expect(
        numpy.array_equal(cupy.asnumpy(part), right[1][1000:2000]), "a part keeps its values, at its address"
    )
    expect(part.data.ptr == kept, "a part stays where it is")

    answers = []

    def other_thread():
        mine = cupy.arange(1000, dtype=cupy.int64) * 3
        expect(allocator.holds(mine), "a thread's array lies in the resource, too")
        answers.append(int(mine.sum()))

    threads = [threading.Thread(target=other_thread) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(answers == [3 * 499500] * 4, "four threads got memory and right values")

    before = len(allocator.open_buffers())
    try:
        cupy.empty(1 << 50, dtype=cupy.uint8)
    except Exception as error:
        print(f"1 PiB is refused by the resource itself: {type(error).__name__}")
    else:
        raise SystemExit("not as it should be: 1 PiB was given")
    expect(len(allocator.open_buffers()) == before, "a refusal takes nothing")
    expect(int(cupy.zeros(0).size) == 0, "an empty array is served")

    del arrays, part
    gc.collect()
    cupy.cuda.runtime.deviceSynchronize()
    expect(not allocator.open_buffers(), "every buffer is closed when its last array is gone")
    expect(used_bytes(resource) in (None, 0), "by the driver's count nothing is in use")
    print("every array's memory was returned")


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Let CuPy allocate from a memory resource.")
    parser.add_argument("--resource", choices=("pool", "virtual", "managed"), default="pool")
    options = parser.parse_args(arguments)
    try:
        import cupy
    except ImportError:
        raise SystemExit("CuPy is needed, and not installed") from None
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    resource = make_resource(options.resource, device)
    allocator = CupyAllocator(resource, device)
    print(f"CuPy {cupy.__version__} on {type(resource).__name__}, {device.name}")
    before = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(allocator)
    try:
        main_job(allocator, resource)
        # CuPy and the driver take memory of their own, for code and streams, as they go: not in every round.
        for _ in range(4):
            free = free_memory()
            print("once more:")
            main_job(allocator, resource)
            kept = free - free_memory()
            if kept <= 0:
                break
        expect(kept <= 0, f"each round took memory that did not come back, the last one {kept} bytes")
    finally:
        cupy.cuda.set_allocator(before)
    if hasattr(resource, "close"):
        resource.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
