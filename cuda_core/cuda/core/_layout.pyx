# SPDX-License-Identifier: Apache-2.0
"""Where the elements of a strided array lie: arithmetic on shapes and strides, without any memory."""

cimport cython
from libc.stdint cimport int64_t

from cuda.core._layout_numbers cimport (
    axis_of,
    check_ndim,
    dense_strides,
    extents_of,
    fitting,
    integer,
    ordered_strides,
    permutation,
    positive_itemsize,
)

import math
import operator

from cuda.core._error_text import shown

__all__ = ["_StridedLayout"]


cdef _StridedLayout new_layout(tuple shape, tuple strides, int itemsize, int64_t slice_offset):
    """Make a layout of numbers that are known to be right."""
    cdef _StridedLayout self = _StridedLayout.__new__(_StridedLayout)
    self._shape, self._strides = shape, strides
    self.itemsize = itemsize
    self.slice_offset = slice_offset
    return self


cdef _StridedLayout _derived(_StridedLayout source, object shape, object strides):
    """Make a layout of the same memory from a shape and strides."""
    check_ndim(len(shape))
    for stride in strides:
        fitting(stride)
    return new_layout(tuple(shape), tuple(strides), source.itemsize, source.slice_offset)


@cython.final
cdef class _StridedLayout:
    """Shape, strides and size of an element of a strided array.

    Parameters
    ----------
    shape : tuple of int
        Extent of each dimension; at most 64 dimensions.
    strides : tuple of int or None
        Step to the next element in each dimension, in elements. None means C order without gaps; :attr:`strides` is
        then None too.
    itemsize : int
        Bytes of an element.
    divide_strides : bool, optional
        The strides are given in bytes. (Default False)

    Attributes
    ----------
    itemsize : int
        Bytes of an element.
    slice_offset : int
        Where the element at index ``(0, ..., 0)`` lies, in elements. Only slicing makes it other than 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    OverflowError
        If a number does not fit into 64 bits. Products are checked when they are asked for.

    Notes
    -----
    A layout never changes: every method returns a new one. Safe from any thread.

    Examples
    --------
    >>> layout = _StridedLayout.dense((5, 3, 7), 4)
    >>> layout.permuted((2, 0, 1)).strides
    (1, 21, 7)
    >>> layout[1:, 0].slice_offset_in_bytes
    84
    """

    def __init__(
        self,
        tuple shape not None: tuple[int, ...],
        tuple strides: tuple[int, ...] | None,
        itemsize: int,
        bint divide_strides=False,
    ) -> None:
        cdef int size = positive_itemsize(itemsize)
        cdef tuple extents = extents_of(shape)
        cdef list steps, divided
        if self._shape is not None:
            raise RuntimeError("this layout was made already, and views may depend on what it is")
        if strides is not None:
            if len(strides) != len(extents):
                raise ValueError(
                    "Strides, if provided, must have the same length as shape. "
                    f"Shape has {len(extents)} dimensions, but strides has {len(strides)} elements."
                )
            steps = []
            for stride in strides:
                steps.append(integer(stride, "strides"))
            if divide_strides:
                for stride in steps:
                    if stride % size:
                        raise ValueError(f"strides must be divisible by itemsize, got {shown(strides)} and {size}")
                divided = []
                for stride in steps:
                    divided.append(stride // size)
                steps = divided
            self._strides = tuple(steps)
        self._shape = extents
        self.itemsize = size

    @classmethod
    def dense(
        cls, tuple shape not None: tuple[int, ...], itemsize: int, stride_order: str | tuple[int, ...] = "C"
    ) -> _StridedLayout:
        """Make a layout without gaps.

        Parameters
        ----------
        shape : tuple of int
            Extent of each dimension.
        itemsize : int
            Bytes of an element.
        stride_order : {'C', 'F'} or tuple of int, optional
            'C': the last axis has stride 1; 'F': the first has. A permutation names the axes from the largest stride
            to the smallest.

        Returns
        -------
        _StridedLayout
        """
        cdef tuple extents = extents_of(shape)
        return new_layout(
            extents, ordered_strides(extents, stride_order, "'C', 'F'"), positive_itemsize(itemsize), 0
        )

    @classmethod
    def dense_like(
        cls, _StridedLayout other not None, stride_order: str | tuple[int, ...] = "K"
    ) -> _StridedLayout:
        """Make a layout with the shape and itemsize of another, without gaps and without offset.

        Parameters
        ----------
        other : _StridedLayout
            Where shape and itemsize come from.
        stride_order : {'K', 'C', 'F'} or tuple of int, optional
            'K' keeps the other's order of strides; the rest as in :meth:`dense`.

        Returns
        -------
        _StridedLayout
        """
        if isinstance(stride_order, str) and stride_order == "K":
            if other.is_dense:
                return other
            strides = dense_strides(other._shape, other.stride_order)
        else:
            strides = ordered_strides(other._shape, stride_order, "'K', 'C', 'F'")
        return new_layout(other._shape, strides, other.itemsize, 0)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (self._shape, self._strides, self.itemsize, self.slice_offset)

    def __repr__(self) -> str:
        offset = f", _slice_offset={self.slice_offset}" if self.slice_offset else ""
        return f"_StridedLayout(shape={self._shape}, strides={self._strides}, itemsize={self.itemsize}{offset})"

    def __eq__(self, other: object) -> bool:
        cdef _StridedLayout that
        if not isinstance(other, _StridedLayout):
            return NotImplemented
        that = other
        return (
            self._shape == that._shape
            and self._strides == that._strides
            and self.itemsize == that.itemsize
            and self.slice_offset == that.slice_offset
        )

    # -- what it says ----------------------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """int: the number of dimensions."""
        return len(self._shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """tuple of int: the extent of each dimension."""
        return self._shape

    @property
    def strides(self) -> tuple[int, ...] | None:
        """tuple of int or None: the strides in elements; None for C order without gaps."""
        return self._strides

    @property
    def strides_in_bytes(self) -> tuple[int, ...] | None:
        """tuple of int or None: the strides in bytes."""
        if self._strides is None:
            return None
        cdef list steps = []
        for stride in self._strides:
            steps.append(fitting(stride * self.itemsize))
        return tuple(steps)

    cdef tuple _known_strides(self):
        """The strides, also of a layout that has them by its order only."""
        return dense_strides(self._shape, range(len(self._shape))) if self._strides is None else self._strides

    @property
    def stride_order(self) -> tuple[int, ...]:
        """tuple of int: the axes, from the largest stride to the smallest. Signs do not count; of equal strides the
        larger extent comes first."""
        if self._strides is None:
            return tuple(range(len(self._shape)))
        strides, shape = self._strides, self._shape
        return tuple(sorted(range(len(shape)), key=lambda axis: (-abs(strides[axis]), -shape[axis])))

    @property
    def volume(self) -> int:
        """int: the number of elements."""
        cdef object volume
        with cython.critical_section(self):
            volume = self._volume
        if volume is None:
            volume = fitting(math.prod(self._shape))
            with cython.critical_section(self):  # what another thread has found meanwhile stays
                if self._volume is None:
                    self._volume = volume
        return volume

    cdef bint _is_dense_in(self, object order) except -1:
        stride = 1
        if not self.volume:
            return True
        for axis in reversed(order):
            if self._shape[axis] != 1:
                if self._strides[axis] != stride:
                    return False
                stride *= self._shape[axis]
        return True

    @property
    def is_unique(self) -> bool:
        """bool: whether no two elements certainly share an address. False may be wrong for strides made by hand."""
        if self._strides is None or not self.volume:
            return True
        reach = 0
        for axis in reversed(self.stride_order):
            if self._shape[axis] != 1:
                stride = abs(self._strides[axis])
                if reach >= stride:
                    return False
                reach += stride * (self._shape[axis] - 1)
        return True

    @property
    def is_contiguous_c(self) -> bool:
        """bool: whether the elements lie without gaps in C order, wherever the first one lies."""
        return not self.volume or self._strides is None or self._is_dense_in(range(len(self._shape)))

    @property
    def is_contiguous_f(self) -> bool:
        """bool: whether the elements lie without gaps in Fortran order, wherever the first one lies."""
        cdef int longer = 0
        if self._strides is None:
            for extent in self._shape:
                longer += extent != 1
            return not self.volume or longer <= 1
        return self._is_dense_in(range(len(self._shape))[::-1])

    @property
    def is_contiguous_any(self) -> bool:
        """bool: whether the elements lie without gaps in some order of axes, with no stride negative."""
        return not self.volume or self._strides is None or self._is_dense_in(self.stride_order)

    @property
    def is_dense(self) -> bool:
        """bool: whether it is contiguous in some order and begins at offset 0."""
        return self.slice_offset == 0 and self.is_contiguous_any

    @property
    def offset_bounds(self) -> tuple[int, int]:
        """tuple of int: the lowest and the highest offset of an element; ``(0, -1)`` if there is none."""
        low = high = self.slice_offset
        if not self.volume:
            return (0, -1)
        for extent, stride in zip(self._shape, self._known_strides()):
            reach = stride * (extent - 1)
            if reach < 0:
                low += reach
            else:
                high += reach
        return (fitting(low), fitting(high))

    @property
    def min_offset(self) -> int:
        """int: the lowest offset of an element, in elements."""
        return self.offset_bounds[0]

    @property
    def max_offset(self) -> int:
        """int: the highest offset of an element, in elements."""
        return self.offset_bounds[1]

    @property
    def slice_offset_in_bytes(self) -> int:
        """int: where the element at index ``(0, ..., 0)`` lies, in bytes."""
        return fitting(self.slice_offset * <object>self.itemsize)

    def required_size_in_bytes(self) -> int:
        """Return how large the memory behind offset 0 must be, in bytes.

        Raises
        ------
        ValueError
            If an element lies in front of offset 0.
        """
        low, high = self.offset_bounds
        if low < 0:
            raise ValueError(
                "Allocation size for a layout that maps elements to negative memory offsets is ambiguous. "
                f"The layout's min_offset is {low}."
            )
        return fitting((high + 1) * self.itemsize)

    def flattened_axis_mask(self) -> int:
        """Return a mask of the axes that :meth:`flattened` can merge with the axis before them."""
        strides, mask = self._known_strides(), 0
        for axis in range(1, len(self._shape)):
            if self._strides is None or strides[axis - 1] == strides[axis] * self._shape[axis]:
                mask |= <object>1 << axis
        return mask

    def max_compatible_itemsize(self, max_itemsize: int = 16, data_ptr: int = 0, axis: int = -1) -> int:
        """Return the largest itemsize up to ``max_itemsize`` with which :meth:`repacked` works.

        Parameters
        ----------
        max_itemsize : int, optional
            The limit, in bytes.
        data_ptr : int, optional
            An address that the elements have to be aligned with.
        axis : int, optional
            The axis whose elements are packed.

        Raises
        ------
        ValueError
            If ``max_itemsize`` is less than the itemsize, or the axis is out of range.
        """
        cdef int where
        limit = integer(max_itemsize, "max_itemsize")
        if limit <= 0:
            raise ValueError(f"max_itemsize must be greater than zero, got {shown(limit)}.")
        if limit < self.itemsize:
            raise ValueError(f"max_itemsize ({limit}) cannot be less than itemsize ({self.itemsize}).")
        where = axis_of(axis, len(self._shape), "axis:")
        strides = self._known_strides()
        if strides[where] != 1 or self._shape[where] < 1:
            return self.itemsize
        others = [stride for index, stride in enumerate(strides) if index != where]
        elements = math.gcd(self._shape[where], self.slice_offset, *others)
        size = math.gcd(limit, elements * self.itemsize, operator.index(data_ptr))
        return size if size % self.itemsize == 0 or self.itemsize % size == 0 else self.itemsize

    # -- other layouts of the same memory --------------------------------------------------------------------------

    def to_dense(self, stride_order: str | tuple[int, ...] = "K") -> _StridedLayout:
        """Return :meth:`dense_like` of this layout."""
        return _StridedLayout.dense_like(self, stride_order)

    def reshaped(self, tuple shape not None: tuple[int, ...]) -> _StridedLayout:
        """Return a layout with another shape, whose elements in C order are the same.

        Parameters
        ----------
        shape : tuple of int
            The new extents. One of them may be -1: it is computed.

        Raises
        ------
        ValueError
            If the numbers of elements differ, or no strides give the new shape.
        """
        cdef list extents = []
        cdef list strides = [0] * len(shape)
        cdef _StridedLayout merged
        for extent in shape:
            extents.append(integer(extent, "shape"))
        unknown = extents.count(-1)
        if unknown > 1:
            raise ValueError(f"There can be at most one -1 extent in a shape, got {shown(shape)}")
        if unknown:
            at = extents.index(-1)
            known = math.prod(extents_of(tuple(extents[:at] + extents[at + 1:])))
            if not known:
                raise ValueError("The -1 extent is ambiguous when the specified sub-volume is 0")
            if self.volume % known:
                raise ValueError(
                    f"The original volume {self.volume} must be divisible by the specified sub-volume {known}."
                )
            extents[at] = self.volume // known
        extents = list(extents_of(tuple(extents)))
        if math.prod(extents) != self.volume:
            raise ValueError(
                f"The original volume {self.volume} and the new volume {math.prod(extents)} must be equal."
            )
        if self.volume:
            merged = self.squeezed().flattened()
            groups = list(zip(merged._shape, merged._strides))
            left, stride = groups.pop() if groups else (1, 1)
            for axis in reversed(range(len(extents))):
                extent = extents[axis]
                if extent != 1 and left == 1 and groups:
                    left, stride = groups.pop()
                if left % extent:
                    raise ValueError("Layout strides are incompatible with the new shape")
                strides[axis] = stride
                left, stride = left // extent, stride * extent
        return _derived(self, extents, strides)

    def permuted(self, tuple axis_order not None: tuple[int, ...]) -> _StridedLayout:
        """Return the layout with its axes in another order.

        Raises
        ------
        ValueError
            If ``axis_order`` is no permutation of the axes.
        """
        cdef int ndim = len(self._shape)
        cdef list extents = [], steps = []
        if len(axis_order) != ndim:
            raise ValueError(
                "Permutation must have the same length as the number of dimensions, "
                f"got {len(axis_order)} for {ndim}D tensor."
            )
        axes = permutation(
            axis_order, ndim, "permutation: axis", "Invalid permutation: axis {} appears multiple times."
        )
        strides = self._known_strides()
        for axis in axes:
            extents.append(self._shape[axis])
            steps.append(strides[axis])
        return _derived(self, extents, steps)

    def flattened(self, start_axis: int = 0, end_axis: int = -1, mask: int | None = None) -> _StridedLayout:
        """Merge neighbouring axes wherever one stride can do the work of both.

        Parameters
        ----------
        start_axis, end_axis : int, optional
            The first and the last axis to look at.
        mask : int, optional
            The axes to merge with the one before them, instead of a first and last axis; masks of several layouts
            (:meth:`flattened_axis_mask`) can be combined with ``&``.

        Raises
        ------
        ValueError
            If an axis is out of range.
        OverflowError
            If the mask is negative or has more than 64 bits.
        """
        cdef int ndim = len(self._shape), first = 0, last = 0
        if mask is None:
            if ndim:
                first, last = axis_of(start_axis, ndim, "start axis:"), axis_of(end_axis, ndim, "end axis:")
            wanted = 0
            for axis in range(first + 1, last + 1):
                wanted |= <object>1 << axis
        else:
            wanted = operator.index(mask)
            if not 0 <= wanted < 2**64:
                raise OverflowError(f"mask must fit into 64 bits, got {shown(wanted)}")
        if not ndim:
            return new_layout((1,), (1,), self.itemsize, self.slice_offset)
        strides = self._known_strides()
        extents, steps = [self._shape[0]], [strides[0]]
        for axis in range(1, ndim):
            if wanted >> axis & 1 and steps[-1] == strides[axis] * self._shape[axis]:
                extents[-1] *= self._shape[axis]
                steps[-1] = strides[axis]
            else:
                extents.append(self._shape[axis])
                steps.append(strides[axis])
        return new_layout(tuple(extents), tuple(steps), self.itemsize, self.slice_offset)

    def squeezed(self) -> _StridedLayout:
        """Return the layout without its extents of 1; without elements, one with shape ``(0,)``."""
        if not self.volume:
            return new_layout((0,), (0,), self.itemsize, self.slice_offset)
        kept = [pair for pair in zip(self._shape, self._known_strides()) if pair[0] != 1]
        return _derived(self, [extent for extent, _ in kept], [stride for _, stride in kept])

    def unsqueezed(self, axis: int | tuple[int, ...]) -> _StridedLayout:
        """Return the layout with further axes of extent 1.

        Parameters
        ----------
        axis : int or tuple of int
            Where the new axes are in the result.

        Raises
        ------
        ValueError
            If an axis is out of range or named twice.
        """
        axes = list(axis) if isinstance(axis, (tuple, list)) else [axis]
        cdef int ndim = len(self._shape) + len(axes), index
        if not axes:
            return self
        check_ndim(ndim)
        added = set(permutation(axes, ndim, "axis:", "Axis {} appears multiple times."))
        old = list(zip(self._shape, self._known_strides()))
        pairs = []
        for index in reversed(range(ndim)):
            extent, stride = pairs[-1] if pairs else (1, 1)
            pairs.append((1, extent * stride) if index in added else old.pop())
        pairs.reverse()
        return _derived(self, [extent for extent, _ in pairs], [stride for _, stride in pairs])

    def broadcast_to(self, tuple shape not None: tuple[int, ...]) -> _StridedLayout:
        """Return the layout with its extents of 1, and extents in front of all, repeated.

        Raises
        ------
        ValueError
            If the shapes do not fit together.
        """
        cdef tuple extents = extents_of(shape)
        cdef int ndim = len(self._shape), more = len(extents) - len(self._shape), axis
        cdef list strides
        if more < 0:
            raise ValueError(
                f"The broadcast shape ndim ({len(extents)}) must be greater than or equal to the input shape "
                f"ndim ({ndim})."
            )
        strides = [0] * more + list(self._known_strides())
        for axis in range(ndim):
            if self._shape[axis] != extents[more + axis]:
                if self._shape[axis] != 1:
                    raise ValueError(
                        "Shapes cannot be broadcast together: the original extent must be 1 or be equal to broadcast "
                        f"extent, got {self._shape[axis]} and {extents[more + axis]} for axis {axis}."
                    )
                strides[more + axis] = 0
        return _derived(self, extents, strides)

    def repacked(
        self, itemsize: int, data_ptr: int = 0, axis: int = -1, bint keep_dim=True
    ) -> _StridedLayout:
        """Return a layout of the same bytes with elements of another size.

        Parameters
        ----------
        itemsize : int
            Bytes of a new element: a multiple or a divisor of the present size.
        data_ptr : int, optional
            An address that larger elements have to be aligned with.
        axis : int, optional
            The axis whose elements are packed or unpacked. Its stride must be 1.
        keep_dim : bool, optional
            False leaves the axis out where only one packed element is left. (Default True)

        Raises
        ------
        ValueError
            If the extent, the strides or the offset do not allow it.
        """
        cdef int where
        cdef list steps = []
        size = integer(itemsize, "itemsize")
        if size <= 0:
            raise ValueError(f"new itemsize must be greater than zero, got {shown(size)}.")
        if size == self.itemsize:
            return self
        where = axis_of(axis, len(self._shape), "axis:")
        strides, shape = list(self._known_strides()), list(self._shape)
        if shape[where] == 0:
            raise ValueError(f"The axis {where} extent must be non-zero, got 0.")
        if strides[where] != 1:
            raise ValueError(f"The axis {where} stride must be 1, got {strides[where]}.")
        larger, smaller = (size, self.itemsize) if size > self.itemsize else (self.itemsize, size)
        if larger % smaller:
            raise ValueError(f"The larger itemsize ({larger}) must be a multiple of the smaller ({smaller}).")
        factor = larger // smaller
        if size < self.itemsize:
            for index, stride in enumerate(strides):
                steps.append(fitting(stride if index == where else stride * factor))
            shape[where] = fitting(shape[where] * factor)
            return new_layout(tuple(shape), tuple(steps), size, fitting(self.slice_offset * factor))
        if shape[where] % factor:
            raise ValueError(f"The axis {where} extent ({shape[where]}) must be divisible by {factor}.")
        for index, stride in enumerate(strides):
            if index != where and stride % factor:
                raise ValueError(f"The {index} axis stride ({stride}) must be divisible by {factor}.")
        if self.slice_offset % factor:
            raise ValueError(f"The slice offset ({self.slice_offset}) must be divisible by {factor}.")
        if operator.index(data_ptr) % size:
            raise ValueError(f"The data pointer ({data_ptr}) must be aligned to the packed itemsize ({size}).")
        shape[where] //= factor
        for index, stride in enumerate(strides):
            steps.append(stride if index == where else stride // factor)
        if shape[where] == 1 and not keep_dim:
            del shape[where], steps[where]
        return new_layout(tuple(shape), tuple(steps), size, self.slice_offset // factor)

    def sliced(self, slices: int | slice | tuple[int | slice, ...]) -> _StridedLayout:
        """Return the layout of a part, chosen as by indexing.

        Parameters
        ----------
        slices : int, slice or tuple of them
            What to choose along the first axes. An integer removes its axis.

        Raises
        ------
        TypeError, ValueError
            If something is neither integer nor slice, out of range, or too much.
        """
        cdef tuple wanted = slices if isinstance(slices, tuple) else (slices,)
        cdef _StridedLayout part
        strides, shape, steps = self._known_strides(), [], []
        offset = self.slice_offset
        if len(wanted) > len(self._shape):
            raise ValueError(
                f"The number of slices ({len(wanted)}) is greater than the number of dimensions ({len(self._shape)})."
            )
        for axis, (extent, stride) in enumerate(zip(self._shape, strides)):
            choice = wanted[axis] if axis < len(wanted) else slice(None)
            if isinstance(choice, slice):
                begin, end, step = choice.indices(extent)
                shape.append(len(range(begin, end, step)))
                steps.append(stride * step)
                if not shape[-1]:
                    begin = 0
            elif hasattr(choice, "__index__"):
                begin = operator.index(choice)
                if not -extent <= begin < extent:
                    raise ValueError(f"Invalid index: {begin} out of range for axis {axis} with extent {extent}")
                begin += extent if begin < 0 else 0
            else:
                raise TypeError(f"Invalid slice: {choice}. Expected slice instance or integer.")
            offset += begin * stride
        part = _derived(self, shape, [0] * len(shape) if 0 in shape else steps)
        part.slice_offset = fitting(offset)
        return part

    def __getitem__(self, slices: int | slice | tuple[int | slice, ...]) -> _StridedLayout:
        return self.sliced(slices)


def _rebuilt(tuple shape, tuple strides, int itemsize, int64_t slice_offset):
    return new_layout(shape, strides, itemsize, slice_offset)
