# SPDX-License-Identifier: Apache-2.0
"""Exchange memory with other libraries through DLPack and the array interfaces, both ways, on every resource.

    python check_exchange.py [LIBRARY ...]

Of each resource a buffer is written on a stream of its own and lent to the library; the library must see the bytes
without a wait from the host, change them, and go on when the buffer is closed first. Of the library an array is viewed
and copied. Each library runs in a process of its own. Exit code 1 when something is wrong.
"""

import gc
import subprocess
import sys

SIZE = 1 << 20
NOT_LOADED = 3


class Library:
    """What the checks need of a library that reads device memory."""

    def __init__(self, module, synchronize, to_numpy, stream):
        self.module = module
        self.synchronize = synchronize
        self.to_numpy = to_numpy
        self.stream = (
            stream  # a context manager that makes a stream of the library current, and gives its address
        )

    def take(self, buffer):
        return self.module.from_dlpack(buffer)

    def arange(self, n):
        raise NotImplementedError

    def pointer(self, array):
        raise NotImplementedError


class Cupy(Library):
    def __init__(self):
        import contextlib

        import cupy

        @contextlib.contextmanager
        def stream(non_blocking=True):
            with cupy.cuda.Stream(non_blocking=non_blocking) as one:
                yield one.ptr

        super().__init__(cupy, cupy.cuda.runtime.deviceSynchronize, cupy.asnumpy, stream)

    def arange(self, n):
        return self.module.arange(n, dtype=self.module.uint8)

    def pointer(self, array):
        return array.data.ptr


class Torch(Library):
    def __init__(self):
        import contextlib

        import torch

        torch.zeros(1, device="cuda")

        @contextlib.contextmanager
        def stream(non_blocking=True):  # which all of them are, and none ever ends
            one = torch.cuda.Stream()
            with torch.cuda.stream(one):
                yield one.cuda_stream

        super().__init__(torch, torch.cuda.synchronize, lambda tensor: tensor.cpu().numpy(), stream)

    def take(self, buffer):
        if buffer.is_managed:  # which it knows only as memory of a device
            stream = self.module.cuda.current_stream().cuda_stream or 1
            return self.module.from_dlpack(
                buffer.__dlpack__(dl_device=(2, 0), stream=stream, max_version=(1, 0))
            )
        return self.module.from_dlpack(buffer)

    def arange(self, n):
        return self.module.arange(n, dtype=self.module.uint8, device="cuda")

    def pointer(self, array):
        return array.data_ptr()


def device_resources(device):
    from cuda.core import (
        DeviceMemoryResource,
        DeviceMemoryResourceOptions,
        ManagedMemoryResource,
        ManagedMemoryResourceOptions,
        VirtualMemoryResource,
    )

    yield "default pool", DeviceMemoryResource(device)
    yield "own pool", DeviceMemoryResource(device, DeviceMemoryResourceOptions())
    yield "virtual memory", VirtualMemoryResource(device)
    yield "managed pool", ManagedMemoryResource(ManagedMemoryResourceOptions())


def host_resources(device):
    from cuda.core import LegacyPinnedMemoryResource, PinnedMemoryResource, PinnedMemoryResourceOptions

    yield "legacy pinned", LegacyPinnedMemoryResource()
    yield "pinned pool", PinnedMemoryResource(PinnedMemoryResourceOptions())


def lend(library, device, resource):
    """Write on our stream, read on the library's, close the buffer first, go on, give the memory back."""
    stream = device.create_stream()
    buffer = resource.allocate(SIZE, stream=stream)
    for value in (7, 9):
        buffer.fill(value, stream=stream)
    with library.stream():
        array = library.take(buffer)
        assert library.pointer(array) == int(buffer.handle), "the library looks elsewhere"
        assert tuple(array.shape) == (buffer.size,), array.shape
        assert array.dtype == library.module.int8, array.dtype
        array += 1
        seen = library.to_numpy(array)
        assert (seen == 10).all(), f"written 9, the library adds 1 and sees {set(seen.tolist())}"
        assert buffer.loans >= 1, "the array is no loan"
        buffer.close()
        array += 1
        seen = library.to_numpy(array)
        assert (seen == 11).all(), f"after the close the library sees {set(seen.tolist())}"
        library.synchronize()
        del array
    gc.collect()
    library.synchronize()
    used = getattr(getattr(resource, "attributes", None), "used_mem_current", 0)
    stream.close()
    return used


def borrow(library, device):
    """View the library's array, copy it into a buffer on our stream, and the other way round."""
    import numpy

    from cuda.core import Buffer, DeviceMemoryResource
    from cuda.core.utils import StridedMemoryView

    pool = DeviceMemoryResource(device)
    stream = device.create_stream()
    for how in ("dlpack", "any"):
        array = library.arange(256)
        if how == "dlpack":
            view = StridedMemoryView.from_dlpack(array, stream_ptr=int(stream.handle))
        else:
            view = StridedMemoryView.from_any_interface(array, stream_ptr=int(stream.handle))
        assert view.ptr == library.pointer(array), how
        assert tuple(view.shape) == (256,), view.shape
        assert view.dtype == numpy.uint8, view.dtype
        assert view.is_device_accessible
        assert view.device_id == device.device_id
        source = Buffer.from_handle(view.ptr, 256, owner=array)
        target = pool.allocate(256, stream=stream)
        source.copy_to(target, stream=stream)
        back = library.module.from_dlpack(target)
        seen = library.to_numpy(back).view("uint8")
        assert (seen == numpy.arange(256, dtype="uint8")).all(), seen
        del back
        target.fill(5, stream=stream)
        target.copy_to(source, stream=stream)
        stream.sync()
        assert (library.to_numpy(array) == 5).all()
        source.close()
        target.close()
        del view
    stream.close()


def foreign_stream(library, device):
    """Use a stream of the library for allocating and freeing."""
    from cuda.core import DeviceMemoryResource, DeviceMemoryResourceOptions

    class Wrapped:
        def __init__(self, address):
            self.address = address

        def __cuda_stream__(self):
            return 0, self.address

    pool = DeviceMemoryResource(device, DeviceMemoryResourceOptions())
    with library.stream() as address:
        stream = device.create_stream(Wrapped(address))
        buffer = pool.allocate(SIZE, stream=stream)
        buffer.fill(3, stream=stream)
        array = library.module.from_dlpack(buffer)
        array += 1
        assert (library.to_numpy(array) == 4).all()
        del array
        buffer.close(stream)
        library.synchronize()
        stream.close()
    gc.collect()
    used = pool.attributes.used_mem_current
    pool.close()
    assert used == 0, used


def short_stream(library, device):
    """Let a consumer's stream end before its array, and both before the buffer."""
    from cuda.core import DeviceMemoryResource, DeviceMemoryResourceOptions

    pool = DeviceMemoryResource(device, DeviceMemoryResourceOptions())
    stream = device.create_stream()
    for _ in range(100):
        buffer = pool.allocate(SIZE, stream=stream)
        with library.stream(False):
            array = library.module.from_dlpack(buffer)
            array += 1
            library.synchronize()
        gc.collect()
        others = [device.create_stream() for _ in range(3)]  # that take the place of the one that is gone
        del array
        buffer.close()
        for other in others:
            other.close()
    stream.sync()
    used = pool.attributes.used_mem_current
    assert used == 0, used


def to_host(library, device):
    """Lend host memory to NumPy and to the library."""
    import numpy

    for name, resource in host_resources(device):
        stream = device.create_stream()
        buffer = resource.allocate(SIZE, stream=stream)
        buffer.fill(4, stream=stream)
        array = numpy.from_dlpack(buffer)
        assert (array == 4).all(), name
        array += 1
        buffer.close()
        assert (array == 5).all(), name
        del array
        stream.close()


LIBRARIES = {"cupy": Cupy, "torch": Torch}
LENT = ("default pool", "own pool", "virtual memory", "managed pool")
CHECKS = {check.__name__: check for check in (borrow, foreign_stream, short_stream, to_host)}


def check_one(name, title):
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    try:
        library = LIBRARIES[name]()
    except (ImportError, AttributeError) as error:
        print(f"{name}: not checked, {type(error).__name__}: {error}")
        return NOT_LOADED
    if title in CHECKS:
        CHECKS[title](library, device)
        print(f"{name}: {title}: passed")
        return 0
    used = lend(library, device, dict(device_resources(device))[title])
    print(f"{name}: {title}: seen, changed, kept after the close; used afterwards: {used}")
    return 0 if used == 0 else 1


def main(arguments):
    if len(arguments) == 2:
        return check_one(*arguments)
    failed, passed = [], 0
    for name in arguments or LIBRARIES:
        for title in (*LENT, *CHECKS):
            # A process each: one of them may take the process down with it.
            command = [sys.executable, "-X", "faulthandler", __file__, name, title]
            code = subprocess.run(command, timeout=100, check=False).returncode
            passed += code == 0
            if code not in (0, NOT_LOADED):
                failed.append(f"{name}: {title} (exit code {code})")
    print(f"passed: {passed}; failed: {', '.join(failed) or 'none'}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
