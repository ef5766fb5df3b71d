# SPDX-License-Identifier: Apache-2.0
"""``_StridedLayout``: arithmetic on shapes and strides, compared with NumPy's own."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda.core._layout import _StridedLayout

numpy = pytest.importorskip("numpy")
as_strided = numpy.lib.stride_tricks.as_strided

shapes = st.lists(st.integers(0, 5), max_size=5).map(tuple)
full_shapes = st.lists(st.integers(1, 5), max_size=5).map(tuple)


def layout_of(array):
    return _StridedLayout(array.shape, array.strides, array.itemsize, divide_strides=True)


def numbers(shape, order="C"):
    return numpy.arange(int(numpy.prod(shape)), dtype=numpy.int32).reshape(shape, order=order)


def same(layout, array):
    """The layout puts the same elements at the same places as NumPy does."""
    assert (layout.shape, layout.ndim, layout.volume) == (array.shape, array.ndim, array.size)
    strides = layout.strides if layout.strides is not None else _StridedLayout.dense(layout.shape, 4).strides
    for extent, step, ours in zip(array.shape, array.strides, strides, strict=True):
        if extent > 1 and array.size:
            assert ours * array.itemsize == step


@st.composite
def views(draw):
    """An array, and a view of it that slices, reverses and permutes."""
    base = numbers(draw(full_shapes))
    view = base[(*(draw(st.slices(extent)) for extent in base.shape), ...)]  # the dots: never a scalar
    return base, view.transpose(draw(st.permutations(range(view.ndim))))


@given(views())
def test_contiguity_is_as_numpy_says(pair):
    _, view = pair
    layout = layout_of(view)
    assert layout.is_contiguous_c == view.flags.c_contiguous
    assert layout.is_contiguous_f == view.flags.f_contiguous
    order = sorted(range(view.ndim), key=lambda axis: -abs(view.strides[axis]))
    forward = all(step > 0 for step, extent in zip(view.strides, view.shape, strict=True) if extent > 1)
    if forward and view.size:
        assert layout.is_contiguous_any == view.transpose(order).squeeze().flags.c_contiguous
    assert layout.is_dense == layout.is_contiguous_any
    assert layout.is_unique
    assert layout.strides_in_bytes == view.strides


@given(views())
def test_bounds_are_the_bytes_that_numpy_touches(pair):
    _, view = pair
    tools = getattr(numpy.lib, "array_utils", numpy)
    low, high = tools.byte_bounds(view)
    layout = layout_of(view)
    if not view.size:
        assert layout.offset_bounds == (0, -1)
        assert layout.required_size_in_bytes() == 0
        return
    start = view.ctypes.data
    assert (layout.min_offset * 4, (layout.max_offset + 1) * 4) == (low - start, high - start)
    if low < start:
        with pytest.raises(ValueError, match="min_offset"):
            layout.required_size_in_bytes()
    else:
        assert layout.required_size_in_bytes() == high - start


@given(shapes, st.sampled_from("CF"))
def test_dense_is_what_numpy_makes(shape, order):
    layout = _StridedLayout.dense(shape, 4, order)
    if 0 not in shape:
        same(layout, numbers(shape, order))
        assert layout.required_size_in_bytes() == 4 * layout.volume
    else:
        assert layout.strides == (0,) * len(shape)
    assert layout.is_dense
    assert layout.is_contiguous_c if order == "C" else layout.is_contiguous_f


@given(st.data(), full_shapes)
def test_dense_in_any_order(data, shape):
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    layout = _StridedLayout.dense(shape, 2, order)
    assert layout.is_contiguous_any
    assert layout.permuted(order) == _StridedLayout.dense(tuple(shape[axis] for axis in order), 2)


@given(views())
def test_to_dense_keeps_the_order_of_axes(pair):
    _, view = pair
    dense = layout_of(view).to_dense()
    assert dense.is_dense
    assert dense.shape == view.shape
    if view.size and all(step > 0 for step in view.strides):
        same(dense, numpy.copy(view, order="K"))


@given(st.data(), views())
def test_slicing_is_numpys(data, pair):
    _, view = pair
    layout = layout_of(view)
    chosen = []
    for extent in view.shape[: data.draw(st.integers(0, view.ndim))]:
        choices = [st.slices(extent)]
        if extent:
            choices.append(st.integers(-extent, extent - 1))
        chosen.append(data.draw(st.one_of(choices)))
    part, expected = layout[tuple(chosen)], view[(*chosen, ...)]
    same(part, expected)
    if expected.size:
        assert part.slice_offset_in_bytes == expected.__array_interface__["data"][0] - view.ctypes.data
    assert part[()].slice_offset == part.slice_offset


@given(st.data(), views())
def test_permuting_is_numpys(data, pair):
    _, view = pair
    order = tuple(data.draw(st.permutations(range(view.ndim))))
    same(layout_of(view).permuted(order), view.transpose(order))


@given(views())
def test_squeezing_is_numpys(pair):
    _, view = pair
    if view.size:
        same(layout_of(view).squeezed(), view.squeeze())
    else:
        assert layout_of(view).squeezed().shape == (0,)


@given(st.data(), views())
def test_unsqueezing_is_numpys(data, pair):
    _, view = pair
    count = data.draw(st.integers(1, 3))
    axes = data.draw(st.permutations(range(view.ndim + count)))[:count]
    same(layout_of(view).unsqueezed(tuple(axes)), numpy.expand_dims(view, tuple(axes)))


@given(st.data(), views())
def test_reshaping_is_numpys_without_a_copy(data, pair):
    _, view = pair
    layout = layout_of(view)
    factors = [view.size] if view.size else [0]
    for divisor in (2, 3, 2, 5):
        if factors[-1] and factors[-1] % divisor == 0 and data.draw(st.booleans()):
            factors = [*factors[:-1], divisor, factors[-1] // divisor]
    shape = tuple(data.draw(st.permutations([*factors, *[1] * data.draw(st.integers(0, 2))])))
    try:
        expected = view.reshape(shape, copy=False)
    except ValueError:
        with pytest.raises(ValueError, match="incompatible"):
            layout.reshaped(shape)
        return
    except TypeError:
        pytest.skip("this NumPy cannot say that it must not copy")
    same(layout.reshaped(shape), expected)
    if view.size:
        at = data.draw(st.integers(0, len(shape) - 1))
        assert layout.reshaped((*shape[:at], -1, *shape[at + 1 :])) == layout.reshaped(shape)


@given(views())
def test_flattening_keeps_every_element_in_place(pair):
    _, view = pair
    flat = layout_of(view).flattened()
    assert flat.volume == view.size
    assert flat.ndim <= max(view.ndim, 1)
    if view.size:
        steps = tuple(step * 4 for step in flat.strides)
        again = as_strided(
            view[(slice(0, 1),) * view.ndim] if view.ndim else view.reshape(1), flat.shape, steps
        )
        assert again.ravel().tolist() == view.ravel().tolist()
        assert layout_of(view).flattened(mask=layout_of(view).flattened_axis_mask()) == flat


@given(st.data(), views())
def test_broadcasting_is_numpys(data, pair):
    _, view = pair
    shape = tuple(data.draw(st.integers(1, 3)) if extent == 1 else extent for extent in view.shape)
    shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=2))) + shape
    wide = layout_of(view).broadcast_to(shape)
    expected = numpy.broadcast_to(view, shape)
    assert wide.shape == expected.shape
    if expected.size:
        same(wide, expected)
        repeated = any(a > 1 and b == 0 for a, b in zip(wide.shape, wide.strides, strict=True))
        assert wide.is_unique is not repeated


@given(full_shapes.filter(len), st.sampled_from([1, 2, 4, 8, 16]))
def test_repacking_is_numpys_view(shape, size):
    array = numpy.zeros(shape, dtype="V4")
    layout = layout_of(array)
    try:
        expected = array.view(f"V{size}")
    except ValueError:
        with pytest.raises(ValueError, match=r"divisible|stride"):
            layout.repacked(size)
        return
    packed = layout.repacked(size)
    assert (packed.shape, packed.itemsize) == (expected.shape, size)
    same(packed, expected)
    assert packed.repacked(4).to_dense("C") == layout.to_dense("C")


@given(full_shapes.filter(len), st.integers(4, 16), st.integers(0, 3))
def test_the_largest_itemsize_works_and_no_larger_power_does(shape, limit, offset):
    layout = _StridedLayout.dense(shape, 4)
    best = layout.max_compatible_itemsize(limit, offset * 4)
    assert layout.repacked(best, offset * 4).itemsize == best
    assert best <= limit
    for larger in (8, 16):
        if best < larger == limit:
            with pytest.raises(ValueError, match=r"divisible|aligned"):
                layout.repacked(larger, offset * 4)


# --- one by one --------------------------------------------------------------------------------------------------


def test_strides_that_are_not_given_are_c_order():
    layout = _StridedLayout((2, 3), None, 4)
    assert (layout.strides, layout.strides_in_bytes, layout.stride_order) == (None, None, (0, 1))
    assert (layout.is_contiguous_c, layout.is_contiguous_f) == (True, False)
    assert (layout.is_dense, layout.is_unique) == (True, True)
    assert layout != _StridedLayout((2, 3), (3, 1), 4)
    assert layout.to_dense() == layout
    assert layout[1:] == _StridedLayout((2, 3), (3, 1), 4)[1:]


def test_a_layout_without_dimensions():
    layout = _StridedLayout((), None, 4)
    assert (layout.volume, layout.offset_bounds, layout.required_size_in_bytes()) == (1, (0, 0), 4)
    assert layout.flattened() == _StridedLayout((1,), (1,), 4)
    assert layout.reshaped((1, 1)) == _StridedLayout((1, 1), (1, 1), 4)
    assert layout[()].strides == ()


@pytest.mark.parametrize(
    ("shape", "strides", "order"),
    [
        ((5, 3, 7), (0, 0, 0), (2, 0, 1)),
        ((5, 1, 7), (1, 1, 5), (2, 0, 1)),
        ((5, 3, 7), (1, -21, 7), (1, 2, 0)),
        ((2, 2), (1, 1), (0, 1)),
        ((2, 3), (1, 1), (1, 0)),
    ],
)
def test_the_order_of_strides(shape, strides, order):
    assert _StridedLayout(shape, strides, 1).stride_order == order


def test_a_layout_is_a_value():
    layout = _StridedLayout((2, 3), (3, 1), 4)[1:]
    assert pickle.loads(pickle.dumps(layout)) == copy.copy(layout) == copy.deepcopy(layout) == layout
    assert repr(layout) == "_StridedLayout(shape=(1, 3), strides=(3, 1), itemsize=4, _slice_offset=3)"
    assert layout != "layout"
    with pytest.raises(TypeError, match="unhashable"):
        hash(layout)
    for name in ("itemsize", "slice_offset", "shape", "strides"):
        with pytest.raises(AttributeError):
            setattr(layout, name, 1)


def make(*arguments, **keywords):
    return lambda: _StridedLayout(*arguments, **keywords)


WRONG = [
    (make([2, 3], None, 4), TypeError, "tuple"),
    (make((2, 3), [3, 1], 4), TypeError, "tuple"),
    (make(None, None, 4), TypeError, "shape"),
    (make((2, "a"), None, 4), TypeError, "an integer is required.*'a'"),
    (make((2.0, 3), None, 4), TypeError, "2.0"),
    (make((2, -3), None, 4), ValueError, "Extents must be non-negative.*-3"),
    (make((2, 3), (1,), 4), ValueError, "Strides, if provided, must have the same length as shape"),
    (make((2, 3), None, 0), ValueError, "itemsize must be positive"),
    (make((2, 3), None, -4), ValueError, "-4"),
    (make((2, 3), None, "4"), TypeError, "'4'"),
    (make((2, 3), None, 2**31), OverflowError, str(2**31)),
    (make((2, 3), (13, 4), 4, True), ValueError, "strides must be divisible by itemsize"),
    (make((2**63,), None, 1), OverflowError, str(2**63)),
    (make((2,), (2**63,), 1), OverflowError, str(2**63)),
    (make((1,) * 65, None, 1), ValueError, "65. Max supported ndim is 64"),
    (lambda: _StridedLayout((2**62, 4), None, 1).volume, OverflowError, "value too large"),
    (lambda: _StridedLayout((3, 3), (2**62, 1), 4).offset_bounds, OverflowError, "value too large"),
    (lambda: _StridedLayout((3,), (2**62,), 8).strides_in_bytes, OverflowError, "value too large"),
    (
        lambda: _StridedLayout((2, 3), (2**61, 1), 4).required_size_in_bytes(),
        OverflowError,
        "value too large",
    ),
    (lambda: _StridedLayout.dense((2, 3), 4, "K"), ValueError, "Got: K"),
    (lambda: _StridedLayout.dense((2, 3), 4, (0,)), ValueError, "stride_order must have the same length"),
    (lambda: _StridedLayout.dense((2, 3), 4, (0, 0)), ValueError, "Axis 0 appears multiple times"),
    (lambda: _StridedLayout.dense((2, 3), 4, (0, 5)), ValueError, "axis 5 out of range"),
    (lambda: _StridedLayout.dense_like(3), TypeError, "other"),
    (lambda: PAIR.permuted((0, 0)), ValueError, "axis 0 appears multiple times"),
    (lambda: PAIR.permuted((0,)), ValueError, "got 1 for 2D tensor"),
    (lambda: PAIR.permuted((0, 9)), ValueError, "axis 9 out of range for 2D"),
    (lambda: PAIR.reshaped((-1, -1)), ValueError, "at most one -1"),
    (lambda: PAIR.reshaped((4, -1)), ValueError, "divisible by the specified sub-volume 4"),
    (lambda: PAIR.reshaped((7,)), ValueError, "volume 6 and the new volume 7"),
    (lambda: _StridedLayout((0,), None, 1).reshaped((-1, 0)), ValueError, "ambiguous"),
    (lambda: PAIR.permuted((1, 0)).reshaped((6,)), ValueError, "incompatible with the new shape"),
    (lambda: PAIR.flattened(5), ValueError, "start axis: 5"),
    (lambda: PAIR.flattened(0, 5), ValueError, "end axis: 5"),
    (lambda: PAIR.flattened(mask=-1), OverflowError, "-1"),
    (lambda: PAIR.flattened(mask=2**64), OverflowError, str(2**64)),
    (lambda: PAIR.unsqueezed(3), ValueError, "axis: 3 out of range for 3D"),
    (lambda: PAIR.unsqueezed((1, 1)), ValueError, "Axis 1 appears multiple times"),
    (lambda: PAIR.broadcast_to((3,)), ValueError, "greater than or equal"),
    (lambda: PAIR.broadcast_to((2, 4)), ValueError, "got 3 and 4 for axis 1"),
    (lambda: PAIR.repacked(0), ValueError, "greater than zero, got 0"),
    (lambda: PAIR.repacked(3), ValueError, "multiple"),
    (lambda: PAIR.repacked(8), ValueError, r"extent \(3\) must be divisible by 2"),
    (lambda: PAIR.repacked(2, axis=0), ValueError, "stride must be 1, got 3"),
    (lambda: PAIR.repacked(2, axis=2), ValueError, "axis: 2 out of range"),
    (lambda: _StridedLayout((2, 4), None, 4).repacked(8, data_ptr=4), ValueError, r"data pointer \(4\)"),
    (lambda: _StridedLayout((2, 4), (5, 1), 4).repacked(8), ValueError, r"stride \(5\)"),
    (lambda: _StridedLayout((2, 5), None, 4)[:, 1:].repacked(8), ValueError, "must be divisible by 2"),
    (lambda: _StridedLayout((2, 0), (1, 1), 4).repacked(8), ValueError, "non-zero"),
    (lambda: PAIR.max_compatible_itemsize(3), ValueError, r"max_itemsize \(3\)"),
    (lambda: PAIR.max_compatible_itemsize(0), ValueError, "got 0"),
    (lambda: PAIR[5], ValueError, "5 out of range for axis 0 with extent 2"),
    (lambda: PAIR[...], TypeError, "Ellipsis"),
    (lambda: PAIR[None], TypeError, "None"),
    (lambda: PAIR[:, :, :], ValueError, r"slices \(3\)"),
    (lambda: PAIR[::0], ValueError, "step"),
    (lambda: PAIR["a"], TypeError, "a"),
]
PAIR = _StridedLayout((2, 3), None, 4)


@pytest.mark.parametrize(("call", "error", "text"), WRONG, ids=range(len(WRONG)))
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_layout_is_made_once():
    """Views hold layouts, and show as much memory as these say."""
    layout = _StridedLayout((16,), None, 1)
    with pytest.raises(RuntimeError, match="made already"):
        layout.__init__((64,), None, 1)
    assert layout.shape == (16,)
