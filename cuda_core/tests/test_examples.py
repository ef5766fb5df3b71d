# SPDX-License-Identifier: Apache-2.0
"""The examples run, and what they print is true."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from support import GRANULE, blocked

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def grow_buffer(driver_name):
    """Run the example on the tests' driver; return the lines it printed."""
    run = subprocess.run(
        [sys.executable, EXAMPLES / "grow_buffer.py", f"--driver={driver_name}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout.splitlines()


@pytest.fixture
def example_module():
    """Return the example as a module, in this process."""
    specification = importlib.util.spec_from_file_location("grow_buffer_example", EXAMPLES / "grow_buffer.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def rows(lines):
    """Return the table's rows as lists of cells, cut where the rule under the headings has its gaps."""
    rule = next(line for line in lines if line.startswith("---"))
    starts = [index for index, mark in enumerate(rule) if mark == "-" and rule[index - 1 : index] != "-"]
    first = lines.index(rule) + 1
    table = lines[first : lines.index("", first)]
    ends = [*starts[1:], None]
    return [[line[a:b].strip() for a, b in zip(starts, ends, strict=True)] for line in table]


def test_it_tells_each_buffers_state_at_each_step(grow_buffer):
    states = [(name, state) for _step, name, state, *_rest in rows(grow_buffer)]
    assert states == [
        ("a", "OWNED"),
        ("a", "OWNED"),
        ("a", "TRANSFERRED to GROWN"),
        ("b", "OWNED"),
        ("b", "OWNED"),
        ("b", "TRANSFERRED to GROWN"),
        ("c", "OWNED"),
        ("c", "OWNED"),
        ("a", "TRANSFERRED to GROWN"),
        ("b", "TRANSFERRED to GROWN"),
        ("c", "RELEASED"),
    ]


def test_it_shows_addresses_and_sizes(grow_buffer):
    table = rows(grow_buffer)
    owned = [cells for cells in table if cells[2] == "OWNED"]
    addresses = [cells[3] for cells in owned]
    assert addresses[0] == addresses[1] == addresses[2] == addresses[3], "grown in place: the address stays"
    assert addresses[4] == addresses[5] != addresses[3], "grown by moving: the address changes"
    assert [cells[4:7] for cells in owned] == [
        ["4 MiB", "4 MiB", "8 MiB"],
        ["4 MiB", "4 MiB", "8 MiB"],
        ["8 MiB", "8 MiB", "8 MiB"],
        ["8 MiB", "8 MiB", "8 MiB"],
        ["16 MiB", "16 MiB", "16 MiB"],
        ["16 MiB", "16 MiB", "16 MiB"],
    ]
    taken = [cells[7] for cells in table if cells[7]]
    assert taken == ["4 MiB", "4 MiB", "8 MiB", "8 MiB", "16 MiB", "16 MiB", "0 MiB"]


def test_it_proves_that_every_byte_came_back(grow_buffer):
    assert grow_buffer[-1] == "every byte returned"
    assert sum("are free again" in line for line in grow_buffer) == 2


def test_its_lines_fit_a_terminal(grow_buffer):
    assert max(map(len, grow_buffer)) <= 120


def test_its_proof_notices_memory_that_is_kept(example_module, resource):
    driver = example_module.Driver()
    free = driver.free_memory()
    kept = resource.allocate(GRANULE)
    with pytest.raises(SystemExit, match="not returned"):
        example_module.prove_returned(driver, [], free)
    kept.close()


def test_its_proof_notices_addresses_that_are_kept(example_module, resource):
    driver = example_module.Driver()
    kept = resource.allocate(GRANULE)
    with blocked(kept), pytest.raises(SystemExit, match="still taken"):
        example_module.prove_returned(driver, [(kept.handle, GRANULE)], driver.free_memory())
    kept.close()


# --- worker_pool.py -----------------------------------------------------------------------------------------------


def test_workers_get_buffers_and_a_killed_one_loses_nothing(driver_name):
    run = subprocess.run(
        [sys.executable, EXAMPLES / "worker_pool.py", f"--driver={driver_name}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    killed = [line for line in lines if "was killed over task" in line]
    assert len(killed) == 1
    tasks = [line for line in lines if line.startswith("task ")]
    assert len(tasks) == 9
    assert [line for line in tasks if "then worker" in line] == [
        line
        for line in tasks
        if line.startswith(f"task {killed[0].split('task ')[1].split(';')[0]}: worker 1, then")
    ]
    assert lines[-2] == "workers ended with -9, 0, 0, 0"
    assert lines[-1] == "every result and everything that was taken is back"


def test_the_pool_of_workers_notices_what_is_kept(driver_name, tmp_path):
    """A worker's buffer that the parent does not close, and a result that is wrong, end with exit code 1."""
    source = (EXAMPLES / "worker_pool.py").read_text()
    (tmp_path / "grow_buffer.py").write_text((EXAMPLES / "grow_buffer.py").read_text())
    for right, wrong, said in (
        ("        back.close()\n", "        kept.append(back)\n", "still held here"),
        ("bytes(text).upper()", "bytes(text)", "every result"),
    ):
        assert right in source
        program = tmp_path / "worker_pool.py"
        program.write_text(
            source.replace(right, wrong).replace("CHUNK = 64 << 10", "CHUNK = 64 << 10\nkept = []")
        )
        run = subprocess.run(
            [sys.executable, program, f"--driver={driver_name}"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert run.returncode == 1
        assert said in run.stderr


# --- kv_cache.py --------------------------------------------------------------------------------------------------


def run_cache(program, driver_name, *options):
    return subprocess.run(
        [sys.executable, program, f"--driver={driver_name}", "--library=none", *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_cache_grows_and_gives_way_at_one_address(driver_name):
    run = run_cache(EXAMPLES / "kv_cache.py", driver_name, "--steps=5", "--block=4")
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert lines[-1] == "the contents are right, and all memory is back"
    assert [line.split(" MiB")[0].split()[-1] for line in lines if "cache of" in line] == [
        "4",
        "8",
        "12",
        "16",
        "20",
    ]
    (most,) = [line.split("taken")[1].split() for line in lines if "most memory taken" in line]
    assert most == ["20", "MiB", "36", "MiB"], "beside the new buffer the old one is still there"
    (same,) = [line.split("address")[1].split() for line in lines if "at the same address" in line]
    assert same[0] == "yes"
    assert max(map(len, lines)) <= 120


def test_the_cache_notices_what_is_wrong(driver_name, tmp_path):
    """Contents that a pause has lost, and memory that is kept, end with exit code 1."""
    source = (EXAMPLES / "kv_cache.py").read_text()
    (tmp_path / "grow_buffer.py").write_text((EXAMPLES / "grow_buffer.py").read_text())
    program = tmp_path / "kv_cache.py"
    for right, wrong, said in (
        (
            "self.resource.pause(self.buffer, keep_contents=True)",
            "self.resource.pause(self.buffer)",
            "held before",
        ),
        ("        self.resource.pause(self.buffer, keep_contents=True)\n", "", "gives its memory"),
        (
            "    cache.close()\n    return result\n",
            "    kept.append(cache)\n    return result\n",
            "memory is back",
        ),
    ):
        assert right in source
        program.write_text(
            source.replace(right, wrong).replace("MIB = 1 << 20\n", "MIB = 1 << 20\nkept = []\n")
        )
        run = run_cache(program, driver_name, "--steps=3")
        assert run.returncode == 1
        assert said in run.stderr
