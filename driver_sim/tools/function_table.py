# SPDX-License-Identifier: Apache-2.0
"""Write FUNCTIONS.md: which functions of cuda.h this driver has, has in part, and does not have.

``python tools/function_table.py`` writes it, ``--check`` says whether it is up to date, ``--cuda-h FILE``
names the header (else that of the distribution nvidia-cuda-runtime). What is there is read from the
``DRIVER_CALL`` definitions in ``src``; what a function lacks is the comment that begins with ``Partly:``
above its definition.
"""

import argparse
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "FUNCTIONS.md"

DEFINITION = re.compile(r'^DRIVER_CALL\w*\((?:Needs::\w+,\s*)?"(\w+)",\s*(\w+),\s*(\d+)')
OTHER_REGISTRATION = re.compile(r'^static const Registration \w+\{"(\w+)", (\d+), ')
DECLARATION = re.compile(r"^CUresult\s+CUDAAPI\s+(cu\w+)\s*\(", re.MULTILINE)
GROUP = re.compile(r"^ \* \\defgroup (\w+) (.*?)\s*$", re.MULTILINE)
ALIAS = re.compile(r"^#define (cu\w+)\s+(cu\w+)$", re.MULTILINE)  # the name in the library
SUFFIX = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")


class Defined:
    """A function of this driver: the symbols it has, and what they lack."""

    def __init__(self):
        self.symbols = []
        self.missing = []


def defined_functions(sources):
    """Read names, symbols and ``Partly:`` comments from C++ sources."""
    functions = {}
    for path in sources:
        comment, tagged = [], None
        for line in path.read_text().splitlines():
            if line.startswith("//"):
                comment.append(line.removeprefix("//").strip())
                continue
            tagged = " ".join(comment).partition("Partly: ")[2]
            comment = []
            if match := DEFINITION.match(line):
                function = functions.setdefault(match[1], Defined())
                function.symbols.append(match[2])
                if tagged and tagged not in function.missing:
                    function.missing.append(tagged)
            elif match := OTHER_REGISTRATION.match(line):
                functions.setdefault(match[1], Defined()).symbols.append(match[1])
            elif tagged:
                raise SystemExit(f"{path.name}: a comment says 'Partly:' and no function follows: {tagged}")
    return functions


def declared_functions(header):
    """Read the functions of cuda.h, by the group of its documentation that they belong to."""
    text = header.read_text(errors="replace")
    in_library = dict(ALIAS.findall(text))
    groups, seen = {}, set()
    starts = [*GROUP.finditer(text)]
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        names = []
        for match in DECLARATION.finditer(text, start.end(), end.start() if end else len(text)):
            name = SUFFIX.sub("", in_library.get(match[1], match[1]))
            if name not in seen:
                seen.add(name)
                names.append(name)
        if names:
            title = start[2].replace(" [DEPRECATED]", ", deprecated")
            groups.setdefault(title, []).extend(names)
    version = int(re.search(r"^#define CUDA_VERSION (\d+)", text, re.MULTILINE)[1])
    return version, groups


def name_of(version):
    return f"{version // 1000}.{version % 1000 // 10}"


def list_of(what, names):
    """Lines of at most a hundred characters, so that a comparison shows which function has changed."""
    return textwrap.wrap(f"{what}: {', '.join(f'`{name}`' for name in names)}.", 100)


def table(version, groups, functions):
    """The text of FUNCTIONS.md."""
    declared = {name for names in groups.values() for name in names}
    if unknown := sorted(functions.keys() - declared):
        raise SystemExit(f"not in cuda.h: {', '.join(unknown)}")
    partly = [name for name in functions if functions[name].missing]
    there, absent = len(functions) - len(partly), len(declared) - len(functions)
    lines = [
        "# Driver functions",
        "",
        f"Of the {len(declared)} functions that cuda.h of CUDA {name_of(version)} declares,",
        f"{there} are there, {len(partly)} are there in part, and {absent} are absent:",
        "`cuGetProcAddress` does not find them. The driver says that it is one of CUDA 13.0.",
        "",
        "This file is made from the source by `python tools/function_table.py`; a test compares.",
        "",
    ]
    for title, names in groups.items():
        have = [name for name in names if name in functions]
        lines += [f"## {title}: {len(have)} of {len(names)}", ""]
        whole = [name for name in have if not functions[name].missing]
        if whole:
            lines += [*list_of("There", whole), ""]
        if len(whole) < len(have):
            lines += ["| there in part | what is missing |", "|---|---|"]
            lines += [f"| `{n}` | {' '.join(functions[n].missing)} |" for n in have if functions[n].missing]
            lines += [""]
        absent = [name for name in names if name not in functions]
        if absent:
            lines += [*list_of("Absent", absent), ""]
    return "\n".join(lines[:-1]) + "\n"


def find_header():
    """The cuda.h of the distribution nvidia-cuda-runtime, or None."""
    folders = [Path(p) / "nvidia" / "cu13" / "include" / "cuda.h" for p in sys.path]
    return next((path for path in folders if path.exists()), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="compare only; the exit code says whether it is up to date"
    )
    parser.add_argument("--cuda-h", type=Path, default=find_header())
    arguments = parser.parse_args()
    if arguments.cuda_h is None:
        raise SystemExit("cuda.h was not found: install nvidia-cuda-runtime==13.* or name it with --cuda-h")
    text = table(
        *declared_functions(arguments.cuda_h), defined_functions(sorted((ROOT / "src").glob("*.cpp")))
    )
    if not arguments.check:
        TABLE.write_text(text)
    elif not TABLE.exists() or TABLE.read_text() != text:
        raise SystemExit("FUNCTIONS.md is not up to date: run python tools/function_table.py")


if __name__ == "__main__":
    main()
