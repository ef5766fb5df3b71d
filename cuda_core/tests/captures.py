# SPDX-License-Identifier: Apache-2.0
"""Captures of streams, begun and ended through the bindings."""

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
