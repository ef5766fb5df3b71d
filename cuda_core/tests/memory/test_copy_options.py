# SPDX-License-Identifier: Apache-2.0
"""CopyOptions: what they hold, what they refuse, and that they never change the bytes."""

import dataclasses
import pickle

import pytest

from cuda.bindings import driver
from cuda.core import Host
from cuda.core.utils import CopyOptions, MemcpyOverlapMode, MemcpySrcAccessOrder
from memory_kinds import pattern, put
from python_resources import Plain
from support import check, read, write

SMALL = 4096


@pytest.fixture
def plain():
    return Plain()


def test_options_hold_members_whatever_was_given():
    options = CopyOptions(src_access_order="any", overlap_mode="prefer_overlap_with_compute")
    assert options.src_access_order is MemcpySrcAccessOrder.ANY
    assert options.overlap_mode is MemcpyOverlapMode.PREFER_OVERLAP_WITH_COMPUTE
    assert CopyOptions().src_access_order is MemcpySrcAccessOrder.STREAM
    assert CopyOptions().overlap_mode is MemcpyOverlapMode.DEFAULT
    assert CopyOptions(src_access_order=MemcpySrcAccessOrder.ANY) == CopyOptions("any")
    assert str(MemcpySrcAccessOrder.DURING_API_CALL) == "during_api_call"
    assert [m.value for m in MemcpySrcAccessOrder] == ["stream", "during_api_call", "any"]
    assert [m.value for m in MemcpyOverlapMode] == ["default", "prefer_overlap_with_compute"]


def test_options_cannot_be_changed_and_can_be_kept_in_sets():
    options = CopyOptions("any", src_location_hint=Host())
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.src_access_order = "stream"
    assert hash(options) == hash(CopyOptions("any", Host()))
    assert len({options, CopyOptions("any", Host()), CopyOptions()}) == 2
    assert pickle.loads(pickle.dumps(options)) == options
    assert dataclasses.replace(options, src_access_order="stream").src_location_hint is Host()


@pytest.mark.parametrize("name", ["src_access_order", "overlap_mode"])
@pytest.mark.parametrize("value", ["", "STREAM", "later", 3, None, [], {}, b"any", object])
def test_val_01_unknown_values_of_options_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"invalid {name}"):
        CopyOptions(**{name: value})


@pytest.mark.parametrize("order", ["stream", "any"])
@pytest.mark.parametrize("mode", list(MemcpyOverlapMode))
@pytest.mark.parametrize("hint", [None, Host(), Host(0), Host.numa_current(), "device"], ids=str)
def test_options_never_change_the_bytes(device, stream, plain, order, mode, hint):
    hint = device if hint == "device" else hint
    options = CopyOptions(order, hint, hint, mode)
    src, dst = plain.allocate(SMALL), plain.allocate(SMALL)
    write(src.handle, pattern(SMALL))
    src.copy_to(dst, stream=stream, options=options)
    stream.sync()
    assert read(dst.handle, SMALL) == pattern(SMALL)
    put(src, bytes(SMALL))
    src.copy_from(dst, stream=stream, options=options)
    stream.sync()
    assert read(src.handle, SMALL) == pattern(SMALL)
    src.close()
    dst.close()


def test_a_read_during_the_call_is_done_or_refused_never_downgraded(device, stream, plain):
    src, dst = plain.allocate(SMALL), plain.allocate(SMALL)
    write(src.handle, pattern(SMALL))
    options = CopyOptions("during_api_call")
    if check(driver.cuDriverGetVersion()) < 13020:
        for call in (src.copy_to, dst.copy_from):
            with pytest.raises(RuntimeError, match=r"src_access_order=DURING_API_CALL requires .*13\.2"):
                call(dst if call == src.copy_to else src, stream=stream, options=options)
        assert src.loans == dst.loans == 0
    else:
        src.copy_to(dst, stream=stream, options=options)
        stream.sync()
        assert read(dst.handle, SMALL) == pattern(SMALL)
    src.close()
    dst.close()
