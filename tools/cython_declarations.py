# SPDX-License-Identifier: Apache-2.0
"""Read what a Cython module shows to Python: its classes, functions and names, with their annotations.

Cython's own parser reads the source, so that nothing is guessed from the text. C types stand in for annotations where
they say the same (``bint`` is ``bool``); what neither says is an error of whoever asks for the declaration.
"""

import ast
import functools
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from Cython.CodeWriter import ExpressionWriter
from Cython.Compiler import Errors, Parsing
from Cython.Compiler.Scanning import PyrexScanner, StringSourceDescriptor
from Cython.Compiler.TreeFragment import StringParseContext

# Cython's implementation of these is no method that Python can call, or is shown under another name below.
HIDDEN = {"__cinit__", "__dealloc__", "__del__", "__getattr__", "__getbuffer__", "__releasebuffer__"}
BUFFER_PROTOCOL = {
    "__getbuffer__": "def __buffer__(self, flags: int, /) -> memoryview: ...",
    "__releasebuffer__": "def __release_buffer__(self, buffer: memoryview, /) -> None: ...",
}
INTEGERS = {"int", "long", "short", "char", "size_t", "ssize_t", "Py_ssize_t", "Py_hash_t"}
# What Python knows about these without being told.
KNOWN_RETURNS = {"__init__": "None", "__len__": "int", "__repr__": "str"}


class Undeclared(Exception):
    """A public declaration lacks an annotation."""


@dataclass
class Function:
    """One function or method: the lines of its stub, and the names that its annotations use."""

    name: str
    lines: list[str]
    annotations: list[str]


@dataclass
class Class:
    """One class with what it shows."""

    name: str
    bases: list[str]
    decorators: list[str]
    doc: str | None
    members: list[Function] = field(default_factory=list)


@dataclass
class Value:
    """One module constant with an annotation."""

    name: str
    annotation: str


@dataclass
class Module:
    """What a module defines and imports."""

    doc: str | None
    exported: list[str] | None
    classes: dict[str, Callable[[], Class]]  # read when somebody asks: most of them are nobody's business
    functions: dict[str, Callable[[], Function]]
    values: dict[str, Value]
    imports: dict[
        str, tuple[str, str | None]
    ]  # name here -> (module, name there), the latter None for a module


def parse(path, *, declarations=False):
    """Return Cython's syntax tree of a ``.pyx``, or of a ``.pxd``."""
    text = path.read_text(encoding="utf-8")
    context = StringParseContext(path.stem)
    source = StringSourceDescriptor(path.name, text)
    scope = context.find_module(path.stem, pos=(source, 1, 0), need_pxd=False)
    Errors.init_thread()
    scanner = PyrexScanner(
        io.StringIO(text),
        source,
        source_encoding="UTF-8",
        scope=scope,
        context=context,
        initial_pos=(source, 1, 0),
    )
    return Parsing.p_module(scanner, declarations, path.stem)


def kind(node):
    return type(node).__name__


def statements(body):
    """Yield statements, those of nested lists too."""
    if kind(body) == "StatListNode":
        for statement in body.stats:
            yield from statements(statement)
    elif body is not None:
        yield body


def written(expression):
    """Return an expression as it would be written in Python."""
    text = ExpressionWriter().write(expression)
    return ast.unparse(ast.parse(text, mode="eval").body)


def annotation_text(node):
    text = node.string.value
    if text[:1] in "'\"":
        text = ast.literal_eval(text)
    return ast.unparse(ast.parse(text, mode="eval").body)


def python_type(base_type):
    """Return the Python type that a C type is shown as, or None where it says nothing."""
    name = getattr(base_type, "name", None)
    if name is None:
        return None
    if name == "bint":
        return "bool"
    if name == "void":
        return "None"
    if name in INTEGERS or re.fullmatch(r"u?int(ptr|8|16|32|64)?_t", name):
        return "int"
    if name in {"double", "float"}:
        return "float"
    if name == "str" or name == "bytes":
        return name
    if name == "dict":
        return "dict[str, int]"  # the only dicts that are shown without an annotation are of counts
    if name == "tuple":
        return "tuple[int, ...]"
    return name


class Reader:
    """Collects the declarations of one module."""

    def __init__(self, path):
        self.path = path
        self.source = path.read_text(encoding="utf-8").splitlines()
        self.attributes = self._attributes(path.with_suffix(".pxd"))
        tree = parse(path)
        self.module = Module(tree.doc, None, {}, {}, {}, {})
        self._read(tree.body)

    def fail(self, node, text):
        raise Undeclared(f"{self.path.name}:{node.pos[1]}: {text}")

    def _attributes(self, path):
        """Return the public C attributes of each class of a ``.pxd``, as stub lines."""
        found = {}
        if not path.exists():
            return found
        source = path.read_text(encoding="utf-8").splitlines()
        for node in statements(parse(path, declarations=True).body):
            if kind(node) != "CClassDefNode" or node.body is None:
                continue
            found[node.class_name] = [
                shown for member in statements(node.body) for shown in self._attribute(member, source)
            ]
        return found

    def _attribute(self, node, source):
        """Yield a public C attribute as a property; nothing for any other declaration."""
        if kind(node) != "CVarDefNode" or node.visibility not in ("public", "readonly"):
            return
        comment = re.search(r"# type: (.+)$", source[node.pos[1] - 1])
        shown = comment[1] if comment else python_type(node.base_type)
        for declarator in node.declarators:
            name = declarator.name
            yield Function(name, ["@property", f"def {name}(self) -> {shown}: ..."], [shown])
            if node.visibility == "public":
                setter = f"def {name}(self, value: {shown}) -> None: ..."
                yield Function(name, [f"@{name}.setter", setter], [shown])

    def _read(self, body):
        for node in statements(body):
            name = kind(node)
            if name == "FromImportStatNode":
                for here, target in node.items:
                    self.module.imports[target.name] = (node.module.module_name.value, here)
            elif name == "FromCImportStatNode":
                for entry in node.imported_names:
                    there, here = entry[1], entry[2] or entry[1]
                    self.module.imports.setdefault(here, (node.module_name, there))
            elif name == "SingleAssignmentNode":
                self._read_assignment(node)
            elif name in ("PyClassDefNode", "CClassDefNode"):
                shown = node.class_name if name == "CClassDefNode" else node.name
                self.module.classes[shown] = functools.cache(functools.partial(self._read_class, node, shown))
            elif name == "DefNode" or (name == "CFuncDefNode" and node.overridable):
                shown = node.name if name == "DefNode" else node.declarator.base.name
                self.module.functions[shown] = functools.partial(self._function, node, shown, None)
            elif name == "ExprStatNode" and getattr(node.expr, "annotation", None):
                text = annotation_text(node.expr.annotation)
                self.module.values[node.expr.name] = Value(node.expr.name, text)

    def _read_assignment(self, node):
        if kind(node.rhs) == "ImportNode":
            module = node.rhs.module_name.value
            self.module.imports[node.lhs.name] = (module, None)
            return
        name = getattr(node.lhs, "name", None)
        if name == "__all__":
            self.module.exported = ast.literal_eval(written(node.rhs))
        elif name and node.lhs.annotation:
            self.module.values[name] = Value(name, annotation_text(node.lhs.annotation))

    def _read_class(self, node, name):
        bases = [written(base) for base in node.bases.args] if node.bases is not None else []
        decorators = [written(decorator.decorator) for decorator in node.decorators or ()]
        decorators = ["final" if text == "cython.final" else text for text in decorators]
        decorators = [text for text in decorators if not text.startswith("cython.")]
        shown = Class(name, bases, decorators, node.doc)
        shown.members += self.attributes.get(name, [])
        for member in statements(node.body):
            what = kind(member)
            if what == "DefNode" and member.name in BUFFER_PROTOCOL:
                shown.members.append(Function(member.name, [BUFFER_PROTOCOL[member.name]], []))
            elif what == "DefNode" or (what == "CFuncDefNode" and member.overridable):
                method = member.name if what == "DefNode" else member.declarator.base.name
                if self._is_shown(method, member):
                    shown.members.append(self._function(member, method, name))
            elif what == "CVarDefNode":
                shown.members += self._attribute(member, self.source)
            elif what == "SingleAssignmentNode":
                field_ = self._field(member.lhs, member.rhs)
                if field_ is not None:
                    shown.members.append(field_)
            elif what == "ExprStatNode" and getattr(member.expr, "annotation", None):
                shown.members.append(self._field(member.expr, None))
        return shown

    def _is_shown(self, name, node):
        if name in HIDDEN:
            return False
        private = name.startswith("_") and not name.endswith("__")
        # A private method is shown where somebody took the trouble to annotate it.
        return not private or getattr(node, "return_type_annotation", None) is not None

    def _field(self, target, value):
        name = target.name
        if name.startswith("__"):
            return None
        text = annotation_text(target.annotation) if target.annotation else None
        if name.startswith("_") and text is None:
            return None
        # A value that only C knows is one that the stub does not tell.
        given = (
            "..."
            if kind(value) == "NameNode" and text is None
            else written(value)
            if value is not None
            else ""
        )
        line = name + (f": {text}" if text else "") + (f" = {given}" if given else "")
        return Function(name, [line], [text] if text else [])

    def _function(self, node, name, owner):
        is_c = kind(node) == "CFuncDefNode"
        arguments = list(node.declarator.args if is_c else node.args)
        decorators = [written(d.decorator) for d in getattr(node, "decorators", None) or ()]
        used, parts = [], []
        positional = len(arguments) - (0 if is_c else node.num_kwonly_args)
        has_self = owner is not None and "staticmethod" not in decorators
        for index, argument in enumerate(arguments):
            if index == positional:
                parts.append(self._star(node, used))
            parts.append(self._argument(argument, index == 0 and has_self, node, used))
        if positional == len(arguments) and not is_c and node.star_arg is not None:
            parts.append(self._star(node, used))
        if not is_c and node.starstar_arg is not None:
            parts.append("**" + self._annotated(node.starstar_arg, node, used))
        result = self._result(node, name, is_c)
        used.append(result)
        lines = [f"@{decorator}" for decorator in decorators]
        comment = re.search(r"# type: ignore\[[\w, -]+\]", self.source[node.pos[1] - 1])
        lines.append(f"def {name}({', '.join(parts)}) -> {result}:" + (f"  {comment[0]}" if comment else ""))
        is_setter = any(decorator.endswith(".setter") for decorator in decorators)
        lines += body(None if is_setter else node.doc)
        return Function(name, lines, used)

    def _star(self, node, used):
        return "*" + (self._annotated(node.star_arg, node, used) if node.star_arg is not None else "")

    def _annotated(self, argument, node, used):
        if argument.annotation is None:
            self.fail(node, f"{argument.name} lacks an annotation")
        used.append(annotation_text(argument.annotation))
        return f"{argument.name}: {used[-1]}"

    def _argument(self, argument, is_self, node, used):
        name = argument.declarator.name or getattr(argument.base_type, "name", None)
        c_type = python_type(argument.base_type) if argument.declarator.name else None
        if is_self:
            return name
        if argument.annotation is not None:
            text = annotation_text(argument.annotation)
        elif c_type is not None:
            text = c_type
        else:
            self.fail(node, f"parameter {name} lacks an annotation")
        used.append(text)
        default = f" = {written(argument.default)}" if argument.default is not None else ""
        return f"{name}: {text}{default}"

    def _result(self, node, name, is_c):
        given = getattr(node, "return_type_annotation", None)
        if given is not None:
            return annotation_text(given)
        if name in KNOWN_RETURNS:
            return KNOWN_RETURNS[name]
        result = python_type(node.base_type) if is_c else None
        if result is None:
            self.fail(node, f"what {name} returns lacks an annotation")
        return result


def body(doc):
    """Return what stands below a ``def`` or ``class``: its docstring, or an ellipsis.

    The docstring is one entry with its line ends: all but its first line keep the indentation of the source.
    """
    return ["    " + quoted(doc)] if doc else ["    ..."]


def quoted(doc):
    """Return a docstring as it is written."""
    prefix = "r" if "\\" in doc else ""
    return f'{prefix}"""{doc}"""'


def read_module(path):
    """Return what the ``.pyx`` at ``path`` shows to Python."""
    return Reader(path).module
