# SPDX-License-Identifier: Apache-2.0
"""The pass at exit: resources that have a method ``at_exit`` are told while Python still runs."""

import atexit
import sys
import weakref
from collections.abc import Callable
from typing import Any

_resources: dict[int, weakref.ref[Any]] = {}  # id -> weak reference, the youngest last
_afterwards: list[Callable[[], object]] = []


@atexit.register
def _call_all() -> None:
    """Call ``at_exit`` of the resources that have one, the youngest first, while Python still runs."""
    while _resources:
        _, reference = _resources.popitem()
        resource = reference()
        if resource is not None:
            try:
                resource.at_exit()
            except BaseException:  # the others have their turn all the same
                sys.excepthook(*sys.exc_info())
    while _afterwards:
        _afterwards.pop()()


def afterwards(function: Callable[[], object]) -> None:
    """Have a function called when all resources were told, and the queue of releases still runs."""
    _afterwards.append(function)


def enter(resource: Any) -> None:
    """Have ``resource.at_exit()`` called when the program ends, if the resource is alive then."""
    key = id(resource)

    def forget(gone: weakref.ref[Any]) -> None:
        if _resources.get(key) is gone:  # the number may be another resource's by now
            _resources.pop(key, None)

    _resources[key] = weakref.ref(resource, forget)
