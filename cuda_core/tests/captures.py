# SPDX-License-Identifier: Apache-2.0
"""Captures of streams, begun and ended through the bindings."""

import contextlib

from cuda.bindings import driver
from support import check


def capture(stream, mode="GLOBAL"):
    kind = getattr(driver.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{mode}")
    check(driver.cuStreamBeginCapture(int(stream.handle), kind))


def end_capture(stream):
    """End a capture, which must still be whole."""
    graph = check(driver.cuStreamEndCapture(int(stream.handle)))
    assert int(graph) != 0
    check(driver.cuGraphDestroy(graph))


@contextlib.contextmanager
def capturing(stream, mode="GLOBAL"):
    """Capture the stream for the length of a block, after which the capture must still be whole."""
    capture(stream, mode)
    yield
    end_capture(stream)
