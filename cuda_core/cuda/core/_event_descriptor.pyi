# SPDX-License-Identifier: Apache-2.0
# Made from _event_descriptor.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""The name of an event for other processes."""

__all__ = []

class IPCEventDescriptor:
    """The name of an event for other processes. Get one from :attr:`Event.ipc_descriptor`; it can be pickled.

    It holds nothing: the event is the exporter's, who keeps it until all others are done. Two are equal that name the
    same event.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        ...

    def __reduce__(self) -> tuple[object, ...]:
        ...

    def __eq__(self, other: object) -> bool:
        ...

    def __repr__(self) -> str:
        ...
