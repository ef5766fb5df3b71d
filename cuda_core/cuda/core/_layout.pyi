# SPDX-License-Identifier: Apache-2.0
# Made from _layout.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""Where the elements of a strided array lie: arithmetic on shapes and strides, without any memory."""

from typing import final

__all__ = ["_StridedLayout"]

@final
class _StridedLayout:
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

    @property
    def itemsize(self) -> int: ...

    @property
    def slice_offset(self) -> int: ...

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int, divide_strides: bool = False) -> None:
        ...

    @classmethod
    def dense(cls, shape: tuple[int, ...], itemsize: int, stride_order: str | tuple[int, ...] = 'C') -> _StridedLayout:
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

    @classmethod
    def dense_like(cls, other: _StridedLayout, stride_order: str | tuple[int, ...] = 'K') -> _StridedLayout:
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

    def __reduce__(self) -> tuple[object, ...]:
        ...

    def __repr__(self) -> str:
        ...

    def __eq__(self, other: object) -> bool:
        ...

    @property
    def ndim(self) -> int:
        """int: the number of dimensions."""

    @property
    def shape(self) -> tuple[int, ...]:
        """tuple of int: the extent of each dimension."""

    @property
    def strides(self) -> tuple[int, ...] | None:
        """tuple of int or None: the strides in elements; None for C order without gaps."""

    @property
    def strides_in_bytes(self) -> tuple[int, ...] | None:
        """tuple of int or None: the strides in bytes."""

    @property
    def stride_order(self) -> tuple[int, ...]:
        """tuple of int: the axes, from the largest stride to the smallest. Signs do not count; of equal strides the
        larger extent comes first."""

    @property
    def volume(self) -> int:
        """int: the number of elements."""

    @property
    def is_unique(self) -> bool:
        """bool: whether no two elements certainly share an address. False may be wrong for strides made by hand."""

    @property
    def is_contiguous_c(self) -> bool:
        """bool: whether the elements lie without gaps in C order, wherever the first one lies."""

    @property
    def is_contiguous_f(self) -> bool:
        """bool: whether the elements lie without gaps in Fortran order, wherever the first one lies."""

    @property
    def is_contiguous_any(self) -> bool:
        """bool: whether the elements lie without gaps in some order of axes, with no stride negative."""

    @property
    def is_dense(self) -> bool:
        """bool: whether it is contiguous in some order and begins at offset 0."""

    @property
    def offset_bounds(self) -> tuple[int, int]:
        """tuple of int: the lowest and the highest offset of an element; ``(0, -1)`` if there is none."""

    @property
    def min_offset(self) -> int:
        """int: the lowest offset of an element, in elements."""

    @property
    def max_offset(self) -> int:
        """int: the highest offset of an element, in elements."""

    @property
    def slice_offset_in_bytes(self) -> int:
        """int: where the element at index ``(0, ..., 0)`` lies, in bytes."""

    def required_size_in_bytes(self) -> int:
        """Return how large the memory behind offset 0 must be, in bytes.

        Raises
        ------
        ValueError
            If an element lies in front of offset 0.
        """

    def flattened_axis_mask(self) -> int:
        """Return a mask of the axes that :meth:`flattened` can merge with the axis before them."""

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

    def to_dense(self, stride_order: str | tuple[int, ...] = 'K') -> _StridedLayout:
        """Return :meth:`dense_like` of this layout."""

    def reshaped(self, shape: tuple[int, ...]) -> _StridedLayout:
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

    def permuted(self, axis_order: tuple[int, ...]) -> _StridedLayout:
        """Return the layout with its axes in another order.

        Raises
        ------
        ValueError
            If ``axis_order`` is no permutation of the axes.
        """

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

    def squeezed(self) -> _StridedLayout:
        """Return the layout without its extents of 1; without elements, one with shape ``(0,)``."""

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

    def broadcast_to(self, shape: tuple[int, ...]) -> _StridedLayout:
        """Return the layout with its extents of 1, and extents in front of all, repeated.

        Raises
        ------
        ValueError
            If the shapes do not fit together.
        """

    def repacked(self, itemsize: int, data_ptr: int = 0, axis: int = -1, keep_dim: bool = True) -> _StridedLayout:
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

    def __getitem__(self, slices: int | slice | tuple[int | slice, ...]) -> _StridedLayout:
        ...
