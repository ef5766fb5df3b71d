# SPDX-License-Identifier: Apache-2.0
# Made from _legacy.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""Pinned host memory by the driver's older calls."""

from cuda.core._memory._plain_resource import PlainResource

__all__ = ["LegacyPinnedMemoryResource"]

class LegacyPinnedMemoryResource(PlainResource):
    """Allocates page-locked host memory, which host and devices can use.

    Notes
    -----
    Safe from any thread. Allocating needs a current context. A close has freed the memory when it returns.

    Examples
    --------
    >>> with LegacyPinnedMemoryResource().allocate(4096) as buffer:
    ...     memoryview(buffer)[:5] = b"hello"
    """

    @property
    def device_id(self) -> int:
        """Raises RuntimeError: the memory belongs to no device."""

    @property
    def is_device_accessible(self) -> bool:
        """bool: True."""

    @property
    def is_host_accessible(self) -> bool:
        """bool: True."""
