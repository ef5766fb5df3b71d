# SPDX-License-Identifier: Apache-2.0
"""Let PyTorch take the memory of all its CUDA tensors from a memory resource, and show that all of it comes back.

    python examples/torch_allocator.py [--resource pool|virtual|managed]

Needs a GPU, PyTorch, and a C++ compiler (named by ``CXX``, else ``c++``). Ends with exit code 1, and says what is
wrong, when a tensor lies elsewhere, a value is wrong, or memory has not come back.

How it works: ``torch.cuda.memory.CUDAPluggableAllocator`` wants a shared library with a function that allocates and one
that frees. The few lines of C++ below are that library, compiled at the start. They hand each call on to Python. They
are not left out, although PyTorch could call Python's functions: only C++ can throw the exception by which PyTorch
learns that there is no memory, and after the end of the interpreter only C++ can know that nobody may be called.
"""

import argparse
import atexit
import ctypes
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

MIB = 1 << 20

BRIDGE = r"""
#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <sys/types.h>

using Allocate = void *(*)(size_t size, int device, void *stream, char *text, size_t room);
using Deallocate = void (*)(void *address);
using RecordStream = void (*)(void *address, void *stream);

static std::atomic<Allocate> allocate_in_python;
static std::atomic<Deallocate> deallocate_in_python;
static std::atomic<RecordStream> record_stream_in_python;

extern "C" void bridge_connect(Allocate allocate, Deallocate deallocate, RecordStream record_stream) {
    allocate_in_python = allocate;
    deallocate_in_python = deallocate;
    record_stream_in_python = record_stream;
}

extern "C" void *bridge_allocate(ssize_t size, int device, void *stream) {
    Allocate allocate = allocate_in_python;
    if (!allocate)
        throw std::runtime_error("the allocator is not connected to a memory resource any more");
    if (size == 0)
        return nullptr;
    char text[1024] = "no memory";
    void *address = allocate(static_cast<size_t>(size), device, stream, text, sizeof text);
    if (!address)
        throw std::runtime_error(text);
    return address;
}

extern "C" void bridge_deallocate(void *address, size_t, int, void *) {
    Deallocate deallocate = deallocate_in_python;
    if (deallocate && address)
        deallocate(address);
}

extern "C" void bridge_record_stream(void *address, void *stream) {
    RecordStream record_stream = record_stream_in_python;
    if (record_stream && address)
        record_stream(address, stream);
}
"""

ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)
DEALLOCATE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
RECORD_STREAM = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def compile_bridge(folder):
    """Compile the bridge into a shared library in a folder; return its path."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise SystemExit("a C++ compiler is needed: set CXX to one")
    source, library = Path(folder) / "bridge.cpp", Path(folder) / "bridge.so"
    source.write_text(BRIDGE)
    subprocess.run(
        [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True
    )
    return library


class TorchAllocator:
    """Serves PyTorch's allocations from a resource of ``cuda.core``.

    Parameters
    ----------
    resource : MemoryResource
        Where the memory comes from. The device must be able to use it.
    device : Device
        The device whose tensors are allocated.

    Notes
    -----
    PyTorch calls from any thread. Each tensor's storage is one buffer, allocated in the order of PyTorch's current
    stream and returned in the order of that stream and of those given to ``Tensor.record_stream``. A free that fails
    keeps its buffer here, where it can be closed again.
    """

    def __init__(self, resource, device):
        self.resource = resource
        self.device = device
        self.served = 0
        self.recorded = 0
        self.buffers = {}  # by address
        self._lock = threading.Lock()
        self._thread = threading.local()
        self._folder = tempfile.TemporaryDirectory()
        self.path = compile_bridge(self._folder.name)
        self.library = ctypes.CDLL(str(self.path))
        # They must live as long as they can be called.
        self._functions = (
            ALLOCATE(self._allocate),
            DEALLOCATE(self._deallocate),
            RECORD_STREAM(self._record_stream),
        )
        self.library.bridge_connect.argtypes = (ALLOCATE, DEALLOCATE, RECORD_STREAM)
        self.library.bridge_connect.restype = None
        self.library.bridge_connect(*self._functions)
        atexit.register(self.disconnect)  # PyTorch frees until the process has ended, Python ends before

    def disconnect(self):
        """Call Python no more. What PyTorch frees from now on stays allocated."""
        self.library.bridge_connect(ALLOCATE(), DEALLOCATE(), RECORD_STREAM())

    def activate(self):
        """Make this PyTorch's allocator. To be called before PyTorch has used CUDA, and once in a process."""
        import torch

        # It loads the library by its path; the system gives it the one that is loaded here, and connected.
        allocator = torch.cuda.memory.CUDAPluggableAllocator(
            str(self.path), "bridge_allocate", "bridge_deallocate"
        )
        inner = allocator.allocator()
        if hasattr(inner, "set_record_stream_fn"):  # without it Tensor.record_stream would be forgotten
            inner.set_record_stream_fn(ctypes.cast(self.library.bridge_record_stream, ctypes.c_void_p).value)
        torch.cuda.memory.change_current_allocator(allocator)

    # -- what the bridge calls -------------------------------------------------------------------------------------

    def _allocate(self, size, device, stream, text, room):
        try:
            return self._serve(size, device, stream)
        except BaseException as error:  # nothing may pass through C++; it throws the text
            said = f"{type(self.resource).__name__} could not allocate {size} bytes: {error}"
            said = said.encode("ascii", "backslashreplace")[: room - 1]
            ctypes.memmove(text, said + b"\0", len(said) + 1)
            return None

    def _serve(self, size, device, stream):
        from cuda.core import Stream

        if device != self.device.device_id:
            raise ValueError(f"it serves device {self.device.device_id}, not device {device}")
        self._need_context()
        buffer = self.resource.allocate(size, stream=Stream.from_handle(stream or 0))
        address = int(buffer.handle)
        self.buffers[address] = buffer
        with self._lock:
            self.served += 1
        return address

    def _deallocate(self, address):
        self._need_context()
        # The entry goes before the free: then another thread may get the address, and make its own entry.
        buffer = self.buffers.pop(address)
        try:
            buffer.close()
        except BaseException:
            self.buffers[address] = buffer  # a close that raises has freed nothing
            raise  # ctypes reports it: PyTorch's destructors take no error

    def _record_stream(self, address, stream):
        from cuda.core import Stream

        self._need_context()
        self.buffers[address].record_stream(Stream.from_handle(stream or 0))
        with self._lock:
            self.recorded += 1

    def _need_context(self):
        # The legacy default stream is the current context's, and a thread of PyTorch may have none yet.
        if not hasattr(self._thread, "has_context"):
            self.device.set_current()
            self._thread.has_context = True

    # -- what can be asked -----------------------------------------------------------------------------------------

    def holds(self, tensor):
        """Tell whether all bytes of a tensor's storage lie in an open buffer of this allocator."""
        storage = tensor.untyped_storage()
        buffer = self.buffers.get(storage.data_ptr())
        return buffer is not None and storage.nbytes() <= buffer.size


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


def calculate(torch, place):
    """Arithmetic on integers that float64 holds exactly, so that CPU and GPU must agree in every bit."""
    numbers = (torch.arange(1 << 18, device=place) * 7919) % 104729
    ordered = torch.sort(numbers).values
    inputs = (numbers[: 64 * 256].reshape(64, 256) % 8).to(torch.float64)
    weights = (ordered[: 256 * 32].reshape(256, 32) % 8).to(torch.float64).requires_grad_()
    outputs = torch.relu(inputs @ weights - 1000.0)
    (outputs * outputs).sum().backward()  # the gradients are made on a thread of PyTorch
    return [
        numbers,
        ordered,
        torch.cumsum(ordered, 0),
        inputs,
        outputs.detach(),
        weights.detach(),
        weights.grad,
    ]


def main_job(allocator, resource):
    """Run PyTorch on the allocator; every line that is printed was checked before."""
    import torch

    right = calculate(torch, "cpu")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tensors = calculate(torch, "cuda")
    side.synchronize()
    for tensor, expected in zip(tensors, right, strict=True):
        expect(torch.equal(tensor.cpu(), expected), "the GPU's values are the CPU's in every element")
    print(f"{len(tensors)} tensors, all values as the CPU has them; {allocator.served} allocations served")

    expect(
        all(allocator.holds(tensor) for tensor in tensors),
        "every tensor lies in an open buffer of the resource",
    )
    held = sum(buffer.size for buffer in allocator.buffers.values())
    wanted = sum(tensor.nbytes for tensor in tensors)
    expect(held >= wanted, "the buffers are as large as the tensors")
    used = used_bytes(resource)
    expect(used is None or used >= held, "the driver counts as much")
    print(f"{wanted / MIB:.1f} MiB of tensors in {len(allocator.buffers)} buffers, none elsewhere")

    part = tensors[1][1000:2000]
    del tensors[1], tensor
    gc.collect()
    expect(allocator.holds(part), "a part of a tensor keeps the memory of the whole")
    expect(torch.equal(part.cpu(), right[1][1000:2000]), "a part keeps its values")

    shared = torch.full((1 << 20,), 5, device="cuda", dtype=torch.int64)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        total = shared.sum()
    shared.record_stream(side)
    del shared  # freed behind the sum, on the other stream
    side.synchronize()
    expect(int(total) == 5 << 20, "memory used on a second stream is freed behind it")
    print(f"Tensor.record_stream reached the buffer {allocator.recorded} time(s)")

    before = len(allocator.buffers)
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        expect("could not allocate" in str(error), f"the refusal is the resource's own, not: {error}")
        print(f"1 PiB is refused: {str(error).splitlines()[0]}")
    else:
        raise SystemExit("not as it should be: 1 PiB was given")
    expect(len(allocator.buffers) == before, "a refusal takes nothing")
    expect(torch.empty(0, device="cuda").numel() == 0, "an empty tensor is served")

    del tensors, part, total
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # PyTorch keeps these for the next product, also in our memory
    sizes = [buffer.size for buffer in allocator.buffers.values()]
    expect(not sizes, f"every buffer is closed when its last tensor is gone; open are {sizes}")
    expect(used_bytes(resource) in (None, 0), "by the driver's count nothing is in use")
    print("every tensor's memory was returned")


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Let PyTorch allocate from a memory resource.")
    parser.add_argument("--resource", choices=("pool", "virtual", "managed"), default="pool")
    options = parser.parse_args(arguments)
    try:
        import torch
    except ImportError:
        raise SystemExit("PyTorch is needed, and not installed") from None
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    resource = make_resource(options.resource, device)
    allocator = TorchAllocator(resource, device)
    allocator.activate()
    print(f"PyTorch {torch.__version__} on {type(resource).__name__}, {device.name}")
    main_job(allocator, resource)
    # PyTorch and the driver take memory of their own, for code and streams, as they go: not in every round.
    for _ in range(4):
        free = free_memory()
        print("once more:")
        main_job(allocator, resource)
        kept = free - free_memory()
        if kept <= 0:
            break
    expect(kept <= 0, f"each round took memory that did not come back, the last one {kept} bytes")
    if hasattr(resource, "close"):
        resource.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
