# SPDX-License-Identifier: Apache-2.0
"""Write the type stubs of the compiled modules from their sources; or tell whether they are up to date.

    python tools/make_stubs.py            write them
    python tools/make_stubs.py --check    write nothing; name those that differ

A type checker cannot read a compiled module. Each one from which a ``.py`` of the package, or another stub, takes a
name has a ``.pyi`` beside its ``.pyx``, with just those names. Whatever is public there must be annotated: the tool
refuses what is not. Names in annotations need no import in the source, where nothing evaluates them: a public name of
the package, and those of ``KNOWN``, are found by themselves.
"""

import argparse
import ast
import builtins
import sys
from pathlib import Path

from cython_declarations import Undeclared, body, quoted, read_module

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "cuda_core"
PACKAGE = SOURCE / "cuda" / "core"
PUBLIC = ("cuda.core", "cuda.core.graph", "cuda.core.utils", "cuda.core.typing")

KNOWN = {
    "Any": "typing",
    "BufferProtocol": ("typing_extensions", "Buffer"),
    "Callable": "collections.abc",
    "EllipsisType": "types",
    "Iterable": "collections.abc",
    "Iterator": "collections.abc",
    "Never": "typing_extensions",
    "Self": "typing_extensions",
    "Sequence": "collections.abc",
    "AbstractContextManager": "contextlib",
    "Set": "collections.abc",
    "SupportsIndex": "typing",
    "TracebackType": "types",
    "UUID": "uuid",
    "driver": "cuda.bindings",
    "final": "typing",
    "enum": None,
    "numpy": None,
    "os": None,
}
HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Made from {} by tools/make_stubs.py: change that, and run `make stubs`.
"""


def module_name(path):
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def names_in(text):
    return {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}


class Package:
    """The sources, and what each module has to show to the others."""

    def __init__(self):
        self.compiled = {module_name(path): path for path in sorted(PACKAGE.rglob("*.pyx"))}
        self.python = {
            module_name(path): ast.parse(path.read_text(encoding="utf-8"))
            for path in sorted(PACKAGE.rglob("*.py"))
        }
        self.modules = {}
        self.classes = self._index()
        self.wanted = {}

    def module(self, name):
        if name not in self.modules:
            self.modules[name] = read_module(self.compiled[name])
        return self.modules[name]

    def _index(self):
        """Return the module of each class: public ones first, then those whose name is not taken twice."""
        found = {}
        for name in PUBLIC:
            for node in ast.walk(self.python[name]):
                if isinstance(node, ast.ImportFrom):
                    found.update({alias.asname or alias.name: node.module for alias in node.names})
        for module, tree in self.python.items():
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, module)
                elif isinstance(node, ast.AnnAssign) and module == "cuda.core.typing":
                    found.setdefault(node.target.id, module)
        return found

    def stubs(self):
        """Return the text of each stub by the path it belongs to."""
        for tree in self.python.values():
            for node in ast.walk(tree):
                for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                    self.want(node.module, alias.name)
                    if f"{node.module}.{alias.name}" in self.compiled:  # a whole module
                        self.wanted.setdefault(f"{node.module}.{alias.name}", set())
        for name in self.compiled:
            self.module(name)
        self._index_compiled()
        done = {}
        while any(set(names) != done.get(module) for module, names in self.wanted.items()):
            for module in list(self.wanted):
                done[module] = set(self.wanted[module])
                Stub(self, module).text()  # asks for what it uses
        return {
            self.compiled[module].with_suffix(".pyi"): Stub(self, module).text() for module in self.wanted
        }

    def _index_compiled(self):
        for module, content in self.modules.items():
            for name in content.classes:
                self.classes.setdefault(name, module)

    def want(self, module, name):
        if module in self.compiled:
            self.wanted.setdefault(module, set()).add(name)


class Stub:
    """The stub of one compiled module."""

    def __init__(self, package, name):
        self.package = package
        self.name = name
        self.content = package.module(name)
        self.imports = set()

    def use(self, annotation):
        """Import whatever an annotation names."""
        for name in sorted(names_in(annotation)):
            if name in self.content.classes:
                self.package.want(self.name, name)
            elif name in self.content.imports:
                self._import(name, *self.content.imports[name])
            elif name in self.package.classes:
                self._import(name, self.package.classes[name], name)
            elif name in KNOWN:
                known = KNOWN[name]
                module, there = known if isinstance(known, tuple) else (known, name)
                self._import(name, module or name, there if module else None)
            elif not hasattr(builtins, name):
                raise Undeclared(f"{self.name}: {name}, in the annotation {annotation}, is not known")

    def _import(self, name, module, there):
        if there is None:
            self.imports.add(f"import {module}" + (f" as {name}" if name != module else ""))
            return
        self.package.want(module, there)
        self.imports.add(f"from {module} import {there}" + (f" as {name}" if there != name else ""))

    def text(self):
        wanted = self.package.wanted[self.name]
        exported = self.content.exported or []
        for name in exported:
            if name in self.content.imports:  # handed on: a checker takes it as such only in this form
                module, there = self.content.imports[name]
                self.package.want(module, there)
                self.imports.add(f"from {module} import {there} as {name}")
        shown = [
            self._value(v) for v in self.content.values.values() if v.name in exported or v.name in wanted
        ]
        shown += [
            self._class(read()) for n, read in self.content.classes.items() if n in exported or n in wanted
        ]
        for name, read in self.content.functions.items():
            if name in exported or name in wanted:
                function = read()
                for annotation in function.annotations:
                    self.use(annotation)
                shown.append("\n".join(function.lines))
        self._ensure_all_found(wanted)
        parts = [HEADER.format(self.package.compiled[self.name].name).rstrip()]
        if self.content.doc:
            parts[0] += "\n" + quoted(self.content.doc)
        if self.imports:
            parts.append("\n".join(sorted(self.imports)))
        if self.content.exported is not None:
            parts.append(f"__all__ = {self.content.exported!r}".replace("'", '"'))
        return "\n\n".join(parts + shown) + "\n"

    def _ensure_all_found(self, wanted):
        content = self.content
        missing = wanted - set(content.values) - set(content.classes) - set(content.functions)
        missing -= set(content.imports)
        if missing:
            raise Undeclared(
                f"{self.name}: {', '.join(sorted(missing))}: not there, or without an annotation"
            )

    def _value(self, value):
        self.use(value.annotation)
        return f"{value.name}: {value.annotation}"

    def _class(self, shown):
        for text in (*shown.bases, *shown.decorators):
            self.use(text)
        for member in shown.members:
            for annotation in member.annotations:
                self.use(annotation)
        bases = f"({', '.join(shown.bases)})" if shown.bases else ""
        lines = [f"@{decorator}" for decorator in shown.decorators] + [f"class {shown.name}{bases}:"]
        if shown.doc or not shown.members:
            lines += body(shown.doc)
        before = None
        for member in shown.members:
            is_field = len(member.lines) == 1 and not member.lines[0].startswith("def ")
            if (before is not None or shown.doc) and not (is_field and before):
                lines.append("")
            lines += [("    " + line) for line in member.lines]
            before = is_field
        return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; name the stubs that differ")
    arguments = parser.parse_args()
    try:
        stubs = Package().stubs()
    except Undeclared as error:
        sys.exit(str(error))
    left_over = set(PACKAGE.rglob("*.pyi")) - set(stubs)
    changed = [
        path for path, text in stubs.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in sorted([*left_over, *changed]):
        name = path.relative_to(ROOT)
        if arguments.check:
            print(f"{name}: differs from its source; run `make stubs`")
        elif path in left_over:
            path.unlink()
        else:
            path.write_text(stubs[path], encoding="utf-8")
    print(f"{len(stubs)} stubs, {len(changed) + len(left_over)} {'differ' if arguments.check else 'written'}")
    return 1 if arguments.check and (changed or left_over) else 0


if __name__ == "__main__":
    sys.exit(main())
