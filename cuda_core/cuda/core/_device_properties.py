# SPDX-License-Identifier: Apache-2.0
"""The attributes of a device, asked of the driver when first read."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver
from cuda.core._errors import CUDAError

__all__ = ["DeviceProperties"]

_PREFIX = "CU_DEVICE_ATTRIBUTE_"


def _attribute_names() -> dict[str, Any]:
    members = driver.CUdevice_attribute.__members__
    return {
        name[len(_PREFIX) :].lower(): member for name, member in members.items() if name != _PREFIX + "MAX"
    }


class DeviceProperties:
    """What a device is and can do. Get one from :attr:`Device.properties`.

    Every device attribute of the driver is a property by its name in lower case without the prefix, such as
    ``virtual_memory_management_supported``. Values are integers; those whose names say so (``can_...``,
    ``..._supported``) are bools. Each is asked of the driver once.

    Notes
    -----
    Safe from any thread. An attribute that the driver does not know raises AttributeError.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal

    def __getattr__(self, name: str) -> int | bool:
        attribute = None if name.startswith("_") else _attribute_names().get(name)
        if attribute is None:
            raise AttributeError(f"the driver's bindings know no device attribute {name!r}")
        result, value = driver.cuDeviceGetAttribute(attribute, self._ordinal)
        if result == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
            raise AttributeError(f"the driver knows no device attribute {name!r}")
        if result != driver.CUresult.CUDA_SUCCESS:
            raise CUDAError(f"{result.name}: device attribute {name!r} (answered by cuDeviceGetAttribute)")
        if name.startswith("can_") or name.endswith("_supported"):
            value = bool(value)
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_attribute_names()})

    def __repr__(self) -> str:
        return f"<DeviceProperties of device {self._ordinal}>"
