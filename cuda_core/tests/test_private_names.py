# SPDX-License-Identifier: Apache-2.0
"""Names that are private in cuda-core and that programs, and its own public tests, use all the same."""

import pytest

from cuda.bindings import driver
from cuda.core import CUDAError, _device, _stream
from cuda.core._utils import cuda_utils


def test_they_are_there(device):
    assert cuda_utils.CUDAError is CUDAError
    assert cuda_utils.driver is driver
    assert cuda_utils.ComputeCapability(9, 0) == (9, 0)
    assert _stream.default_stream() == device.default_stream
    assert _device._tls.devices


def test_handle_return_gives_what_a_call_returned():
    success = driver.CUresult.CUDA_SUCCESS
    assert cuda_utils.handle_return((success,)) is None
    assert cuda_utils.handle_return((success, 3)) == 3
    assert cuda_utils.handle_return((success, 3, 4)) == (3, 4)
    assert cuda_utils.handle_return((success, 3), None) == 3


def test_handle_return_raises_what_a_call_answered():
    with pytest.raises(CUDAError, match="CUDA_ERROR_INVALID_VALUE: invalid argument"):
        cuda_utils.handle_return((driver.CUresult.CUDA_ERROR_INVALID_VALUE,))
    with pytest.raises(TypeError, match="got int: 1"):
        cuda_utils.handle_return((1, 2))


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (None, "^stream is required and must not be None"),
        (7, "^Stream or GraphBuilder expected, got int: 7$"),
    ],
)
def test_a_stream_is_required(thing, text):
    with pytest.raises(TypeError, match=text):
        _stream.Stream_accept(thing)


def test_the_protocol_is_accepted_only_where_it_is_asked_for(device):
    stream = device.create_stream()

    class Stands:
        def __cuda_stream__(self):
            return stream.__cuda_stream__()

    with pytest.raises(TypeError, match="Stands"):
        _stream.Stream_accept(Stands())
    assert _stream.Stream_accept(Stands(), allow_stream_protocol=True) == stream
    assert _stream.Stream_accept(stream) is stream
    stream.close()
