# SPDX-License-Identifier: Apache-2.0
"""Memory of a graph that other threads allocate and close while its capture ends."""

import threading

import pytest

from cuda.core import CloseResult, CUDAError, GraphMemoryResource, Ownership
from graph_tools import SIZE, graph_memory_in_use, scratch, soon
from support import attempt

pytestmark = pytest.mark.usefixtures("device")

ROUNDS = 200
MANY = 100  # operations of the other thread, so that the end falls into one


def beside_the_end(device, prepare, what):
    """Call ``what(prepared)`` again and again on a thread while another one ends a capture; return the answers.

    An answer is what was returned and what was raised.
    """
    answers = []

    def other(prepared, barrier):
        device.set_current()
        barrier.wait(30)
        answers.extend(attempt(lambda: what(prepared), (CUDAError, RuntimeError)) for _ in range(MANY))

    for _ in range(ROUNDS):
        builder = device.create_graph_builder().begin_building()
        barrier = threading.Barrier(2)
        thread = threading.Thread(target=other, args=(prepare(builder), barrier), daemon=True)
        thread.start()
        barrier.wait(30)
        builder.end_building()
        thread.join(30)
        assert not thread.is_alive()
        builder.complete().close()
        builder.close()
    return answers


def test_a_close_beside_the_end_of_its_capture_is_refused_nothing(device):
    """It is a node of the graph, or the graph's to free behind each launch. Neither is known before it is made."""
    answers = beside_the_end(
        device, lambda builder: [scratch(builder) for _ in range(MANY)], lambda buffers: buffers.pop().close()
    )
    assert answers == [(CloseResult.DONE, None)] * (MANY * ROUNDS)
    assert soon(lambda: graph_memory_in_use() == 0)


def test_an_allocation_beside_the_end_of_the_capture_is_the_graphs_or_none(device):
    """Behind the capture the stream would give memory at once, which no graph frees."""
    resource = GraphMemoryResource(device)
    answers = beside_the_end(
        device, lambda builder: builder.stream, lambda stream: resource.allocate(SIZE, stream=stream)
    )
    for buffer, error in answers:
        if buffer is None:
            assert "captur" in str(error), error
        else:
            assert buffer.ownership is Ownership.OWNED
            assert buffer.close() is CloseResult.DONE
    assert soon(lambda: graph_memory_in_use() == 0)
