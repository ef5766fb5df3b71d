# SPDX-License-Identifier: Apache-2.0
"""What the package's documentation is made from: its public names, and their docstrings taken apart."""

import enum
import inspect
import re
from typing import Any

import cuda.core
import cuda.core.adaptors
import cuda.core.graph
import cuda.core.typing
import cuda.core.utils

MODULES = (cuda.core, cuda.core.adaptors, cuda.core.graph, cuda.core.utils, cuda.core.typing)
# In the order in which numpydoc wants them.
SECTIONS = (
    "Parameters",
    "Attributes",
    "Returns",
    "Yields",
    "Raises",
    "Warns",
    "Warnings",
    "See Also",
    "Notes",
    "References",
    "Examples",
)


class Docstring:
    """A docstring as numpydoc reads it: a signature, a summary, and sections."""

    def __init__(self, text):
        lines = text.splitlines()
        self.signature = None
        # Compiled functions begin with their signature, which autodoc takes from there.
        if lines and re.match(r"[\w.]+\(.*\)( -> .*)?$", lines[0]):
            self.signature, lines = lines[0], lines[1:]
        elif len(lines) > 1 and not lines[1] and re.match(r"\w+\.\w+: \S+", lines[0]):
            lines = lines[1:]  # of a property
        heads = [
            number
            for number in range(len(lines) - 1)
            if lines[number].strip()
            and re.fullmatch(r"-{3,}", lines[number + 1].strip())
            and len(lines[number + 1].strip()) == len(lines[number].strip())
        ]
        self.text = "\n".join(lines[: heads[0]] if heads else lines).strip()
        self.summary = self.text.split("\n\n")[0]
        self.sections = {}
        self.order = []
        for head, end in zip(heads, [*heads[1:], len(lines)][: len(heads)], strict=True):
            self.order.append(lines[head].strip())
            self.sections[lines[head].strip()] = "\n".join(lines[head + 2 : end]).strip("\n")

    def entries(self, section):
        """Return the entries of a section of parameters as (names, type, description)."""
        found = []
        for line in self.sections.get(section, "").splitlines():
            if line and not line.startswith(" "):
                names, _, kind = line.partition(" : ")
                found.append(([name.strip() for name in names.split(",")], kind.strip(), []))
            elif found:
                found[-1][2].append(line.strip())
        return [(names, kind, " ".join(lines).strip()) for names, kind, lines in found]

    def parameters(self):
        """Return the names of the parameters, from the signature in the docstring."""
        if self.signature is None:
            return None
        inside = self.signature[self.signature.index("(") + 1 : self.signature.rindex(")")]
        names, depth, start = [], 0, 0
        for place, letter in enumerate(f"{inside},"):
            depth += letter in "([{"
            depth -= letter in ")]}"
            if letter == "," and depth == 0:
                # Cython shows some types before the name, as C does.
                names.append(re.split(r"[:=]", inside[start:place])[0].strip().split(" ")[-1])
                start = place + 1
        return [name for name in names if name not in ("", "self", "cls", "*", "/", "*args", "**kwargs")]


class Member:
    """A public name: where it is, what it is, and its docstring."""

    def __init__(self, module, name, value, of=None):
        self.name = f"{of.__name__}.{name}" if of is not None else name
        self.place = f"{module.__name__}.{self.name}"
        self.value = value
        self.of = of
        bare = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        self.is_class = inspect.isclass(bare)
        self.is_property = of is not None and not callable(bare) and inspect.isdatadescriptor(bare)
        self.is_callable = callable(bare) and not self.is_class
        self.docstring = Docstring(inspect.getdoc(bare) or "")
        # An override may say in which way it differs, and leave the rest to what it overrides.
        self.refers_to_another = re.search(r"\bAs :meth:`", self.docstring.text) is not None

    def signature(self):
        """Return the names of the parameters, or None where they cannot be known."""
        found = self.docstring.parameters()
        if found is None and not self.is_class:
            bare = self.value.__func__ if isinstance(self.value, (staticmethod, classmethod)) else self.value
            found = [
                name
                for name in inspect.signature(bare).parameters
                if name not in ("self", "cls", "args", "kwargs")
            ]
        return found


def _of_class(module, cls):
    """The public members of a class, also those of bases in this package whose names nobody knows."""
    seen = set()
    public = {
        getattr(place, name)
        for place in MODULES
        for name in place.__all__
        if inspect.isclass(getattr(place, name))
    }
    for base in cls.__mro__:
        if not base.__module__.startswith("cuda.core") or (base is not cls and base in public):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            yield Member(module, name, value, of=cls)


def public_members():
    """Return every public class, function, method and property, each once."""
    found, seen = [], set()
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if name.startswith("__") or inspect.ismodule(value) or value is Any or id(value) in seen:
                continue
            seen.add(id(value))
            member = Member(module, name, value)
            if member.is_class:
                found.append(member)
                if not issubclass(value, enum.Enum):
                    found += [
                        part for part in _of_class(module, value) if part.is_callable or part.is_property
                    ]
            elif callable(value) and not isinstance(value, type(module)):
                found.append(member)
    return found
