# SPDX-License-Identifier: Apache-2.0
"""Allocate a buffer on virtual memory, grow it in place, grow it by moving, close it, and show who owned what.

    python examples/grow_buffer.py [--driver auto|sim|gpu]

Runs on the GPU if there is one, else on the simulated driver. Ends with exit code 1, and says what is missing, when a
byte or an address has not come back.
"""

import argparse
import subprocess
import sys

MIB = 1 << 20

# Asked in a process of its own: a process keeps the first libcuda.so.1 that it loads.
DEVICES_OF_INSTALLED_DRIVER = """
count = ctypes.c_int(0)
try:
    libcuda = ctypes.CDLL("libcuda.so.1")
    if libcuda.cuInit(0) == 0:
        libcuda.cuDeviceGetCount(ctypes.byref(count))
except OSError:
    pass
print(count.value)
"""


def choose_driver(choice):
    """Load the simulated driver if asked for or if no GPU is there; return a text that tells which driver it is.

    Must run before anything imports ``cuda.core`` or ``cuda.bindings``.
    """
    simulated = sys.modules.get("cuda_driver_sim")
    if simulated is not None and simulated.is_active():  # started with python -m cuda_driver_sim
        return "the simulated driver"
    if choice == "auto":
        probe = [sys.executable, "-c", DEVICES_OF_INSTALLED_DRIVER]
        found = subprocess.run(probe, capture_output=True, text=True, check=False).stdout.strip()
        choice = "gpu" if found not in ("", "0") else "sim"
    if choice == "gpu":
        return "the installed driver"
    import cuda_driver_sim

    cuda_driver_sim.activate(real=False)
    return "the simulated driver"


class Driver:
    """The few driver calls with which this program looks at memory and addresses, past the package it shows."""

    def __init__(self):
        from cuda.bindings import driver

        self.api = driver

    def check(self, answer):
        result, *values = answer
        if result != self.api.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"the driver answered {result.name}")
        return values[0] if values else None

    def free_memory(self):
        """Bytes of device memory that nobody has taken."""
        result, free, _total = self.api.cuMemGetInfo()
        self.check((result,))
        return free

    def write(self, address, data):
        self.check(self.api.cuMemcpyHtoD(address, data, len(data)))

    def read(self, address, size):
        data = bytearray(size)
        self.check(self.api.cuMemcpyDtoH(data, address, size))
        return bytes(data)

    def reserve(self, address, size):
        """Reserve addresses, at ``address`` if they are free there; return where they are."""
        return int(self.check(self.api.cuMemAddressReserve(size, 0, address, 0)))

    def unreserve(self, address, size):
        self.check(self.api.cuMemAddressFree(address, size))

    def are_free(self, address, size):
        """Tell whether none of these addresses is reserved.

        A range that can be reserved is free. A driver may ignore the wish for an address, though; then each place is
        asked: it is taken if it has memory, or if memory can be mapped there.
        """
        granted = self.reserve(address, size)
        self.unreserve(granted, size)
        if granted == address:
            return True
        properties = self.api.CUmemAllocationProp()
        properties.type = self.api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = self.api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        chunk = self.check(self.api.cuMemCreate(2 * MIB, properties, 0))
        reserved = 0
        for place in range(address, address + size, 2 * MIB):
            result, mapped = self.api.cuMemRetainAllocationHandle(place)
            if result == self.api.CUresult.CUDA_SUCCESS:
                self.check(self.api.cuMemRelease(mapped))
                reserved += 1
            elif self.api.cuMemMap(place, 2 * MIB, 0, chunk, 0)[0] == self.api.CUresult.CUDA_SUCCESS:
                self.check(self.api.cuMemUnmap(place, 2 * MIB))
                reserved += 1
        self.check(self.api.cuMemRelease(chunk))
        return not reserved


class Table:
    """Prints one row for each buffer after each step, in columns."""

    HEADINGS = ("step", "buffer", "state", "address", "size", "mapped", "reserved", "memory taken")
    WIDTHS = (32, 6, 20, 14, 6, 6, 8, 12)

    def __init__(self, driver):
        self.driver = driver
        self.free_at_start = driver.free_memory()
        self.line(self.HEADINGS)
        self.line(["-" * width for width in self.WIDTHS])

    def line(self, cells):
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, self.WIDTHS, strict=True)).rstrip())

    def step(self, text, **buffers):
        """Print what a step left behind: the state of every buffer, and the device memory taken since the start."""
        taken = mib(self.free_at_start - self.driver.free_memory())
        for name, buffer in buffers.items():
            self.line((text, name, *self.describe(buffer), taken))
            text = taken = ""

    @staticmethod
    def describe(buffer):
        state = buffer.ownership.name
        if buffer.transferred_to is not None:
            state += f" to {buffer.transferred_to.name}"
        if buffer.is_closed:
            return state, "-", "-", "-", "-"
        sizes = (mib(n) for n in (buffer.size, buffer.mapped_size, buffer.capacity))
        return state, f"{int(buffer.handle):#x}", *sizes


def mib(size):
    return f"{size / MIB:g} MiB"


def pattern(size):
    """Return bytes in which a lost, moved or repeated block would be seen."""
    return b"".join(word.to_bytes(4, "little") for word in range(0, size, 4096) for _ in range(1024))


def main_job(driver):
    """Run the job, print its table, and return the address ranges that were reserved for it."""
    from cuda.core import Device, VirtualMemoryResource, VirtualMemoryResourceOptions

    device = Device(0)
    device.set_current()
    # A first copy makes the driver load what it needs for copies; that memory is the driver's, not this program's.
    warm_up(driver)
    print(f"device 0: {device.name}, {mib(driver.free_memory())} free")
    print()
    table = Table(driver)

    # Reserving addresses costs no memory, and makes it certain that growing up to 8 MiB keeps the address.
    resource = VirtualMemoryResource(device, VirtualMemoryResourceOptions(reserve_size=8 * MIB))
    a = resource.allocate(4 * MIB)
    table.step("allocate 4 MiB, reserve 8 MiB", a=a)
    first = (int(a.handle), a.capacity)
    written = pattern(4 * MIB)
    driver.write(int(a.handle), written)
    table.step("write a pattern", a=a)

    b = resource.modify_allocation(a, 8 * MIB)
    table.step("grow to 8 MiB, in place", a=a, b=b)
    expect(int(b.handle) == first[0], "growing inside the reserved addresses keeps the address")

    # Somebody else takes the addresses behind the buffer, so that it cannot grow where it is. (Where the driver does
    # not grant them, they are taken already.)
    behind = first[0] + first[1]
    taken = driver.reserve(behind, 2 * MIB)
    table.step("others take the addresses behind", b=b)
    c = resource.modify_allocation(b, 16 * MIB)
    table.step("grow to 16 MiB, by moving", b=b, c=c)
    expect(int(c.handle) != first[0], "the grown buffer has moved")
    second = (int(c.handle), c.capacity)
    expect(
        driver.read(int(c.handle), len(written)) == written, "every byte written at the start is still there"
    )
    table.step("read the pattern: all bytes kept", c=c)

    c.close()
    table.step("close", a=a, b=b, c=c)
    driver.unreserve(taken, 2 * MIB)
    print()
    return [first, second], table.free_at_start


def warm_up(driver):
    address = int(driver.check(driver.api.cuMemAlloc(4096)))
    driver.write(address, bytes(4096))
    driver.read(address, 4096)
    driver.check(driver.api.cuMemFree(address))


def expect(true, text):
    if not true:
        raise SystemExit(f"not as it should be: {text}")


def prove_returned(driver, ranges, free_at_start):
    """Print and check that memory and addresses came back, as the driver sees it."""
    free = driver.free_memory()
    expect(free >= free_at_start, f"{free_at_start - free} bytes of device memory were not returned")
    print(f"memory     {mib(free)} free, as at the start")
    for address, size in ranges:
        expect(driver.are_free(address, size), f"{size} bytes of addresses at {address:#x} are still taken")
        print(f"addresses  {mib(size):>6} at {address:#x} are free again")
    sim = sys.modules.get("cuda_driver_sim")
    if sim is not None:
        kinds = ("address_reservation", "physical_allocation", "mapping")
        left = {kind: number for kind, number in sim.live().items() if kind in kinds}
        expect(not left, f"still live in the driver: {left}")
        expect(not sim.refused(), f"the driver refused {sim.refused()}")
        print("driver     nothing live, no call refused")
    print("every byte returned")


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Grow a buffer on virtual memory and show who owns what.")
    parser.add_argument("--driver", choices=("auto", "sim", "gpu"), default="auto")
    options = parser.parse_args(arguments)
    print(f"driver: {choose_driver(options.driver)}")
    driver = Driver()
    driver.check(driver.api.cuInit(0))
    ranges, free_at_start = main_job(driver)
    prove_returned(driver, ranges, free_at_start)


if __name__ == "__main__":
    main()
