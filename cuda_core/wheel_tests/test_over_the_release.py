# SPDX-License-Identifier: Apache-2.0
"""Installing over the released cuda-core, and the release over this, leaves no file of the other behind."""

import csv

import pytest

RELEASE = "cuda-core==1.2.2"


@pytest.fixture(scope="module")
def environment(make_environment):
    """An environment with the release, whose modules have run."""
    made = make_environment("release")
    made.pip("install", RELEASE, "cuda-bindings==13.*", "numpy")
    return made


def distributions(environment):
    return sorted(path.name for path in environment.site.glob("cuda_core-*.dist-info"))


def recorded(environment):
    """Return what the installed cuda-core says is its own, but for its bytecode."""
    (folder,) = environment.site.glob("cuda_core-*.dist-info")
    with open(folder / "RECORD", encoding="utf-8", newline="") as stream:
        return {row[0] for row in csv.reader(stream) if not row[0].endswith(".pyc")}


def present(environment):
    names = environment.files("cuda/core") + [
        name for folder in distributions(environment) for name in environment.files(folder)
    ]
    names += [path.name for path in environment.site.glob("cuda_core*.py")]  # the plugin of pytest
    return {name for name in names if not name.endswith(".pyc")}


def leftover_bytecode(environment):
    """Return bytecode in the package whose source is not there."""
    found = []
    for path in (environment.site / "cuda" / "core").rglob("*.pyc"):
        source = path.parent.parent / (path.name.split(".")[0] + ".py")
        if not source.exists():
            found.append(str(path.relative_to(environment.site)))
    return found


def use(environment):
    environment.run("-c", "import cuda.core, cuda.core.utils, cuda.core.graph, cuda.core.typing")


def test_there_and_back_again(environment, wheel):
    use(environment)
    before = present(environment)
    assert before == recorded(environment)
    bindings = environment.files("cuda/bindings")

    environment.pip("install", wheel)
    use(environment)
    version = wheel.name.split("-")[1]
    assert distributions(environment) == [f"cuda_core-{version}.dist-info"]
    assert present(environment) == recorded(environment)
    assert not (environment.site / "cuda" / "core" / "cu13").exists()
    assert leftover_bytecode(environment) == []

    environment.pip("install", RELEASE)
    use(environment)
    assert distributions(environment) == ["cuda_core-1.2.2.dist-info"]
    assert present(environment) == recorded(environment) == before
    assert leftover_bytecode(environment) == []
    assert environment.files("cuda/bindings") == bindings

    environment.pip("uninstall", "--yes", "cuda-core")
    assert environment.files("cuda/core") == []
    assert present(environment) == set()
