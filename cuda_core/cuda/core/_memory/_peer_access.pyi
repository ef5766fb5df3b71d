# SPDX-License-Identifier: Apache-2.0
# Made from _peer_access.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""``peer_accessible_by``: the other devices that may use the memory of a pool, as a set whose truth is the driver's."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import MutableSet
from collections.abc import Set
from cuda.core._device import Device
from cuda.core._memory import DeviceMemoryResource
from typing import Any

__all__ = []

class PeerAccessibleBySetProxy(MutableSet['Device']):
    """The other devices that may read and write the memory of a pool. Get it from ``peer_accessible_by``.

    A set of :class:`Device` that keeps nothing: every question is asked of the driver, and every change is one call of
    it, however many devices it concerns; none where nothing changes. Devices are accepted as such or as ordinals.
    The device that the pool is of is never in the set, and ignored where it is given.

    Notes
    -----
    Safe from any thread, and disturbs no capture. A change is a question and a call: of two threads that change one
    pool at the same time, the later call counts. Once the resource is closed, everything raises RuntimeError.
    """

    def __init__(self, mr: DeviceMemoryResource) -> None:
        ...

    @classmethod
    def _from_iterable(cls, iterable: Iterable[Any]) -> set[Any]:
        ...

    def __contains__(self, value: object) -> bool:
        ...

    def __iter__(self) -> Iterator[Device]:
        ...

    def __len__(self) -> int:
        ...

    def add(self, value: Device | int) -> None:
        """Give a device access.

        Raises
        ------
        TypeError, ValueError
            If it is no device, not there, or cannot reach the memory.
        """

    def discard(self, value: Device | int) -> None:
        """Take the access of a device away. Anything that is not in the set is ignored."""

    def clear(self) -> None:
        """Take the access of all devices away."""

    def update(self, *others: Iterable[Device | int]) -> None:
        """Give all these devices access."""

    def difference_update(self, *others: Iterable[Device | int]) -> None:
        """Take the access of all these devices away."""

    def intersection_update(self, *others: Iterable[Device | int]) -> None:
        """Leave access only to those that all of the others have."""

    def symmetric_difference_update(self, other: Iterable[Device | int]) -> None:
        """Give access to those of the other that do not have it, and take it from those that do."""

    def __ior__(self, other: Set[Any]) -> PeerAccessibleBySetProxy:  # type: ignore[misc]
        ...

    def __iand__(self, other: Set[Any]) -> PeerAccessibleBySetProxy:
        ...

    def __isub__(self, other: Set[Any]) -> PeerAccessibleBySetProxy:
        ...

    def __ixor__(self, other: Set[Any]) -> PeerAccessibleBySetProxy:  # type: ignore[misc]
        ...

    def __repr__(self) -> str:
        ...
