# SPDX-License-Identifier: Apache-2.0
# Made from _dlpack.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""DLPack exports: memory that is lent to another library in a capsule.

A capsule is a loan. It ends once: when the consumer calls the deleter, or, for a capsule that nobody consumed, with
the capsule. A deleter may be called on any thread, without the GIL, without a context, and after Python is gone.
"""

import enum

__all__ = ["DLDeviceType", "classify_dl_device"]

class DLDeviceType(enum.IntEnum):
    """Where DLPack says memory lies, for the places that this package knows."""

    kDLCPU = ...
    kDLCUDA = ...
    kDLCUDAHost = ...
    kDLCUDAManaged = ...

def classify_dl_device(buf: object) -> tuple[int, ...]:
    """Return the DLPack device type and device id of memory.

    Parameters
    ----------
    buf : object
        Anything with ``is_device_accessible``, ``is_host_accessible``, ``is_managed`` and ``device_id``, such as a
        buffer.

    Returns
    -------
    tuple of int
        ``(2, ordinal)`` for memory of a device, ``(3, 0)`` for pinned memory of the host, ``(13, 0)`` for managed
        memory, ``(1, 0)`` for other memory of the host.

    Raises
    ------
    BufferError
        If nobody can use the memory.
    """
