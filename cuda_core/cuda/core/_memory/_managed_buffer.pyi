# SPDX-License-Identifier: Apache-2.0
# Made from _managed_buffer.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""``ManagedBuffer``, a buffer that says where its memory shall be."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import MutableSet
from cuda.core._device import Device
from cuda.core._host import Host
from cuda.core._memory import MemoryResource
from cuda.core._memory._buffer import Buffer
from cuda.core._stream import Stream
from cuda.core.graph._graph_builder import GraphBuilder
from cuda.core.typing import DevicePointerType
from typing import Any

__all__ = ["ManagedBuffer"]

class AccessedBySetProxy(MutableSet['Device | Host']):
    """The places that a managed buffer is advised to be accessed by, as a live set.

    Reading asks the driver, adding and discarding advises it: nothing is kept here. The driver does not tell NUMA nodes
    apart, so the host is one element, ``Host()``.

    Notes
    -----
    Operators such as ``|`` and ``&`` give plain sets. Each access is a question to the driver, and what another thread
    changes meanwhile may be seen half way. Once the buffer is closed, everything raises an ``OwnershipError``.
    """

    def __init__(self, buf: ManagedBuffer) -> None:
        ...

    @classmethod
    def _from_iterable(cls, places: Iterable[Any]) -> set[Any]:
        ...

    def __contains__(self, location: object) -> bool:
        ...

    def __iter__(self) -> Iterator[Device | Host]:
        ...

    def __len__(self) -> int:
        ...

    def add(self, location: Device | Host) -> None:
        """Advise that ``location``, a Device or ``Host()``, will access the memory.

        Raises
        ------
        TypeError, ValueError
            If it is no place, or a NUMA node.
        OwnershipError, CUDAError
            If the buffer is closed, or the driver refuses.
        """

    def discard(self, location: Device | Host) -> None:
        """Withdraw the advice for ``location``. What cannot be in the set is passed over."""

    def __repr__(self) -> str:
        ...

class ManagedBuffer(Buffer):
    """Managed memory, with advice about where it shall be.

    :meth:`ManagedMemoryResource.allocate` returns such buffers; :meth:`from_handle` makes one around managed memory
    that exists already. The properties are the driver's own state: reading asks it, assigning advises it.

    Notes
    -----
    Methods may be called from any thread. The buffer is lent for the length of each driver call; a stream that is given
    does not order the release of the buffer (:meth:`Buffer.record_stream`). An empty buffer has nothing to advise:
    advice for it is checked, and changes nothing. Memory of a pool has the location that its pool was made with
    (:class:`ManagedMemoryResourceOptions`): CUDA 13.0 takes no other advice for it (``NOT_SUPPORTED``). Memory of
    ``cuMemAllocManaged`` takes all advice.

    Examples
    --------
    >>> managed = ManagedMemoryResource().allocate(1 << 20, stream=stream)
    >>> managed.prefetch(Device(0), stream=stream)
    >>> managed.read_mostly
    False
    """

    @classmethod
    def from_handle(cls, ptr: DevicePointerType, size: int, mr: MemoryResource | None = None, owner: object | None = None, *, stream: Stream | GraphBuilder | None = None, deallocate: Callable[[int, int, Stream | None], object] | None = None) -> ManagedBuffer:
        """Make a managed buffer around managed memory that exists already.

        Whether the memory is managed is the driver's to say: it is asked when advice is given.

        Parameters
        ----------
        ptr, size, mr, owner, stream, deallocate : object
            As for :meth:`Buffer.from_handle`: the address, the size in bytes, and what frees the memory in which
            stream's order.

        Returns
        -------
        ManagedBuffer
            OWNED with ``mr`` or ``deallocate``, BORROWED otherwise.

        Raises
        ------
        ValueError, TypeError, OwnershipError, RuntimeError
            As for :meth:`Buffer.from_handle`. A call that raises has taken nothing.

        Examples
        --------
        >>> managed = ManagedMemoryResource().allocate(1 << 20, stream=stream)
        >>> view = ManagedBuffer.from_handle(managed.handle, managed.size, owner=managed)
        >>> view.ownership
        <Ownership.BORROWED: 2>
        """

    @property
    def read_mostly(self) -> bool:
        """bool: whether the memory is advised to be read much more often than written, so that copies of it pay."""

    @read_mostly.setter
    def read_mostly(self, value: bool) -> None:
        ...

    @property
    def preferred_location(self) -> Device | Host | None:
        """Device, Host or None: where the memory is advised to be. Assign None to withdraw the advice.

        Assigning raises ``TypeError`` for what is no place, ``ValueError`` for a NUMA node that this machine lacks.
        """

    @preferred_location.setter
    def preferred_location(self, value: Device | Host | None) -> None:
        ...

    @property
    def accessed_by(self) -> AccessedBySetProxy:
        """AccessedBySetProxy: the places that are advised to access the memory, as a live set.

        Assign any iterable of Device and ``Host()`` to replace them all: everything is checked before the first advice
        is given.
        """

    @accessed_by.setter
    def accessed_by(self, locations: Iterable[Device | Host]) -> None:
        ...

    def prefetch(self, location: Device | Host, *, stream: Stream | GraphBuilder) -> None:
        """Move the pages to a place, in the order of a stream. Nothing waits.

        Parameters
        ----------
        location : Device or Host
            Where to.
        stream : Stream
            The stream that orders it. Not one that is being captured.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong, or the memory is not managed.
        OwnershipError
            If the buffer is closed, or being released or moved by another call.
        CUDAError
            If the driver refuses, or the stream is being captured, which goes on then.

        Examples
        --------
        >>> managed = ManagedMemoryResource().allocate(1 << 20, stream=stream)
        >>> managed.prefetch(Device(0), stream=stream)
        """

    def discard(self, *, stream: Stream | GraphBuilder) -> None:
        """Tell the driver that what the memory holds is not needed, in the order of a stream. Nothing waits.

        What it holds is undefined until it is written or prefetched again.

        Parameters
        ----------
        stream : Stream
            The stream that orders it. Not ``LEGACY_DEFAULT_STREAM``.

        Raises
        ------
        TypeError
            If ``stream`` is no stream, or the legacy default stream.
        ValueError, OwnershipError, CUDAError
            As for :meth:`prefetch`.

        Examples
        --------
        >>> managed = ManagedMemoryResource().allocate(1 << 20, stream=stream)
        >>> managed.discard(stream=stream)
        """

    def discard_prefetch(self, location: Device | Host, *, stream: Stream | GraphBuilder) -> None:
        """Discard what the memory holds and move the pages to a place, in the order of a stream. Nothing waits.

        Parameters
        ----------
        location : Device or Host
            Where to, as for :meth:`prefetch`.
        stream : Stream
            The stream that orders it. Not ``LEGACY_DEFAULT_STREAM``.

        Raises
        ------
        TypeError
            If an argument has the wrong type, or ``stream`` is the legacy default stream.
        ValueError, OwnershipError, CUDAError
            As for :meth:`prefetch`.

        Examples
        --------
        >>> managed = ManagedMemoryResource().allocate(1 << 20, stream=stream)
        >>> managed.discard_prefetch(Device(0), stream=stream)
        """
