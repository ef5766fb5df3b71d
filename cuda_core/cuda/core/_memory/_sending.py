# SPDX-License-Identifier: Apache-2.0
"""Telling ``multiprocessing`` how something is sent, without importing it for programs that send nothing."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["when_something_can_be_sent"]

_MODULE = "multiprocessing.reduction"

_lock = threading.Lock()
_waiting: list[Callable[[ModuleType], object]] = []


class _Watch:
    """A finder that finds nothing itself, and sees when the module is imported. It then goes."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        with contextlib.suppress(ValueError):  # another thread has come first
            sys.meta_path.remove(self)
        spec = find_spec(_MODULE)
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            _tell(module)

        # On the one object, not its class: the module keeps the loader that it would have had.
        with contextlib.suppress(
            AttributeError
        ):  # a loader of others without room for it: told at the next call
            loader.exec_module = exec_module
        return spec


def _tell(module: ModuleType) -> None:
    with _lock:
        functions = _waiting[:]
        _waiting.clear()
    for function in functions:
        function(module)


def when_something_can_be_sent(register: Callable[[ModuleType], object]) -> None:
    """Call a function with ``multiprocessing.reduction``: now if that is there, or when it is imported.

    A pickler of ``multiprocessing`` takes the list of what it knows when it begins, and it cannot begin before that.
    """
    if _MODULE in sys.modules:
        from multiprocessing import reduction  # waits where another thread is at it

        register(reduction)
        _tell(reduction)
        return
    with _lock:
        if register in _waiting:
            return
        _waiting.append(register)
        if not any(type(one) is _Watch for one in sys.meta_path):
            sys.meta_path.insert(0, _Watch())
    if _MODULE in sys.modules:  # imported meanwhile, past the watch
        when_something_can_be_sent(register)
