# SPDX-License-Identifier: Apache-2.0
"""Memory resources around a memory resource: statistics, a limit, a log, failures on request, origins.

Each takes any :class:`cuda.core.MemoryResource`, another adaptor too, and is one itself:

>>> from cuda.core import Device, LegacyPinnedMemoryResource
>>> from cuda.core.adaptors import LimitAdaptor, StatisticsAdaptor
>>> Device(0).set_current()
>>> mr = StatisticsAdaptor(LimitAdaptor(LegacyPinnedMemoryResource(), 1 << 20))
>>> with mr.allocate(4096):
...     mr.statistics.current_bytes
4096

They use nothing but the public contract of a memory resource, so they are also examples of how to write one.
"""

from cuda.core.adaptors._adaptor import MemoryResourceAdaptor
from cuda.core.adaptors._failing import FailingAdaptor
from cuda.core.adaptors._limit import LimitAdaptor
from cuda.core.adaptors._logging import LoggingAdaptor
from cuda.core.adaptors._statistics import MemoryStatistics, StatisticsAdaptor
from cuda.core.adaptors._tracking import OpenAllocation, TrackingAdaptor

__all__ = [
    "FailingAdaptor",
    "LimitAdaptor",
    "LoggingAdaptor",
    "MemoryResourceAdaptor",
    "MemoryStatistics",
    "OpenAllocation",
    "StatisticsAdaptor",
    "TrackingAdaptor",
]
