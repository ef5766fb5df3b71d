# SPDX-License-Identifier: Apache-2.0
# Made from _memoryview.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""``StridedMemoryView``: arrays of other libraries, and buffers, as address, layout and type."""

from cuda.core._layout import _StridedLayout
from cuda.core._memory._buffer import Buffer
from cuda.core._stream import Stream
from types import TracebackType
from typing import Any
import numpy

__all__ = ["StridedMemoryView"]

class StridedMemoryView:
    """An array seen as address, layout and type, whoever made it.

    Made by :meth:`from_dlpack`, :meth:`from_cuda_array_interface`, :meth:`from_array_interface`,
    :meth:`from_any_interface` and :meth:`from_buffer`.

    A view of a buffer is a loan on it, and a view of another library's array keeps that array's memory: until
    :meth:`close`, the end of the ``with`` block or the end of the object. What a view has exported itself, and other
    views made of it, keep the memory beyond that.

    Parameters
    ----------
    obj : object
        An array with DLPack or ``__cuda_array_interface__``. Making a view by the constructor is deprecated.
    stream_ptr : int
        See :meth:`from_dlpack`.

    Attributes
    ----------
    device_id : int
        Ordinal of the device; -1 for memory that only the host can use.
    is_device_accessible : bool
        Whether a device can use the memory.
    readonly : bool
        Whether the exporter forbids writing.

    Notes
    -----
    Safe from any thread. A view knows no stream: whoever uses it on one orders that behind the stream it was made for.

    Examples
    --------
    >>> array = numpy.arange(6, dtype=numpy.int32).reshape(2, 3)
    >>> with StridedMemoryView.from_dlpack(array, stream_ptr=-1) as view:
    ...     view.shape
    (2, 3)
    """

    @property
    def device_id(self) -> int: ...

    @property
    def is_device_accessible(self) -> bool: ...

    @property
    def readonly(self) -> bool: ...

    def __init__(self, obj: object | None = None, stream_ptr: int | None = None) -> None:
        ...

    def __reduce__(self) -> tuple[object, ...]:
        ...

    @classmethod
    def from_dlpack(cls, obj: object, stream_ptr: int | None = None) -> StridedMemoryView:
        """View an array through DLPack.

        Parameters
        ----------
        obj : object
            An array with ``__dlpack__`` and ``__dlpack_device__``.
        stream_ptr : int
            The stream in which the view will be used: 0 and 1 for the legacy default stream, 2 for the per-thread
            one, or an address. The exporter orders it behind its own work. -1: no order is wanted. None is only
            allowed for pinned and managed memory.

        Returns
        -------
        StridedMemoryView

        Raises
        ------
        BufferError
            If ``stream_ptr`` is None and must not be, or the exported tensor is wrong or not supported.
        TypeError, ValueError
            If ``stream_ptr`` is not a stream.

        Examples
        --------
        >>> array = numpy.arange(6, dtype=numpy.int32).reshape(2, 3)
        >>> with StridedMemoryView.from_dlpack(array, stream_ptr=-1) as view:
        ...     view.shape, view.size
        ((2, 3), 6)
        """

    @classmethod
    def from_cuda_array_interface(cls, obj: object, stream_ptr: int | None = None) -> StridedMemoryView:
        """View an array through ``__cuda_array_interface__``, version 3 or later.

        Parameters
        ----------
        obj : object
            An array with the interface. It is kept alive by the view.
        stream_ptr : int
            The stream in which the view will be used, as in :meth:`from_dlpack`; it is ordered behind the stream that
            the interface names. -1: no order is wanted.

        Returns
        -------
        StridedMemoryView

        Raises
        ------
        BufferError
            If ``stream_ptr`` is None, the version is too old, or there is a mask.
        TypeError, ValueError
            If the interface is malformed.
        CUDAError
            If the driver does not know the address, or refuses the order.

        Examples
        --------
        >>> with buffer.array_view("<f4") as lent:
        ...     with StridedMemoryView.from_cuda_array_interface(lent, stream_ptr=-1) as view:
        ...         view.ptr == buffer.handle
        True
        """

    @classmethod
    def from_array_interface(cls, obj: object) -> StridedMemoryView:
        """View an array of the host through ``__array_interface__``, such as NumPy's.

        Parameters
        ----------
        obj : object
            An array with the interface. It is kept alive by the view.

        Returns
        -------
        StridedMemoryView

        Raises
        ------
        BufferError
            If the version is too old, or there is a mask.
        TypeError, ValueError
            If the interface is malformed.

        Examples
        --------
        >>> array = numpy.arange(6, dtype=numpy.int32).reshape(2, 3)
        >>> with StridedMemoryView.from_array_interface(array) as view:
        ...     view.shape, view.size
        ((2, 3), 6)
        """

    @classmethod
    def from_any_interface(cls, obj: object, stream_ptr: int | None = None) -> StridedMemoryView:
        """View an array through DLPack, or else through ``__cuda_array_interface__``.

        Parameters
        ----------
        obj : object
            An array.
        stream_ptr : int
            See :meth:`from_dlpack`.

        Returns
        -------
        StridedMemoryView

        Raises
        ------
        TypeError, ValueError, BufferError
            As for :meth:`from_dlpack` and :meth:`from_cuda_array_interface`.

        Examples
        --------
        >>> array = numpy.arange(6, dtype=numpy.int32).reshape(2, 3)
        >>> with StridedMemoryView.from_any_interface(array, stream_ptr=-1) as view:
        ...     view.shape, view.size
        ((2, 3), 6)
        """

    @classmethod
    def from_buffer(cls, buffer: Buffer, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, *, itemsize: int | None = None, dtype: numpy.dtype[Any] | None = None, is_readonly: bool = False) -> StridedMemoryView:
        """View a buffer as an array. The view is a loan on the buffer. No stream waits for another.

        Parameters
        ----------
        buffer : Buffer
            The memory.
        shape : tuple of int
            Extent of each dimension.
        strides : tuple of int, optional
            Steps in elements. C order without gaps by default.
        itemsize : int, optional
            Bytes of an element, where no ``dtype`` is given.
        dtype : numpy.dtype, optional
            Type of an element.
        is_readonly : bool, optional
            Whether consumers of the view must not write. (Default False)

        Returns
        -------
        StridedMemoryView

        Raises
        ------
        TypeError, ValueError, OverflowError
            If the layout is wrong or does not fit into the buffer.
        OwnershipError
            If the buffer is closed.

        Examples
        --------
        >>> with StridedMemoryView.from_buffer(buffer, shape=(16, 16), dtype=numpy.dtype("<f4")) as view:
        ...     view.shape, buffer.loans
        ((16, 16), 1)
        """

    def view(self, layout: _StridedLayout | None = None, dtype: numpy.dtype[Any] | None = None) -> StridedMemoryView:
        """Return the same memory with another layout or type. It keeps the memory by itself.

        Parameters
        ----------
        layout : _StridedLayout, optional
            The new layout, from the same offset 0. By default the present one.
        dtype : numpy.dtype, optional
            The new type. By default the present one.

        Returns
        -------
        StridedMemoryView
            This one, if nothing is to change.

        Raises
        ------
        TypeError, ValueError
            If the sizes of elements differ, or the layout leaves the memory that this view was made of.
        RuntimeError
            If the view is closed.

        Examples
        --------
        >>> with StridedMemoryView.from_buffer(buffer, shape=(64,), itemsize=1) as flat:
        ...     flat.view(dtype=numpy.dtype("u1")).dtype
        dtype('uint8')
        """

    def close(self) -> None:
        """Let go of the memory. Closing twice is harmless. What was exported or viewed from here keeps it.

        Raises
        ------
        Exception
            If this was the last loan on a closed buffer, and the ``deallocate`` that it starts is interrupted. The view
            is closed all the same.

        Examples
        --------
        >>> array = numpy.arange(6, dtype=numpy.int32).reshape(2, 3)
        >>> view = StridedMemoryView.from_dlpack(array, stream_ptr=-1)
        >>> view.close()
        >>> view.is_closed
        True
        """

    @property
    def ptr(self) -> int:
        """int: address of the element at offset 0 of the layout; 0 once closed."""

    @property
    def exporting_obj(self) -> object:
        """object: what the view was made of; None once closed."""

    @property
    def is_closed(self) -> bool:
        """bool: whether the view has let go of its memory."""

    def __enter__(self) -> StridedMemoryView:
        ...

    def __exit__(self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None) -> None:
        ...

    @property
    def _layout(self) -> _StridedLayout:
        """_StridedLayout: where the elements lie, relative to :attr:`ptr`."""

    @property
    def size(self) -> int:
        """int: the number of elements."""

    @property
    def shape(self) -> tuple[int, ...]:
        """tuple of int: the extent of each dimension."""

    @property
    def strides(self) -> tuple[int, ...] | None:
        """tuple of int or None: the strides in elements; None where the exporter gave none: C order without gaps."""

    @property
    def dtype(self) -> numpy.dtype[Any] | None:
        """numpy.dtype or None: the type of an element, None where only its size is known.

        Raises
        ------
        NotImplementedError
            If NumPy has no such type. ``bfloat16`` and its like need the package ``ml_dtypes``.
        """

    def __repr__(self) -> str:
        ...

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object:
        """Lend the memory on, in a capsule of DLPack, which keeps it as the view does.

        Parameters
        ----------
        stream : int, optional
            The consumer's stream. Of a view of a buffer it is ordered as :meth:`Buffer.__dlpack__` says; the streams of
            another library's array are not known here, and nothing is ordered.
        max_version : tuple of int, optional
            The newest version of DLPack that the consumer understands.
        dl_device : tuple of int, optional
            Where the consumer wants the data: where it is, ``(1, 0)`` for memory that the host can use, or
            ``(2, ordinal)`` for managed memory.
        copy : bool, optional
            True is not supported.

        Returns
        -------
        PyCapsule

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong.
        BufferError
            If DLPack has no such type, the device or a copy cannot be given, or the view is read-only and the consumer
            understands no version of DLPack that can say so.
        RuntimeError
            If the view is closed.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return where the memory lies as a DLPack device type and device id."""

    def copy_from(self, other: StridedMemoryView, stream: Stream, allocator: object | None = None, blocking: bool | None = None) -> None:
        """Not there, as in cuda-core 1.2.2; copy the buffers instead, with :meth:`Buffer.copy_from`.

        Parameters
        ----------
        other : StridedMemoryView
            The other view.
        stream : Stream
            The stream that would order the copy.
        allocator, blocking : object, optional
            Not looked at.

        Raises
        ------
        NotImplementedError
            Always, as in cuda-core 1.2.2.

        Examples
        --------
        >>> with StridedMemoryView.from_buffer(buffer, shape=(64,), itemsize=1) as view:
        ...     view.copy_from(view, stream)
        Traceback (most recent call last):
            ...
        NotImplementedError: Sorry, not supported: copy_from of a view; see Buffer.copy_from
        """

    def copy_to(self, other: StridedMemoryView, stream: Stream | None = None, allocator: object | None = None, blocking: bool | None = None) -> None:
        """Not there, as in cuda-core 1.2.2; copy the buffers instead, with :meth:`Buffer.copy_to`.

        Parameters
        ----------
        other : StridedMemoryView
            The other view.
        stream : Stream
            The stream that would order the copy.
        allocator, blocking : object, optional
            Not looked at.

        Raises
        ------
        NotImplementedError
            Always, as in cuda-core 1.2.2.

        Examples
        --------
        >>> with StridedMemoryView.from_buffer(buffer, shape=(64,), itemsize=1) as view:
        ...     view.copy_to(view, stream)
        Traceback (most recent call last):
            ...
        NotImplementedError: Sorry, not supported: copy_to of a view; see Buffer.copy_to
        """
