# SPDX-License-Identifier: Apache-2.0
"""What travels between processes: the handle of a pool, which is a file descriptor, and the name of a buffer in it.

A descriptor is closed once, by C code: no finalizer of Python can be counted on when a process ends. Its number is
taken over only where the operating system has just given it to this process; a number that a message names is somebody
else's.
"""

import operator
import os
import uuid as uuids

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cuda.bindings cimport cydriver
from libc.errno cimport errno as last_error
from libcpp.atomic cimport atomic

from cuda.core._fork cimport fork_generation
from cuda.core._memory._arguments cimport size_argument

from cuda.core._error_text import shown
from cuda.core._sent_payload import check_of, ensure_as_sent
from cuda.core._start_method import warn_under_fork

__all__ = []

cdef extern from "<unistd.h>" nogil:
    int close_in_c "close"(int)

cdef extern from "<fcntl.h>" nogil:
    int fcntl(int, int, int)
    int F_DUPFD_CLOEXEC, F_SETFD, FD_CLOEXEC

cdef atomic[long] _live

PAYLOAD_BYTES = sizeof(cydriver.CUmemPoolPtrExportData)


cpdef long live_descriptors() noexcept:
    """Return how many file descriptors of pools this package has open."""
    return _live.load()


cdef int uuid_argument(object value) except -1:
    """Raise TypeError unless ``value`` is a UUID."""
    if not isinstance(value, uuids.UUID):
        raise TypeError(f"uuid must be a uuid.UUID, got {type(value).__name__}: {shown(value)}")
    return 0


cdef IPCAllocationHandle own_descriptor(int descriptor, object uuid):
    """Make a handle that closes an open descriptor, which is the handle's from now on."""
    cdef IPCAllocationHandle self = IPCAllocationHandle.__new__(IPCAllocationHandle)
    fcntl(descriptor, F_SETFD, FD_CLOEXEC)  # a program that is started by this one has no use for it
    self._descriptor = descriptor
    self._uuid = uuid
    _live.fetch_add(1)
    enable_sending_handles()
    return self


cdef IPCAllocationHandle duplicate_descriptor(int descriptor, object uuid):
    """Make a handle of a duplicate. The descriptor itself stays the caller's.

    Raises
    ------
    OSError
        If it is not open, or the process has too many.
    """
    cdef int duplicate = fcntl(descriptor, F_DUPFD_CLOEXEC, 0)
    if duplicate < 0:
        number = last_error
        raise OSError(number, f"{os.strerror(number)}: file descriptor {descriptor}")
    return own_descriptor(duplicate, uuid)


cdef class IPCAllocationHandle:
    """What another process needs to open a memory pool: a file descriptor, and the UUID of the pool.

    Get one from ``allocation_handle`` of a memory resource. It can be sent through ``multiprocessing``; the receiver
    gets a descriptor of its own.

    Notes
    -----
    Safe from any thread. A handle that is closed while another thread uses it is closed when that call ends. In the
    child of a fork it reads closed: its descriptor is the parent's to close.
    """

    def __cinit__(self):
        self._descriptor = -1
        self._generation = fork_generation()

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError(
            "IPCAllocationHandle objects cannot be made directly; they come from allocation_handle of a memory resource"
        )

    @classmethod
    def _init(cls, handle, uuid):
        """Make a handle of a duplicate of an open descriptor, which stays the caller's."""
        cdef int number
        if uuid is not None:
            uuid_argument(uuid)
        number = descriptor_argument(handle)
        return duplicate_descriptor(number, uuid)

    cdef int hold(self) except -1:
        """Return the descriptor, which stays open until :meth:`let_go`, whoever closes the handle."""
        cdef int descriptor
        with cython.critical_section(self):
            descriptor = -1 if self._is_closed() else self._descriptor
            self._users += descriptor >= 0
        if descriptor < 0:
            raise RuntimeError("IPCAllocationHandle has been closed")
        return descriptor

    cdef int let_go(self) noexcept:
        cdef bint last
        with cython.critical_section(self):
            self._users -= 1
            last = self._closing and not self._users
        if last:
            self._close()
        return 0

    cdef bint _is_closed(self) noexcept:
        return self._descriptor < 0 or self._closing or self._generation != fork_generation()

    cdef int _close(self) noexcept:
        cdef int descriptor
        with cython.critical_section(self):
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0 and self._generation == fork_generation():
            with nogil:
                close_in_c(descriptor)
            _live.fetch_sub(1)
        return 0

    def close(self) -> None:
        """Close the file descriptor. Closing twice is harmless. What was opened through it stays open."""
        with cython.critical_section(self):
            self._closing = True
            in_use = self._users
        if not in_use:
            self._close()

    def __dealloc__(self):
        self._close()

    @property
    def is_closed(self) -> bool:
        """bool: whether the descriptor was closed."""
        return self._is_closed()

    def __int__(self) -> int:
        if self._is_closed():
            raise ValueError("the IPCAllocationHandle is closed: it has no file descriptor any more")
        return self._descriptor

    @property
    def handle(self) -> int:
        """int: the file descriptor; -1 once it is closed. It stays this object's to close."""
        return -1 if self._is_closed() else self._descriptor

    @property
    def uuid(self) -> UUID:
        """uuid.UUID or None: what the pool is known by in all processes."""
        return self._uuid

    def __reduce__(self) -> Never:
        raise TypeError(
            "an IPCAllocationHandle can only be sent through multiprocessing: a pickle carries no file descriptor"
        )

    def __repr__(self) -> str:
        return f"<IPCAllocationHandle descriptor={self.handle} uuid={self._uuid}>"


def descriptor_argument(value):
    """Return the number of a file descriptor.

    Raises
    ------
    TypeError, ValueError
        If ``value`` is no integer, negative, or too large to be one.
    """
    if isinstance(value, bool):
        raise TypeError(f"a file descriptor must be an integer, got {shown(value)}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"a file descriptor must be an integer, got {type(value).__name__}: {shown(value)}") from None
    if not 0 <= number < 2**31:
        raise ValueError(f"a file descriptor must be non-negative and less than 2**31, got {number}")
    return number


# --- on the way ---------------------------------------------------------------------------------------------------


def _reduce_allocation_handle(handle):
    """Let a handle be sent through ``multiprocessing``, which sends a duplicate of the descriptor along."""
    from multiprocessing import reduction

    cdef IPCAllocationHandle self = handle
    warn_under_fork()
    cdef int descriptor = self.hold()
    try:
        duplicate = reduction.DupFd(descriptor)
    finally:
        self.let_go()
    return _reconstruct_allocation_handle, (IPCAllocationHandle, duplicate, self._uuid)


def _reconstruct_allocation_handle(cls, df, uuid):
    """Make the handle in the process that has received it. It owns the descriptor that has come along."""
    if cls is not IPCAllocationHandle:
        raise ValueError(f"what was received is no IPCAllocationHandle: {shown(cls)}")
    if uuid is not None:
        uuid_argument(uuid)
    return own_descriptor(_receive(df), uuid)


def _receive(df):
    """Return a descriptor that the operating system has given to this process and that nobody else here knows.

    A message can name any number. Only two ways are trusted: the socket of ``multiprocessing``, over which a new
    descriptor arrives, and what this process inherited, as long as it is being started by its parent.
    """
    from multiprocessing import process, resource_sharer

    kind = type(df)
    arrives = kind is resource_sharer.DupFd
    if not arrives and getattr(process.current_process(), "_inheriting", False):
        arrives = kind.__name__ == "_DupFd" and kind.__module__ in (
            "multiprocessing.popen_spawn_posix",
            "multiprocessing.popen_forkserver",
        )
    if not arrives:
        raise ValueError(f"no file descriptor has come along, got {kind.__name__}: {shown(df)}")
    try:
        number = df.detach()
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"no file descriptor has come along: {error}") from error
    if type(number) is not int or number < 0:
        raise ValueError(f"no file descriptor has come along, got {shown(number)}")
    return number


cdef int enable_sending_handles() except -1:
    """Tell multiprocessing how handles are sent. Not with the package: most programs never share anything.

    Before anything is pickled that may need it: a pickler takes the list of what it knows when it begins.
    """
    from multiprocessing import reduction

    reduction.register(IPCAllocationHandle, _reduce_allocation_handle)
    return 0


# --- buffers ------------------------------------------------------------------------------------------------------


cdef IPCBufferDescriptor describe_buffer(const void* payload, size_t size):
    cdef IPCBufferDescriptor self = IPCBufferDescriptor.__new__(IPCBufferDescriptor)
    self.payload = PyBytes_FromStringAndSize(<const char*>payload, PAYLOAD_BYTES)
    self.size = size
    return self


cdef class IPCBufferDescriptor:
    """The name of a buffer for other processes. Get one from :attr:`Buffer.ipc_descriptor`; it can be pickled.

    It holds nothing: the memory is the exporter's, who keeps it until all importers are done.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError(
            "IPCBufferDescriptor objects cannot be made directly; they come from Buffer.ipc_descriptor"
        )

    @staticmethod
    def _init(reserved, size, check=None):
        """Make a descriptor of the bytes that another process has sent.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If the payload has the wrong type or length, the size is none, or the two are not what was sent.
        """
        cdef bytes payload
        if not isinstance(reserved, bytes):
            raise TypeError(
                f"the payload of a buffer's descriptor must be bytes, got {type(reserved).__name__}: {shown(reserved)}"
            )
        if len(reserved) != PAYLOAD_BYTES:
            raise ValueError(
                f"the payload of a buffer's descriptor is {len(reserved)} bytes; expected {PAYLOAD_BYTES}"
            )
        payload = bytes(reserved)
        size = size_argument(size, "size")
        if check is not None:
            ensure_as_sent("buffer", check, payload, size)
        return describe_buffer(<const char*>payload, size)

    def __reduce__(self) -> tuple[object, ...]:
        return IPCBufferDescriptor._init, (self.payload, self.size, check_of("buffer", self.payload, self.size))

    @property
    def size(self) -> int:
        """int: the size of the buffer in bytes, as the exporter says."""
        return self.size

    def __repr__(self) -> str:
        return f"<IPCBufferDescriptor size={self.size}>"
