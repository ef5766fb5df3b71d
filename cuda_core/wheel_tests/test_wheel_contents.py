# SPDX-License-Identifier: Apache-2.0
"""The wheel holds each file of the package once, and nothing else."""

import base64
import csv
import hashlib
import io
import re
import sysconfig
import zipfile
from collections import Counter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]

SOURCES = ROOT / "cuda_core"
PACKAGE = SOURCES / "cuda" / "core"
COMPILED_FROM_PYTHON = {"cuda/core/_memory/_ownership.py"}
# Sources that are compiled, and what an earlier build may have left in the checkout.
BUILT_OR_COMPILED = {".pyx", ".so", ".pyc", ".c", ".cpp"}
# What compiled modules may ask of the system: no driver, and no library of CUDA.
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0"}
LARGEST = 16 << 20


def expected_names():
    """Return what the checkout says the package is, by name in the wheel."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    names = {
        str(path.relative_to(SOURCES))
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in BUILT_OR_COMPILED
    }
    names |= {path.name for path in SOURCES.glob("*.py")}  # the plugin of pytest
    compiled = {str(path.relative_to(SOURCES)) for path in PACKAGE.rglob("*.pyx")} | COMPILED_FROM_PYTHON
    return names | {str(PurePosixPath(name).with_suffix("")) + suffix for name in compiled}


def test_it_holds_the_package_and_nothing_else(names_in_wheel):
    packaged = {name for name in names_in_wheel if ".dist-info/" not in name}
    assert sorted(expected_names() - packaged) == []
    assert sorted(packaged - expected_names()) == []


def test_it_leaves_the_namespace_to_others(names_in_wheel):
    assert "cuda/__init__.py" not in names_in_wheel


def test_no_name_and_no_content_is_there_twice(wheel, names_in_wheel):
    assert [name for name, count in Counter(map(str.lower, names_in_wheel)).items() if count > 1] == []
    with zipfile.ZipFile(wheel) as opened:
        contents = {}
        for name in names_in_wheel:
            data = opened.read(name)
            if data:  # a marker is empty
                contents.setdefault(hashlib.sha256(data).digest(), []).append(name)
    assert [names for names in contents.values() if len(names) > 1] == []


def test_its_record_lists_every_file_with_its_hash(wheel, names_in_wheel):
    with zipfile.ZipFile(wheel) as opened:
        (record,) = [name for name in names_in_wheel if name.endswith(".dist-info/RECORD")]
        rows = list(csv.reader(io.StringIO(opened.read(record).decode())))
        assert sorted(row[0] for row in rows) == sorted(names_in_wheel)
        for name, said, size in rows:
            if name != record:
                data = opened.read(name)
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (said, size) == (f"sha256={digest}", str(len(data))), name


def test_the_rules_in_it_are_those_of_the_checkout(wheel):
    name = "cuda/core/_memory/_ownership.py"
    with zipfile.ZipFile(wheel) as opened:
        assert opened.read(name) == (SOURCES / name).read_bytes()


def test_no_compiled_module_names_a_place_on_this_machine(wheel, names_in_wheel):
    with zipfile.ZipFile(wheel) as opened:
        found = [
            name
            for name in names_in_wheel
            if name.endswith(".so") and str(ROOT).encode() in opened.read(name)
        ]
    assert found == []


def needed_libraries(data):
    """Return the libraries that a 64-bit ELF file asks for."""

    def number(offset, length):
        return int.from_bytes(data[offset : offset + length], "little")

    assert data[:5] == b"\x7fELF\x02"
    headers, size, count = number(0x28, 8), number(0x3A, 2), number(0x3C, 2)
    sections = [headers + i * size for i in range(count)]
    for section in sections:
        if number(section + 4, 4) == 6:  # dynamic
            start, length = number(section + 0x18, 8), number(section + 0x20, 8)
            strings = number(sections[number(section + 0x28, 4)] + 0x18, 8)
            for entry in range(start, start + length, 16):
                if number(entry, 8) == 1:  # needed
                    name = strings + number(entry + 8, 8)
                    yield data[name : data.index(b"\0", name)].decode()


def test_compiled_modules_need_the_system_only(wheel, names_in_wheel):
    asked = set()
    with zipfile.ZipFile(wheel) as opened:
        for name in names_in_wheel:
            if name.endswith(".so"):
                asked |= set(needed_libraries(opened.read(name)))
    assert "libc.so.6" in asked
    assert {name for name in asked if not name.startswith("ld-linux")} <= SYSTEM_LIBRARIES


def test_what_it_says_about_itself(wheel, names_in_wheel):
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in names_in_wheel if name.endswith(".dist-info/METADATA")]
        said = opened.read(name).decode()
    required = re.findall(r"^Requires-Dist: ([\w-]+)(?![^\n]*extra ==)", said, re.M)
    assert sorted(required) == ["attrs", "cuda-bindings", "numpy"]
    assert re.search(r"^Name: cuda-core$", said, re.M)
    assert re.search(r"^License-Expression: Apache-2.0$", said, re.M)
    assert any(name.endswith("/licenses/LICENSE") for name in names_in_wheel)


def test_its_size(wheel, names_in_wheel, sizes):
    with zipfile.ZipFile(wheel) as opened:
        unpacked = {name: opened.getinfo(name).file_size for name in names_in_wheel}
    packed = wheel.stat().st_size
    compiled = sum(size for name, size in unpacked.items() if name.endswith(".so"))
    total = sum(unpacked.values())
    assert packed < LARGEST
    sizes.append(
        f"{wheel.name}: {packed / 1e6:.2f} MB, unpacked {total / 1e6:.2f} MB in {len(unpacked)} files, "
        f"of them {compiled / 1e6:.2f} MB compiled"
    )
