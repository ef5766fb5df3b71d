# SPDX-License-Identifier: Apache-2.0
"""What `import cuda.core` imports, and that the names which come later are there all the same."""

import pytest

from support import child_output

LATER = {
    "cuda.core": [
        "DeviceMemoryResourceOptions",
        "ManagedMemoryResourceOptions",
        "PinnedMemoryResourceOptions",
        "VirtualMemoryResourceOptions",
        "memory_report",
    ],
    "cuda.core.graph": ["GraphCompleteOptions", "GraphDebugPrintOptions"],
}


def test_what_few_programs_need_is_not_imported_with_the_package():
    program = """
import sys
import cuda.bindings.driver
before = set(sys.modules)
import cuda.core
late = ("attr", "attrs", "json", "multiprocessing", "cuda.core._memory._memory_report",
        "cuda.core._memory._pool_options", "cuda.core._memory._virtual_memory_options",
        "cuda.core.graph._graph_options", "cuda.core._device_properties", "cuda.core.audit", "cuda.core.adaptors",
        "cuda.core.testing")
print(sorted(name for name in set(sys.modules) - before if name in late))
"""
    assert child_output(program) == "[]\n"


@pytest.mark.parametrize("package", LATER)
def test_names_that_come_later_are_shown_and_can_be_taken_in_every_way(package):
    program = f"""
import importlib, pickle, sys
package = importlib.import_module({package!r})
names = {LATER[package]!r}
assert set(names) <= set(dir(package)), dir(package)
assert set(names) <= set(package.__all__)
assert set(dir(package)) >= set(vars(package))
assert not set(names) & set(vars(package))
first = [getattr(package, name) for name in names]
assert set(names) <= set(vars(package))
space = {{}}
exec("from {package} import *", space)
assert [space[name] for name in names] == first
for one in first:
    assert pickle.loads(pickle.dumps(one)) is one
    if isinstance(one, type):
        assert pickle.loads(pickle.dumps(one())) == one()
for wrong in ("Nonsense", "_nonsense"):
    try:
        getattr(package, wrong)
    except AttributeError as error:
        assert wrong in str(error) and {package!r} in str(error), error
    else:
        raise AssertionError(wrong)
    assert not hasattr(package, wrong)
print("done")
"""
    assert child_output(program) == "done\n"


def test_options_are_the_same_wherever_they_are_taken_from():
    program = """
import cuda.core, cuda.core._memory
from cuda.core import VirtualMemoryResourceOptions as public
from cuda.core._memory import VirtualMemoryResourceOptions as private, memory_report
assert public is private and memory_report is cuda.core.memory_report
print(cuda.core.DeviceMemoryResourceOptions(max_size=4096).max_size)
"""
    assert child_output(program) == "4096\n"


@pytest.mark.parametrize("first", ["allocate", "import"])
def test_virtual_memory_does_not_import_what_sends_it(first):
    """Until something is sent; then it can be, whichever was there first."""
    program = f"""
import pickle, sys
from cuda.core import Buffer, Device, VirtualMemoryResource
if {first!r} == "import":
    from multiprocessing import reduction
device = Device(0)
device.set_current()
resource = VirtualMemoryResource(device)
buffer = resource.allocate(1)
assert buffer.handle
if {first!r} == "allocate":
    assert not [name for name in sys.modules if name.startswith("multiprocessing")]
from multiprocessing.reduction import ForkingPickler
data = bytes(ForkingPickler.dumps(buffer))
assert b"_receive_buffer" in data
assert not any(type(one).__module__.startswith("cuda.core") for one in sys.meta_path)
try:
    pickle.dumps(buffer)
except Exception as error:
    assert "multiprocessing" in str(error), error
else:
    raise AssertionError("sent by itself")
import multiprocessing.reduction
assert type(multiprocessing.reduction.__loader__).__name__ == "SourceFileLoader"
assert "exec_module" not in vars(multiprocessing.reduction.__loader__)
buffer.close()
print("done")
"""
    assert child_output(program) == "done\n"
