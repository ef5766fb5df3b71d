# SPDX-License-Identifier: Apache-2.0
"""FUNCTIONS.md says what the source has, and the library has what the source says."""

import importlib.util
import re
from pathlib import Path

import pytest

import cuda_driver_sim as sim

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("function_table", ROOT / "tools" / "function_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def defined(tool):
    return tool.defined_functions(sorted((ROOT / "src").glob("*.cpp")))


def test_the_library_has_what_the_source_defines(defined):
    # cuGetProcAddress is no call that a program makes: it is not counted, so it has no record.
    assert {*defined, "cuGetProcAddress"} == {*sim.functions(), "cuGetProcAddress"}


def test_the_table_names_what_the_source_defines(tool, defined):
    text = tool.TABLE.read_text()
    there = set()
    for part in re.findall(r"^There: (.*?)\.$", text, re.MULTILINE | re.DOTALL):
        there |= set(re.findall(r"`(\w+)`", part))
    partly = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))
    assert there == {name for name in defined if not defined[name].missing}
    assert partly == {name: " ".join(f.missing) for name, f in defined.items() if f.missing}


def test_the_lists_are_wrapped(tool):
    lists = [line for line in tool.TABLE.read_text().splitlines() if not line.startswith("|")]
    assert max(map(len, lists)) <= 100


def test_the_table_is_up_to_date(tool, defined):
    header = tool.find_header()
    if header is None:
        pytest.skip("needs the cuda.h of nvidia-cuda-runtime")
    version, groups = tool.declared_functions(header)
    if f"cuda.h of CUDA {tool.name_of(version)} " not in tool.TABLE.read_text():
        pytest.skip(f"the table was made from another cuda.h than that of {tool.name_of(version)}")
    assert tool.table(version, groups, defined) == tool.TABLE.read_text()


def test_a_tag_without_a_function_is_an_error(tool, tmp_path):
    source = tmp_path / "odd.cpp"
    source.write_text("// Partly: nothing here.\nint x;\n")
    with pytest.raises(SystemExit, match="no function follows"):
        tool.defined_functions([source])
