# SPDX-License-Identifier: Apache-2.0
"""Print requirements that a pyproject.toml lists, one a line, so that the Makefile need not repeat them.

    python tools/requirements.py pyproject.toml build test lint

``build`` stands for the build system's requirements, any other word for an extra or a dependency group.
"""

import sys

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib


def requirements(path, names):
    """Return the requirements listed under ``names`` in the pyproject.toml at ``path``."""
    with open(path, "rb") as stream:
        document = tomllib.load(stream)
    lists = {
        "build": document["build-system"]["requires"],
        **document["project"].get("optional-dependencies", {}),
        **document.get("dependency-groups", {}),
    }
    unknown = [name for name in names if name not in lists]
    if unknown:
        raise SystemExit(f"{path} lists no requirements named {', '.join(unknown)}")
    return [requirement for name in names for requirement in lists[name]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1], sys.argv[2:])))
