# SPDX-License-Identifier: Apache-2.0
"""``Host``, the place that is no device."""

from __future__ import annotations

from typing import ClassVar

from cuda.core._error_text import shown

__all__ = ["Host"]


class Host:
    """The host as a place for memory, beside :class:`Device`.

    Parameters
    ----------
    numa_id : int, optional
        A NUMA node of the host. By default any.
    is_numa_current : bool, optional
        The NUMA node of the thread that uses the place, whichever that is. Not together with ``numa_id``.

    Raises
    ------
    ValueError
        If ``numa_id`` is not a non-negative integer, or both parameters are given.

    Notes
    -----
    Equal places are one object: ``Host(0) is Host(0)``, also on another thread and after pickling. Making one calls no
    driver; whether the node exists is checked where the place is used.

    Examples
    --------
    >>> Host(), Host(1), Host.numa_current()
    (Host(), Host(numa_id=1), Host.numa_current())
    """

    __slots__ = ("__weakref__", "_is_numa_current", "_numa_id")

    _numa_id: int | None
    _is_numa_current: bool
    _known: ClassVar[dict[tuple[type, int | None, bool], Host]] = {}

    def __new__(cls, numa_id: int | None = None, *, is_numa_current: bool = False) -> Host:
        if is_numa_current and numa_id is not None:
            raise ValueError(
                f"numa_id and is_numa_current are mutually exclusive, got numa_id={shown(numa_id)}"
            )
        if numa_id is not None and (isinstance(numa_id, bool) or not isinstance(numa_id, int) or numa_id < 0):
            raise ValueError(f"numa_id must be a non-negative int, got {shown(numa_id)}")
        key = (cls, numa_id, bool(is_numa_current))
        known = cls._known.get(key)
        if known is None:
            mine = object.__new__(cls)
            mine._numa_id = numa_id
            mine._is_numa_current = bool(is_numa_current)
            # No lock: a signal handler or a finalizer may make a place in the middle of this, on the same thread.
            known = cls._known.setdefault(key, mine)
        return known

    @classmethod
    def numa_current(cls) -> Host:
        """Return the place that stands for the NUMA node of the thread that uses it.

        Examples
        --------
        >>> Host.numa_current().is_numa_current
        True
        """
        return cls(is_numa_current=True)

    @property
    def numa_id(self) -> int | None:
        """int or None: the NUMA node; None where none is named."""
        return self._numa_id

    @property
    def is_numa_current(self) -> bool:
        """bool: whether the NUMA node is the one of the thread that uses the place."""
        return self._is_numa_current

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Host):
            return NotImplemented
        return (self._numa_id, self._is_numa_current) == (other._numa_id, other._is_numa_current)

    def __hash__(self) -> int:
        return hash((Host, self._numa_id, self._is_numa_current))

    def __reduce__(self) -> tuple[object, ...]:
        return (_host, (type(self), self._numa_id, self._is_numa_current))

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._is_numa_current:
            return f"{name}.numa_current()"
        return f"{name}()" if self._numa_id is None else f"{name}(numa_id={self._numa_id})"


def _host(cls: type[Host], numa_id: int | None, is_numa_current: bool) -> Host:
    return cls(numa_id, is_numa_current=is_numa_current)
