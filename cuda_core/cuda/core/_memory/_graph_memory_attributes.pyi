# SPDX-License-Identifier: Apache-2.0
# Made from _graph_memory_attributes.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""How much memory graphs use on a device, asked of the driver each time an attribute is read."""

class GraphMemoryResourceAttributes:
    """What the graphs of a device use. Get one from ``GraphMemoryResource.attributes``.

    Notes
    -----
    Safe from any thread. Reading disturbs no capture. The driver counts for the whole process.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        ...

    @property
    def reserved_mem_current(self) -> int:
        """int: bytes of the device that graphs hold at the moment."""

    @property
    def reserved_mem_high(self) -> int:
        """int: the most bytes that graphs have held. Setting it to 0 makes it what they hold now."""

    @reserved_mem_high.setter
    def reserved_mem_high(self, value: int) -> None:
        ...

    @property
    def used_mem_current(self) -> int:
        """int: bytes that graphs use at the moment."""

    @property
    def used_mem_high(self) -> int:
        """int: the most bytes that graphs have used. Setting it to 0 makes it what they use now."""

    @used_mem_high.setter
    def used_mem_high(self, value: int) -> None:
        ...

    def __repr__(self) -> str:
        ...
