# SPDX-License-Identifier: Apache-2.0
"""What type checkers are told: the stubs are those of the sources, and agree with what is compiled."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import api_surface

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "cuda_core"
USE = Path(__file__).resolve().parent / "type_checks" / "public_api.py"
ALLOWED = USE.with_name("stubtest_allowlist.txt")
pytestmark = pytest.mark.sim_only  # about the checkout; no driver is called


def run(*command, cwd):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def source(module):
    """Return the stub of a module of the checkout, else its source."""
    for suffix in (".pyi", "/__init__.pyi", ".py", "/__init__.py"):
        path = SOURCES / (module.replace(".", "/") + suffix)
        if path.exists():
            return path.read_text(encoding="utf-8")
    return None


def test_the_stubs_are_those_of_the_sources():
    assert run("tools/make_stubs.py", "--check", cwd=ROOT)[0] == 0


def test_a_change_of_a_source_is_noticed(tmp_path):
    """The check can fail: a copy of the sources with one more public method needs another stub."""
    for pattern in ("*.py", "*.pyx", "*.pxd", "*.pyi"):
        for path in [*(SOURCES / "cuda").rglob(pattern), *(ROOT / "tools").glob(pattern)]:
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    assert run("tools/make_stubs.py", "--check", cwd=tmp_path)[0] == 0
    changed = tmp_path / "cuda_core" / "cuda" / "core" / "_event.pyx"
    text = changed.read_text(encoding="utf-8")
    method = "    def sync(self) -> None:\n"
    assert text.count(method) == 1
    changed.write_text(
        text.replace(method, "    def more(self) -> int:\n        return 1\n\n" + method), "utf-8"
    )
    code, said = run("tools/make_stubs.py", "--check", cwd=tmp_path)
    assert (code, said.splitlines()[0]) == (
        1,
        "cuda_core/cuda/core/_event.pyi: differs from its source; run `make stubs`",
    )
    changed.write_text(text.replace(method, "    def more(self):\n        return 1\n\n" + method), "utf-8")
    code, said = run("tools/make_stubs.py", "--check", cwd=tmp_path)
    assert code == 1
    assert said.strip().endswith("what more returns lacks an annotation")


def test_mypy_accepts_the_package_and_its_use_in_strict_mode(tmp_path):
    """Outside of the checkout, so that the installed package is read: as its users have it, py.typed included."""
    mypy = ("-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", tmp_path / "cache")
    assert run(*mypy, USE, cwd=tmp_path) == (0, "Success: no issues found in 1 source file\n")
    code, said = run(*mypy, "-p", "cuda.core", cwd=tmp_path)
    assert (code, said.splitlines()[-1][:24]) == (0, "Success: no issues found"), said


WRONG = {
    "an argument": ("buffer.close(stream, wait=3)", "arg-type"),
    "a name": ("buffer.ownersip", "attr-defined"),
    "a keyword": ("resource.allocate(8, strem=stream)", "call-arg"),
    "a stream left out": ("resource.allocate(8)", "call-arg"),
    "a read-only attribute": ("buffer.size = 3", "misc"),
    "an option": ("cuda.core.DeviceMemoryResourceOptions(max_size='8')", "arg-type"),
    "a result": ("text: str = buffer.handle", "assignment"),
    "None": ("buffer.memory_resource.device_id", "union-attr"),
    "what is not in this build": ("cuda.core.Program", "attr-defined"),
}


def test_mypy_refuses_what_is_wrong(tmp_path):
    """The types say something: each wrong line has its error, and no line has another."""
    head = [
        "import cuda.core",
        "from cuda.core import Buffer, MemoryResource, Stream",
        "def use(buffer: Buffer, resource: MemoryResource, stream: Stream) -> None:",
    ]
    file = tmp_path / "wrong.py"
    file.write_text("\n".join([*head, *(f"    {line}" for line, _ in WRONG.values())]) + "\n")
    mypy = ("-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", tmp_path / "cache")
    code, said = run(*mypy, "--no-error-summary", "--hide-error-context", file, cwd=tmp_path)
    found = [
        (line.split(":")[1], line.rpartition("[")[2][:-1]) for line in said.splitlines() if ": error:" in line
    ]
    wanted = [(str(number), kind) for number, (_, kind) in enumerate(WRONG.values(), len(head) + 1)]
    assert (code, found) == (1, wanted), said


def test_every_public_name_is_used_there():
    entries = api_surface.read(source, (*api_surface.MODULES, "cuda.core.adaptors", "cuda.core.audit"))
    tree = ast.parse(USE.read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    names = {
        key.rpartition(".")[2]
        for key, entry in entries.items()
        # A class that only a signature names is used through what gives it; _StridedLayout is private.
        if (entry.exported or entry.kind not in ("class", "enum", "module"))
        and not key.startswith(("_", "DLDeviceType"))
    }
    names = {name for name in names if not name.startswith("__")}
    besides = {"ComputeCapability", "handle_return"}  # of private modules
    besides |= {"say", "say_findings"}  # of the settings of an audit, which its functions fill
    assert len(names) > 300
    assert names - used - besides == set()


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="what Python itself adds to a class differs by version; one is enough",
)
def test_stubs_agree_with_what_is_compiled(tmp_path):
    stubtest = (
        "-m",
        "mypy.stubtest",
        "cuda.core",
        "--mypy-config-file",
        ROOT / "pyproject.toml",
        "--concise",
    )
    lenient = ("--ignore-missing-stub", "--ignore-disjoint-bases", "--ignore-positional-only")
    allowed = ("--allowlist", ALLOWED, "--ignore-unused-allowlist")
    code, said = run(*stubtest, *lenient, *allowed, cwd=tmp_path)
    assert code == 0, said
