# SPDX-License-Identifier: Apache-2.0
"""Where cuda-core 1.2.2 has the names of DLPack exports."""

from cuda.core._memory._dlpack import DLDeviceType, classify_dl_device

__all__ = ["DLDeviceType", "classify_dl_device"]
