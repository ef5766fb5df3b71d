# SPDX-License-Identifier: Apache-2.0
"""``peer_accessible_by``: the other devices that may use the memory of a pool, as a set whose truth is the driver's."""

from collections.abc import MutableSet
from itertools import chain

from cuda.bindings cimport cydriver

from cuda.core._driver cimport check
from cuda.core._memory._arguments cimport device_argument
from cuda.core._memory._pool_access cimport change_access, devices_with_access

__all__ = []

# Set by the device module when it is imported; modules below it cannot import it.
device_factory = None


def _peers_of(resource):
    """Ask for the ordinals of the peers."""
    held = resource._hold_pool()  # the pool stays while it is asked
    return set(devices_with_access(<cydriver.CUmemoryPool><size_t>held[0], resource.device_id))


def _change(resource, granted, withdrawn):
    """Make one call with what differs from now, or none."""
    cdef int owner = resource.device_id
    now = _peers_of(resource)
    granted = sorted(granted - now - {owner})
    withdrawn = sorted((withdrawn & now) - {owner})
    for ordinal in granted:
        _ensure_reach(ordinal, owner)
    held = resource._hold_pool()
    change_access(<cydriver.CUmemoryPool><size_t>held[0], granted, withdrawn)


cdef int _ensure_reach(int peer, int owner) except -1:
    cdef int able = 0
    cdef cydriver.CUresult result
    with nogil:
        result = cydriver.cuDeviceCanAccessPeer(&able, peer, owner)
    check(result, b"cuDeviceCanAccessPeer")
    if not able:
        raise ValueError(f"device {peer} cannot access the memory of device {owner}")
    return 0


def _ordinals(devices):
    """Return the ordinals of devices that are given as such or as numbers. All are checked before anything is done."""
    return {device_argument(device) for device in devices}


def _known(value):
    """Return the ordinal of a device that may be in a set, None of anything else."""
    try:
        return device_argument(value)
    except (TypeError, ValueError):
        return None


def replace_peers(resource, devices):
    """Make exactly these devices the peers of a pool, in one call."""
    wanted = _ordinals(devices)
    _change(resource, wanted, _peers_of(resource) - wanted)


class PeerAccessibleBySetProxy(MutableSet["Device"]):
    """The other devices that may read and write the memory of a pool. Get it from ``peer_accessible_by``.

    A set of :class:`Device` that keeps nothing: every question is asked of the driver, and every change is one call of
    it, however many devices it concerns; none where nothing changes. Devices are accepted as such or as ordinals.
    The device that the pool is of is never in the set, and ignored where it is given.

    Notes
    -----
    Safe from any thread, and disturbs no capture. A change is a question and a call: of two threads that change one
    pool at the same time, the later call counts. Once the resource is closed, everything raises RuntimeError.
    """

    __slots__ = ("_resource",)
    __hash__ = None

    def __init__(self, mr: DeviceMemoryResource) -> None:
        self._resource = mr

    @classmethod
    def _from_iterable(cls, iterable: Iterable[Any]) -> set[Any]:
        return set(iterable)  # what operators give is a set, not the rights of a pool

    def __contains__(self, value: object) -> bool:
        peers = _peers_of(self._resource)
        return _known(value) in peers

    def __iter__(self) -> Iterator[Device]:
        devices = []
        for ordinal in sorted(_peers_of(self._resource)):
            devices.append(device_factory(ordinal))
        return iter(devices)

    def __len__(self) -> int:
        return len(_peers_of(self._resource))

    def add(self, value: Device | int) -> None:
        """Give a device access.

        Raises
        ------
        TypeError, ValueError
            If it is no device, not there, or cannot reach the memory.
        """
        _change(self._resource, _ordinals([value]), set())

    def discard(self, value: Device | int) -> None:
        """Take the access of a device away. Anything that is not in the set is ignored."""
        _change(self._resource, set(), {_known(value)} - {None})

    def clear(self) -> None:
        """Take the access of all devices away."""
        replace_peers(self._resource, ())

    def update(self, *others: Iterable[Device | int]) -> None:
        """Give all these devices access."""
        _change(self._resource, _ordinals(chain(*others)), set())

    def difference_update(self, *others: Iterable[Device | int]) -> None:
        """Take the access of all these devices away."""
        _change(self._resource, set(), {_known(device) for device in chain(*others)} - {None})

    def intersection_update(self, *others: Iterable[Device | int]) -> None:
        """Leave access only to those that all of the others have."""
        left = _peers_of(self._resource)
        for other in others:
            left = left & {_known(device) for device in other}
        _change(self._resource, set(), _peers_of(self._resource) - left)

    def symmetric_difference_update(self, other: Iterable[Device | int]) -> None:
        """Give access to those of the other that do not have it, and take it from those that do."""
        toggled = _ordinals(other)
        now = _peers_of(self._resource)
        _change(self._resource, toggled - now, toggled & now)

    def __ior__(self, other: Set[Any]) -> PeerAccessibleBySetProxy:  # type: ignore[misc]
        self.update(other)
        return self

    def __iand__(self, other: Set[Any]) -> PeerAccessibleBySetProxy:
        self.intersection_update(other)
        return self

    def __isub__(self, other: Set[Any]) -> PeerAccessibleBySetProxy:
        self.difference_update(other)
        return self

    def __ixor__(self, other: Set[Any]) -> PeerAccessibleBySetProxy:  # type: ignore[misc]
        self.symmetric_difference_update(other)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({set(self)!r})"
