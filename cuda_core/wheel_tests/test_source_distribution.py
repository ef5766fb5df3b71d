# SPDX-License-Identifier: Apache-2.0
"""The source distribution holds what a build needs, and the tests and pages; CI builds the package from it."""

import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What belongs to the checkout only: how CI runs, what git ignores, the driver's own distribution.
LEFT_OUT = (".ci/", ".git", "driver_sim/", "Makefile")


@pytest.fixture(scope="module")
def names(archive):
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
    (top,) = {member.name.split("/")[0] for member in members}
    assert top == archive.name.removesuffix(".tar.gz")
    return [member.name.removeprefix(f"{top}/") for member in members if member.isfile()]


def tracked():
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("needs the checkout")
    return {name for name in done.stdout.split("\0") if name}


def test_it_holds_every_source_and_nothing_else(names):
    made = {name for name in names if "egg-info/" in name or name in ("PKG-INFO", "setup.cfg")}
    wanted = {name for name in tracked() if not name.startswith(LEFT_OUT)}
    assert sorted(wanted - set(names)) == []
    assert sorted(set(names) - made - wanted) == []


def test_no_name_is_there_twice(names):
    assert len(names) == len(set(names))


def test_nothing_compiled_is_in_it(names):
    assert [name for name in names if name.endswith((".so", ".o", ".pyc")) or name.startswith("build/")] == []


def test_its_size(archive, names, sizes):
    assert archive.stat().st_size < 4 << 20
    sizes.append(f"{archive.name}: {archive.stat().st_size / 1e6:.2f} MB, {len(names)} files")
