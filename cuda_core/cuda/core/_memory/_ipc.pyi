# SPDX-License-Identifier: Apache-2.0
# Made from _ipc.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""What travels between processes: the handle of a pool, which is a file descriptor, and the name of a buffer in it.

A descriptor is closed once, by C code: no finalizer of Python can be counted on when a process ends. Its number is
taken over only where the operating system has just given it to this process; a number that a message names is somebody
else's.
"""

from typing_extensions import Never
from uuid import UUID

__all__ = []

class IPCAllocationHandle:
    """What another process needs to open a memory pool: a file descriptor, and the UUID of the pool.

    Get one from ``allocation_handle`` of a memory resource. It can be sent through ``multiprocessing``; the receiver
    gets a descriptor of its own.

    Notes
    -----
    Safe from any thread. A handle that is closed while another thread uses it is closed when that call ends. In the
    child of a fork it reads closed: its descriptor is the parent's to close.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        ...

    def close(self) -> None:
        """Close the file descriptor. Closing twice is harmless. What was opened through it stays open."""

    @property
    def is_closed(self) -> bool:
        """bool: whether the descriptor was closed."""

    def __int__(self) -> int:
        ...

    @property
    def handle(self) -> int:
        """int: the file descriptor; -1 once it is closed. It stays this object's to close."""

    @property
    def uuid(self) -> UUID:
        """uuid.UUID or None: what the pool is known by in all processes."""

    def __reduce__(self) -> Never:
        ...

    def __repr__(self) -> str:
        ...

class IPCBufferDescriptor:
    """The name of a buffer for other processes. Get one from :attr:`Buffer.ipc_descriptor`; it can be pickled.

    It holds nothing: the memory is the exporter's, who keeps it until all importers are done.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        ...

    def __reduce__(self) -> tuple[object, ...]:
        ...

    @property
    def size(self) -> int:
        """int: the size of the buffer in bytes, as the exporter says."""

    def __repr__(self) -> str:
        ...

def live_descriptors() -> int:
    """Return how many file descriptors of pools this package has open."""
