# SPDX-License-Identifier: Apache-2.0
"""The driver can be told to lack functions, or to be a newer one."""

import os

import pytest

from sim_helpers import run_python

LOOK = """
import ctypes, sys
from cuda.bindings import driver
result, = driver.cuInit(0)
print(result.name, driver.cuDriverGetVersion()[1])
asked = {"cuMemcpyBatchAsync": 13000, "cuMemcpyWithAttributesAsync": 13020, "cuMemAlloc": 12000}
for name, version in asked.items():
    result, entry, status = driver.cuGetProcAddress(name.encode(), version, 0)
    print(name, result.name, bool(entry), status.name if status is not None else None)
"""


def look(**settings):
    program = "import cuda_driver_sim; cuda_driver_sim.activate()\n" + LOOK
    done = run_python(program, env={**os.environ, **settings})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


THERE = "CUDA_SUCCESS True CU_GET_PROC_ADDRESS_SUCCESS"
NOT_FOUND = "CUDA_SUCCESS False CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND"


def test_it_is_a_driver_of_13_0_by_itself():
    first, batch, attributes, allocate = look()
    assert first == "CUDA_SUCCESS 13000"
    assert batch.endswith(THERE)
    assert "CUDA_ERROR_INVALID_VALUE" in attributes  # a version that it does not know
    assert allocate.endswith(THERE)


def test_names_can_be_taken_away():
    _, batch, _, allocate = look(CUDA_DRIVER_SIM_ABSENT="cuMemFree,cuMemcpyBatchAsync")
    assert batch.endswith(NOT_FOUND)
    assert allocate.endswith(THERE)


def test_a_newer_driver_has_more():
    first, batch, attributes, _ = look(CUDA_DRIVER_SIM_VERSION="13.2")
    assert first == "CUDA_SUCCESS 13020"
    assert batch.endswith(THERE)
    assert attributes.endswith(THERE)


def test_a_version_can_be_said():
    assert look(CUDA_DRIVER_SIM_VERSION="13.0")[0] == "CUDA_SUCCESS 13000"


@pytest.mark.parametrize("version", ["12.8", "13", "thirteen", "13.2.0"])
def test_an_unknown_version_does_not_start(version):
    assert look(CUDA_DRIVER_SIM_VERSION=version)[0].startswith("CUDA_ERROR_UNKNOWN")


COPY = """
from cuda.bindings import driver as d
d.cuInit(0)
d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
stream = d.cuStreamCreate(1)[1]
one, two = d.cuMemAlloc(4096)[1], d.cuMemAlloc(4096)[1]
d.cuMemsetD8(one, 7, 4096)
how = d.CUmemcpyAttributes()
how.srcAccessOrder = d.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_ANY
def copy(*arguments):
    return d.cuMemcpyWithAttributesAsync(*arguments)[0].name
print(copy(two, one, 4096, how, stream))
d.cuStreamSynchronize(stream)
out = bytearray(4096)
d.cuMemcpyDtoH(out, two, 4096)
print(bytes(out) == b"\\x07" * 4096)
print(copy(two, one, 4096, how, d.CUstream(1)))
d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
print(copy(two, one, 4096, how, stream))
print(d.cuStreamEndCapture(stream)[0].name)
"""


def test_a_copy_with_attributes_is_a_batch_of_one():
    done = run_python(
        "import cuda_driver_sim; cuda_driver_sim.activate()\n" + COPY,
        env={**os.environ, "CUDA_DRIVER_SIM_VERSION": "13.2"},
    )
    assert done.stdout.split() == [
        "CUDA_SUCCESS",
        "True",
        "CUDA_ERROR_INVALID_VALUE",
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "CUDA_SUCCESS",
    ], done.stderr
