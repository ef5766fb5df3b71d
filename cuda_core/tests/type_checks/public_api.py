# SPDX-License-Identifier: Apache-2.0
"""The whole public interface in use, for type checkers: it is never run.

``test_typing.py`` has mypy check it in strict mode, and sees that every public name stands here. Each result is held
against the type that it must have, so that a name whose type is lost to ``Any`` is found, too.
"""

import ctypes
import logging
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy
from typing_extensions import assert_type

import cuda.core
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    Allocation,
    ArrayView,
    Buffer,
    CloseResult,
    Context,
    CUDAError,
    CUDAWarning,
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    Event,
    EventOptions,
    GraphMemoryResource,
    Host,
    LegacyPinnedMemoryResource,
    ManagedBuffer,
    ManagedMemoryResource,
    ManagedMemoryResourceOptions,
    MemoryResource,
    Ownership,
    OwnershipError,
    PinnedMemoryResource,
    PinnedMemoryResourceOptions,
    Stream,
    StreamOptions,
    TransferredTo,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
    graph,
    memory_report,
    utils,
)
from cuda.core._memory._ipc import IPCBufferDescriptor
from cuda.core.adaptors import (
    FailingAdaptor,
    LimitAdaptor,
    LoggingAdaptor,
    MemoryResourceAdaptor,
    MemoryStatistics,
    OpenAllocation,
    StatisticsAdaptor,
    TrackingAdaptor,
)
from cuda.core.audit import (
    AuditedAllocation,
    AuditedResource,
    AuditReport,
    Frame,
    Recording,
    Step,
    record,
)
from cuda.core.graph import Graph, GraphBuilder, GraphCompleteOptions, GraphDebugPrintOptions
from cuda.core.typing import (
    DevicePointerType,
    IsStreamType,
    ManagedMemoryLocationType,
    VirtualMemoryAccessType,
    VirtualMemoryAllocationType,
    VirtualMemoryGranularityType,
    VirtualMemoryGrowthType,
    VirtualMemoryHandleType,
    VirtualMemoryLocationType,
)
from cuda.core.utils import (
    CopyOptions,
    MemcpyOverlapMode,
    MemcpySrcAccessOrder,
    StridedMemoryView,
    args_viewable_as_strided_memory,
    copy_batch,
    discard_batch,
    discard_prefetch_batch,
    prefetch_batch,
)


class ForeignStream:
    """A stream of another library."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 1


def devices() -> Device:
    assert_type(cuda.core.__version__, str)
    device = Device()
    assert_type(Device(0), Device)
    assert_type(Device(device), Device)
    assert_type(Device.get_all_devices(), tuple[Device, ...])
    assert_type(device.set_current(), Context | None)
    assert_type(device.device_id, int)
    assert_type(int(device), int)
    assert_type(device.name, str)
    assert_type(device.uuid, str)
    assert_type(device.pci_bus_id, str)
    assert_type(device.arch, str)
    capability = device.compute_capability
    assert_type(capability.major, int)
    assert_type(capability.minor, int)
    assert_type(device.can_access_peer(1), bool)
    assert_type(device.can_access_peer(device), bool)
    assert_type(device.default_stream, Stream)
    assert_type(device.memory_resource, MemoryResource)
    device.memory_resource = LegacyPinnedMemoryResource()
    assert_type(device.allocate(1024, stream=device.default_stream), Buffer)
    assert_type(device == Device(0), bool)
    assert_type({device: 1}, dict[Device, int])
    device.sync()
    return device


def device_properties(device: Device) -> None:
    of = device.properties
    numbers = [
        of.compute_capability_major,
        of.compute_capability_minor,
        of.warp_size,
        of.max_threads_per_block,
        of.max_block_dim_x,
        of.max_block_dim_y,
        of.max_block_dim_z,
        of.max_grid_dim_x,
        of.max_grid_dim_y,
        of.max_grid_dim_z,
        of.max_registers_per_block,
        of.max_registers_per_multiprocessor,
        of.max_shared_memory_per_block,
        of.max_shared_memory_per_block_optin,
        of.max_shared_memory_per_multiprocessor,
        of.reserved_shared_memory_per_block,
        of.total_constant_memory,
        of.max_threads_per_multiprocessor,
        of.max_blocks_per_multiprocessor,
        of.multiprocessor_count,
        of.clock_rate,
        of.single_to_double_precision_perf_ratio,
        of.compute_mode,
        of.multi_gpu_board_group_id,
        of.pci_domain_id,
        of.pci_bus_id,
        of.pci_device_id,
        of.gpu_pci_device_id,
        of.gpu_pci_subsystem_id,
        of.numa_config,
        of.numa_id,
        of.host_numa_id,
        of.memory_clock_rate,
        of.global_memory_bus_width,
        of.l2_cache_size,
        of.max_persisting_l2_cache_size,
        of.max_access_policy_window_size,
        of.max_pitch,
        of.mem_decompress_algorithm_mask,
        of.mem_decompress_maximum_length,
        of.mem_sync_domain_count,
        of.async_engine_count,
        of.mempool_supported_handle_types,
        of.gpu_direct_rdma_flush_writes_options,
        of.gpu_direct_rdma_writes_ordering,
        of.texture_alignment,
        of.texture_pitch_alignment,
        of.surface_alignment,
        of.maximum_texture1d_width,
        of.maximum_texture1d_linear_width,
        of.maximum_texture1d_mipmapped_width,
        of.maximum_texture1d_layered_width,
        of.maximum_texture1d_layered_layers,
        of.maximum_texture2d_width,
        of.maximum_texture2d_height,
        of.maximum_texture2d_linear_width,
        of.maximum_texture2d_linear_height,
        of.maximum_texture2d_linear_pitch,
        of.maximum_texture2d_mipmapped_width,
        of.maximum_texture2d_mipmapped_height,
        of.maximum_texture2d_layered_width,
        of.maximum_texture2d_layered_height,
        of.maximum_texture2d_layered_layers,
        of.maximum_texture2d_gather_width,
        of.maximum_texture2d_gather_height,
        of.maximum_texture3d_width,
        of.maximum_texture3d_height,
        of.maximum_texture3d_depth,
        of.maximum_texture3d_width_alternate,
        of.maximum_texture3d_height_alternate,
        of.maximum_texture3d_depth_alternate,
        of.maximum_texturecubemap_width,
        of.maximum_texturecubemap_layered_width,
        of.maximum_texturecubemap_layered_layers,
        of.maximum_surface1d_width,
        of.maximum_surface1d_layered_width,
        of.maximum_surface1d_layered_layers,
        of.maximum_surface2d_width,
        of.maximum_surface2d_height,
        of.maximum_surface2d_layered_width,
        of.maximum_surface2d_layered_height,
        of.maximum_surface2d_layered_layers,
        of.maximum_surface3d_width,
        of.maximum_surface3d_height,
        of.maximum_surface3d_depth,
        of.maximum_surfacecubemap_width,
        of.maximum_surfacecubemap_layered_width,
        of.maximum_surfacecubemap_layered_layers,
    ]
    assert_type(numbers, list[int])
    answers = [
        of.kernel_exec_timeout,
        of.concurrent_kernels,
        of.compute_preemption_supported,
        of.cooperative_launch,
        of.cluster_launch,
        of.unified_function_pointers,
        of.stream_priorities_supported,
        of.mps_enabled,
        of.integrated,
        of.tcc_driver,
        of.multi_gpu_board,
        of.global_l1_cache_supported,
        of.local_l1_cache_supported,
        of.ecc_enabled,
        of.unified_addressing,
        of.generic_compression_supported,
        of.gpu_overlap,
        of.virtual_memory_management_supported,
        of.host_virtual_memory_management_supported,
        of.host_numa_virtual_memory_management_supported,
        of.memory_pools_supported,
        of.host_memory_pools_supported,
        of.host_numa_memory_pools_supported,
        of.host_numa_multinode_ipc_supported,
        of.handle_type_posix_file_descriptor_supported,
        of.handle_type_win32_handle_supported,
        of.handle_type_win32_kmt_handle_supported,
        of.handle_type_fabric_supported,
        of.ipc_event_supported,
        of.multicast_supported,
        of.dma_buf_supported,
        of.host_alloc_dma_buf_supported,
        of.gpu_direct_rdma_supported,
        of.gpu_direct_rdma_with_cuda_vmm_supported,
        of.can_flush_remote_writes,
        of.can_map_host_memory,
        of.host_register_supported,
        of.read_only_host_register_supported,
        of.can_use_host_pointer_for_registered_mem,
        of.managed_memory,
        of.concurrent_managed_access,
        of.direct_managed_mem_access_from_host,
        of.pageable_memory_access,
        of.pageable_memory_access_uses_host_page_tables,
        of.host_native_atomic_supported,
        of.only_partial_host_native_atomic_supported,
        of.can_use_64_bit_stream_mem_ops,
        of.can_use_stream_wait_value_nor,
        of.tensor_map_access_supported,
        of.sparse_cuda_array_supported,
        of.deferred_mapping_cuda_array_supported,
        of.timeline_semaphore_interop_supported,
        of.d3d12_cig_supported,
        of.vulkan_cig_supported,
        of.can_tex2d_gather,
    ]
    assert_type(answers, list[bool])


def contexts(device: Device) -> None:
    context = device.context
    assert_type(context, Context)
    assert_type(device.set_current(context), Context | None)
    assert_type(context.device_id, int)
    assert_type(context.is_closed, bool)
    assert_type(context.is_green, bool)
    assert_type(context.create_stream(), Stream)
    assert_type(context.create_stream(StreamOptions(nonblocking=True)), Stream)
    assert_type(context == device.context, bool)
    print(context.handle)
    context.close()


def streams(device: Device, event: Event) -> Stream:
    options = StreamOptions(nonblocking=False, priority=-1)
    assert_type(options.nonblocking, bool)
    assert_type(options.priority, int | None)
    stream = device.create_stream(options=options)
    assert_type(stream, Stream)
    assert_type(device.create_stream(options={"priority": -1}), Stream)
    foreign: IsStreamType = ForeignStream()
    assert_type(device.create_stream(foreign), Stream)
    assert_type(Stream.from_handle(stream.handle), Stream)
    assert_type(Stream.from_handle(1), Stream)
    assert_type(stream.__cuda_stream__(), tuple[int, int])
    assert_type(stream.is_closed, bool)
    assert_type(stream.is_nonblocking, bool)
    assert_type(stream.priority, int)
    assert_type(stream.context, Context)
    assert_type(stream.device, Device)
    assert_type(stream.record(), Event)
    assert_type(stream.record(event), Event)
    assert_type(stream.record(options=EventOptions(timing_enabled=True)), Event)
    stream.wait(event)
    stream.wait(LEGACY_DEFAULT_STREAM)
    stream.wait(foreign)
    assert_type(PER_THREAD_DEFAULT_STREAM, Stream)
    assert_type(stream == PER_THREAD_DEFAULT_STREAM, bool)
    stream.sync()
    stream.close()
    return stream


def events(device: Device) -> Event:
    options = EventOptions(timing_enabled=True, blocking_sync=False, ipc_enabled=None)
    assert_type(options.timing_enabled, bool | None)
    assert_type(options.blocking_sync, bool | None)
    assert_type(options.ipc_enabled, bool | None)
    event = device.create_event(options)
    assert_type(event, Event)
    assert_type(device.create_event({"timing_enabled": True}), Event)
    assert_type(event - device.create_event(options), float)
    assert_type(event.device_id, int)
    assert_type(event.is_closed, bool)
    assert_type(event.is_done, bool)
    assert_type(event.is_timing_enabled, bool)
    assert_type(event.is_blocking_sync, bool)
    assert_type(event.is_ipc_enabled, bool)
    assert_type(event.context, Context | None)
    assert_type(event.device, Device | None)
    assert_type(event == event, bool)
    assert_type(Event.from_ipc_descriptor(event.ipc_descriptor), Event)
    print(event.handle)
    event.sync()
    event.close()
    return event


def hosts() -> Host:
    assert_type(Host.numa_current(), Host)
    assert_type(Host(numa_id=0, is_numa_current=False), Host)
    host = Host(0)
    assert_type(host.numa_id, int | None)
    assert_type(host.is_numa_current, bool)
    return host


def free(pointer: int, size: int, stream: Stream | None) -> None:
    print(pointer, size, stream)


def buffers(resource: MemoryResource, stream: Stream, builder: GraphBuilder) -> None:
    with resource.allocate(1024, stream=stream) as buffer:
        assert_type(buffer, Buffer)
    assert_type(resource.allocate(1024, stream=builder), Buffer)
    assert_type(buffer.handle, int)
    assert_type(buffer.size, int)
    assert_type(buffer.mapped_size, int)
    assert_type(buffer.capacity, int)
    assert_type(buffer.device_id, int)
    assert_type(buffer.is_closed, bool)
    assert_type(buffer.is_device_accessible, bool)
    assert_type(buffer.is_host_accessible, bool)
    assert_type(buffer.is_managed, bool)
    assert_type(buffer.is_mapped, bool)
    assert_type(buffer.memory_resource, MemoryResource | None)
    assert_type(buffer.owner, object)
    assert_type(buffer == buffer, bool)
    pointer: DevicePointerType = buffer.handle
    assert_type(Buffer.from_handle(pointer, 1024, owner=buffer), Buffer)
    assert_type(Buffer.from_handle(None, 0), Buffer)
    assert_type(Buffer.from_handle(pointer, 1024, mr=resource, stream=stream), Buffer)
    assert_type(Buffer.from_handle(pointer, 1024, deallocate=free), Buffer)
    buffer.set_deallocation_stream(stream)
    buffer.record_stream(builder)
    assert_type(buffer.release_on_collection, bool)
    buffer.release_on_collection = True
    assert_type(buffer.close(), CloseResult)
    assert_type(buffer.close(stream, wait=False), CloseResult)


def ownership(buffer: Buffer, resource: MemoryResource) -> None:
    assert_type(buffer.ownership, Ownership)
    assert_type(buffer.transferred_to, TransferredTo | None)
    assert_type(buffer.loans, int)
    states = (Ownership.OWNED, Ownership.BORROWED, Ownership.TRANSFERRED, Ownership.RELEASED)
    takers = (
        TransferredTo.GROWN,
        TransferredTo.DETACHED,
        TransferredTo.MOVED,
        TransferredTo.LOANS,
        TransferredTo.GRAPH,
    )
    names: list[str] = [state.name for state in states] + [taker.name for taker in takers]
    print(names)
    print(
        CloseResult.DONE, CloseResult.QUEUED, CloseResult.LENT, CloseResult.IN_PROGRESS, CloseResult.NOTHING
    )
    assert_type(buffer.move_to(resource), Buffer)
    allocation = buffer.detach()
    assert_type(allocation, Allocation)
    assert_type(allocation.handle, int)
    assert_type(allocation.size, int)
    assert_type(allocation.device_id, int)
    assert_type(allocation.memory_resource, MemoryResource | None)
    assert_type(allocation.owner, object)
    assert_type(allocation.streams, tuple[Stream, ...])
    assert_type(allocation.ownership, Ownership)
    assert_type(allocation.transferred_to, TransferredTo | None)
    assert_type(allocation.loans, int)
    assert_type(Buffer.adopt(allocation), Buffer)
    assert_type(Buffer.adopt(allocation, resource), Buffer)
    allocation.handed_over()


def errors(buffer: Buffer) -> None:
    try:
        buffer.close()
    except OwnershipError as error:
        runtime_error: RuntimeError = error
        print(runtime_error)
    except CUDAError as error:
        assert_type(error.result, int)
        assert_type(error.result_name, str)
        assert_type(error.function, str)
    warning: type[Warning] = CUDAWarning
    print(warning)


def copies(buffer: Buffer, stream: Stream, device: Device) -> None:
    options = CopyOptions(
        src_access_order=MemcpySrcAccessOrder.DURING_API_CALL,
        src_location_hint=device,
        dst_location_hint=Host(),
        overlap_mode="prefer_overlap_with_compute",
    )
    assert_type(options.src_access_order, MemcpySrcAccessOrder | str)
    assert_type(options.overlap_mode, MemcpyOverlapMode | str)
    assert_type(options.src_location_hint, Device | Host | None)
    assert_type(options.dst_location_hint, Device | Host | None)
    orders: list[str] = [MemcpySrcAccessOrder.STREAM, MemcpySrcAccessOrder.ANY]
    modes: list[str] = [MemcpyOverlapMode.DEFAULT, MemcpyOverlapMode.PREFER_OVERLAP_WITH_COMPUTE]
    print(orders, modes)
    assert_type(buffer.copy_to(stream=stream), Buffer)
    assert_type(buffer.copy_to(buffer, stream=stream, options=options), Buffer)
    buffer.copy_from(buffer, stream=stream, options=options)
    buffer.fill(0, stream=stream)
    buffer.fill(b"\x00\x01", stream=stream)
    copy_batch(stream, [buffer], (buffer,), options=options)
    utils.copy_batch(stream, [buffer], [buffer], options=[options])


def views(buffer: Buffer) -> None:
    assert_type(buffer[:16], Buffer)
    assert_type(memoryview(buffer), memoryview)
    assert_type(buffer.__dlpack__(stream=1, max_version=(1, 0), dl_device=(2, 0), copy=False), object)
    assert_type(buffer.__dlpack_device__(), tuple[int, int])
    with buffer.array_view("<f4", (2, 2)) as view:
        assert_type(view, ArrayView)
        assert_type(view.__cuda_array_interface__, dict[str, Any])
        assert_type(view.__array_interface__, dict[str, Any])
        assert_type(view.is_closed, bool)
    buffer.array_view(shape=3).close()
    ArrayView(buffer, "<f4").close()


def strided_views(buffer: Buffer, array: object, stream: Stream) -> None:
    with StridedMemoryView.from_buffer(
        buffer, (2, 2), (2, 1), dtype=numpy.dtype("f4"), is_readonly=True
    ) as view:
        assert_type(view, StridedMemoryView)
    assert_type(StridedMemoryView.from_buffer(buffer, (2,), itemsize=4), StridedMemoryView)
    assert_type(StridedMemoryView(array, stream_ptr=-1), StridedMemoryView)
    assert_type(StridedMemoryView.from_dlpack(array, -1), StridedMemoryView)
    assert_type(StridedMemoryView.from_cuda_array_interface(array, -1), StridedMemoryView)
    assert_type(StridedMemoryView.from_array_interface(array), StridedMemoryView)
    assert_type(StridedMemoryView.from_any_interface(array, stream_ptr=-1), StridedMemoryView)
    assert_type(view.ptr, int)
    assert_type(view.size, int)
    assert_type(view.shape, tuple[int, ...])
    assert_type(view.strides, tuple[int, ...] | None)
    assert_type(view.dtype, numpy.dtype[Any] | None)
    assert_type(view.device_id, int)
    assert_type(view.is_device_accessible, bool)
    assert_type(view.readonly, bool)
    assert_type(view.exporting_obj, object)
    assert_type(view.is_closed, bool)
    assert_type(view.view(dtype=numpy.dtype("i4")), StridedMemoryView)
    assert_type(view.__dlpack__(), object)
    assert_type(view.__dlpack_device__(), tuple[int, int])
    view.copy_from(view, stream)
    view.copy_to(view, stream)
    view.close()


@args_viewable_as_strided_memory((0,))
def takes_any_array(array: Any) -> StridedMemoryView:
    view: StridedMemoryView = array.view(-1)
    return view


class Counting(MemoryResource):
    """A resource as its author writes it."""

    def __init__(self, inner: MemoryResource) -> None:
        self.inner = inner
        self.buffers: dict[int, Buffer] = {}

    def allocate(self, size: int, *, stream: Stream | GraphBuilder) -> Buffer:
        inner = self.inner.allocate(size, stream=stream)
        self.buffers[inner.handle] = inner
        return Buffer.from_handle(inner.handle, inner.size, mr=self, stream=stream)

    def deallocate(self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder) -> None:
        self.buffers.pop(int(ptr or 0)).close(stream)

    @property
    def is_device_accessible(self) -> bool:
        return True

    @property
    def is_host_accessible(self) -> bool:
        return False

    @property
    def device_id(self) -> int:
        return self.inner.device_id


def resources(resource: MemoryResource, stream: Stream) -> Iterator[MemoryResource]:
    assert_type(resource.is_device_accessible, bool)
    assert_type(resource.is_host_accessible, bool)
    assert_type(resource.is_managed, bool)
    assert_type(resource.device_id, int)
    resource.deallocate(4096, 1024, stream=stream)
    with resource.checked_free(4096, 1024) as nothing:
        assert_type(nothing, None)
    yield Counting(resource)
    plain = LegacyPinnedMemoryResource()
    assert_type(plain.allocate(1024), Buffer)
    plain.deallocate(4096, 1024)
    yield plain


def adaptors(inner: MemoryResource, stream: Stream) -> None:
    adaptor = MemoryResourceAdaptor(inner)
    assert_type(adaptor.inner, MemoryResource)
    assert_type(adaptor.allocate(1024), Buffer)
    adaptor.deallocate(4096, 1024, stream=stream)
    limited = LimitAdaptor(adaptor, 1 << 20)
    assert_type(limited.limit, int)
    assert_type(limited.used, int)
    failing = FailingAdaptor(LoggingAdaptor(limited, logging.getLogger(), logging.INFO))
    with failing.fail_allocation(2, sticky=True, error=MemoryError), failing.fail_free():
        print(LoggingAdaptor(limited, "name"))
    counting = StatisticsAdaptor(failing)
    statistics = counting.statistics
    assert_type(statistics, MemoryStatistics)
    assert_type(statistics.current_bytes, int)
    assert_type(statistics.current_count, int)
    assert_type(statistics.peak_bytes, int)
    assert_type(statistics.peak_count, int)
    assert_type(statistics.total_bytes, int)
    assert_type(statistics.total_count, int)
    with counting.region() as region:
        assert_type(region.statistics, MemoryStatistics)
    counting.push()
    assert_type(counting.depth, int)
    assert_type(counting.pop(), MemoryStatistics)
    tracking = TrackingAdaptor(counting, frames=4)
    assert_type(tracking.unique_addresses, bool)
    assert_type(tracking.report(), str)
    found = tracking.open_allocations()
    assert_type(found, list[OpenAllocation])
    assert_type(found[0].serial, int)
    assert_type(found[0].address, int)
    assert_type(found[0].size, int)
    assert_type(found[0].thread, str)
    print(found[0].origin)


def reports() -> None:
    report = memory_report()
    assert_type(report.size, int)
    assert_type(report.count, int)
    assert_type(report.to_dict(), dict[str, Any])
    assert_type(report.to_json(indent=2), str)
    assert_type(report.to_text(limit=10), str)
    for resource in report.resources:
        assert_type(resource.resource, str)
        assert_type(resource.resource_id, int)
        assert_type(resource.device_id, int | None)
        assert_type(resource.size, int)
        assert_type(resource.mapped_size, int)
        assert_type(resource.place, str)
        for allocation in resource.allocations:
            assert_type(allocation.serial, int)
            assert_type(allocation.address, int)
            assert_type(allocation.size, int)
            assert_type(allocation.state, str)
            assert_type(allocation.loans, int)
            assert_type(allocation.busy, bool)
            assert_type(allocation.mapped_size, int)
            assert_type(allocation.paused, bool)
            assert_type(allocation.failed, bool)
            assert_type(allocation.age, int)
    for release in report.queued:
        assert_type(release.serial, int)
        assert_type(release.address, int)
        assert_type(release.size, int)
        assert_type(release.resource, str)
        assert_type(release.place, str)
        assert_type(release.state, str)


def audits() -> None:
    with record(text="memory.txt", json=Path("memory.json"), html=None, depth=8, limit=1000) as recording:
        assert_type(recording, Recording)
    other = record()
    other.start()
    other.stop()
    report = recording.report
    assert_type(report, AuditReport)
    lists = [report.leaked, report.detached, report.collected, report.lost, report.waiting, report.failed]
    assert_type(lists, list[tuple[AuditedAllocation, ...]])
    numbers = [report.pid, report.count, report.size, report.peak]
    numbers += [report.left_out, report.lost_events, report.lost_loans]
    assert_type(numbers, list[int])
    texts = [report.program, report.python, report.version, report.started]
    assert_type(texts, list[str])
    assert_type(report.seconds, float)
    assert_type(report.peak_time, float | None)
    assert_type(report.left_out_until, float | None)
    assert_type(report.resources, tuple[AuditedResource, ...])
    assert_type(report.allocations, tuple[AuditedAllocation, ...])
    assert_type(report.is_clean, bool)
    assert_type(report.shared, tuple[tuple[AuditedAllocation, AuditedAllocation], ...])
    assert_type(report.to_dict(), dict[str, Any])
    assert_type(report.to_json(indent=2), str)
    assert_type(report.to_text(all_frames=True), str)
    assert_type(report.to_html(), str)


def audited(resource: AuditedResource, allocation: AuditedAllocation, frame: Frame, step: Step) -> None:
    assert_type(resource.resource + resource.place, str)
    assert_type(resource.device_id, int | None)
    numbers = [resource.number, resource.count, resource.size, resource.peak, resource.live]
    numbers += [allocation.serial, allocation.address, allocation.size, allocation.resource]
    numbers += [allocation.steps_left_out, allocation.loans, allocation.failures]
    numbers += [allocation.source, allocation.taker, frame.line]
    assert_type(numbers, list[int])
    texts = [allocation.ending, allocation.thread, frame.file, frame.function, step.thread, step.text]
    assert_type(texts, list[str])
    assert_type(allocation.begun, float | None)
    assert_type(allocation.ended, float | None)
    assert_type(allocation.origin, tuple[Frame, ...])
    assert_type(allocation.own_origin, tuple[Frame, ...])
    assert_type(allocation.states, tuple[tuple[float, str], ...])
    assert_type(allocation.steps, tuple[Step, ...])
    assert_type(allocation.is_detached, bool)
    assert_type(frame.own, bool)
    assert_type(step.time, float)


def pools(device: Device, stream: Stream) -> None:
    options = DeviceMemoryResourceOptions(ipc_enabled=True, max_size=1 << 20)
    assert_type(options.ipc_enabled, bool)
    assert_type(options.max_size, int)
    pool = DeviceMemoryResource(device, options)
    assert_type(DeviceMemoryResource(0), DeviceMemoryResource)
    assert_type(DeviceMemoryResource(0, {"max_size": 0}), DeviceMemoryResource)
    assert_type(pool.allocate(1024, stream=stream), Buffer)
    pool.deallocate(4096, 1024, stream=stream)
    assert_type(pool.is_closed, bool)
    assert_type(pool.is_handle_owned, bool)
    assert_type(pool.is_ipc_enabled, bool)
    assert_type(pool.is_mapped, bool)
    assert_type(pool.uuid, uuid.UUID | None)
    attributes = pool.attributes
    assert_type(attributes.reuse_follow_event_dependencies, bool)
    assert_type(attributes.reuse_allow_opportunistic, bool)
    assert_type(attributes.reuse_allow_internal_dependencies, bool)
    assert_type(attributes.release_threshold, int)
    assert_type(attributes.reserved_mem_current, int)
    assert_type(attributes.reserved_mem_high, int)
    assert_type(attributes.used_mem_current, int)
    assert_type(attributes.used_mem_high, int)
    print(pool.handle)
    pool.close()


def pinned_and_managed(stream: Stream) -> None:
    pinned_options = PinnedMemoryResourceOptions(ipc_enabled=False, max_size=0, numa_id=None)
    assert_type(pinned_options.ipc_enabled, bool)
    assert_type(pinned_options.max_size, int)
    assert_type(pinned_options.numa_id, int | None)
    pinned = PinnedMemoryResource(pinned_options)
    assert_type(pinned.numa_id, int)
    assert_type(pinned.allocate(1024, stream=stream), Buffer)
    handle = pinned.allocation_handle
    assert_type(PinnedMemoryResource.from_allocation_handle(handle), PinnedMemoryResource)
    assert_type(PinnedMemoryResource.from_registry(uuid.uuid4()), PinnedMemoryResource)
    assert_type(pinned.register(uuid.uuid4()), PinnedMemoryResource)
    managed_options = ManagedMemoryResourceOptions(preferred_location=0, preferred_location_type="device")
    assert_type(managed_options.preferred_location, int | None)
    assert_type(managed_options.preferred_location_type, ManagedMemoryLocationType | str | None)
    managed = ManagedMemoryResource(managed_options)
    assert_type(managed.preferred_location, tuple[ManagedMemoryLocationType, int | None] | None)
    assert_type(managed.allocate(1024, stream=stream), ManagedBuffer)
    kinds: list[str] = [
        ManagedMemoryLocationType.DEVICE,
        ManagedMemoryLocationType.HOST,
        ManagedMemoryLocationType.HOST_NUMA,
    ]
    print(kinds)


def sharing(pool: DeviceMemoryResource, buffer: Buffer, stream: Stream) -> None:
    handle = pool.allocation_handle
    assert_type(handle.handle, int)
    assert_type(int(handle), int)
    assert_type(handle.uuid, uuid.UUID)
    assert_type(handle.is_closed, bool)
    assert_type(DeviceMemoryResource.from_allocation_handle(0, handle), DeviceMemoryResource)
    assert_type(DeviceMemoryResource.from_registry(uuid.uuid4()), DeviceMemoryResource)
    assert_type(pool.register(uuid.uuid4()), DeviceMemoryResource)
    descriptor = buffer.ipc_descriptor
    assert_type(descriptor.size, int)
    assert_type(Buffer.from_ipc_descriptor(pool, descriptor, stream=stream), Buffer)
    assert_type(Buffer.from_ipc_descriptor(VirtualMemoryResource(0), descriptor, stream=stream), Buffer)
    if not isinstance(descriptor, IPCBufferDescriptor):
        assert_type(descriptor.chunk_sizes, tuple[int, ...])
        with descriptor as opened:
            assert_type(opened.is_closed, bool)
    handle.close()


def peers(pool: DeviceMemoryResource, device: Device) -> None:
    pool.peer_accessible_by = [device, 1]
    peers_ = pool.peer_accessible_by
    assert_type(list(peers_), list[Device])
    assert_type(len(peers_), int)
    assert_type(device in peers_, bool)
    peers_.add(1)
    peers_.discard(device)
    peers_.update([device], {1})
    peers_.difference_update([1])
    peers_.intersection_update([device])
    peers_.symmetric_difference_update([device])
    peers_ |= {device}
    peers_.clear()


def managed_memory(buffer: ManagedBuffer, device: Device, host: Host, stream: Stream) -> None:
    assert_type(ManagedBuffer.from_handle(buffer.handle, 1024, owner=buffer), ManagedBuffer)
    assert_type(buffer.read_mostly, bool)
    buffer.read_mostly = True
    assert_type(buffer.preferred_location, Device | Host | None)
    buffer.preferred_location = host
    buffer.preferred_location = None
    places: Iterable[Device | Host] = buffer.accessed_by
    buffer.accessed_by.add(device)
    buffer.accessed_by.discard(host)
    buffer.accessed_by = {device, host}
    buffer.prefetch(device, stream=stream)
    buffer.discard(stream=stream)
    buffer.discard_prefetch(host, stream=stream)
    prefetch_batch(stream, [buffer], device)
    discard_batch(stream, [buffer])
    discard_prefetch_batch(stream, [buffer], [host])
    print(list(places))


def virtual_memory(device: Device, stream: Stream) -> None:
    options = VirtualMemoryResourceOptions(
        allocation_type=VirtualMemoryAllocationType.PINNED,
        location_type=VirtualMemoryLocationType.DEVICE,
        handle_type=None,
        granularity=VirtualMemoryGranularityType.MINIMUM,
        gpu_direct_rdma=False,
        addr_hint=None,
        addr_align=1 << 21,
        peers=[1, 2],
        self_access=VirtualMemoryAccessType.READ,
        peer_access=None,
        reserve_size=1 << 30,
        growth=VirtualMemoryGrowthType.GEOMETRIC,
        numa_id=None,
        wait_on_close=False,
    )
    assert_type(options.growth, VirtualMemoryGrowthType)
    assert_type(options.numa_id, int | None)
    assert_type(options.wait_on_close, bool)
    assert_type(options.allocation_type, VirtualMemoryAllocationType)
    assert_type(options.location_type, VirtualMemoryLocationType)
    assert_type(options.handle_type, VirtualMemoryHandleType | None)
    assert_type(options.granularity, VirtualMemoryGranularityType)
    assert_type(options.gpu_direct_rdma, bool)
    assert_type(options.addr_hint, int | None)
    assert_type(options.addr_align, int | None)
    assert_type(options.peers, Iterable[int])
    assert_type(options.self_access, VirtualMemoryAccessType | None)
    assert_type(options.peer_access, VirtualMemoryAccessType | None)
    assert_type(options.reserve_size, int)
    options.peers = (3,)
    resource = VirtualMemoryResource(device, options)
    assert_type(VirtualMemoryResource(0, {"reserve_size": 1 << 30}), VirtualMemoryResource)
    assert_type(resource.config, VirtualMemoryResourceOptions)
    assert_type(resource.device, Device | None)
    buffer = resource.allocate(1 << 21)
    assert_type(resource.allocate(1 << 21, stream=stream), Buffer)
    assert_type(resource.modify_allocation(buffer, 1 << 22), Buffer)
    assert_type(resource.modify_allocation(buffer, 1 << 22, config=options), Buffer)
    assert_type(resource.allocate(1 << 21, reserve_size=1 << 30), Buffer)
    assert_type(resource.modify_allocation(buffer, 1 << 22, keep_old=True), Buffer)
    assert_type(resource.shrink(buffer, 1 << 21, split=True), Buffer)
    assert_type(resource.trim(buffer, split=True), int)
    resource.set_access(buffer, device, "r")
    resource.set_access(buffer, 1, VirtualMemoryAccessType.READ)
    resource.set_access(buffer, 1, None)
    assert_type(resource.get_access(buffer, 1), VirtualMemoryAccessType | None)
    assert_type(resource.wait_on_close, bool)
    resource.pause(buffer)
    resource.pause([buffer], keep_contents=True)
    resource.resume(buffer)
    resource.resume((buffer,))
    assert_type(buffer.is_paused, bool)
    resource.deallocate(buffer.handle, buffer.size)
    values: list[str] = [
        VirtualMemoryGrowthType.EXACT,
        VirtualMemoryAccessType.READ_WRITE,
        VirtualMemoryAllocationType.MANAGED,
        VirtualMemoryGranularityType.RECOMMENDED,
        VirtualMemoryHandleType.POSIX_FD,
        VirtualMemoryHandleType.WIN32_KMT,
        VirtualMemoryHandleType.FABRIC,
        VirtualMemoryLocationType.HOST,
        VirtualMemoryLocationType.HOST_NUMA,
        VirtualMemoryLocationType.HOST_NUMA_CURRENT,
    ]
    print(values)


def graph_memory(device: Device, builder: GraphBuilder) -> None:
    resource = GraphMemoryResource(device)
    assert_type(GraphMemoryResource(0), GraphMemoryResource)
    assert_type(resource.allocate(1024, stream=builder), Buffer)
    resource.deallocate(4096, 1024, stream=builder)
    attributes = resource.attributes
    assert_type(attributes.reserved_mem_current, int)
    assert_type(attributes.reserved_mem_high, int)
    assert_type(attributes.used_mem_current, int)
    assert_type(attributes.used_mem_high, int)
    attributes.reserved_mem_high = 0
    attributes.used_mem_high = 0
    resource.trim()
    resource.close()


def called_from_c(data: int) -> None:
    print(data)


c_callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called_from_c)


def graphs(device: Device, stream: Stream) -> Graph:
    assert_type(device.create_graph_builder(), GraphBuilder)
    builder = stream.create_graph_builder()
    assert_type(builder.begin_building(mode="thread_local"), GraphBuilder)
    assert_type(builder.is_building, bool)
    assert_type(builder.is_join_required, bool)
    assert_type(builder.is_closed, bool)
    assert_type(builder.stream, Stream)
    assert_type(builder.__cuda_stream__(), tuple[int, int])
    branches = builder.split(2)
    assert_type(branches, tuple[GraphBuilder, ...])
    assert_type(GraphBuilder.join(*branches), GraphBuilder)
    builder.callback(lambda: print("half way"))
    builder.callback(c_callback, user_data=b"data")
    assert_type(builder.end_building(), GraphBuilder)
    options = GraphCompleteOptions(
        auto_free_on_launch=True, upload_stream=stream, device_launch=False, use_node_priority=True
    )
    assert_type(options.auto_free_on_launch, bool)
    assert_type(options.upload_stream, Stream | None)
    assert_type(options.device_launch, bool)
    assert_type(options.use_node_priority, bool)
    assert_type(builder.complete(options), Graph)
    made = builder.complete({"auto_free_on_launch": True})
    made.upload(stream)
    made.launch(stream)
    made.update(builder)
    assert_type(made.is_closed, bool)
    print(made.handle, graph.Graph)
    made.close()
    builder.close()
    return made


def graph_pictures(builder: GraphBuilder, folder: Path) -> None:
    options = GraphDebugPrintOptions(
        verbose=True,
        runtime_types=True,
        kernel_node_params=True,
        memcpy_node_params=True,
        memset_node_params=True,
        host_node_params=True,
        event_node_params=True,
        ext_semas_signal_node_params=True,
        ext_semas_wait_node_params=True,
        kernel_node_attributes=True,
        handles=True,
        mem_alloc_node_params=True,
        mem_free_node_params=True,
        batch_mem_op_node_params=True,
        extra_topo_info=True,
        conditional_node_params=True,
    )
    assert_type(options.verbose, bool)
    builder.debug_dot_print(folder / "graph.dot", options)
    builder.debug_dot_print("graph.dot")
