# SPDX-License-Identifier: Apache-2.0
"""Read ``docs/differences.toml``: what differs from the released cuda-core on purpose."""

from dataclasses import dataclass
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

FILE = Path(__file__).resolve().parent.parent / "docs" / "differences.toml"
TEXTS = ("group", "title", "was", "now", "why")
NAMES = ("missing", "added")
PAIRS = ("call", "kind", "type")


@dataclass(frozen=True)
class Difference:
    """One entry of the file; ``interface`` holds what it does to the interface as (facet, name, (before, now))."""

    group: str
    title: str
    was: str
    now: str
    why: str
    todo: str
    tests: tuple[str, ...]
    interface: tuple[tuple[str, str, tuple[str, str]], ...]

    def names(self, facet):
        return [name for found, name, _ in self.interface if found == facet]


def read():
    """Return the entries in their order. Raises ValueError for one that says too little, or what nobody reads."""
    document = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return [_entry(table) for table in document["difference"]]


def _entry(table):
    title = table.get("title", "an entry without a title")
    known = {*TEXTS, *NAMES, *PAIRS, "todo", "tests"}
    lacking = [name for name in (*TEXTS, "tests") if not table.get(name)]
    unknown = sorted(set(table) - known)
    if lacking or unknown:
        raise ValueError(f"{title}: lacks {lacking}, has unknown {unknown}")
    interface = [(facet, name, ("", "")) for facet in NAMES for name in table.get(facet, ())]
    interface += [
        (facet, name, tuple(pair)) for facet in PAIRS for name, pair in table.get(facet, {}).items()
    ]
    texts = {name: table[name] for name in TEXTS}
    return Difference(
        **texts, todo=table.get("todo", ""), tests=tuple(table["tests"]), interface=tuple(interface)
    )
