# SPDX-License-Identifier: Apache-2.0
"""``ManagedBuffer``, a buffer that says where its memory shall be."""

from collections.abc import MutableSet

from cuda.bindings cimport cydriver

from cuda.core._memory._buffer cimport Buffer, take_handle
from cuda.core._memory._location cimport is_place
from cuda.core._memory._managed_operations cimport (
    advise,
    read_accessed_by,
    read_flag,
    read_preferred_location,
)

from cuda.core._error_text import shown
from cuda.core._host import Host
from cuda.core._memory._managed_operations import discard, discard_prefetch, prefetch

__all__ = ["ManagedBuffer"]


cdef bint _is_numa_host(object place) except -1:
    return isinstance(place, Host) and (place.is_numa_current or place.numa_id is not None)


cdef int _ensure_accessor(object place, str text) except -1:
    """Refuse what cannot be advised to access memory, before any driver call."""
    if not is_place(place):
        raise TypeError(f"{text}, got {type(place).__name__}: {shown(place)}")
    if _is_numa_host(place):
        kind = "host_numa_current" if place.is_numa_current else "host_numa"
        raise ValueError(
            f"advise CU_MEM_ADVISE_SET_ACCESSED_BY does not support location_type='{kind}' ({shown(place)})"
        )
    return 0


class AccessedBySetProxy(MutableSet["Device | Host"]):
    """The places that a managed buffer is advised to be accessed by, as a live set.

    Reading asks the driver, adding and discarding advises it: nothing is kept here. The driver does not tell NUMA nodes
    apart, so the host is one element, ``Host()``.

    Notes
    -----
    Operators such as ``|`` and ``&`` give plain sets. Each access is a question to the driver, and what another thread
    changes meanwhile may be seen half way. Once the buffer is closed, everything raises an ``OwnershipError``.
    """

    __slots__ = ("_buffer",)

    def __init__(self, buf: ManagedBuffer) -> None:
        self._buffer = buf

    @classmethod
    def _from_iterable(cls, places: Iterable[Any]) -> set[Any]:
        return set(places)

    def __contains__(self, location: object) -> bool:
        return is_place(location) and location in read_accessed_by(self._buffer)

    def __iter__(self) -> Iterator[Device | Host]:
        return iter(read_accessed_by(self._buffer))

    def __len__(self) -> int:
        return len(read_accessed_by(self._buffer))

    def add(self, location: Device | Host) -> None:
        """Advise that ``location``, a Device or ``Host()``, will access the memory.

        Raises
        ------
        TypeError, ValueError
            If it is no place, or a NUMA node.
        OwnershipError, CUDAError
            If the buffer is closed, or the driver refuses.
        """
        _ensure_accessor(location, "expected Device or Host")
        advise(self._buffer, cydriver.CUmem_advise.CU_MEM_ADVISE_SET_ACCESSED_BY, location)

    def discard(self, location: Device | Host) -> None:
        """Withdraw the advice for ``location``. What cannot be in the set is passed over."""
        if is_place(location) and not _is_numa_host(location):
            advise(self._buffer, cydriver.CUmem_advise.CU_MEM_ADVISE_UNSET_ACCESSED_BY, location)

    def __repr__(self) -> str:
        return f"AccessedBySetProxy({set(read_accessed_by(self._buffer))!r})"


cdef int _replace(ManagedBuffer buffer, set wanted) except -1:
    """Make the advice equal to a set. If a step is refused, those before it are undone as far as the driver lets."""
    cdef int withdraw = cydriver.CUmem_advise.CU_MEM_ADVISE_UNSET_ACCESSED_BY
    cdef int give = cydriver.CUmem_advise.CU_MEM_ADVISE_SET_ACCESSED_BY
    cdef list steps = [], done = []
    now = set(read_accessed_by(buffer))
    for place in now - wanted:
        steps.append((withdraw, give, place))
    for place in wanted - now:
        steps.append((give, withdraw, place))
    for step, undo, place in steps:
        try:
            advise(buffer, <cydriver.CUmem_advise><int>step, place)
        except Exception:
            for way_back, place_done in reversed(done):
                try:
                    advise(buffer, <cydriver.CUmem_advise><int>way_back, place_done)
                except Exception:  # the first error tells what is the matter
                    break
            raise
        done.append((undo, place))
    return 0


cdef class ManagedBuffer(Buffer):
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
    def from_handle(
        cls,
        ptr: DevicePointerType,
        size: int,
        mr: MemoryResource | None = None,
        owner: object | None = None,
        *,
        stream: Stream | GraphBuilder | None = None,
        deallocate: Callable[[int, int, Stream | None], object] | None = None,
    ) -> ManagedBuffer:
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
        cdef ManagedBuffer self = cls.__new__(cls)
        take_handle(self, ptr, size, mr, owner, stream, deallocate)
        return self

    @property
    def read_mostly(self) -> bool:
        """bool: whether the memory is advised to be read much more often than written, so that copies of it pay."""
        return read_flag(self, cydriver.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) != 0

    @read_mostly.setter
    def read_mostly(self, value: bool) -> None:
        if value:
            advise(self, cydriver.CUmem_advise.CU_MEM_ADVISE_SET_READ_MOSTLY, None)
        else:
            advise(self, cydriver.CUmem_advise.CU_MEM_ADVISE_UNSET_READ_MOSTLY, None)

    @property
    def preferred_location(self) -> Device | Host | None:
        """Device, Host or None: where the memory is advised to be. Assign None to withdraw the advice.

        Assigning raises ``TypeError`` for what is no place, ``ValueError`` for a NUMA node that this machine lacks.
        """
        return read_preferred_location(self)

    @preferred_location.setter
    def preferred_location(self, value: Device | Host | None) -> None:
        if value is None:
            advise(self, cydriver.CUmem_advise.CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, None)
        else:
            advise(self, cydriver.CUmem_advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION, value)

    @property
    def accessed_by(self) -> AccessedBySetProxy:
        """AccessedBySetProxy: the places that are advised to access the memory, as a live set.

        Assign any iterable of Device and ``Host()`` to replace them all: everything is checked before the first advice
        is given.
        """
        self.ensure_usable()
        return AccessedBySetProxy(self)

    @accessed_by.setter
    def accessed_by(self, locations: Iterable[Device | Host]) -> None:
        self.ensure_usable()
        wanted = list(locations)
        for place in wanted:
            if not is_place(place):
                raise TypeError(
                    f"accessed_by entries must be Device or Host, got {type(place).__name__}: {shown(place)}"
                )
        for place in wanted:
            _ensure_accessor(place, "accessed_by entries must be Device or Host")
        _replace(self, set(wanted))

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
        self.ensure_usable()
        prefetch(self, location, stream)

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
        self.ensure_usable()
        discard(self, stream)

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
        self.ensure_usable()
        discard_prefetch(self, location, stream)
