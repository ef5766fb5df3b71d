# SPDX-License-Identifier: Apache-2.0
"""Every adaptor of the package, and all of them around each other, as functions of the resource inside."""

from cuda.core.adaptors import (
    FailingAdaptor,
    LimitAdaptor,
    LoggingAdaptor,
    MemoryResourceAdaptor,
    StatisticsAdaptor,
    TrackingAdaptor,
)

EVERY = {
    "plain": MemoryResourceAdaptor,
    "statistics": StatisticsAdaptor,
    "limit": lambda inner: LimitAdaptor(inner, 1 << 30),
    "logging": LoggingAdaptor,
    "failing": FailingAdaptor,
    "tracking": TrackingAdaptor,
}
EVERY["all of them"] = lambda inner: StatisticsAdaptor(
    LimitAdaptor(LoggingAdaptor(FailingAdaptor(TrackingAdaptor(inner))), 1 << 30)
)
