# SPDX-License-Identifier: Apache-2.0
# Made from _pool_attributes.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""The attributes of a memory pool, asked of the driver each time one is read."""

class _MemPoolAttributes:
    """What a memory pool holds, and how it reuses memory. Get one from the ``attributes`` of a resource.

    Notes
    -----
    Safe from any thread. Reading disturbs no capture. Once the resource is closed, reading raises RuntimeError.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        ...

    @property
    def reuse_follow_event_dependencies(self) -> bool:
        """bool: whether memory freed in one stream is used in another that an event has ordered behind the free."""

    @property
    def reuse_allow_opportunistic(self) -> bool:
        """bool: whether memory is used in another stream once its free has run."""

    @property
    def reuse_allow_internal_dependencies(self) -> bool:
        """bool: whether the driver lets one stream wait for another to use its freed memory."""

    @property
    def release_threshold(self) -> int:
        """int: how many unused bytes the pool keeps when a stream or the device is waited for."""

    @property
    def reserved_mem_current(self) -> int:
        """int: bytes of memory that the pool has at the moment."""

    @property
    def reserved_mem_high(self) -> int:
        """int: the most bytes of memory that the pool had at one time."""

    @property
    def used_mem_current(self) -> int:
        """int: bytes that are allocated from the pool at the moment."""

    @property
    def used_mem_high(self) -> int:
        """int: the most bytes that were allocated from the pool at one time."""

    def __repr__(self) -> str:
        ...
