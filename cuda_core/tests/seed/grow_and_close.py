# SPDX-License-Identifier: Apache-2.0
"""A small program for any release of cuda.core: allocate on virtual memory, grow, close, and ask what came back.

It uses only what every release has, and it asks the driver, not the package, what is left.
"""

import gc

from cuda.bindings import driver
from cuda.core import Device, VirtualMemoryResource

MIB = 1 << 20


def check(answer):
    result, *values = answer
    if result != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(result.name)
    return values[0] if values else None


def free_memory():
    result, free, _total = driver.cuMemGetInfo()
    check((result,))
    return free


def reserve(address, size):
    return int(check(driver.cuMemAddressReserve(size, 0, address, 0)))


device = Device(0)
device.set_current()
free_at_start = free_memory()

resource = VirtualMemoryResource(device)
buffer = resource.allocate(2 * MIB)
old_address = int(buffer.handle)
data = bytes(range(256)) * (2 * MIB // 256)
check(driver.cuMemcpyHtoD(old_address, data, len(data)))

# The addresses behind the buffer are taken, so the grow has to move it.
behind = reserve(old_address + 2 * MIB, 2 * MIB)
grown = resource.modify_allocation(buffer, 4 * MIB)
del buffer
gc.collect()

found = bytearray(len(data))
check(driver.cuMemcpyDtoH(found, int(grown.handle), len(found)))
print(f"moved: {int(grown.handle) != old_address}")
print(f"bytes kept: {bytes(found) == data}")

grown.close()
check(driver.cuMemAddressFree(behind, 2 * MIB))
print(f"bytes not returned: {free_at_start - free_memory()}")
again = reserve(old_address, 2 * MIB)
print(f"old addresses free: {again == old_address}")
check(driver.cuMemAddressFree(again, 2 * MIB))
