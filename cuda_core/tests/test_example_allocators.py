# SPDX-License-Identifier: Apache-2.0
"""The examples that put a resource behind the allocators of CuPy and PyTorch.

What runs only with the library and a GPU is run as a program. The bridge between PyTorch's C++ and Python is also
called here as PyTorch calls it, on any driver.
"""

import ctypes
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from cuda.core import DeviceMemoryResource, DeviceMemoryResourceOptions, Ownership
from support import fill, given_back, holds, race, still_allocated

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# As PyTorch holds the two functions: behind std::function, and what is thrown becomes a Python error.
CALLER = r"""
#include <cstring>
#include <exception>
#include <functional>
extern "C" void *call_allocate(void *function, long size, int device, void *stream, char *text, long room) {
    std::function<void *(size_t, int, void *)> allocate =
        reinterpret_cast<void *(*)(ssize_t, int, void *)>(function);
    try {
        return allocate(size, device, stream);
    } catch (const std::exception &error) {
        std::strncpy(text, error.what(), room - 1);
        return nullptr;
    }
}
"""


def load(name):
    specification = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.alone  # it looks at how much memory of the device is free
@pytest.mark.parametrize("kind", ["pool", "virtual", "managed"])
@pytest.mark.parametrize(("program", "library"), [("cupy_allocator", "cupy"), ("torch_allocator", "torch")])
def test_the_program_proves_that_all_memory_was_ours_and_came_back(driver_name, program, library, kind):
    if driver_name != "gpu" or importlib.util.find_spec(library) is None:
        pytest.skip(f"needs a GPU and {library}")
    run = subprocess.run(
        [sys.executable, EXAMPLES / f"{program}.py", f"--resource={kind}"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("memory was returned") >= 2, run.stdout


@pytest.mark.parametrize("program", ["cupy_allocator", "torch_allocator"])
def test_the_program_says_what_it_needs(program, tmp_path):
    for name in ("cupy", "torch"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')")
    run = subprocess.run(
        [sys.executable, EXAMPLES / f"{program}.py"],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert run.returncode == 1
    assert "is needed, and not installed" in run.stderr


class Caller:
    """Calls the bridge's functions as PyTorch does."""

    def __init__(self, allocator, library):
        self._call = ctypes.CDLL(str(library)).call_allocate
        self._call.restype = ctypes.c_void_p
        self._call.argtypes = (
            ctypes.c_void_p,
            ctypes.c_long,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_long,
        )
        again = ctypes.CDLL(str(allocator.path))  # PyTorch loads it by its path
        self._function = ctypes.cast(again.bridge_allocate, ctypes.c_void_p).value
        self._free = again.bridge_deallocate
        self._free.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        self._free.restype = None
        self._record = again.bridge_record_stream
        self._record.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._record.restype = None

    def allocate(self, size, device=0, stream=0):
        text = ctypes.create_string_buffer(2048)
        address = self._call(self._function, size, device, stream, text, len(text))
        return address, text.value.decode()

    def free(self, address, size, device=0, stream=0):
        self._free(address, size, device, stream)

    def record_stream(self, address, stream):
        self._record(address, stream)


@pytest.fixture
def pool(device):
    resource = DeviceMemoryResource(device, DeviceMemoryResourceOptions())
    yield resource
    resource.close()


@pytest.fixture
def allocator(device, pool):
    allocator = load("torch_allocator").TorchAllocator(pool, device)
    yield allocator
    allocator.disconnect()
    allocator.buffers.clear()


@pytest.fixture(scope="module")
def calling_library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caller")
    source, library = folder / "caller.cpp", folder / "caller.so"
    source.write_text(CALLER)
    subprocess.run(["c++", "-std=c++17", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.fixture
def caller(allocator, calling_library):
    return Caller(allocator, calling_library)


def test_the_bridge_serves_from_the_resource_and_returns(caller, allocator, pool, device):
    stream = device.create_stream()
    for at in (0, int(stream.handle)):
        address, said = caller.allocate(4096, stream=at)
        assert said == ""
        assert allocator.buffers[address].memory_resource is pool
        assert pool.attributes.used_mem_current >= 4096
        fill(address, 4096, seed=1)
        assert holds(address, 4096, seed=1)
        caller.free(address, 4096, stream=at)
        assert allocator.buffers == {}
        assert pool.attributes.used_mem_current == 0
    stream.close()


def test_threads_without_a_context_call_the_bridge(caller, allocator):
    def work():
        for _ in range(20):
            address, said = caller.allocate(512)
            assert said == ""
            caller.free(address, 512)
        return "done"

    assert race(*[work] * 4) == ["done"] * 4
    assert (allocator.buffers, allocator.served) == ({}, 80)


@pytest.mark.provokes_refusals
def test_no_memory_is_an_exception_in_c_plus_plus(caller, allocator):
    address, said = caller.allocate(1 << 50)
    assert address is None
    assert "DeviceMemoryResource could not allocate 1125899906842624 bytes" in said
    assert "OUT_OF_MEMORY" in said
    address, said = caller.allocate(512, device=1)
    assert (address, "serves device 0, not device 1" in said) == (None, True)
    assert allocator.buffers == {}


def test_nothing_is_asked_for_no_bytes(caller, allocator):
    assert caller.allocate(0) == (None, "")
    caller.free(None, 0)
    assert allocator.served == 0


def test_a_recorded_stream_orders_the_free(caller, allocator, device):
    one, other = device.create_stream(), device.create_stream()
    address, _ = caller.allocate(4096, stream=int(one.handle))
    caller.record_stream(address, int(other.handle))
    assert allocator.recorded == 1
    buffer = allocator.buffers[address]
    caller.free(address, 4096, stream=int(one.handle))
    assert buffer.ownership is Ownership.RELEASED
    device.sync()
    one.close()
    other.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_free_that_fails_keeps_the_buffer(caller, allocator, driver_watch, monkeypatch):
    address, _ = caller.allocate(4096)
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(str(unraisable.exc_value)))
    with driver_watch.fail("cuMemFreeAsync", result="CUDA_ERROR_UNKNOWN"):
        caller.free(address, 4096)
    assert len(seen) == 1
    assert "CUDA_ERROR_UNKNOWN" in seen[0]
    assert allocator.buffers[address].ownership is Ownership.OWNED
    assert still_allocated(address)
    caller.free(address, 4096)
    assert allocator.buffers == {}


def test_after_the_end_nobody_is_called(caller, allocator):
    address, _ = caller.allocate(4096)
    allocator.disconnect()
    caller.free(address, 4096)
    assert allocator.buffers[address].ownership is Ownership.OWNED
    assert caller.allocate(512)[0] is None
    assert "not connected" in caller.allocate(512)[1]
    allocator.buffers.pop(address).close()
    assert given_back(address)
