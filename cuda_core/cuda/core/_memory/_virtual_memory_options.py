# SPDX-License-Identifier: Apache-2.0
"""How a :class:`VirtualMemoryResource` allocates: options that are checked when given and when assigned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from cuda.core._error_text import shown
from cuda.core._memory._option_checks import a_flag, accept, bytes_count, one_of, option
from cuda.core.typing import (
    VirtualMemoryAccessType,
    VirtualMemoryAllocationType,
    VirtualMemoryGranularityType,
    VirtualMemoryGrowthType,
    VirtualMemoryHandleType,
    VirtualMemoryLocationType,
)

__all__ = ["VirtualMemoryResourceOptions"]

_NO_PLACE_TO_SHARE = (VirtualMemoryLocationType.HOST,)


def _device_ordinals(value: Any) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"peers must be device ordinals or devices, got {shown(value)}")
    ordinals = []
    for peer in value:
        number = getattr(peer, "device_id", peer)
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"peers must be device ordinals or devices, got {shown(peer)}")
        if number < 0:
            raise ValueError(f"peers must not be negative, got {shown(number)}")
        if number not in ordinals:
            ordinals.append(number)
    return tuple(ordinals)


def _node(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"numa_id must be an integer or None, got {shown(value)}")
    if not 0 <= value < 1 << 31:
        raise ValueError(f"numa_id must be from 0 to 2**31 - 1, got {shown(value)}")
    return value


def _check_allocation_type(value: VirtualMemoryAllocationType) -> None:
    if value is VirtualMemoryAllocationType.MANAGED:
        raise ValueError(
            "allocation_type 'managed' is refused by every driver for virtual memory; use 'pinned'"
        )


def _check_handle_type(value: VirtualMemoryHandleType | None) -> None:
    if value is VirtualMemoryHandleType.WIN32_KMT:
        raise ValueError(
            f"handle_type {value.value!r} exists on Windows only; use 'posix_fd', 'fabric' or None"
        )


def _check_alignment(value: int | None) -> None:
    if value is not None and (value == 0 or value & (value - 1)):
        raise ValueError(f"addr_align must be a power of two, got {value}")


def _check_node(location: VirtualMemoryLocationType, node: int | None) -> None:
    if node is not None and location is not VirtualMemoryLocationType.HOST_NUMA:
        raise ValueError(
            f"numa_id names a node of location_type 'host_numa' and no other, got {node} with {location.value!r}"
        )


def _check_sharing(location: VirtualMemoryLocationType, handle: VirtualMemoryHandleType | None) -> None:
    if location in _NO_PLACE_TO_SHARE and handle is not None:
        raise ValueError(
            f"location_type {location.value!r} has no shareable handles; give handle_type=None with it, "
            f"got {handle.value!r}"
        )


_CHECKS: dict[str, Callable[[Any], None]] = {
    "allocation_type": _check_allocation_type,
    "handle_type": _check_handle_type,
    "addr_align": _check_alignment,
}


def _on_assignment(options: VirtualMemoryResourceOptions, field: attrs.Attribute[Any], value: Any) -> Any:
    convert: Any = field.converter
    converted = convert(value) if convert is not None else value
    check = _CHECKS.get(field.name)
    if check is not None:
        check(converted)
    if field.name == "location_type":
        _check_sharing(converted, options.handle_type)
        _check_node(converted, options.numa_id)
    elif field.name == "numa_id":
        _check_node(options.location_type, converted)
    elif field.name == "handle_type":
        _check_sharing(options.location_type, converted)
    # The value first: a resource that reads the options in between would take the old one for that of this revision.
    vars(options)[field.name] = converted
    vars(options)["_revision"] += 1
    return converted


@attrs.define(slots=False, on_setattr=_on_assignment)
class VirtualMemoryResourceOptions:
    """How to allocate virtual memory. Every value is checked when it is given and when it is assigned.

    Attributes
    ----------
    allocation_type : VirtualMemoryAllocationType or str
        ``"pinned"``. ``"managed"`` is refused: no driver makes managed virtual memory.
    location_type : VirtualMemoryLocationType or str
        Where the physical memory lies: ``"device"``, ``"host"`` (needs ``handle_type=None``), ``"host_numa"`` (the
        node that ``numa_id`` names, by default the one nearest to the device) or ``"host_numa_current"`` (the node of
        the thread that allocates).
    handle_type : VirtualMemoryHandleType, str or None
        How chunks could be handed to other processes: ``"posix_fd"``, ``"fabric"``, or None for not at all.
    granularity : VirtualMemoryGranularityType or str
        Which granularity sizes are rounded to: ``"recommended"`` or ``"minimum"``.
    gpu_direct_rdma : bool
        Make memory that network cards can reach. The device must support it for virtual memory.
    addr_hint : int or None
        Address to try to begin at, 0 or None for any. A hint that is taken is ignored, not refused.
    addr_align : int or None
        Alignment of the address in bytes, a power of two; None takes the granularity.
    peers : iterable of int or Device
        Other devices that may use the memory.
    self_access : VirtualMemoryAccessType, str or None
        What the memory's own place may do with it: ``"rw"``, ``"r"`` or None.
    peer_access : VirtualMemoryAccessType, str or None
        What the peers may do with it.
    reserve_size : int
        Bytes of address space to reserve for each buffer, where that is more than its size. Growing up to it keeps
        the address for certain and waits for nothing. Reserving costs no memory. By default no more than the size.
        A process can reserve at most 64 TiB.
    growth : VirtualMemoryGrowthType or str
        How much a grow maps: ``"exact"``, what was asked for, or ``"geometric"``, at least half of what is mapped.
        With the latter n grows make O(log n) chunks, so that most cost no driver call and the release stays cheap,
        and up to a third of ``mapped_size`` is mapped ahead. Where the device has no memory for it, or the
        reservation no room, it is as much as was asked for.
    numa_id : int or None
        The NUMA node of the host to allocate at, with ``location_type="host_numa"``. None for the nearest one.
    wait_on_close : bool
        Whether closing a buffer, or leaving the addresses of a grow that moves, waits for work in flight. False:
        what would have to wait goes to the queue, as with ``close(wait=False)``. ``close(wait=)`` overrides it.

    Raises
    ------
    TypeError
        If a value has the wrong type.
    ValueError
        If a value is unknown, negative, refused by every driver, or an alignment that is not a power of two.
    OverflowError
        If a number is more than 2**63 - 1.

    Examples
    --------
    >>> options = VirtualMemoryResourceOptions(reserve_size=1 << 30)
    >>> options.addr_align = 3
    Traceback (most recent call last):
        ...
    ValueError: addr_align must be a power of two, got 3
    """

    allocation_type: VirtualMemoryAllocationType = option(
        default=VirtualMemoryAllocationType.PINNED,
        converter=one_of("allocation_type", VirtualMemoryAllocationType),
    )
    location_type: VirtualMemoryLocationType = option(
        default=VirtualMemoryLocationType.DEVICE,
        converter=one_of("location_type", VirtualMemoryLocationType),
    )
    handle_type: VirtualMemoryHandleType | None = option(
        default=VirtualMemoryHandleType.POSIX_FD,
        converter=one_of("handle_type", VirtualMemoryHandleType, optional=True),
    )
    granularity: VirtualMemoryGranularityType = option(
        default=VirtualMemoryGranularityType.RECOMMENDED,
        converter=one_of("granularity", VirtualMemoryGranularityType),
    )
    gpu_direct_rdma: bool = option(default=False, converter=a_flag("gpu_direct_rdma"))
    addr_hint: int | None = option(default=0, converter=bytes_count("addr_hint", optional=True))
    addr_align: int | None = option(default=None, converter=bytes_count("addr_align", optional=True))
    peers: Iterable[int] = option(default=(), converter=_device_ordinals)
    self_access: VirtualMemoryAccessType | None = option(
        default=VirtualMemoryAccessType.READ_WRITE,
        converter=one_of("self_access", VirtualMemoryAccessType, optional=True),
    )
    peer_access: VirtualMemoryAccessType | None = option(
        default=VirtualMemoryAccessType.READ_WRITE,
        converter=one_of("peer_access", VirtualMemoryAccessType, optional=True),
    )
    reserve_size: int = option(default=0, converter=bytes_count("reserve_size"))
    growth: VirtualMemoryGrowthType = option(
        default=VirtualMemoryGrowthType.EXACT,
        converter=one_of("growth", VirtualMemoryGrowthType),
    )
    numa_id: int | None = option(default=None, converter=_node)
    wait_on_close: bool = option(default=True, converter=a_flag("wait_on_close"))

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_revision", 0)
        for name, check in _CHECKS.items():
            check(getattr(self, name))
        _check_sharing(self.location_type, self.handle_type)
        _check_node(self.location_type, self.numa_id)

    @classmethod
    def _accept(cls, value: Any, name: str) -> VirtualMemoryResourceOptions:
        """Return options given as an object, as a dict of its fields, or as None for the defaults."""
        if value is None:
            return cls()
        accepted: VirtualMemoryResourceOptions = accept(cls, value, name)
        return accepted
