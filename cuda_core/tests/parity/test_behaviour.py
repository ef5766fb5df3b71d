# SPDX-License-Identifier: Apache-2.0
"""What the page of differences says of 1.2.2's behaviour is so: the same programs run on it and here, side by side."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).with_name("behaviour.py")
sys.path.insert(0, str(ROOT / "tools"))
pytestmark = [
    pytest.mark.sim_only,  # the programs choose the simulated driver
    pytest.mark.skipif(sys.version_info < (3, 11), reason="1.2.2 needs another package there"),
]

# Program: the entry of differences.toml that it is about, what it says on 1.2.2, what it says here.
EXPECTED = {
    "closing_fails": ("A close that fails raises", [None, True, 1], ["raises", False, 1]),
    "use_of_a_closed_buffer": (
        "The use of a closed buffer says where the memory went",
        ["raises RuntimeError", 0, 0],
        ["raises OwnershipError", 0, 0],
    ),
    "the_hash_of_a_closed_buffer": ("The hash of a buffer never changes", [False], [True]),
    "closing_under_a_view": ("Memory that somebody looks at stays", [0, 0], [1, 0]),
    "copying_a_buffer": (
        "What stands for something of the driver cannot be copied",
        ["raises AttributeError"],
        ["raises TypeError"],
    ),
    "two_owners": ("A second owner of an address is refused", ["Buffer"], ["raises OwnershipError"]),
    "growing_twice": (
        "A buffer grows as often as asked, and all of it comes back",
        [False, True, "raises CUDAError"],
        [False, True, "Buffer"],
    ),
    "memory_after_the_close_of_virtual_memory": (
        "A buffer grows as often as asked, and all of it comes back",
        [1],
        [0],
    ),
    "the_config_of_a_grow": ("`config=` of a grow is not stored", [4, "minimum"], [4, "recommended"]),
    "wrong_options_of_virtual_memory": (
        "Options of virtual memory are checked, and say that they can be None",
        ["VirtualMemoryResourceOptions", "VirtualMemoryResourceOptions"],
        ["raises ValueError", "raises ValueError"],
    ),
    "an_override_of_deallocate": ("An override of `deallocate` is asked", [], [64]),
    "making_a_resource_twice": ("A pool lives until its last free has run", [None], ["raises RuntimeError"]),
    "what_dlpack_is_asked_for": (
        "DLPack heeds what the consumer asks for",
        ["raises BufferError", "PyCapsule"],
        ["PyCapsule", "raises ValueError"],
    ),
    "copies_that_overlap": ("Copies and fills are checked first", ["Buffer"], ["raises ValueError"]),
    "nothing_in_a_batch": ("Copies and fills are checked first", ["raises CUDAError"], [None]),
    "closing_under_a_graph": ("A graph keeps its memory", [0], [2]),
    "ending_with_open_branches": (
        "A wrong call of a builder leaves the capture whole",
        ["GraphBuilder"],
        ["raises RuntimeError"],
    ),
    "closing_on_a_capturing_stream": (
        "Several streams can order one free",
        [None, True],
        ["raises CUDAError", False],
    ),
    "making_graphs_directly": (
        "Graphs and builders are not made directly, whatever is given",
        ["raises TypeError", "raises TypeError"],
        ["raises RuntimeError", "raises NotImplementedError"],
    ),
    "registering_under_no_uuid": (
        "`from_registry` and `register` want a UUID and know their class",
        ["raises AssertionError"],
        ["raises TypeError"],
    ),
}
# Programs of which nobody could tell on which of the two they run.
SAME = {
    "errors_that_are_documented": [
        "RuntimeError",
        "TypeError",
        "ValueError",
        "OverflowError",
        "ValueError",
        "ValueError",
        "TypeError",
        *["RuntimeError"] * 3,
        "ValueError",
        "RuntimeError",
        "TypeError",
        *["ValueError"] * 3,
    ],
    "making_graphs_without_arguments": ["raises RuntimeError", "raises NotImplementedError"],
    "no_stream": ["stream is required and must not be None", "Stream or GraphBuilder expected, got int"],
}


def answers(*arguments):
    done = subprocess.run(
        [sys.executable, str(PROGRAMS), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    import released_package

    folder = tmp_path_factory.mktemp("released")
    with zipfile.ZipFile(released_package.wheel()) as archive:
        archive.extractall(folder)
    found = answers(str(folder))
    assert found["version"] == released_package.version()
    return found


@pytest.fixture(scope="module")
def ours():
    found = answers()
    assert found["version"].endswith("+ownership")
    return found


@pytest.mark.parametrize("program", EXPECTED)
def test_it_was_so_and_is_so(released, ours, program):
    _, before, now = EXPECTED[program]
    assert (released[program], ours[program]) == (before, now)


@pytest.mark.parametrize("program", SAME)
def test_it_is_as_it_was(released, ours, program):
    assert (released[program], ours[program]) == (SAME[program], SAME[program])


def test_each_program_is_expected_and_about_an_entry(ours):
    import differences_file

    assert set(ours) - {"version"} == set(EXPECTED) | set(SAME)
    assert {title for title, _, _ in EXPECTED.values()} <= {entry.title for entry in differences_file.read()}
