# SPDX-License-Identifier: Apache-2.0
"""The modules stand on floors: what is above imports what is below, and there is no circle.

Imports and Cython's declarations (``cimport``) count alike: a declaration of a class is as much a dependency as the
class. A module is its ``.py`` or ``.pyx`` together with the ``.pxd`` beside it.
"""

import graphlib
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "cuda" / "core"  # the sources, not what is installed
pytestmark = pytest.mark.sim_only  # needs the checkout

IMPORT = re.compile(
    r"^\s*from (cuda\.core[\w.]*) c?import (\([^)]*\)|[^\n]*)|^\s*c?import (cuda\.core[\w.]*)", re.M
)
# What only a type checker reads is no dependency.
FOR_CHECKERS = re.compile(r"^if TYPE_CHECKING:\n(?:    .*\n|\n(?=    ))+", re.M)


def name_of_module(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("cuda", "core", *parts)).removesuffix(".__init__")


def read_modules():
    """Return what each module imports of this package, by full name."""
    sources = [path for pattern in ("*.py", "*.pyx", "*.pxd") for path in sorted(PACKAGE.rglob(pattern))]
    names = {name_of_module(path) for path in sources}
    imports = {name: set() for name in names}
    for path in sources:
        for package, members, module in IMPORT.findall(FOR_CHECKERS.sub("", path.read_text())):
            found = {module or package}
            for member in re.findall(r"\w+", re.sub(r"\bas \w+|#.*", "", members)):
                if f"{package}.{member}" in names:
                    found = found - {package} | {f"{package}.{member}"}
            imports[name_of_module(path)] |= (found & names) - {name_of_module(path)}
    return imports


MODULES = read_modules()
# What other modules import by its full name; the packages themselves only gather.
GATHERING = {name for name in MODULES if (PACKAGE / Path(*name.split(".")[2:]) / "__init__.py").exists()}


def below(name):
    """Return everything that a module stands on."""
    found, to_do = set(), [name]
    while to_do:
        for other in MODULES[to_do.pop()] - found:
            found.add(other)
            to_do.append(other)
    return found


def test_there_is_no_circle():
    assert len(MODULES) > 30
    assert MODULES["cuda.core._memory._release"] >= {
        "cuda.core._memory._ownership",
        "cuda.core._stream_handle",
    }
    tuple(graphlib.TopologicalSorter(MODULES).static_order())  # raises, and names the circle


BELOW_STREAMS = {
    "_undestroyed",
    "_capture_lock",
    "_context",
    "_shared_containers",
    "_driver",
    "_errors",
    "_fork",
    "_pthread",
}


@pytest.mark.parametrize(
    ("module", "may_stand_on"),
    [
        ("_errors", set()),
        ("_pthread", set()),
        ("_fork", {"_pthread"}),
        ("_driver", {"_errors", "_fork", "_pthread"}),
        ("_shared_containers", set()),
        ("_context", {"_shared_containers", "_driver", "_errors", "_fork", "_pthread"}),
        (
            "_undestroyed",
            {"_capture_lock", "_context", "_shared_containers", "_driver", "_errors", "_fork", "_pthread"},
        ),
        ("_capture_lock", {"_pthread"}),
        ("_stream_handle", BELOW_STREAMS),
        ("_stream_order", {"_stream_handle", *BELOW_STREAMS}),
        ("_memory._ownership_states", set()),
        ("_memory._ownership", {"_memory._ownership_states"}),
    ],
)
def test_the_lowest_floors_stand_on_nothing_else(module, may_stand_on):
    assert below(f"cuda.core.{module}") <= {f"cuda.core.{name}" for name in may_stand_on}


def test_what_frees_does_not_know_who_allocates():
    """Everything that frees passes one waist; below it nobody knows a buffer or a resource."""
    for module in ("_allocation", "_release", "_queue", "_loans", "_transfer"):
        above = {
            name
            for name in below(f"cuda.core._memory.{module}")
            if re.search(r"_buffer|_resource|_device", name)
        }
        assert above == set(), module


def test_buffers_do_not_know_the_kinds_of_resources():
    kinds = {
        name for name in MODULES if re.search(r"_memory\.\w+_resource$|_legacy|_synchronous|_pool", name)
    }
    kinds.discard("cuda.core._memory._memory_resource")
    assert len(kinds) >= 5
    assert below("cuda.core._memory._buffer") & kinds == set()


# What is written with the public names alone, as any program is; `cuda.core` itself does not import it.
ABOVE_THE_TOP = ("cuda.core.adaptors", "cuda.core.testing")


def is_above_the_top(name):
    return name.startswith(ABOVE_THE_TOP)


def test_nothing_stands_on_the_top():
    for name, imports in MODULES.items():
        if name not in GATHERING and name != "cuda.core._device":
            assert "cuda.core._device" not in imports, name
        assert name == "cuda.core" or is_above_the_top(name) or "cuda.core" not in imports, name


def test_what_is_above_the_top_uses_public_names_only():
    above = [name for name in MODULES if is_above_the_top(name)]
    assert len(above) > 5
    for name in above:
        below_it = {other for other in MODULES[name] if not is_above_the_top(other)}
        assert below_it <= {"cuda.core", "cuda.core.graph", "cuda.core.typing"}, name
    for name in MODULES.keys() - above:
        assert not any(map(is_above_the_top, MODULES[name])), name
