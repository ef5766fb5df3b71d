# SPDX-License-Identifier: Apache-2.0
"""The public interface of a package as data, read from its sources and type stubs without importing it.

``read(sources)`` follows ``__all__`` of the public modules, and every class that a public signature names. The result
maps a key to facts: ``Buffer`` or ``utils.copy_batch`` for what a module shows, ``Buffer.close`` for what a class has.
"""

import ast
import dataclasses
from dataclasses import dataclass

MODULES = ("cuda.core", "cuda.core.utils", "cuda.core.graph", "cuda.core.typing")
# The public modules of 1.2.2 and ours: what each shows is read only of those above.
SUBMODULES = ("adaptors", "audit", "checkpoint", "graph", "system", "testing", "texture", "typing", "utils")
# Names of private modules that programs catch and call all the same.
BESIDES = {"cuda.core._utils.cuda_utils": ("CUDAError", "NVRTCError", "ComputeCapability", "handle_return")}
# No method that Python sees.
ARTEFACTS = {
    "__dealloc__",
    "__cinit__",
    "__slots__",
    "__weakref__",
    "__doc__",
    "__post_init__",
    "__attrs_post_init__",
}
SELF = ("self", "cls")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a signature; ``kind`` is "", "*" for keywords only, "/" for positions only, "args", "kwargs"."""

    name: str
    kind: str
    default: str | None
    type: str | None


@dataclass
class Entry:
    """What is known of one key."""

    kind: str  # class, enum, method, static method, class method, property, field, member, value, module, function
    parameters: tuple[Parameter, ...] = ()
    type: str | None = None  # what is returned, or the type of a value
    default: str | None = None
    writable: bool | None = False  # None: not known
    bases: frozenset[str] = frozenset()
    exported: bool = False  # by a module; a class may also be shown only because a signature names it

    def call(self):
        """Return how it is called, without types."""
        if self.kind in ("field", "member", "value"):
            return "" if self.default is None else f"= {self.default}"
        parts, keywords = [], False
        for parameter in self.parameters:
            if parameter.kind == "*" and not keywords:
                parts.append("*")
                keywords = True
            keywords = keywords or parameter.kind == "args"
            star = {"args": "*", "kwargs": "**"}.get(parameter.kind, "")
            default = "" if parameter.default is None else f"={parameter.default}"
            # What the tuple of all further arguments is called is nobody's business.
            name = {"args": "args", "kwargs": "kwargs"}.get(parameter.kind, parameter.name)
            parts.append(f"{star}{name}{default}")
            if parameter.kind == "/":
                parts.append("/")
        return f"({', '.join(parts)})"


class Sources:
    """Finds the text of a module: ``text(name)`` gives the stub if there is one, else the source, else None."""

    def __init__(self, text):
        self._text = text
        self._trees = {}

    def tree(self, module):
        if module not in self._trees:
            text = self._text(module)
            self._trees[module] = None if text is None else ast.parse(text)
        return self._trees[module]


class Reader:
    def __init__(self, sources, modules):
        self.sources = sources
        self.modules = modules
        self.spaces = {}
        self.entries = {}
        self.classes = {}  # the key of each class that is shown -> (module, node)
        self.to_do = []

    # -- names ---------------------------------------------------------------------------------------------------

    def space(self, module):
        """Return what a module defines and imports: name -> node, or (module, name)."""
        if module in self.spaces:
            return self.spaces[module]
        found = self.spaces[module] = {}
        tree = self.sources.tree(module)
        for node in self._statements(tree.body if tree is not None else ()):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found[node.name] = node
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = node
            elif isinstance(node, ast.Assign):
                found.update({target.id: node for target in node.targets if isinstance(target, ast.Name)})
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(module, node)
                for alias in node.names:
                    if alias.name == "*":
                        if self.sources.tree(origin) is not None:
                            found.update({name: (origin, name) for name in self.exported(origin)})
                    else:
                        found[alias.asname or alias.name] = (origin, alias.name)
        return found

    def _statements(self, nodes):
        for node in nodes:
            yield node
            if isinstance(node, ast.If):
                yield from self._statements(node.body)

    def _origin(self, module, node):
        if not node.level:
            return node.module
        parts = module.split(".")
        is_package = self.sources.tree(f"{module}.__init__") is not None
        parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def exported(self, module):
        """Return the names in ``__all__``."""
        node = self.space(module).get("__all__")
        names = []
        for element in node.value.elts if isinstance(node, ast.Assign) else ():
            if isinstance(element, ast.Starred):
                value = element.value
                name = value.id if isinstance(value, ast.Name) else value.value.id
                origin, there = self.space(module)[name]
                names += self.exported(origin if there == "__all__" else f"{origin}.{there}")
            else:
                names.append(element.value)
        return names

    def resolve(self, module, name):
        """Return where a name is defined and its node; the node is None outside of the package."""
        seen = set()
        while (module, name) not in seen:
            seen.add((module, name))
            if self.sources.tree(module) is None:
                return module, None
            found = self.space(module).get(name)
            if not isinstance(found, tuple):
                if found is None and self.sources.tree(f"{module}.{name}") is not None:
                    return f"{module}.{name}", "module"
                return module, found
            module, name = found
        return (f"{module}.{name}", "module") if self.sources.tree(f"{module}.{name}") else (module, None)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self):
        for module in self.modules:
            prefix = module.removeprefix("cuda.core").lstrip(".")
            names = self.exported(module)
            if module == "cuda.core":
                names = [*names, "__version__", *SUBMODULES]
            for name in dict.fromkeys(names):
                self._show(f"{prefix}.{name}" if prefix else name, module, name)
        for module, names in BESIDES.items():
            for name in names:
                self._show(name, module, name)
        while self.to_do:
            self._read_class(*self.to_do.pop())
        return self.entries

    def _show(self, key, module, name):
        origin, node = self.resolve(module, name)
        if node == "module":
            self.entries[key] = Entry("module")
        elif isinstance(node, ast.ClassDef):
            self._want(node.name, origin, node)
            if (
                key != node.name
            ):  # its members are listed under its own name; where it is found is a fact of its own
                self.entries[key] = Entry("name", exported=True)
            else:
                self.entries[key] = Entry("class", exported=True)
        elif isinstance(node, ast.FunctionDef):
            self.entries[key] = self._function(origin, node, "function")
        elif isinstance(node, ast.AnnAssign):
            kind = self._type(node.annotation)
            if kind in ("TypeAlias", "_TypeAlias"):
                self.entries[key] = Entry("alias", type=self._type(node.value))
            else:
                self.entries[key] = Entry("value", type=kind)
        elif isinstance(node, ast.Assign) and name != "__version__":
            self.entries[key] = Entry("alias", type=self._type(node.value))
        elif node is not None:
            self.entries[key] = Entry("value")

    def _want(self, key, module, node):
        if key not in self.classes:
            self.classes[key] = (module, node)
            self.to_do.append((key, module, node))

    def lineage(self, module, node):
        """Yield a class and what it inherits from, in order; for classes elsewhere only the name."""
        yield module, node
        for base in node.bases:
            name = ast.unparse(base).split("[")[0].split(".")[-1]
            origin, found = self.resolve(module, name)
            if isinstance(found, ast.ClassDef):
                yield from self.lineage(origin, found)
            else:
                yield origin, name

    def _read_class(self, key, module, node):
        lineage = list(self.lineage(module, node))
        names = [entry if isinstance(entry, str) else entry.name for _, entry in lineage[1:]]
        bases = frozenset(part for name in names for part in ("str", "Enum") if name == "StrEnum")
        bases |= {name for name in names if not name.startswith("_") and name not in ("Generic", "StrEnum")}
        is_enum = any(name in ("Enum", "IntEnum", "StrEnum", "_StringEnum") for name in names)
        exported = key in self.entries and self.entries[key].exported
        self.entries[key] = Entry("enum" if is_enum else "class", bases=bases, exported=exported)
        seen = {}
        for origin, part in reversed(lineage):
            if isinstance(part, ast.ClassDef):
                seen.update(self._members(key, origin, part, is_enum))
        if "NamedTuple" in names or any(
            "dataclass" in d or "attrs.define" in d for d in self._decorators(node)
        ):
            fields = [(name, entry) for name, entry in seen.items() if entry.kind == "field"]
            parameters = tuple(Parameter(name, "", entry.default, entry.type) for name, entry in fields)
            seen["__init__"] = Entry("method", parameters)
        elif "__new__" in seen:
            made = seen.pop("__new__")
            nearest = next(
                part
                for _, part in lineage
                if isinstance(part, ast.ClassDef) and {"__init__", "__new__"} & self._methods(part)
            )
            if "__init__" not in self._methods(nearest):
                seen["__init__"] = Entry("method", made.parameters)
        is_record = (
            any("dataclass" in d or "attrs.define" in d for d in self._decorators(node))
            or "NamedTuple" in names
        )
        for entry in seen.values():
            if entry.kind == "field" and not is_record:
                entry.kind, entry.writable = "property", None  # a stub of a C attribute does not tell
        for name, entry in seen.items():
            if entry.type == "Self":
                entry = dataclasses.replace(entry, type=key)
            self.entries[f"{key}.{name}"] = entry

    @staticmethod
    def _methods(node):
        return {statement.name for statement in node.body if isinstance(statement, ast.FunctionDef)}

    def _decorators(self, node):
        return [ast.unparse(decorator) for decorator in node.decorator_list]

    def _members(self, key, module, node, is_enum):
        found = {}
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef):
                self._method(module, statement, found)
            elif isinstance(statement, ast.AnnAssign) and not isinstance(statement.target, ast.Attribute):
                name = statement.target.id
                if self._is_public(name) and "ClassVar" not in ast.unparse(statement.annotation):
                    found[name] = Entry(
                        "field",
                        type=self._used(module, statement.annotation),
                        default=self._default(module, statement.value),
                        writable=True,
                    )
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name = statement.targets[0].id
                if is_enum and self._is_public(name):
                    found[name] = Entry("member", default=ast.unparse(statement.value))
                elif self._is_public(name) and isinstance(statement.value, ast.Call):
                    # A descriptor that says what it gives: _Attribute(bool, "...").
                    found[name] = Entry("property", type=ast.unparse(statement.value.args[0]))
        return found

    @staticmethod
    def _is_public(name):
        return not name.startswith("_") or (name.endswith("__") and name not in ARTEFACTS)

    def _method(self, module, node, found):
        decorators = self._decorators(node)
        if any(text.endswith(".setter") for text in decorators):
            if node.name in found:
                found[node.name].writable = True
            return
        if node.name == "__init__":
            # What a constructor of a class in Python assigns is an attribute of its objects.
            for name in self._assigned(node):
                found.setdefault(name, Entry("property", writable=None))
        if not self._is_public(node.name):
            return
        if "property" in decorators:
            found[node.name] = Entry("property", type=self._used(module, node.returns))
            return
        kind = "method"
        if "staticmethod" in decorators:
            kind = "static method"
        elif "classmethod" in decorators:
            kind = "class method"
        found[node.name] = self._function(module, node, kind)

    def _assigned(self, node):
        for statement in ast.walk(node):
            for target in (*getattr(statement, "targets", ()), getattr(statement, "target", None)):
                is_own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
                if is_own and self._is_public(target.attr):
                    yield target.attr

    def _function(self, module, node, kind):
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
        parameters = []
        for index, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
            is_last = argument in arguments.posonlyargs and argument is arguments.posonlyargs[-1]
            if index or kind in ("function", "static method") or argument.arg not in SELF:
                parameters.append(self._parameter(module, argument, "/" if is_last else "", default))
        if arguments.vararg is not None:
            parameters.append(self._parameter(module, arguments.vararg, "args", None))
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            parameters.append(self._parameter(module, argument, "*", default))
        if arguments.kwarg is not None:
            parameters.append(self._parameter(module, arguments.kwarg, "kwargs", None))
        return Entry(kind, tuple(parameters), type=self._used(module, node.returns))

    def _parameter(self, module, argument, kind, default):
        return Parameter(
            argument.arg, kind, self._default(module, default), self._used(module, argument.annotation)
        )

    def _used(self, module, annotation):
        """Return a type, and have the classes of the package that it names read too."""
        if annotation is None:
            return None
        for node in ast.walk(annotation):
            name = None
            if isinstance(node, ast.Name):
                name = node.id
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value
            if name is not None and name.isidentifier():
                origin, found = self.resolve(module, name)
                if isinstance(found, ast.ClassDef) and origin.startswith("cuda.core"):
                    self._want(found.name, origin, found)
        return self._type(annotation)

    # -- one form for types and defaults -------------------------------------------------------------------------

    def _type(self, node):
        return None if node is None else normal_type(node)

    def _default(self, module, node):
        """Return a default as text; a member of an enumeration of strings as that string."""
        if node is None:
            return None
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("field", "attrs.field", "dataclasses.field", "option", "_flag"):
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                if "default" in given:
                    return self._default(module, given["default"])
                if "default_factory" in given:
                    return f"{ast.unparse(given['default_factory'])}()".replace("tuple()", "()")
                return self._default(module, node.args[0]) if called == "option" else "False"  # _flag
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            _, owner = self.resolve(module, node.value.id)
            if isinstance(owner, ast.ClassDef):
                for statement in owner.body:
                    if isinstance(statement, ast.Assign) and statement.targets[0].id == node.attr:
                        return ast.unparse(statement.value)
        return ast.unparse(node)


def normal_type(node):
    """Return an annotation in one form: without module prefixes, its alternatives sorted."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        parts, to_do = set(), [node]
        while to_do:
            part = to_do.pop()
            if isinstance(part, ast.BinOp):
                to_do += [part.left, part.right]
            else:
                parts.add(normal_type(part))
        if "object" in parts:
            return "object"
        return " | ".join(sorted(parts, key=lambda text: (text == "None", text)))
    if isinstance(node, ast.Attribute):
        prefix = ast.unparse(node.value)
        return f"driver.{node.attr}" if prefix.split(".")[-1] == "driver" else node.attr
    if isinstance(node, ast.Subscript):
        if ast.unparse(node) == "tuple[int]":
            return "tuple[int, ...]"  # what 1.2.2 writes for any number of integers
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        outer = normal_type(node.value)
        if outer == "dtype":
            return outer
        return f"{outer}[{', '.join(normal_type(part) for part in inner)}]"
    if isinstance(node, ast.List):
        return f"[{', '.join(normal_type(part) for part in node.elts)}]"
    return ast.unparse(node)


def read(text, modules=MODULES):
    """Return the public entries of a package by key; ``text(module)`` gives the text of a module, or None."""
    return Reader(Sources(text), modules).read()
