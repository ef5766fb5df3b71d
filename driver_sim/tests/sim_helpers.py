# SPDX-License-Identifier: Apache-2.0
"""What the tests share: checked calls, mapped memory, processes."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import cuda_driver_sim as sim

sim.activate()

from cuda.bindings import driver as cu  # noqa: E402  (after activate, as it loads the driver)

GRANULE = 2 << 20


def ok(answer):
    """Return the values of a successful call."""
    error, *values = answer
    assert error == cu.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else tuple(values)


def run_python(program, *arguments, env=None):
    """Run Python source in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, env=env
    )


def start():
    """Initialise the driver in a process of its own, with the context of device 0 current."""
    ok(cu.cuInit(0))
    ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))


def run_test_program(program, *arguments, returncode=0):
    """Run a program that uses these helpers in a process of its own; return what it printed."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = run_python(program, *arguments, env=env)
    assert done.returncode == returncode, done.stderr
    return done.stdout


def properties_of_chunk():
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.requestedHandleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return properties


def make_pool(shareable=False, numa=None):
    properties = cu.CUmemPoolProps()
    if shareable:
        properties.handleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    if numa is not None:
        properties.location.type, properties.location.id = (
            cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA,
            numa,
        )
    return ok(cu.cuMemPoolCreate(properties))


def read_write():
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access


class Mapped:
    """One chunk of virtual memory, mapped and accessible; the creation reference is kept."""

    def __init__(self, size=GRANULE):
        self.size = size
        self.chunk = ok(cu.cuMemCreate(size, properties_of_chunk(), 0))
        self.base = int(ok(cu.cuMemAddressReserve(size, 0, 0, 0)))
        ok(cu.cuMemMap(self.base, size, 0, self.chunk, 0))
        ok(cu.cuMemSetAccess(self.base, size, [read_write()], 1))

    def close(self):
        ok(cu.cuMemUnmap(self.base, self.size))
        ok(cu.cuMemRelease(self.chunk))
        ok(cu.cuMemAddressFree(self.base, self.size))


def read(pointer, count):
    """Copy bytes of device memory to the host."""
    out = bytearray(count)
    ok(cu.cuMemcpyDtoH(out, pointer, count))
    return bytes(out)


def captured(stream, *work):
    """Make a graph of the calls on a stream."""
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    for each in work:
        ok(each())
    return ok(cu.cuStreamEndCapture(stream))


class UserObjects:
    """Makes user objects; knows the numbers of those whose destructors have been called, in order.

    ``called`` gets the number before it is noted.
    """

    def __init__(self, called=lambda number: None):
        self.ended = []
        self.destroy = HostFunction(lambda number: (called(number), self.ended.append(number)))

    def make(self, number, references=1):
        return ok(cu.cuUserObjectCreate(number, self.destroy.pointer, references, 1))

    def give(self, graph, number):
        """The graph alone holds a new one."""
        ok(cu.cuGraphRetainUserObject(graph, self.make(number), 1, 1))


class HostFunction:
    """A Python function of a number, for the driver to call while this lives."""

    def __init__(self, function):
        self.function = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(function)
        self.pointer = cu.CUhostFn(_ptr=ctypes.addressof(self.function))

    def on(self, stream, number=0):
        """The call that puts it on a stream."""
        return lambda: cu.cuLaunchHostFunc(stream, self.pointer, number)


def soon(true):
    """Whether something becomes true within seconds."""
    end = time.monotonic() + 20
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True
