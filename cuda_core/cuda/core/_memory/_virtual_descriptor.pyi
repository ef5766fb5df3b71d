# SPDX-License-Identifier: Apache-2.0
# Made from _virtual_descriptor.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""What travels between processes for a buffer on virtual memory: a handle for each chunk, and how large each is.

The driver does not say how large an imported chunk is, so the sizes travel along. They are believed no further than
that the driver maps them.
"""

from typing_extensions import Never

__all__ = ["VirtualBufferDescriptor"]

class VirtualBufferDescriptor:
    """What another process needs to import a buffer on virtual memory. Get one from :attr:`Buffer.ipc_descriptor`.

    It holds a file descriptor for each chunk of the buffer. These keep the memory allocated, also when the buffer is
    closed, until the descriptor is closed or gone. It can be sent through ``multiprocessing``; the receiver gets
    descriptors of its own. With fabric handles there is nothing to close, and any pickle can carry it.

    Attributes
    ----------
    size : int
        The size of the buffer in bytes.

    Notes
    -----
    Safe from any thread. It stands for the chunks that the buffer had when it was made: what a later grow adds, or a
    pause and resume replaces, is not in it.

    Examples
    --------
    >>> with buffer.ipc_descriptor as descriptor:  # doctest: +SKIP
    ...     pipe.send(descriptor)
    """

    @property
    def size(self) -> int: ...

    def __init__(self, *args: object, **kwargs: object) -> None:
        ...

    def close(self) -> None:
        """Close the file descriptors. Closing twice is harmless. What was imported through them stays."""

    def __enter__(self) -> VirtualBufferDescriptor:
        ...

    def __exit__(self, exc_type: object, exc_value: object, traceback: object) -> None:
        ...

    @property
    def is_closed(self) -> bool:
        """bool: whether it was closed. False for fabric handles, which cannot be."""

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """tuple of int: the size of each chunk in bytes."""

    def __copy__(self) -> Never:
        ...

    def __deepcopy__(self, memo: object) -> Never:
        ...

    def __reduce__(self) -> tuple[object, ...]:
        ...

    def __repr__(self) -> str:
        ...
