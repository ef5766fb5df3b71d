# SPDX-License-Identifier: Apache-2.0
"""``StridedMemoryView``: arrays of other libraries, and buffers, as address, layout and type."""

import operator
import warnings

cimport cython
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, intptr_t, uintptr_t
from libc.stdlib cimport calloc, free

from cuda.core._context cimport current_context, device_of_context
from cuda.core._layout cimport _StridedLayout
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._buffer cimport Buffer
from cuda.core._memory._chains cimport keep, let_go
from cuda.core._memory._dlpack cimport (
    check_consumer,
    checked_copy,
    classify_dl_device,
    export_memory,
    new_export,
    usable_from,
    wanted_device,
    wants_versioned,
)
from cuda.core._memory._dlpack_abi cimport (
    DL_CPU,
    DL_CUDA,
    DL_CUDA_HOST,
    DL_CUDA_MANAGED,
    DL_READ_ONLY,
    DLPACK_MAJOR,
    DLPACK_MINOR,
    DLDataType,
    DLManagedTensorVersioned,
    DLPackExchangeAPI,
    DLTensor,
)
from cuda.core._memory._dlpack_import cimport ImportedTensor, take_capsule, take_managed
from cuda.core._memory._handshake cimport NO_STREAM, NO_SYNC, consumer_handle, order_behind, stream_number
from cuda.core._memory._loans cimport new_loan
from cuda.core._memory._pointer_attributes cimport pointer_attributes
from cuda.core._stream_handle cimport StreamHandle, drop_stream

from cuda.core._element_types import as_dtype, dlpack_type, numpy_dtype, typestr_dtype
from cuda.core._error_text import shown

__all__ = ["StridedMemoryView"]

cdef DLPackExchangeAPI _exchange_api  # filled in below
cdef str _AMBIGUOUS = "stream=None is ambiguous with view()"
cdef str _NO_PROTOCOL = "the input object does not support any data exchange protocol"


cdef class StridedMemoryView:
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

    __dlpack_c_exchange_api__ = PyCapsule_New(&_exchange_api, b"dlpack_exchange_api", NULL)

    def __init__(self, obj: object | None = None, stream_ptr: int | None = None) -> None:
        if self._known_layout is not None:
            raise RuntimeError("this StridedMemoryView was made already, and consumers may depend on what it is")
        if obj is None:
            warnings.warn(
                "Constructing an empty StridedMemoryView is deprecated; use one of the classmethods `from_dlpack`, "
                "`from_cuda_array_interface` or `from_any_interface`",
                DeprecationWarning,
                stacklevel=2,
            )
            return
        has_dlpack = _speaks_dlpack(obj)
        way = "DLPack" if has_dlpack else "CUDA-array-interface"
        name = "from_dlpack" if has_dlpack else "from_cuda_array_interface"
        if not has_dlpack and not hasattr(obj, "__cuda_array_interface__"):
            raise BufferError(_NO_PROTOCOL)
        warnings.warn(
            f"Constructing a StridedMemoryView directly from a {way}-supporting object is deprecated; use "
            f"`StridedMemoryView.{name}` or `StridedMemoryView.from_any_interface` instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        if has_dlpack:
            _fill_from_dlpack(self, obj, stream_ptr)
        else:
            _fill_from_cuda_interface(self, obj, stream_ptr)

    def __del__(self):
        self._close()

    def __dealloc__(self):
        free(self._numbers)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("StridedMemoryView objects cannot be copied or pickled: each looks at memory that others own")

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
        cdef StridedMemoryView self = StridedMemoryView.__new__(cls)
        _fill_from_dlpack(self, obj, stream_ptr)
        return self

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
        cdef StridedMemoryView self = StridedMemoryView.__new__(cls)
        _fill_from_cuda_interface(self, obj, stream_ptr)
        return self

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
        cdef StridedMemoryView self = StridedMemoryView.__new__(cls)
        _fill_from_interface(self, obj, obj.__array_interface__, "NumPy Array Interface")
        self._place, self.device_id = (DL_CPU, 0), -1
        return self

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
        if _speaks_dlpack(obj):
            return cls.from_dlpack(obj, stream_ptr)
        if hasattr(obj, "__cuda_array_interface__"):
            return cls.from_cuda_array_interface(obj, stream_ptr)
        raise BufferError(_NO_PROTOCOL)

    @classmethod
    def from_buffer(
        cls,
        buffer: Buffer,
        tuple shape not None: tuple[int, ...],
        tuple strides: tuple[int, ...] | None = None,
        *,
        itemsize: int | None = None,
        dtype: numpy.dtype[Any] | None = None,
        bint is_readonly=False,
    ) -> StridedMemoryView:
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
        cdef StridedMemoryView self
        cdef _StridedLayout layout
        if not isinstance(buffer, Buffer):
            raise TypeError(f"buffer must be a Buffer, got {type(buffer).__name__}: {shown(buffer)}")
        if dtype is not None:
            dtype = as_dtype(dtype)
            if itemsize is not None and itemsize != dtype.itemsize:
                raise ValueError(f"itemsize ({itemsize}) does not match dtype.itemsize ({dtype.itemsize})")
            itemsize = dtype.itemsize
        elif itemsize is None:
            raise ValueError("Either itemsize or dtype must be specified")
        layout = _StridedLayout(shape, strides, itemsize)
        (<Record>buffer).ensure_usable()
        _check_bounds(layout, 0, buffer.size)
        self = StridedMemoryView.__new__(cls)
        self._place = classify_dl_device(buffer)
        self.device_id = _device_id(buffer, self._place)
        self.is_device_accessible = self._place[0] != DL_CPU
        self.readonly = is_readonly
        self._known_layout, self._known_dtype = layout, dtype
        self._low, self._high = 0, buffer.size
        self._source = new_loan(buffer, "viewed")
        self._address = <intptr_t>(<Record>buffer).pointer
        self._exporter = buffer
        self._record = buffer
        return self

    def view(
        self, layout: _StridedLayout | None = None, dtype: numpy.dtype[Any] | None = None
    ) -> StridedMemoryView:
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
        cdef StridedMemoryView other
        cdef _StridedLayout wanted
        cdef object kind
        if layout is not None and not isinstance(layout, _StridedLayout):
            raise TypeError(f"layout must be a _StridedLayout, got {type(layout).__name__}: {shown(layout)}")
        other = self._held()
        if layout is None and dtype is None:
            return self
        wanted = self._layout if layout is None else layout
        kind = as_dtype(dtype) if dtype is not None else self._dtype_or_none()
        if kind is not None and kind.itemsize != wanted.itemsize:
            raise ValueError(
                f"The dtype's itemsize ({kind.itemsize}) does not match the layout's itemsize ({wanted.itemsize})."
            )
        _check_bounds(wanted, self._low, self._high)
        other._known_layout, other._known_dtype = wanted, kind
        if dtype is not None or wanted.itemsize != self._layout.itemsize:
            other._dl_type.bits, other._typestr = 0, None
        return other

    cdef StridedMemoryView _held(self):
        """Return a view like this one, which stays open when another thread closes this one.

        Raises
        ------
        RuntimeError
            If the view is closed.
        """
        cdef StridedMemoryView other = StridedMemoryView.__new__(type(self))
        with cython.critical_section(self):
            other._address, other.device_id, other._place = self._address, self.device_id, self._place
            other._exporter, other._source, other._record = self._exporter, self._source, self._record
            other._known_dtype = self._known_dtype
        if other._place is None:
            self._ensure_open()
        other.is_device_accessible, other.readonly = self.is_device_accessible, self.readonly
        other._low, other._high = self._low, self._high
        other._known_layout = self._known_layout
        other._dl_type, other._typestr = self._dl_type, self._typestr
        return other

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
        self._close()

    cdef int _close(self) noexcept:
        cdef PyObject* exporter
        cdef PyObject* record
        cdef PyObject* source
        with cython.critical_section(self):
            exporter, record, source = keep(self._exporter), keep(self._record), keep(self._source)
            self._address = 0
            self._place = None
            self._record = None
            self._exporter = None
            self._source = None
        # Last: the end of a loan may run other code, which finds a closed view; and this may be a view of views.
        let_go(record)
        let_go(exporter)
        let_go(source)
        return 0

    @property
    def ptr(self) -> int:
        """int: address of the element at offset 0 of the layout; 0 once closed."""
        with cython.critical_section(self):
            return self._address

    @property
    def exporting_obj(self) -> object:
        """object: what the view was made of; None once closed."""
        with cython.critical_section(self):
            return self._exporter

    @property
    def is_closed(self) -> bool:
        """bool: whether the view has let go of its memory."""
        with cython.critical_section(self):
            return self._place is None

    def __enter__(self) -> StridedMemoryView:
        self._ensure_open()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    cdef int _ensure_open(self) except -1:
        if self.is_closed:
            raise RuntimeError("StridedMemoryView has been closed" if self._known_layout is not None else
                               "Cannot infer layout from the exporting object")
        return 0

    # -- what it says ----------------------------------------------------------------------------------------------

    @property
    def _layout(self) -> _StridedLayout:
        """_StridedLayout: where the elements lie, relative to :attr:`ptr`."""
        if self._known_layout is None:
            raise ValueError("Cannot infer layout from the exporting object")
        return self._known_layout

    @property
    def size(self) -> int:
        """int: the number of elements."""
        return self._layout.volume

    @property
    def shape(self) -> tuple[int, ...]:
        """tuple of int: the extent of each dimension."""
        return self._layout.shape

    @property
    def strides(self) -> tuple[int, ...] | None:
        """tuple of int or None: the strides in elements; None where the exporter gave none: C order without gaps."""
        return self._layout.strides

    def _dtype_or_none(self):
        try:
            return self.dtype
        except NotImplementedError:
            return None

    @property
    def dtype(self) -> numpy.dtype[Any] | None:
        """numpy.dtype or None: the type of an element, None where only its size is known.

        Raises
        ------
        NotImplementedError
            If NumPy has no such type. ``bfloat16`` and its like need the package ``ml_dtypes``.
        """
        cdef object found
        with cython.critical_section(self):
            found = self._known_dtype
        if found is not None:
            return found
        if self._dl_type.bits:
            found = numpy_dtype(self._dl_type.code, self._dl_type.bits, self._dl_type.lanes)
        elif self._typestr is not None:
            found = typestr_dtype(self._typestr)
        with cython.critical_section(self):
            if self._known_dtype is None:  # what another thread has found meanwhile stays
                self._known_dtype = found
            return self._known_dtype

    def __repr__(self) -> str:
        layout = self._known_layout
        if layout is None:
            return "StridedMemoryView()"
        kind = type(self._dtype_or_none())
        exporter = type(self.exporting_obj)
        indent = ",\n" + " " * len("StridedMemoryView(")
        return "StridedMemoryView(" + indent.join(
            [
                f"ptr={self.ptr}",
                f"shape={layout.shape}",
                f"strides={layout.strides}",
                f"itemsize={layout.itemsize}",
                f"dtype={kind.__module__}.{kind.__qualname__}",
                f"device_id={self.device_id}",
                f"is_device_accessible={bool(self.is_device_accessible)}",
                f"readonly={bool(self.readonly)}",
                f"exporting_obj={exporter.__module__}.{exporter.__qualname__}",
            ]
        ) + ")"

    # -- handing it on ---------------------------------------------------------------------------------------------

    cdef DLDataType _export_type(self) except *:
        cdef DLDataType kind
        if self._dl_type.bits:
            return self._dl_type
        dtype = self.dtype
        if dtype is None:
            raise BufferError(
                "Cannot export StridedMemoryView via DLPack without dtype information; "
                "create the view with dtype specified."
            )
        kind.code, kind.bits = dlpack_type(dtype)
        kind.lanes = 1
        return kind

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
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
        cdef object number = stream_number(stream, "stream")
        cdef bint versioned = wants_versioned(max_version)
        cdef tuple wanted = wanted_device(dl_device)
        cdef StridedMemoryView held = self._held()
        cdef tuple place = held._place
        if checked_copy(copy):
            raise BufferError("Sorry, not supported: copy=True")
        check_consumer(number, place[0], stream)
        if wanted is not None:
            if not usable_from(place, wanted):
                raise BufferError(f"Sorry, not supported: memory of device {place} with dl_device={wanted}")
            place = wanted
        if self.readonly and not versioned:
            raise BufferError("a read-only view needs a consumer that gives max_version=(1, 0) or later")
        return export_memory(
            <void*>(held._address + <intptr_t>self._layout.slice_offset_in_bytes), place, self._export_type(),
            self._layout.shape, self._known_layout._known_strides(), DL_READ_ONLY if self.readonly else 0,
            held._source, held._record, number, versioned,
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return where the memory lies as a DLPack device type and device id."""
        return self._held()._place

    def copy_from(
        self,
        other: StridedMemoryView,
        stream: Stream,
        allocator: object | None = None,
        blocking: bool | None = None,
    ) -> None:
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
        if not isinstance(other, StridedMemoryView):
            raise TypeError(f"other must be a StridedMemoryView, got {type(other).__name__}: {shown(other)}")
        raise NotImplementedError("Sorry, not supported: copy_from of a view; see Buffer.copy_from")

    def copy_to(
        self,
        other: StridedMemoryView,
        stream: Stream | None = None,
        allocator: object | None = None,
        blocking: bool | None = None,
    ) -> None:
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
        if not isinstance(other, StridedMemoryView):
            raise TypeError(f"other must be a StridedMemoryView, got {type(other).__name__}: {shown(other)}")
        raise NotImplementedError("Sorry, not supported: copy_to of a view; see Buffer.copy_to")


# --- where views come from ----------------------------------------------------------------------------------------


cdef int _check_bounds(_StridedLayout layout, object low, object high) except -1:
    """Refuse a layout with elements outside of the bytes from ``low`` to ``high``."""
    first, last = layout.offset_bounds
    if last < first:
        return 0
    if low == 0:
        needed = layout.required_size_in_bytes()
        if needed > high:
            raise ValueError(
                f"Buffer size is too small for the layout. Expected at least {needed} bytes, got {high} bytes."
            )
    elif first * layout.itemsize < low or (last + 1) * layout.itemsize > high:
        raise ValueError(
            f"The layout needs the bytes from {first * layout.itemsize} to {(last + 1) * layout.itemsize}, the memory "
            f"has those from {low} to {high}."
        )
    return 0


cdef int _device_id(object buffer, tuple place) except? -2:
    if place[0] == DL_CPU:
        return -1
    if place[0] == DL_CUDA:
        return place[1]
    try:
        number = buffer.device_id
    except (RuntimeError, TypeError):
        return 0  # pinned memory of no device in particular, which DLPack says is of device 0
    return 0 if number < 0 else number


cpdef bint _speaks_dlpack(object obj) except -1:
    return hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__")


cdef object _consumer_number(object stream_ptr):
    """Return the consumer's stream as a number; 0, the address of no stream, stands for the legacy default stream."""
    number = stream_number(stream_ptr, "stream_ptr")
    return 1 if number == 0 else number


cdef int _fill_from_tensor(StridedMemoryView self, ImportedTensor imported, object obj) except -1:
    cdef DLTensor* tensor = imported.tensor
    cdef list shape = [], strides = []
    cdef int size = tensor.dtype.bits * tensor.dtype.lanes // 8
    for axis in range(tensor.ndim):
        shape.append(tensor.shape[axis])
        if tensor.strides != NULL:
            strides.append(tensor.strides[axis])
    self._known_layout = _StridedLayout(tuple(shape), tuple(strides) if tensor.strides != NULL else None, size)
    first, last = self._known_layout.offset_bounds
    self._low, self._high = min(first * size, 0), (last + 1) * size
    self._address = <intptr_t>(<uintptr_t>tensor.data + <uintptr_t>tensor.byte_offset)
    self._place = (tensor.device.device_type, tensor.device.device_id)
    self.is_device_accessible = tensor.device.device_type != DL_CPU
    self.device_id = tensor.device.device_id if self.is_device_accessible else -1
    self.readonly = imported.is_readonly
    self._dl_type = tensor.dtype
    self._source = imported
    self._exporter = obj
    if isinstance(obj, Buffer):
        self._record = obj
    elif isinstance(obj, StridedMemoryView):
        with cython.critical_section(obj):
            self._record = (<StridedMemoryView>obj)._record
    return 0


cdef object _ask_for_capsule(object obj, dict keywords):
    try:
        return obj.__dlpack__(max_version=(DLPACK_MAJOR, 0), **keywords)
    except TypeError:  # an exporter older than DLPack 1.0
        return obj.__dlpack__(**keywords)


cdef int _fill_from_dlpack(StridedMemoryView self, object obj, object stream_ptr) except -1:
    cdef object number = _consumer_number(stream_ptr)
    device_type, _ = obj.__dlpack_device__()
    device_type = int(device_type)
    if device_type not in (DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED):
        raise BufferError(f"device not supported: DLPack device type {device_type}")
    if number == NO_STREAM and device_type in (DL_CPU, DL_CUDA):
        raise BufferError(_AMBIGUOUS)
    keywords = {}
    if device_type != DL_CPU:
        keywords["stream"] = None if number == NO_STREAM else number
    try:
        capsule = _ask_for_capsule(obj, keywords)
    except (RuntimeError, ValueError):  # the second since NumPy 2.5
        # NumPy knows no streams, also where it looks at pinned memory. None is the legacy default stream, so nothing is
        # lost by it for who wants that one, or no order at all.
        if device_type in (DL_CPU, DL_CUDA) or number not in (NO_SYNC, 1):
            raise
        capsule = _ask_for_capsule(obj, {})
    try:
        imported = take_capsule(capsule)
    finally:
        capsule = None  # here, where no exception is set: its destructor may be written in Python
    return _fill_from_tensor(self, imported, obj)


cdef int _fill_from_interface(StridedMemoryView self, object obj, object interface, str name) except -1:
    """Read what the two array interfaces have in common."""
    cdef _StridedLayout layout
    if not isinstance(interface, dict):
        raise TypeError(f"the {name} must be a dict, got {type(interface).__name__}: {shown(interface)}")
    for key in ("version", "shape", "typestr", "data"):
        if key not in interface:
            raise ValueError(f"the {name} lacks {key!r}")
    version, typestr = interface["version"], interface["typestr"]
    try:
        version = operator.index(version)
    except TypeError:
        raise TypeError(f"version of the {name} must be an integer, got {shown(version)}") from None
    if version < 3:
        raise BufferError(f"only {name} v3 or above is supported, got version {shown(version)}")
    if not isinstance(typestr, str):  # NumPy reads None as float64
        raise TypeError(f"typestr of the {name} must be a str such as '<f4', got {shown(typestr)}")
    if interface.get("mask") is not None:
        raise BufferError("mask is not supported")
    data = interface["data"]
    if not isinstance(data, tuple) or len(data) != 2:
        raise TypeError(f"data of the {name} must be a tuple (address, read-only), got {shown(data)}")
    address = stream_number(data[0], "the address in data")
    if address < 0:
        raise ValueError(f"the address in data must not be {shown(data[0])}")
    shape, strides = interface["shape"], interface.get("strides")
    if not isinstance(shape, tuple):
        raise TypeError(f"shape of the {name}: Expected tuple, got {type(shape).__name__}")
    if strides is not None and not isinstance(strides, tuple):
        raise TypeError(f"strides of the {name}: Expected tuple, got {type(strides).__name__}")
    self._typestr = typestr
    size = typestr_dtype(typestr).itemsize
    layout = _StridedLayout(shape, strides, size, True)
    first, last = layout.offset_bounds
    if last * size + size > 2**63 - 1 or address > 2**63 - 1:
        raise OverflowError(f"the {name} describes memory beyond all addresses")
    self._known_layout = layout
    self._low, self._high = min(first * size, 0), (last + 1) * size
    self._address = address
    self.readonly = bool(data[1])
    self._source = obj
    self._exporter = obj
    return 0


cdef int _fill_from_cuda_interface(StridedMemoryView self, object obj, object stream_ptr) except -1:
    cdef object number = _consumer_number(stream_ptr)
    cdef object interface = obj.__cuda_array_interface__
    cdef StreamHandle* consumer = NULL
    cdef StreamHandle* producer = NULL
    _fill_from_interface(self, obj, interface, "CUDA Array Interface")
    if number == NO_STREAM:
        raise BufferError(_AMBIGUOUS)
    stream = stream_number(interface.get("stream"), "stream of the CUDA Array Interface")
    if number != NO_SYNC and stream in (0, NO_SYNC):
        raise ValueError(
            f"stream of the CUDA Array Interface must not be {shown(interface['stream'])}: it is ambiguous"
        )
    self._place, self.device_id = _place_of(self._address)
    self.is_device_accessible = True
    if number == NO_SYNC or stream == NO_STREAM:
        return 0
    try:
        producer = consumer_handle(stream, self.device_id, NULL)
        consumer = consumer_handle(number, self.device_id, producer)
        order_behind(consumer, producer)
    finally:
        drop_stream(producer)
        drop_stream(consumer)
    return 0


cdef tuple _place_of(uintptr_t address):
    """Return the DLPack place and the device of memory that a device can use."""
    cdef int device_id
    cdef bint device, host, managed
    if address == 0:  # an array without elements
        device_id = device_of_context(current_context()) if current_context() != NULL else 0
        return (DL_CUDA, device_id), device_id
    device_id, device, host, managed = pointer_attributes(address)
    if not device:
        raise BufferError(f"{address:#x} is memory that no device can use")
    device_id = max(device_id, 0)
    if managed:
        return (DL_CUDA_MANAGED, 0), device_id
    if host:
        return (DL_CUDA_HOST, 0), device_id
    return (DL_CUDA, device_id), device_id


# --- for consumers written in C -----------------------------------------------------------------------------------


cdef int _no_allocator(DLTensor* prototype, DLManagedTensorVersioned** out, void* error_ctx,
                       void (*set_error)(void*, const char*, const char*) noexcept nogil) noexcept nogil:
    if out != NULL:
        out[0] = NULL
    if set_error != NULL:
        set_error(error_ctx, b"NotImplementedError", b"a StridedMemoryView allocates nothing")
    return -1


cdef int _managed_from_object(void* py_object, DLManagedTensorVersioned** out) except -1:
    cdef StridedMemoryView view
    out[0] = NULL
    view = (<StridedMemoryView?><object>py_object)._held()
    out[0] = &new_export(
        <void*>(view._address + <intptr_t>view._layout.slice_offset_in_bytes), view._place[0], view._place[1],
        view._export_type(), view._layout.shape, view._known_layout._known_strides(),
        DL_READ_ONLY if view.readonly else 0, view._source,
    ).versioned
    return 0


cdef int _object_from_managed(DLManagedTensorVersioned* tensor, void** out_py_object) except -1:
    cdef StridedMemoryView view
    out_py_object[0] = NULL
    if tensor == NULL:
        raise ValueError("there is no tensor")
    view = StridedMemoryView.__new__(StridedMemoryView)
    _fill_from_tensor(view, take_managed(tensor), None)
    Py_INCREF(view)
    out_py_object[0] = <void*>view
    return 0


cdef int _tensor_from_object(void* py_object, DLTensor* out) except -1:
    """Describe a view without a loan: valid for as long as the caller keeps the view."""
    cdef StridedMemoryView view = <StridedMemoryView?><object>py_object
    cdef StridedMemoryView held = view._held()
    cdef int ndim = view._layout.ndim, axis
    cdef tuple strides = view._known_layout._known_strides()
    cdef int64_t* numbers
    out.dtype = view._export_type()
    numbers = <int64_t*>calloc(2 * ndim + 1, sizeof(int64_t))
    if numbers == NULL:
        raise MemoryError("no memory for a shape")
    for axis in range(ndim):
        numbers[axis] = view._layout.shape[axis]
        numbers[ndim + axis] = strides[axis]
    with cython.critical_section(view):
        if view._numbers == NULL:  # those that are there may be in use
            view._numbers = numbers
            numbers = NULL
        out.shape, out.strides = view._numbers, view._numbers + ndim
    free(numbers)
    out.data = <void*>(held._address + <intptr_t>view._layout.slice_offset_in_bytes)
    out.device.device_type, out.device.device_id = held._place
    out.ndim = ndim
    out.byte_offset = 0
    return 0


cdef int _current_work_stream(int32_t device_type, int32_t device_id, void** out_current_stream) noexcept nogil:
    out_current_stream[0] = NULL  # the package has no current stream: the default stream
    return 0


_exchange_api.header.version.major = DLPACK_MAJOR
_exchange_api.header.version.minor = DLPACK_MINOR
_exchange_api.header.prev_api = NULL
_exchange_api.managed_tensor_allocator = _no_allocator
_exchange_api.managed_tensor_from_py_object_no_sync = _managed_from_object
_exchange_api.managed_tensor_to_py_object_no_sync = _object_from_managed
_exchange_api.dltensor_from_py_object_no_sync = _tensor_from_object
_exchange_api.current_work_stream = _current_work_stream
