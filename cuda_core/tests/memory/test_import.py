# SPDX-License-Identifier: Apache-2.0
"""Importing the package: quiet and cheap without a driver, and honest about what this build has not."""

import os

import pytest

import cuda.core
from support import child_output, run_child

PUBLIC = (
    "Buffer",
    "CUDAError",
    "CUDAWarning",
    "CloseResult",
    "Context",
    "Device",
    "Event",
    "EventOptions",
    "Host",
    "LEGACY_DEFAULT_STREAM",
    "ManagedBuffer",
    "MemoryResource",
    "Ownership",
    "OwnershipError",
    "PER_THREAD_DEFAULT_STREAM",
    "Stream",
    "StreamOptions",
    "TransferredTo",
    "VirtualMemoryResource",
    "VirtualMemoryResourceOptions",
    "utils",
)
ABSENT = (
    "Program",
    "ProgramOptions",
    "Linker",
    "LinkerOptions",
    "ObjectCode",
    "Kernel",
    "LaunchConfig",
    "launch",
)


@pytest.fixture
def no_driver(tmp_path):
    """An environment in which there is no libcuda: a file of that name, found first, is not a library."""
    (tmp_path / "libcuda.so.1").write_text("not a library")
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_there(name):
    assert getattr(cuda.core, name) is not None
    assert name in dir(cuda.core)


def test_a_star_import_gives_the_public_names():
    names = {}
    exec("from cuda.core import *", names)
    assert set(PUBLIC) <= names.keys()


@pytest.mark.parametrize("name", ABSENT)
def test_names_that_this_build_lacks_say_so(name):
    with pytest.raises(AttributeError, match=rf"cuda\.core\.{name} is not in this build"):
        getattr(cuda.core, name)
    with pytest.raises(ImportError, match=name):
        exec(f"from cuda.core import {name}")
    assert not hasattr(cuda.core, name)


def test_an_unknown_name_is_an_ordinary_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        cuda.core.no_such_name  # noqa: B018


def test_what_utils_lacks_says_so():
    with pytest.raises(AttributeError, match=r"cuda\.core\.utils\.InMemoryProgramCache is not in this build"):
        cuda.core.utils.InMemoryProgramCache  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        cuda.core.utils.no_such_name  # noqa: B018
    assert {"StridedMemoryView", "args_viewable_as_strided_memory"} <= set(cuda.core.utils.__all__)
    assert {"copy_batch", "prefetch_batch", "discard_batch", "discard_prefetch_batch"} <= set(
        cuda.core.utils.__all__
    )


def test_the_version_is_the_one_of_the_distribution():
    from importlib.metadata import PackageNotFoundError, version

    assert cuda.core.__version__ == "1.3.0.dev0+ownership"
    try:
        installed = version("cuda-core")
    except PackageNotFoundError:
        return  # run from a build that was not installed
    assert installed == cuda.core.__version__


def test_the_package_is_a_part_of_the_namespace():
    import cuda
    import cuda.bindings

    assert getattr(cuda, "__file__", None) is None
    assert cuda.bindings.__version__.startswith("13.")


# --- without a driver --------------------------------------------------------------------------------------------


def test_importing_is_silent_without_a_driver(no_driver):
    names = ", ".join(PUBLIC)
    code = f"from cuda.core import {names}\nfrom cuda.core import typing\nprint('imported')"
    assert child_output(code, environment=no_driver, options=["-W", "error"]) == "imported\n"


@pytest.mark.parametrize(
    "call",
    [
        "Device(0)",
        "Device()",
        "Device.get_all_devices()",
        "VirtualMemoryResource(0)",
        "Device(0).set_current()",
    ],
)
def test_the_first_call_that_needs_a_driver_names_a_way_out(no_driver, call):
    code = f"""
from cuda.core import *
try:
    {call}
except RuntimeError as error:
    print(error)
"""
    output = child_output(code, environment=no_driver)
    assert "cuda_driver_sim" in output
    assert "driver" in output


def test_what_needs_no_driver_works_without_one(no_driver):
    code = """
from cuda.core import *
options = VirtualMemoryResourceOptions(reserve_size=1 << 30)
try:
    VirtualMemoryResourceOptions(handle_type="posix")
except ValueError:
    print("checked")
buffer = Buffer.from_handle(4096, 16, owner=options)
print(buffer.ownership.name, buffer.close().name, buffer.ownership.name)
"""
    assert child_output(code, environment=no_driver) == "checked\nBORROWED DONE RELEASED\n"


# --- what an import costs ----------------------------------------------------------------------------------------


def test_importing_loads_nothing_that_memory_does_not_need():
    code = "import sys, cuda.core\nprint(sorted({'numpy', 'multiprocessing', 'asyncio'} & set(sys.modules)))"
    assert child_output(code) == "[]\n"


def test_importing_makes_no_context(driver_name):
    code = """
import cuda.core
from cuda.bindings import driver
driver.cuInit(0)
print(int(driver.cuCtxGetCurrent()[1]), [int(v) for v in driver.cuDevicePrimaryCtxGetState(0)])
"""
    assert child_output(code).strip() == "0 [0, 0, 0]"


def test_no_module_of_the_package_imports_upwards():
    """Each module can be imported first, in a process of its own: there is no circle."""
    modules = (
        "_errors",
        "_driver",
        "_context",
        "_event",
        "_stream_handle",
        "_stream_order",
        "_stream",
        "_host",
        "_memory._ownership",
        "_memory._address_space",
        "_memory._virtual_parts",
        "_memory._virtual_range",
        "_memory._virtual_tail",
        "_memory._virtual_split",
        "_memory._allocation",
        "_memory._release",
        "_memory._graph_loans",
        "_memory._location",
        "_memory._copy_options",
        "_memory._copy",
        "_memory._fill",
        "_memory._memory_resource",
        "_memory._buffer",
        "_memory._batch",
        "_memory._copy_batch",
        "_memory._managed_operations",
        "_memory._managed_buffer",
        "_memory._virtual_memory_options",
        "_memory._virtual_memory_base",
        "_memory._virtual_succession",
        "_memory._virtual_growth",
        "_memory._virtual_shrink",
        "_memory._virtual_access",
        "_memory._virtual_memory_resource",
        "_memory._counters",
        "_memory._handshake",
        "_memory._dlpack",
        "_memory._dlpack_import",
        "_dlpack",
        "_element_types",
        "_layout_numbers",
        "_layout",
        "_memoryview",
        "_viewable_arguments",
        "_device",
        "typing",
        "utils",
    )
    for module in modules:
        child = run_child(f"import cuda.core.{module}", options=["-W", "error"])
        assert (child.returncode, child.stderr) == (0, ""), module
