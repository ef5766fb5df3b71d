# SPDX-License-Identifier: Apache-2.0
"""Every resource and every adaptor of this package passes the tests that authors run over theirs."""

import pytest
from hypothesis import settings

from buffer_kinds import GRANULE
from cuda.core import (
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    ManagedMemoryResourceOptions,
    PinnedMemoryResource,
    PinnedMemoryResourceOptions,
    VirtualMemoryResource,
)
from cuda.core._memory._synchronous import _SynchronousMemoryResource
from cuda.core.adaptors import (
    FailingAdaptor,
    LimitAdaptor,
    LoggingAdaptor,
    MemoryResourceAdaptor,
    StatisticsAdaptor,
    TrackingAdaptor,
)
from cuda.core.testing import MemoryResourceTests


class Conformance(MemoryResourceTests):
    """As authors derive it. The marks are for the rules of this suite: these tests make the driver refuse calls."""

    machine_settings = settings(max_examples=6, stateful_step_count=15, deadline=None, derandomize=True)
    checks_frees = True


for _name in (
    "test_more_than_there_is",
    "test_no_bytes",
    "test_a_size_that_is_none",
    "test_every_driver_call_of_an_allocation_fails",
    "test_every_driver_call_of_a_free_fails",
):
    pytest.mark.provokes_refusals(getattr(Conformance, _name))


# --- the resources -----------------------------------------------------------------------------------------------


class TestVirtualMemory(Conformance):
    sizes = (1, GRANULE)
    granularity = GRANULE
    growable = True

    def make_resource(self):
        return VirtualMemoryResource(Device(0))


class TestVirtualMemoryWithReservation(TestVirtualMemory):
    def make_resource(self):
        return VirtualMemoryResource(Device(0), {"reserve_size": 16 * GRANULE})


class TestDevicePool(Conformance):
    stream_ordered = True

    def make_resource(self):
        return DeviceMemoryResource(Device(0), DeviceMemoryResourceOptions())


class TestSharedDevicePool(TestDevicePool):
    exportable = True

    def make_resource(self):
        return DeviceMemoryResource(Device(0), DeviceMemoryResourceOptions(ipc_enabled=True))


class TestDefaultDevicePool(TestDevicePool):
    def make_resource(self):
        return DeviceMemoryResource(Device(0))


class TestPinnedPool(Conformance):
    stream_ordered = True

    def make_resource(self):
        return PinnedMemoryResource(PinnedMemoryResourceOptions())


class TestManagedPool(Conformance):
    stream_ordered = True

    def make_resource(self):
        return ManagedMemoryResource(ManagedMemoryResourceOptions())


class TestLegacyPinned(Conformance):
    def make_resource(self):
        return LegacyPinnedMemoryResource()


class TestSynchronousDevice(Conformance):
    def make_resource(self):
        return _SynchronousMemoryResource(0)


class DerivedPool(DeviceMemoryResource):
    """A subclass of a built-in resource, whose deallocate is asked."""

    def deallocate(self, ptr, size, *, stream=None):
        super().deallocate(ptr, size, stream=stream)


class TestDerivedPool(TestDevicePool):
    def make_resource(self):
        return DerivedPool(Device(0), DeviceMemoryResourceOptions())


# --- the adaptors ------------------------------------------------------------------------------------------------


class TestAdaptor(TestDevicePool):
    def make_resource(self):
        return MemoryResourceAdaptor(super().make_resource())


class TestAdaptorOfVirtualMemory(Conformance):
    sizes = (1, GRANULE)
    granularity = GRANULE

    def make_resource(self):
        return MemoryResourceAdaptor(VirtualMemoryResource(Device(0)))


class TestStatistics(TestDevicePool):
    def make_resource(self):
        return StatisticsAdaptor(super().make_resource())


class TestLimit(TestDevicePool):
    def make_resource(self):
        return LimitAdaptor(super().make_resource(), 1 << 30)


class TestLogging(TestLegacyPinned):
    def make_resource(self):
        return LoggingAdaptor(super().make_resource())


class TestFailing(TestManagedPool):
    def make_resource(self):
        return FailingAdaptor(super().make_resource())


class TestTracking(TestPinnedPool):
    def make_resource(self):
        return TrackingAdaptor(super().make_resource())


class TestAllAdaptors(TestDevicePool):
    def make_resource(self):
        return StatisticsAdaptor(
            LimitAdaptor(LoggingAdaptor(FailingAdaptor(TrackingAdaptor(super().make_resource()))), 1 << 30)
        )
