# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: in front of a simulated driver, both must say the same of what is live after each test."""

import ctypes

import pytest

import cuda_driver_sim as sim


def live_beneath():
    """What the driver beneath says itself."""
    call = ctypes.CDLL(sim.real_path()).cudaDriverSimLive
    call.restype = ctypes.c_size_t
    call.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    buffer = ctypes.create_string_buffer(1 << 14)
    call(buffer, len(buffer))
    return {kind: int(count) for kind, count in map(str.split, buffer.value.decode().splitlines())}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    result = yield
    assert sim.live() == live_beneath()
    return result
