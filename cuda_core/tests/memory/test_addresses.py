# SPDX-License-Identifier: Apache-2.0
"""What counts as an address: integers and the pointers of the bindings; never a number that would lose a part."""

from decimal import Decimal
from fractions import Fraction

import numpy
import pytest

from cuda.bindings import driver
from cuda.core import Buffer, LegacyPinnedMemoryResource, Stream, utils
from support import attempt

ADDRESS = 0x10000


class Index:
    def __index__(self):
        return ADDRESS


class Int:
    """Such as a pointer of the bindings: ``int()`` alone knows it."""

    def __int__(self):
        return ADDRESS


class Fails:
    def __init__(self, error):
        self.error = error

    def __index__(self):
        raise self.error


ADDRESSES = {
    "int": ADDRESS,
    "__index__": Index(),
    "__int__": Int(),
    "CUdeviceptr": driver.CUdeviceptr(ADDRESS),
    "numpy.uint64": numpy.uint64(ADDRESS),
    "numpy array": numpy.array(ADDRESS),
}
NO_ADDRESSES = {
    "float": 65536.0,
    "bool": True,
    "complex": 1j,
    "str": "65536",
    "bytes": b"65536",
    "bytearray": bytearray(b"65536"),
    "Decimal": Decimal(ADDRESS),
    "Fraction": Fraction(ADDRESS),
    "numpy.bool": numpy.bool_(True),
    "numpy.float16": numpy.float16(64),
    "numpy.float32": numpy.float32(ADDRESS),
    "numpy.float64": numpy.float64(ADDRESS),
    "numpy array of floats": numpy.array(65536.0),
    "tuple": (ADDRESS,),
    "object": object(),
    "type": int,
}


class Array:
    """Speaks the interface of arrays, with an address of somebody's choice."""

    def __init__(self, address, stream=None):
        self.interface = {
            "version": 3,
            "shape": (0,),
            "typestr": "|u1",
            "data": (address, False),
            "stream": stream,
        }

    @property
    def __array_interface__(self):
        return self.interface

    @property
    def __cuda_array_interface__(self):
        return self.interface


# Each takes an address and gives it back.
PLACES = {
    "from_handle": lambda address: Buffer.from_handle(address, 0).handle,
    "array interface": lambda address: utils.StridedMemoryView.from_array_interface(Array(address)).ptr,
    "stream": lambda address: int(Stream.from_handle(address).handle),
}


@pytest.mark.parametrize("value", ADDRESSES)
@pytest.mark.parametrize("place", PLACES)
def test_an_address_is_an_address(place, value):
    assert PLACES[place](ADDRESSES[value]) == ADDRESS


@pytest.mark.parametrize("value", NO_ADDRESSES)
@pytest.mark.parametrize("place", PLACES)
def test_another_number_is_no_address(driver_watch, place, value):
    with driver_watch.no_call():
        _, error = attempt(lambda: PLACES[place](NO_ADDRESSES[value]))
    assert type(error) is TypeError, error
    assert type(NO_ADDRESSES[value]).__name__ in str(error)


@pytest.mark.parametrize("value", NO_ADDRESSES)
@pytest.mark.parametrize("how", ["capsule", "view", "interface"])
def test_another_number_is_no_stream(device, value, how):
    wrong = NO_ADDRESSES[value]
    with LegacyPinnedMemoryResource().allocate(64) as buffer:
        if how == "capsule":
            _, error = attempt(lambda: buffer.__dlpack__(stream=wrong))
        elif how == "view":
            _, error = attempt(lambda: utils.StridedMemoryView.from_dlpack(buffer, stream_ptr=wrong))
        else:
            array = Array(buffer.handle, stream=wrong)
            _, error = attempt(lambda: utils.StridedMemoryView.from_cuda_array_interface(array, stream_ptr=1))
        assert type(error) is TypeError, error
        assert buffer.loans == 0


@pytest.mark.parametrize("place", PLACES)
def test_the_error_of_an_index_of_ones_own_comes_out(place):
    with pytest.raises(ZeroDivisionError):
        PLACES[place](Fails(ZeroDivisionError("mine")))


@pytest.mark.parametrize("value", [True, numpy.bool_(True)], ids=["bool", "numpy.bool"])
def test_a_bool_is_no_size(driver_watch, value):
    resource = LegacyPinnedMemoryResource()
    with driver_watch.no_call():
        with pytest.raises(TypeError, match="size must be an integer"):
            resource.allocate(value)
