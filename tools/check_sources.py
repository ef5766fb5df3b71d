# SPDX-License-Identifier: Apache-2.0
"""Check what the linters do not: the licence line of every source file, and its length.

    python tools/check_sources.py

A file longer than the limit usually holds two concepts.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".pyx", ".pxd", ".c", ".cpp", ".h", ".hpp", ".sh"}
LICENCE = "SPDX-License-Identifier: Apache-2.0"
LONGEST = 600


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
    return sorted(path for path in paths if path.suffix in SUFFIXES and path.is_file())


def complaints(path):
    """Return what is wrong with one file, as lines to print."""
    lines = path.read_text(encoding="utf-8").splitlines()
    head = lines[1:2] if lines[:1] and lines[0].startswith("#!") else lines[:1]
    found = []
    if lines and not (head and LICENCE in head[0]):
        found.append(f"the first line does not say {LICENCE}")
    if len(lines) > LONGEST:
        found.append(f"{len(lines)} lines, more than {LONGEST}")
    return [f"{path.relative_to(ROOT)}: {text}" for text in found]


def main():
    files = source_files()
    found = [line for path in files for line in complaints(path)]
    print("\n".join([*found, f"{len(files)} source files checked, {len(found)} complaints"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
