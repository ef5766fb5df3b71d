# SPDX-License-Identifier: Apache-2.0
# Made from _virtual_memory_base.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""What a virtual memory resource is before it allocates: its options, and how it returns what its ranges hold."""

from cuda.core._device import Device
from cuda.core._memory import VirtualMemoryResourceOptions
from cuda.core._memory._indexed_resource import IndexedResource
from typing import Any

class VirtualMemoryBase(IndexedResource):
    """What is common to everything that a :class:`VirtualMemoryResource` does."""

    @property
    def config(self) -> VirtualMemoryResourceOptions: ...

    def __init__(self, device_id: Device | int, config: VirtualMemoryResourceOptions | dict[str, Any] | None = None) -> None:
        ...

    @property
    def wait_on_close(self) -> bool:
        """bool: whether closing a buffer waits for work in flight where the call does not say. An option."""

    @property
    def device(self) -> Device | None:
        """Device or None: the device whose memory is allocated; None for memory of the host."""

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory is allocated; -1 for memory of the host."""

    @property
    def is_device_accessible(self) -> bool:
        """bool: whether a device can use the memory, by its own or a peer's rights."""

    @property
    def is_host_accessible(self) -> bool:
        """bool: whether the host can use the memory."""

    def __repr__(self) -> str:
        ...
