# SPDX-License-Identifier: Apache-2.0
"""How resources on memory pools make their pool: options that are checked when given and when assigned."""

from __future__ import annotations

import operator
from typing import Any

import attrs

from cuda.core._error_text import shown
from cuda.core._memory._option_checks import a_flag, bytes_count, one_of, option
from cuda.core.typing import ManagedMemoryLocationType

__all__ = ["DeviceMemoryResourceOptions", "ManagedMemoryResourceOptions", "PinnedMemoryResourceOptions"]

_LARGEST_ID = 2**31 - 1


def _identifier(name: str, least: int, meaning: str) -> Any:
    """Return a converter to the number of a device or node, or None."""

    def convert(value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool):
            raise TypeError(f"{name} must be an integer or None, got {shown(value)}")
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError(f"{name} must be an integer or None, got {shown(value)}") from None
        if not least <= number <= _LARGEST_ID:
            raise ValueError(f"{name} must be {meaning}, got {shown(number)}")
        return number

    return convert


@attrs.define(slots=False, on_setattr=attrs.setters.convert)
class DeviceMemoryResourceOptions:
    """How a :class:`DeviceMemoryResource` makes a pool of its own. Checked when given and when assigned.

    Attributes
    ----------
    ipc_enabled : bool
        Make a pool that can be shared with other processes.
    max_size : int
        The most bytes that the pool may take; the driver rounds up. 0 sets no limit of its own.

    Raises
    ------
    TypeError, ValueError, OverflowError
        If a value has the wrong type, is negative, or more than 2**63 - 1.

    Examples
    --------
    >>> DeviceMemoryResourceOptions(max_size=-1)
    Traceback (most recent call last):
        ...
    ValueError: max_size must not be negative, got -1
    """

    ipc_enabled: bool = option(default=False, converter=a_flag("ipc_enabled"))
    max_size: int = option(default=0, converter=bytes_count("max_size"))


@attrs.define(slots=False, on_setattr=attrs.setters.convert)
class PinnedMemoryResourceOptions:
    """How a :class:`PinnedMemoryResource` makes a pool of its own. Checked when given and when assigned.

    Attributes
    ----------
    ipc_enabled : bool
        Make a pool that can be shared with other processes. Such a pool lies on one NUMA node.
    max_size : int
        The most bytes that the pool may take; the driver rounds up. 0 sets no limit of its own.
    numa_id : int or None
        The NUMA node of the host to take memory from. None leaves that to the system; where ``ipc_enabled`` is True it
        means the node nearest to the device of the current context.

    Raises
    ------
    TypeError, ValueError, OverflowError
        If a value has the wrong type, is negative or too large.

    Examples
    --------
    >>> PinnedMemoryResourceOptions(numa_id=-1)
    Traceback (most recent call last):
        ...
    ValueError: numa_id must be >= 0, got -1
    """

    ipc_enabled: bool = option(default=False, converter=a_flag("ipc_enabled"))
    max_size: int = option(default=0, converter=bytes_count("max_size"))
    numa_id: int | None = option(default=None, converter=_identifier("numa_id", 0, ">= 0"))


@attrs.define(slots=False, on_setattr=attrs.setters.convert)
class ManagedMemoryResourceOptions:
    """How a :class:`ManagedMemoryResource` makes a pool of its own.

    Each value is checked when given and when assigned; whether the two fit together when both are given, and when a
    resource is made of them.

    Attributes
    ----------
    preferred_location : int or None
        Where the memory shall preferably lie. What the number means is said by ``preferred_location_type``.
    preferred_location_type : ManagedMemoryLocationType, str or None
        ``"device"``: ``preferred_location`` is the ordinal of a device. ``"host"``: the host, without a number.
        ``"host_numa"``: a NUMA node of the host, or with None the node nearest to the device of the current context.
        None: the ordinal of a device, -1 for the host, or None for no preference.

    Raises
    ------
    TypeError, ValueError
        If a value has the wrong type or is unknown, or the two do not fit together.

    Examples
    --------
    >>> ManagedMemoryResourceOptions(preferred_location=0, preferred_location_type="host")
    Traceback (most recent call last):
        ...
    ValueError: preferred_location must be None when preferred_location_type is 'host', got 0
    """

    preferred_location: int | None = option(
        default=None,
        converter=_identifier(
            "preferred_location", -1, "a device ordinal or a NUMA node (>= 0), -1 for the host, or None"
        ),
    )
    preferred_location_type: ManagedMemoryLocationType | str | None = option(
        default=None,
        converter=one_of("preferred_location_type", ManagedMemoryLocationType, optional=True),
    )

    def __attrs_post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        """Raise ValueError unless the number fits its type."""
        kind, number = self.preferred_location_type, self.preferred_location
        if kind is ManagedMemoryLocationType.DEVICE and (number is None or number < 0):
            what = "a device ordinal (>= 0)"
        elif kind is ManagedMemoryLocationType.HOST and number is not None:
            what = "None"
        elif kind is ManagedMemoryLocationType.HOST_NUMA and number is not None and number < 0:
            what = "a NUMA node (>= 0) or None"
        else:
            return
        raise ValueError(
            f"preferred_location must be {what} when preferred_location_type is {kind.value!r}, got {shown(number)}"
        )
