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


def beside_the_end(device, prepare, what, look=lambda answer: None):
    """Call ``what(prepared)`` again and again on a thread while another one ends a capture; return the answers.

    An answer is what was returned and what was raised. The first call comes before the end. ``look`` is called for
    every answer of a capture before its graph goes: then the next may have the memory at its addresses.
    """
    answers = []

    def other(prepared, begun):
        device.set_current()
        for _ in range(MANY):
            answers.append(attempt(lambda: what(prepared), (CUDAError, RuntimeError)))
            begun.set()

    for _ in range(ROUNDS):
        builder = device.create_graph_builder().begin_building()
        begun = threading.Event()
        thread = threading.Thread(target=other, args=(prepare(builder), begun), daemon=True)
        thread.start()
        assert begun.wait(30)
        builder.end_building()
        thread.join(30)
        assert not thread.is_alive()
        for answer in answers[-MANY:]:
            look(answer)
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

    def look(answer):
        buffer, error = answer
        if buffer is None:
            assert "captur" in str(error), error
        else:
            assert buffer.ownership is Ownership.OWNED
            assert buffer.close() is CloseResult.DONE

    answers = beside_the_end(
        device, lambda builder: builder.stream, lambda stream: resource.allocate(SIZE, stream=stream), look
    )
    assert ROUNDS <= sum(buffer is not None for buffer, _ in answers) < ROUNDS * MANY
    assert soon(lambda: graph_memory_in_use() == 0)
