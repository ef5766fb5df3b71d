# SPDX-License-Identifier: Apache-2.0
"""``_cython_interface.pxd``, used as another project's compiled module uses it: without any header of CUDA."""

import re
import shutil
from pathlib import Path

import pytest

import cuda.core
import cython_client
from buffer_kinds import SOURCES
from cuda.core import Buffer, CloseResult, Ownership, OwnershipError
from support import given_back, race, still_allocated

PACKAGES = Path(cuda.core.__file__).parents[2]
DECLARATIONS = Path(cuda.core.__file__).parent / "_memory" / "_cython_interface.pxd"

pytestmark = [
    pytest.mark.sim_only,  # a machine with a GPU need not have a compiler
    pytest.mark.usefixtures("device"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]


@pytest.fixture(scope="module", params=["c", "c++"])
def client(request, tmp_path_factory):
    """The module, compiled with nothing but Cython, the compiler and Python's own header."""
    pytest.importorskip("Cython")
    source = tmp_path_factory.mktemp("client") / "client.pyx"
    source.write_text(cython_client.SOURCE, encoding="utf-8")
    return cython_client.load(cython_client.compile_module(source, PACKAGES, request.param))


@pytest.fixture(params=SOURCES.values(), ids=SOURCES)
def source(request, device):
    return request.param(device)


@pytest.fixture
def pinned(device):
    return SOURCES["pinned"](device)


def test_it_declares_no_header_and_cimports_nothing_that_has_one():
    text = DECLARATIONS.read_text(encoding="utf-8")
    assert "extern from" not in text
    assert re.findall(r"^(?:from|cimport) ?(\S+)", text, re.M) == ["libc.stdint"]


def test_the_client_uses_every_function_that_is_declared():
    declared = re.findall(r"^cdef \w+ (\w+)\(", DECLARATIONS.read_text(encoding="utf-8"), re.M)
    assert len(declared) >= 9
    assert [name for name in declared if f"memory.{name}(" not in cython_client.SOURCE] == []


def test_the_numbers_are_those_of_the_enumerations(client):
    states, closed = client.names()
    assert states == tuple(Ownership[name].value for name in ("RELEASED", "OWNED", "BORROWED", "TRANSFERRED"))
    assert closed == tuple(
        CloseResult[name].value for name in ("DONE", "QUEUED", "LENT", "IN_PROGRESS", "NOTHING")
    )


def test_state_address_and_size_are_those_of_the_buffer(client, source):
    buffer = source.allocate()
    assert (client.state(buffer), client.pointer(buffer), client.size(buffer)) == (
        Ownership.OWNED.value,
        buffer.handle,
        buffer.size,
    )
    client.check_open(buffer)
    view = Buffer.from_handle(buffer.handle, buffer.size, owner=buffer)
    assert client.state(view) == Ownership.BORROWED.value
    view.close()
    assert client.release(buffer) == CloseResult.DONE.value
    assert (client.state(buffer), client.pointer(buffer), client.size(buffer)) == (0, 0, 0)
    for use in (client.check_open, client.Look, client.look_without_asking_where):
        with pytest.raises(OwnershipError, match=r"^Buffer has been closed: it is RELEASED"):
            use(buffer)
    assert client.release(buffer) == CloseResult.NOTHING.value


def test_a_loan_says_where_and_holds_the_memory(client, source):
    buffer = source.allocate()
    address, size = buffer.handle, buffer.size
    look, other = client.Look(buffer), client.Look(buffer)
    assert look.where() == (address, size)
    assert buffer.loans == 2
    assert client.release(buffer) == CloseResult.LENT.value
    look.end()
    look.end()
    assert still_allocated(address)
    del other  # ends it
    assert given_back(address)
    assert source.frees() in (None, 1)


def test_a_lent_address_can_be_read_without_the_gil(client, pinned):
    buffer = pinned.allocate()
    memoryview(buffer)[:] = b"\2" * buffer.size
    look = client.Look(buffer)
    expected = 2 * buffer.size
    buffer.close()
    assert look.total() == expected
    look.end()


def test_a_loan_that_is_not_there_does_not_end(client, source):
    buffer = source.allocate()
    with pytest.raises(RuntimeError, match="no loan on the buffer is open"):
        client.end(buffer)
    client.look_without_asking_where(buffer)
    client.end(buffer)
    with pytest.raises(RuntimeError, match="no loan on the buffer is open"):
        client.end(buffer)
    assert buffer.close() is CloseResult.DONE


def test_an_allocation_goes_out_and_comes_back(client, source):
    buffer = source.allocate()
    address = buffer.handle
    look = client.Look(buffer)
    with pytest.raises(BufferError):
        client.detach(buffer)
    look.end()
    allocation = client.detach(buffer)
    assert client.state(buffer) == Ownership.TRANSFERRED.value
    again = client.adopt(allocation)
    assert client.pointer(again) == address
    with pytest.raises(OwnershipError):
        client.adopt(allocation)
    assert client.release(again) == CloseResult.DONE.value
    assert given_back(address)


def test_a_release_takes_a_stream_and_need_not_wait(client, source, device):
    stream = device.create_stream()
    buffer = source.allocate()
    address = buffer.handle
    assert client.release(buffer, stream, wait=False) in (CloseResult.DONE.value, CloseResult.QUEUED.value)
    stream.sync()
    assert given_back(address)
    buffer = source.allocate()
    with pytest.raises(TypeError):
        client.release(buffer, "no stream")
    assert client.release(buffer) == CloseResult.DONE.value
    stream.close()


@pytest.mark.parametrize(
    "name",
    [
        "state",
        "check_open",
        "pointer",
        "size",
        "Look",
        "look_without_asking_where",
        "end",
        "release",
        "detach",
    ],
)
@pytest.mark.parametrize("thing", [None, 7, "buffer"], ids=repr)
def test_only_a_buffer_is_a_buffer(client, driver_watch, name, thing):
    with driver_watch.no_call(), pytest.raises(TypeError, match="buffer must be a Buffer, got"):
        getattr(client, name)(thing)


@pytest.mark.parametrize("thing", [None, 7, "allocation"], ids=repr)
def test_only_an_allocation_is_adopted(client, driver_watch, thing):
    with driver_watch.no_call(), pytest.raises(TypeError, match="allocation must be an Allocation"):
        client.adopt(thing)


def test_threads_lend_through_it(client, source):
    buffer = source.allocate()
    address = buffer.handle
    assert race(*[lambda: client.many(buffer, 20_000)] * 4) == [None] * 4
    assert buffer.loans == 0
    assert buffer.close() is CloseResult.DONE
    assert given_back(address)


def test_a_module_that_was_compiled_with_other_signatures_is_refused(tmp_path):
    """What stands in for another version: the same names, declared with one argument more."""
    pytest.importorskip("Cython")
    other = tmp_path / "packages" / "cuda" / "core" / "_memory"
    other.mkdir(parents=True)
    for folder in (other, other.parent):
        (folder / "__init__.pxd").touch()
    text = DECLARATIONS.read_text(encoding="utf-8")
    changed = text.replace(
        "cdef int buffer_state(object buffer)", "cdef int buffer_state(object buffer, int more)"
    )
    assert changed != text
    (other / DECLARATIONS.name).write_text(changed, encoding="utf-8")
    source = tmp_path / "stale.pyx"
    source.write_text(
        "from cuda.core._memory cimport _cython_interface as memory\n"
        "def state(buffer):\n    return memory.buffer_state(buffer, 0)\n"
    )
    library = cython_client.compile_module(source, tmp_path / "packages")
    with pytest.raises(TypeError, match="buffer_state has wrong signature"):
        cython_client.load(library)
