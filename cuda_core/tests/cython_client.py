# SPDX-License-Identifier: Apache-2.0
"""A compiled module of somebody else, which uses everything that ``_cython_interface.pxd`` declares.

Run as a program, in a folder of its own, it builds the module against the installed package with the interpreter that
runs it, and uses it. It needs Cython and a C compiler, and nothing of CUDA's headers.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCE = """\
# cython: language_level=3
from libc.stdint cimport uint8_t, uintptr_t

from cuda.core._memory cimport _cython_interface as memory


def names():
    states = (memory.BUFFER_RELEASED, memory.BUFFER_OWNED, memory.BUFFER_BORROWED, memory.BUFFER_TRANSFERRED)
    closed = (memory.CLOSED_DONE, memory.CLOSED_QUEUED, memory.CLOSED_LENT, memory.CLOSED_IN_PROGRESS,
              memory.CLOSED_NOTHING)
    return states, closed


def state(buffer):
    return memory.buffer_state(buffer)


def check_open(buffer):
    memory.check_buffer_open(buffer)


def pointer(buffer):
    return memory.buffer_pointer(buffer)


def size(buffer):
    return memory.buffer_size(buffer)


def release(buffer, stream=None, wait=True):
    return memory.release_buffer(buffer, stream, wait)


def detach(buffer):
    return memory.detach_buffer(buffer)


def adopt(allocation, mr=None):
    return memory.adopt_allocation(allocation, mr)


cdef class Look:
    cdef object buffer
    cdef uintptr_t address
    cdef size_t length

    def __init__(self, buffer):
        memory.lend_buffer(buffer, &self.address, &self.length)
        self.buffer = buffer

    def where(self):
        return self.address, self.length

    def total(self):
        cdef size_t i
        cdef unsigned long sum = 0
        cdef const uint8_t* bytes_ = <const uint8_t*>self.address
        with nogil:
            for i in range(self.length):
                sum += bytes_[i]
        return sum

    def end(self):
        if self.buffer is not None:
            buffer, self.buffer = self.buffer, None
            memory.end_buffer_loan(buffer)

    def __dealloc__(self):
        if self.buffer is not None:
            memory.end_buffer_loan(self.buffer)


def look_without_asking_where(buffer):
    memory.lend_buffer(buffer, NULL, NULL)


def end(buffer):
    memory.end_buffer_loan(buffer)


def many(buffer, int rounds):
    cdef int i
    for i in range(rounds):
        memory.lend_buffer(buffer, NULL, NULL)
        memory.end_buffer_loan(buffer)
"""


def compile_module(source, packages, language="c"):
    """Compile a ``.pyx`` file with the declarations below ``packages``; return the path of the library."""
    # Else an interpreter without a GIL switches it on, for the rest of its life.
    translate = [sys.executable, "-m", "cython", "-3", "-X", "freethreading_compatible=True"]
    translate += ["-I", packages, source]
    if language == "c++":
        translate.insert(4, "--cplus")
    compiler = os.environ.get("CC", "cc") if language == "c" else os.environ.get("CXX", "c++")
    translated = source.with_suffix(".c" if language == "c" else ".cpp")
    library = source.with_name(source.stem + sysconfig.get_config_var("EXT_SUFFIX"))
    include = sysconfig.get_paths()["include"]
    compiling = [*compiler.split(), "-O1", "-shared", "-fPIC", f"-I{include}", translated, "-o", library]
    for command in (translate, compiling):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")
    return library


def load(library):
    spec = importlib.util.spec_from_file_location(library.name.split(".")[0], library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    import cuda.core
    from cuda.core import Device, LegacyPinnedMemoryResource, OwnershipError

    folder = Path.cwd()
    source = folder / "client.pyx"
    source.write_text(SOURCE, encoding="utf-8")
    packages = Path(cuda.core.__file__).parents[2]
    assert folder not in (packages, *packages.parents)
    client = load(compile_module(source, packages))

    Device(0).set_current()
    resource = LegacyPinnedMemoryResource()
    buffer = resource.allocate(1000)
    memoryview(buffer)[:] = b"\3" * 1000
    assert (client.state(buffer), client.pointer(buffer), client.size(buffer)) == (1, buffer.handle, 1000)
    client.check_open(buffer)
    look = client.Look(buffer)
    assert look.where() == (buffer.handle, 1000)
    try:
        client.detach(buffer)
    except BufferError:
        look.end()
    allocation = client.detach(buffer)
    assert client.state(buffer) == 3
    again = client.adopt(allocation)
    look = client.Look(again)
    assert client.release(again) == 2
    assert look.total() == 3000
    look.end()
    assert (client.state(again), client.pointer(again), client.size(again)) == (3, 0, 0)
    try:
        client.check_open(again)
    except OwnershipError:
        print(f"used every function against {packages}")


if __name__ == "__main__":
    main()
