# SPDX-License-Identifier: Apache-2.0
"""Bytes into any buffer and out of it again, with nothing but the public methods of a buffer."""

import ctypes

from cuda.bindings import driver
from cuda.core import Buffer
from cuda.core.testing._contract import require

__all__ = ["get", "memory_of", "pattern", "put", "require_reachable"]

_ATTRIBUTES = (
    driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED,
    driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
)
_KINDS = {1: "host", 2: "device"}


def pattern(size, seed):
    """Return ``size`` bytes that differ from those of any other seed, and from themselves moved."""
    block = bytes((index * 7 + index // 251 + seed * 101) % 256 for index in range(4093))
    return (block * (size // len(block) + 1))[:size]


def memory_of(address):
    """Return what the driver says of an address: ``"host"``, ``"device"``, ``"managed"`` or None, and the device."""
    result, values = driver.cuPointerGetAttributes(len(_ATTRIBUTES), list(_ATTRIBUTES), address)
    if result != driver.CUresult.CUDA_SUCCESS:
        return None, None
    kind, managed, device = values
    return "managed" if managed else _KINDS.get(int(kind)), int(device)


def require_reachable(buffer):
    """Refuse to touch memory as the host where the driver says that only a device can: that would end the process."""
    if buffer.is_host_accessible and buffer.size:
        kind, _ = memory_of(buffer.handle)
        require(
            kind != "device",
            "is_host_accessible says whether the host can use the memory",
            f"it is True, and the driver says that {buffer.handle:#x} is memory of a device",
        )


def _host(data):
    """A borrowed buffer over a bytearray."""
    view = (ctypes.c_char * len(data)).from_buffer(data)
    return Buffer.from_handle(ctypes.addressof(view), len(data), owner=view)


def put(buffer, data, stream):
    """Write ``data`` to the beginning of a buffer; it is there when this returns."""
    require_reachable(buffer)
    if not data:
        return
    if buffer.is_host_accessible:
        stream.sync()
        with memoryview(buffer) as view:
            view[: len(data)] = data
        return
    with _host(bytearray(data)) as source, buffer[: len(data)] as part:
        part.copy_from(source, stream=stream)
        stream.sync()


def get(buffer, stream, size=None):
    """Read the first ``size`` bytes of a buffer, or all."""
    require_reachable(buffer)
    size = buffer.size if size is None else size
    if not size:
        return b""
    if buffer.is_host_accessible:
        stream.sync()
        with memoryview(buffer) as view:
            return bytes(view[:size])
    data = bytearray(size)
    with _host(data) as target, buffer[:size] as part:
        part.copy_to(target, stream=stream)
        stream.sync()
    return bytes(data)
