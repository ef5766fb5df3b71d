# SPDX-License-Identifier: Apache-2.0
"""The public interface is that of cuda-core 1.2.2, but for the differences that ``docs/differences.toml`` lists.

Three sides are compared: the stubs that were published with 1.2.2, our stubs and sources, and the package itself.
"""

import enum
import importlib
import inspect
import re
import sys
from collections.abc import MutableSet
from pathlib import Path

import pytest

import api_surface
from api_differences import differences

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
pytestmark = pytest.mark.sim_only  # about the checkout; no driver is called


def source(module):
    """Return the stub of a module of the checkout, else its source."""
    for suffix in (".pyi", "/__init__.pyi", ".py", "/__init__.py"):
        path = ROOT / "cuda_core" / (module.replace(".", "/") + suffix)
        if path.exists():
            return path.read_text(encoding="utf-8")
    return None


@pytest.fixture(scope="module")
def released():
    import released_package

    return api_surface.read(released_package.reader())


@pytest.fixture(scope="module")
def ours():
    return api_surface.read(source)


@pytest.fixture(scope="module")
def entries():
    import differences_file

    return differences_file.read()


@pytest.fixture(scope="module")
def listed(entries):
    """Return the differences that the file lists, by facet and key."""
    found = {}
    for entry in entries:
        for facet, key, pair in entry.interface:
            assert (facet, key) not in found, f"listed twice: {facet} {key}"
            found[facet, key] = pair
    return found


@pytest.fixture(scope="module")
def tests():
    names = set()
    for folder in ("cuda_core/tests", "driver_sim/tests"):
        for path in (ROOT / folder).rglob("*.py"):
            names |= set(re.findall(r"^\s*(?:def )?(test_\w+)(?:\(| =)", path.read_text("utf-8"), re.M))
    return names


def test_nothing_differs_that_is_not_listed(released, ours, listed):
    found, _ = differences(released, ours)
    assert {name: pair for name, pair in found.items() if listed.get(name) != pair} == {}


def test_everything_that_is_listed_differs(released, ours, listed):
    found, _ = differences(released, ours)
    assert {name: pair for name, pair in listed.items() if found.get(name) != pair} == {}


def test_most_of_the_interface_is_compared(released, ours, listed, record_property):
    """The counts, for the record; a reader that lost half of the names would not go unnoticed."""
    _, compared = differences(released, ours)
    record_property("names in both", compared)
    record_property("differences", len(listed))
    assert compared >= 650
    assert sum(key.startswith("Buffer.") for key in released) >= 25
    assert sum(key.startswith("DeviceProperties.") for key in released) >= 130


def test_no_public_module_is_forgotten():
    package = ROOT / "cuda_core" / "cuda" / "core"
    found = {path.stem for path in package.iterdir() if path.is_dir() or path.suffix in (".py", ".pyx")}
    public = {name for name in found if not name.startswith("_")}
    assert public - set(api_surface.SUBMODULES) == set()


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (("stream: Stream | GraphBuilder", "stream: Stream"), "type Buffer.fill(stream)"),
        (("def fill(self, value", "def fill(self, pattern"), "call Buffer.fill"),
        (("def fill(", "def filled("), "missing Buffer.fill"),
        (("dst: Buffer | None = None", "dst: Buffer | None = ..."), "call Buffer.copy_to"),
        (("    @property\n    def size", "    def size"), "kind Buffer.size"),
        (("def size(self) -> int", "def size(self) -> float"), "type Buffer.size"),
    ],
)
def test_a_difference_is_found(released, listed, change, difference):
    """The comparison can fail: each change of our stub is a difference that is not listed."""

    def changed(module):
        text = source(module)
        if module == "cuda.core._memory._buffer":
            assert change[0] in text
            text = text.replace(*change)
        return text

    found, _ = differences(released, api_surface.read(changed))
    assert difference in {" ".join(name) for name, pair in found.items() if listed.get(name) != pair}


def test_each_entry_says_what_shows_it(entries, tests):
    assert len(entries) >= 30
    for entry in entries:
        assert entry.tests, entry.title
        assert set(entry.tests) - tests == set(), entry.title


def test_the_page_is_made_from_the_file():
    import make_moving_page

    assert make_moving_page.PAGE.read_text(encoding="utf-8") == make_moving_page.page()


# -- the package itself ------------------------------------------------------------------------------------------


def classes_by_name():
    """Return the classes of the package by name, public ones first."""
    found = {}
    for name in (*api_surface.MODULES, *api_surface.BESIDES):
        module = importlib.import_module(name)
        for each in dir(module):  # some come when they are asked for
            thing = getattr(module, each)
            if inspect.isclass(thing):
                found.setdefault(thing.__name__, thing)
    importlib.import_module("cuda.core._device_properties")  # with the first property that is read
    for name, module in sorted(sys.modules.items()):
        if name.startswith("cuda.core."):
            for thing in vars(module).values():
                if inspect.isclass(thing) and thing.__module__.startswith("cuda.core"):
                    found.setdefault(thing.__name__, thing)
    return found


def runtime_object(key, classes):
    """Return what a key names, as a class has it: a method is not bound, a property is its descriptor."""
    owner, _, name = key.rpartition(".")
    if not owner:
        thing = classes.get(name)
        for module in ("cuda.core", *api_surface.BESIDES):
            thing = thing or getattr(importlib.import_module(module), name, None)
        return thing
    if owner in ("graph", "utils", "typing"):
        return getattr(importlib.import_module(f"cuda.core.{owner}"), name)
    return inspect.getattr_static(classes[owner], name)


def runtime_call(thing):
    """Return the parameters of a call as ``Entry.call`` writes them, or None where Python cannot tell."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return None
    parameters = []
    for parameter in signature.parameters.values():
        default = None
        if parameter.default is not parameter.empty:
            value = parameter.default
            default = repr(value.value if isinstance(value, enum.Enum) else value)
        kinds = {
            parameter.POSITIONAL_ONLY: "",
            parameter.POSITIONAL_OR_KEYWORD: "",
            parameter.KEYWORD_ONLY: "*",
            parameter.VAR_POSITIONAL: "args",
            parameter.VAR_KEYWORD: "kwargs",
        }
        parameters.append(api_surface.Parameter(parameter.name, kinds[parameter.kind], default, None))
    if parameters and parameters[0].name in api_surface.SELF:
        del parameters[0]
    return api_surface.Entry("", tuple(parameters)).call()


# Special methods go into slots, which have signatures of their own; the buffer protocol shows from Python 3.12 on.
SLOTS = re.compile(r"\.__(?!init__|enter__|exit__|dlpack__|dlpack_device__|cuda_stream__)\w+__$")


def test_the_package_is_what_the_stubs_say(ours):
    classes = classes_by_name()
    wrong, calls = [], 0
    for key, entry in ours.items():
        if key.endswith(("__buffer__", "__release_buffer__")):
            continue
        if entry.kind == "module":
            importlib.import_module(f"cuda.core.{key}")
            continue
        if entry.kind == "field":
            fields = inspect.signature(classes[key.rpartition(".")[0]]).parameters
            if key.rpartition(".")[2] not in fields:
                wrong.append((key, "no such field"))
            continue
        try:
            thing = runtime_object(key, classes)
        except AttributeError as error:
            if entry.kind != "property" or entry.writable is not None:  # else an object's own attribute
                wrong.append((key, str(error)))
            continue
        shown = {
            "class": inspect.isclass,
            "enum": inspect.isclass,
            "property": lambda found: not callable(found),
            "static method": lambda found: isinstance(found, staticmethod),
            "class method": lambda found: (
                isinstance(found, classmethod)
                or inspect.isbuiltin(found)
                or (type(found).__name__ == "classmethod_descriptor")
            ),
            "method": callable,
            "function": callable,
        }.get(entry.kind, lambda found: found is not None)
        if not shown(thing):
            wrong.append((key, f"is no {entry.kind} but {thing!r}"))
        elif entry.kind == "member":
            if repr(thing.value) != entry.default and entry.default != "...":
                wrong.append((key, f"is {thing.value!r}"))
        elif entry.kind in ("static method", "class method", "method", "function") and not SLOTS.search(key):
            owner = classes.get(key.rpartition(".")[0])
            is_constructor = key.endswith(".__init__")
            found = runtime_call(owner if is_constructor else getattr(thing, "__func__", thing))
            if found is not None:
                calls += 1
                if found != entry.call():
                    wrong.append((key, f"is called as {found}, not as {entry.call()}"))
    assert wrong == []
    assert calls > 150


def test_the_stubs_hide_nothing_public(ours):
    """What the classes of the package show to Python stands in the stubs."""
    classes = classes_by_name()
    hidden = []
    for key, entry in ours.items():
        if entry.kind in ("class", "enum") and not key.startswith("_"):
            for name in dir(classes[key]):
                if not name.startswith("_") and f"{key}.{name}" not in ours:
                    hidden.append(f"{key}.{name}")
    inherited = (enum.Enum, Exception, MutableSet, str, int, tuple)
    assert [
        name
        for name in hidden
        if not any(
            issubclass(classes[name.split(".")[0]], base) and hasattr(base, name.split(".")[1])
            for base in inherited
        )
    ] == []
