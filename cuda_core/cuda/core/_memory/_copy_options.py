# SPDX-License-Identifier: Apache-2.0
"""Hints for copies: when the source may be read, where the bytes are, how the copy shares the device with kernels."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuda.core._error_text import shown
from cuda.core._host import Host
from cuda.core.typing import _StringEnum

if TYPE_CHECKING:
    from cuda.core._device import Device

__all__ = ["CopyOptions", "MemcpyOverlapMode", "MemcpySrcAccessOrder"]


class MemcpySrcAccessOrder(_StringEnum):
    """When the driver may read the source of a copy."""

    STREAM = "stream"  #: in the order of the stream, behind everything that was put there before
    DURING_API_CALL = "during_api_call"  #: at once; all of it has been read when the call returns
    ANY = "any"  #: at any time until the copy is done in the stream; the source must not change meanwhile


class MemcpyOverlapMode(_StringEnum):
    """Whether a copy should run beside kernels. Advice, which a device may ignore."""

    DEFAULT = "default"  #: as the driver likes
    PREFER_OVERLAP_WITH_COMPUTE = "prefer_overlap_with_compute"  #: beside kernels, where that is possible


@dataclass(frozen=True)
class CopyOptions:
    """How one copy is to be made. Options never change which bytes arrive.

    Attributes
    ----------
    src_access_order : MemcpySrcAccessOrder or str, optional
        When the source may be read. (Default ``"stream"``)
    src_location_hint, dst_location_hint : Device, Host or None, optional
        Where the bytes of managed or pageable memory are likely to be. Ignored for all other memory; nothing is
        prefetched.
    overlap_mode : MemcpyOverlapMode or str, optional
        Whether the copy should run beside kernels. (Default ``"default"``)

    Raises
    ------
    ValueError
        If ``src_access_order`` or ``overlap_mode`` is not one of the values. A location is checked where the options
        are used.

    Notes
    -----
    Immutable and hashable, so that one object may serve copies on many threads.

    Examples
    --------
    >>> CopyOptions(src_access_order="any").src_access_order.name
    'ANY'
    """

    src_access_order: MemcpySrcAccessOrder | str = MemcpySrcAccessOrder.STREAM
    src_location_hint: Device | Host | None = None
    dst_location_hint: Device | Host | None = None
    overlap_mode: MemcpyOverlapMode | str = MemcpyOverlapMode.DEFAULT

    def __post_init__(self) -> None:
        self._convert("src_access_order", MemcpySrcAccessOrder)
        self._convert("overlap_mode", MemcpyOverlapMode)

    def _convert(self, name: str, kind: type[enum.Enum]) -> None:
        value = getattr(self, name)
        try:
            if not isinstance(
                value, str
            ):  # as are the members; and the error of an enumeration prints the value
                raise TypeError
            member = kind(value)
        except (TypeError, ValueError):
            known = ", ".join(repr(member.value) for member in kind)
            raise ValueError(f"invalid {name}: {shown(value)} (one of {known})") from None
        object.__setattr__(self, name, member)
