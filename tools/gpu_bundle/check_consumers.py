# SPDX-License-Identifier: Apache-2.0
"""Let other libraries read and write the memory of a buffer that has grown, and see that closing returns all of it.

    python check_consumers.py [NAME ...]

Each library runs in a process of its own. One that is not installed, or cannot be loaded beside this build of
cuda.core, is said so and is no failure: it was not checked. Exit code 1 when one that was loaded sees wrong bytes, or
memory does not come back.
"""

import subprocess
import sys

MIB = 1 << 20
STEP = 2 * MIB
NOT_LOADED = 3


class ArrayInterface:
    """Lends a buffer's memory through ``__cuda_array_interface__`` and keeps the buffer alive."""

    def __init__(self, buffer):
        self.buffer = buffer
        self.__cuda_array_interface__ = {
            "shape": (buffer.size,),
            "typestr": "|u1",
            "data": (int(buffer.handle), False),
            "version": 3,
            "strides": None,
        }


def with_cupy():
    import cupy

    def increment(buffer):
        memory = cupy.cuda.UnownedMemory(int(buffer.handle), buffer.size, buffer)
        by_pointer = cupy.ndarray((buffer.size,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
        by_interface = cupy.asarray(ArrayInterface(buffer))
        assert by_interface.data.ptr == by_pointer.data.ptr == int(buffer.handle)
        by_pointer += 1
        by_interface += 1
        cupy.cuda.get_current_stream().synchronize()
        return 2, cupy.asnumpy(by_interface).tobytes()

    return cupy.__version__, increment


def with_torch():
    import torch

    torch.zeros(1, device="cuda")

    def increment(buffer):
        tensor = torch.as_tensor(ArrayInterface(buffer), device="cuda")
        assert tensor.data_ptr() == int(buffer.handle)
        tensor += 1
        torch.cuda.synchronize()
        return 1, tensor.cpu().numpy().tobytes()

    return torch.__version__, increment


def with_numba():
    import numba
    from numba import cuda

    @cuda.jit
    def add_one(array):
        index = cuda.grid(1)
        if index < array.size:
            array[index] += 1

    def increment(buffer):
        array = cuda.as_cuda_array(ArrayInterface(buffer))
        add_one[(buffer.size + 255) // 256, 256](array)
        cuda.synchronize()
        return 1, array.copy_to_host().tobytes()

    cuda.current_context()
    return numba.__version__, increment


CONSUMERS = {"cupy": with_cupy, "torch": with_torch, "numba": with_numba}


def check(answer):
    result, *values = answer
    if result.name != "CUDA_SUCCESS":
        raise RuntimeError(f"the driver answered {result.name}")
    return values[0] if len(values) == 1 else values


def expected(size, added):
    return bytes((i + added) & 0xFF for i in range(256)) * (size // 256)


def one_job(increment):
    """Grow a buffer in place and by moving; let the library read and write it after each step; close it."""
    from cuda.bindings import driver
    from cuda.core import Device, VirtualMemoryResource, VirtualMemoryResourceOptions

    resource = VirtualMemoryResource(Device(0), VirtualMemoryResourceOptions(reserve_size=2 * STEP))
    buffer = resource.allocate(STEP)
    address = int(buffer.handle)
    added = {0: 0}
    for chunk in range(3):
        if chunk == 2:
            behind = int(check(driver.cuMemAddressReserve(STEP, 0, address + 2 * STEP, 0)))
        if chunk:
            buffer = resource.modify_allocation(buffer, (chunk + 1) * STEP)
        assert (int(buffer.handle) == address) == (chunk < 2), "in place once, then by moving"
        added[chunk] = 0
        check(driver.cuMemcpyHtoD(int(buffer.handle) + chunk * STEP, expected(STEP, 0), STEP))
        increase, seen = increment(buffer)
        added = {number: n + increase for number, n in added.items()}
        right = b"".join(expected(STEP, added[number]) for number in range(chunk + 1))
        assert seen == right, f"the library sees wrong bytes with {chunk + 1} chunks"
        found = bytearray(buffer.size)
        check(driver.cuMemcpyDtoH(found, int(buffer.handle), buffer.size))
        assert bytes(found) == right, f"the library's writes did not arrive with {chunk + 1} chunks"
    buffer.close()
    check(driver.cuMemAddressFree(behind, STEP))


def check_one(name):
    from cuda.bindings import driver
    from cuda.core import Device

    Device(0).set_current()
    try:
        version, increment = CONSUMERS[name]()
    except (ImportError, AttributeError) as error:
        print(f"{name}: not checked, {type(error).__name__}: {error}")
        return NOT_LOADED
    one_job(increment)  # the first use makes the library load its kernels
    free = check(driver.cuMemGetInfo())[0]
    for _ in range(8):
        one_job(increment)
    kept = free - check(driver.cuMemGetInfo())[0]
    print(
        f"{name} {version}: sees and changes every byte of a grown buffer; kept after eight more jobs: {kept} bytes"
    )
    return 1 if kept > 0 else 0


def main(names):
    if len(names) == 1:
        return check_one(names[0])
    codes = {
        name: subprocess.run([sys.executable, __file__, name], timeout=300, check=False).returncode
        for name in names or CONSUMERS
    }
    checked = [name for name, code in codes.items() if code == 0]
    failed = [name for name, code in codes.items() if code not in (0, NOT_LOADED)]
    print(f"passed: {', '.join(checked) or 'none'}; failed: {', '.join(failed) or 'none'}")
    return 1 if failed or not checked else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
