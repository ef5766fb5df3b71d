# SPDX-License-Identifier: Apache-2.0
"""Check what the linters do not: the licence line of every source file. Name the files that are long.

    python tools/check_sources.py

A file longer than the limit usually holds two concepts; that is for a reader to judge, so it is no error.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".pyx", ".pxd", ".c", ".cpp", ".h", ".hpp", ".sh"}
LICENCE = "SPDX-License-Identifier: Apache-2.0"
LONGEST = 600
RECORDINGS = Path("driver_sim/tests/driver_facts")  # kept byte for byte as they were run on the GPU


def source_files():
    """Return the project's source files: those that git knows or would add, else all outside build folders."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        paths = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    else:  # an unpacked archive
        skipped = {"build", ".venv", "dist"}
        paths = [p for p in ROOT.rglob("*") if not skipped & set(p.relative_to(ROOT).parts)]
    return sorted(
        path
        for path in paths
        if path.suffix in SUFFIXES and path.is_file() and ROOT / RECORDINGS not in path.parents
    )


def is_licensed(lines):
    """Tell whether the first line, or the second after a ``#!``, names the licence."""
    head = lines[1:2] if lines[0].startswith("#!") else lines[:1]
    return bool(head) and LICENCE in head[0]


def main():
    files = source_files()
    unlicensed = 0
    for path in files:
        lines = path.read_text(encoding="utf-8").splitlines()
        if lines and not is_licensed(lines):
            unlicensed += 1
            print(f"{path.relative_to(ROOT)}: the first line does not say {LICENCE}")
        if len(lines) > LONGEST:
            print(f"{path.relative_to(ROOT)}: note: {len(lines)} lines; two concepts?")
    print(f"{len(files)} source files checked, {unlicensed} without the licence line")
    return 1 if unlicensed else 0


if __name__ == "__main__":
    sys.exit(main())
