# SPDX-License-Identifier: Apache-2.0
"""The C entry for loans, used as another extension module uses it: compiled against the installed declarations."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import cuda.core
from buffer_kinds import SOURCES
from cuda.core import Buffer, CloseResult, OwnershipError
from support import given_back, race, still_allocated

pytestmark = [
    pytest.mark.sim_only,  # a machine with a GPU need not have a compiler
    pytest.mark.usefixtures("device"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]

MODULE = """\
# cython: language_level=3
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._loans cimport Loan, end_loan, lend, new_loan


def begin(buffer):
    lend(<Record?>buffer, "looked at")


def end(buffer):
    end_loan(<Record?>buffer)


def loan_of(buffer):
    return new_loan(<Record?>buffer, "looked at")


def end_loan_object(loan):
    (<Loan?>loan).end()


def many(buffer, int rounds):
    cdef Record record = buffer
    cdef int i
    for i in range(rounds):
        lend(record, "looked at")
        end_loan(record)
"""


def run(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def translated(tmp_path_factory):
    """The module as C++."""
    pytest.importorskip("Cython")
    source = tmp_path_factory.mktemp("looker") / "looker.pyx"
    source.write_text(MODULE)
    packages = Path(cuda.core.__file__).parents[2]
    # Else an interpreter without a GIL switches it on, for the rest of its life.
    free_threading = ("-X", "freethreading_compatible=True")
    done = run(sys.executable, "-m", "cython", "-3", "--cplus", *free_threading, "-I", packages, source)
    assert done.returncode == 0, done.stdout + done.stderr
    return source.with_suffix(".cpp")


def compiler(*options):
    include = sysconfig.get_paths()["include"]
    return [*os.environ.get("CXX", "c++").split(), "-std=c++17", "-O0", f"-I{include}", *options]


def cuda_header():
    """Options to find the header of the CUDA toolkit that the build of the package used."""
    for location in importlib.util.find_spec("nvidia").submodule_search_locations:
        for header in Path(location).glob("*/include/cuda.h"):
            yield f"-I{header.parent}"


@pytest.fixture(scope="module")
def looker(translated):
    library = translated.with_name("looker" + sysconfig.get_config_var("EXT_SUFFIX"))
    done = run(*compiler("-shared", "-fPIC", *cuda_header()), translated, "-o", library)
    assert done.returncode == 0, done.stderr
    spec = importlib.util.spec_from_file_location("looker", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=SOURCES.values(), ids=SOURCES)
def source(request, device):
    return request.param(device)


def test_a_loan_is_counted_and_holds_the_memory(looker, source):
    buffer = source.allocate()
    address = buffer.handle
    looker.begin(buffer)
    looker.begin(buffer)
    assert buffer.loans == 2
    assert buffer.close() is CloseResult.LENT
    looker.end(buffer)
    assert still_allocated(address)
    looker.end(buffer)
    assert given_back(address)
    assert source.frees() in (None, 1)


@pytest.mark.parametrize("how", ["end", "drop"])
def test_a_loan_object_ends_once(looker, source, how):
    buffer = source.allocate()
    address, loan = buffer.handle, looker.loan_of(buffer)
    other = looker.loan_of(buffer)
    if how == "end":
        looker.end_loan_object(loan)
        looker.end_loan_object(loan)
    del loan
    assert buffer.loans == 1
    del buffer
    assert still_allocated(address)
    looker.end_loan_object(other)
    assert given_back(address)
    assert source.frees() in (None, 1)


def test_a_closed_buffer_lends_nothing(looker, source):
    buffer = source.allocate()
    buffer.close()
    for lend in (looker.begin, looker.loan_of):
        with pytest.raises(OwnershipError, match=r"^Buffer has been closed"):
            lend(buffer)
    assert buffer.loans == 0


def test_only_a_record_can_be_lent(looker):
    for thing in (None, 7, "buffer"):
        with pytest.raises(TypeError):
            looker.begin(thing)


def test_a_borrowed_buffer_lends_too(looker, source):
    with source.allocate() as owner:
        view = Buffer.from_handle(owner.handle, owner.size, owner=owner)
        looker.begin(view)
        assert (view.loans, owner.loans) == (1, 0)
        assert view.close() is CloseResult.LENT
        looker.end(view)
        assert view.loans == 0


def test_threads_lend_through_c(looker, source):
    buffer = source.allocate()
    address = buffer.handle
    assert race(*[lambda: looker.many(buffer, 20_000)] * 4) == [None] * 4
    assert buffer.loans == 0
    assert buffer.close() is CloseResult.DONE
    assert given_back(address)
