# SPDX-License-Identifier: Apache-2.0
"""The attributes of a device, asked of the driver when first read."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

from cuda.bindings import driver
from cuda.core._driver import ensure_usable_driver
from cuda.core._errors import CUDAError

__all__ = ["DeviceProperties"]

Kind = TypeVar("Kind", int, bool)


class _Attribute(Generic[Kind]):
    """One attribute of a device: its name is that of the driver's, in lower case and without the prefix."""

    def __init__(self, kind: type[Kind], meaning: str) -> None:
        self.kind: type[Kind] = kind
        self.__doc__ = f"{kind.__name__}: {meaning}"

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, properties: None, owner: type) -> _Attribute[Kind]: ...

    @overload
    def __get__(self, properties: DeviceProperties, owner: type) -> Kind: ...

    def __get__(self, properties: DeviceProperties | None, owner: type) -> _Attribute[Kind] | Kind:
        if properties is None:
            return self
        known: Kind | None = properties._known.get(self.name)
        if known is None:
            known = properties._known[self.name] = self.kind(properties._ask(self.name))
        return known

    def __set__(self, properties: DeviceProperties, value: object) -> None:
        raise AttributeError(f"a device attribute cannot be set, {self.name!r} to {value!r}")


class DeviceProperties:
    """What a device is and can do. Get one from :attr:`Device.properties`.

    Each property is asked of the driver once, when it is first read.

    Raises
    ------
    AttributeError
        If the driver, or cuda-bindings, is too old to know the attribute that is read.
    CUDAError
        If the driver refuses.

    Notes
    -----
    Safe from any thread. Sizes are in bytes, extents of textures and surfaces in elements, clock rates in kilohertz.

    Examples
    --------
    >>> Device(0).properties.virtual_memory_management_supported  # doctest: +SKIP
    True
    """

    __slots__ = ("_known", "_ordinal")
    _known: dict[str, Any]
    _ordinal: int

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("DeviceProperties cannot be made directly; use Device.properties")

    @classmethod
    def _init(cls, handle: int) -> DeviceProperties:
        self = cls.__new__(cls)
        self._ordinal = handle
        self._known = {}
        return self

    def _ask(self, name: str) -> int:
        attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name.upper()}", None)
        if attribute is None:
            raise AttributeError(f"the installed cuda-bindings know no device attribute {name!r}")
        ensure_usable_driver()
        result, value = driver.cuDeviceGetAttribute(attribute, self._ordinal)
        if result == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
            raise AttributeError(f"the driver knows no device attribute {name!r}")
        if result != driver.CUresult.CUDA_SUCCESS:
            raise CUDAError(
                f"{result.name}: device attribute {name!r} of device {self._ordinal} "
                "(answered by cuDeviceGetAttribute)"
            )
        return int(value)

    def __repr__(self) -> str:
        return f"<DeviceProperties of device {self._ordinal}>"

    # -- the instruction set, and what a launch may ask for ----------------------------------------------------------

    compute_capability_major = _Attribute(int, "major version of the instruction set.")
    compute_capability_minor = _Attribute(int, "minor version of the instruction set.")
    warp_size = _Attribute(int, "threads that run in step.")
    max_threads_per_block = _Attribute(int, "most threads in a block.")
    max_block_dim_x = _Attribute(int, "most threads of a block along x.")
    max_block_dim_y = _Attribute(int, "most threads of a block along y.")
    max_block_dim_z = _Attribute(int, "most threads of a block along z.")
    max_grid_dim_x = _Attribute(int, "most blocks of a grid along x.")
    max_grid_dim_y = _Attribute(int, "most blocks of a grid along y.")
    max_grid_dim_z = _Attribute(int, "most blocks of a grid along z.")
    max_registers_per_block = _Attribute(int, "registers of 32 bits that a block can use.")
    max_registers_per_multiprocessor = _Attribute(int, "registers of 32 bits of a multiprocessor.")
    max_shared_memory_per_block = _Attribute(int, "shared memory that a block gets without opting in.")
    max_shared_memory_per_block_optin = _Attribute(int, "shared memory that a block can opt in to.")
    max_shared_memory_per_multiprocessor = _Attribute(int, "shared memory of a multiprocessor.")
    reserved_shared_memory_per_block = _Attribute(int, "shared memory of each block that the driver keeps.")
    total_constant_memory = _Attribute(int, "constant memory for a module.")
    max_threads_per_multiprocessor = _Attribute(int, "threads that a multiprocessor holds at once.")
    max_blocks_per_multiprocessor = _Attribute(int, "blocks that a multiprocessor holds at once.")
    multiprocessor_count = _Attribute(int, "multiprocessors of the device.")
    clock_rate = _Attribute(int, "highest clock rate, in kHz.")
    kernel_exec_timeout = _Attribute(bool, "whether a kernel may run for a limited time only.")
    concurrent_kernels = _Attribute(bool, "whether several kernels can run at once in one context.")
    compute_preemption_supported = _Attribute(bool, "whether a running kernel can be interrupted.")
    cooperative_launch = _Attribute(bool, "whether blocks of one grid can wait for each other.")
    cluster_launch = _Attribute(bool, "whether blocks can be launched in clusters.")
    unified_function_pointers = _Attribute(bool, "whether a function has one address on all devices.")
    single_to_double_precision_perf_ratio = _Attribute(
        int, "how many operations in single precision take the time of one in double precision."
    )
    stream_priorities_supported = _Attribute(bool, "whether streams have priorities.")
    compute_mode = _Attribute(int, "who may use the device, as ``CUcomputemode``.")
    mps_enabled = _Attribute(bool, "whether contexts can be shared through the multi-process service.")

    # -- the device and its place -----------------------------------------------------------------------------------

    integrated = _Attribute(bool, "whether the device shares the memory of the host.")
    tcc_driver = _Attribute(bool, "whether the driver is one for computing only (Windows).")
    multi_gpu_board = _Attribute(bool, "whether the board carries several devices.")
    multi_gpu_board_group_id = _Attribute(int, "a number that devices of one board share.")
    pci_domain_id = _Attribute(int, "PCI domain.")
    pci_bus_id = _Attribute(int, "PCI bus.")
    pci_device_id = _Attribute(int, "PCI slot.")
    gpu_pci_device_id = _Attribute(int, "PCI device and vendor identifier, 16 bits each.")
    gpu_pci_subsystem_id = _Attribute(int, "PCI subsystem and its vendor's identifier, 16 bits each.")
    numa_config = _Attribute(int, "whether the device is a NUMA node, as ``CUdeviceNumaConfig``.")
    numa_id = _Attribute(int, "NUMA node of the device's memory.")
    host_numa_id = _Attribute(int, "NUMA node of the host that is nearest to the device.")

    # -- memory of the device ---------------------------------------------------------------------------------------

    memory_clock_rate = _Attribute(int, "highest clock rate of the memory, in kHz.")
    global_memory_bus_width = _Attribute(int, "width of the memory's bus, in bits.")
    l2_cache_size = _Attribute(int, "size of the second-level cache.")
    max_persisting_l2_cache_size = _Attribute(int, "how much of the second-level cache can be set aside.")
    max_access_policy_window_size = _Attribute(int, "largest window of an access policy.")
    global_l1_cache_supported = _Attribute(bool, "whether global memory is cached in the first level.")
    local_l1_cache_supported = _Attribute(bool, "whether local memory is cached in the first level.")
    ecc_enabled = _Attribute(bool, "whether the memory corrects errors.")
    unified_addressing = _Attribute(bool, "whether devices and host share one address space.")
    max_pitch = _Attribute(int, "largest pitch that copies between rows may have.")
    generic_compression_supported = _Attribute(bool, "whether memory can be compressed.")
    mem_decompress_algorithm_mask = _Attribute(
        int, "compressed formats that the device unpacks by itself, a mask of ``CUmemDecompressAlgorithm``."
    )
    mem_decompress_maximum_length = _Attribute(int, "most bytes that one decompression can take.")
    mem_sync_domain_count = _Attribute(int, "domains of memory synchronisation.")
    async_engine_count = _Attribute(int, "engines that copy while kernels run.")
    gpu_overlap = _Attribute(bool, "whether a copy and a kernel can run at once.")

    # -- virtual memory, pools, sharing -----------------------------------------------------------------------------

    virtual_memory_management_supported = _Attribute(bool, "whether addresses and memory can be had apart.")
    host_virtual_memory_management_supported = _Attribute(
        bool, "whether memory of the host can be mapped at reserved addresses."
    )
    host_numa_virtual_memory_management_supported = _Attribute(
        bool, "whether memory of a NUMA node of the host can be mapped at reserved addresses."
    )
    memory_pools_supported = _Attribute(bool, "whether memory can be allocated in the order of a stream.")
    host_memory_pools_supported = _Attribute(bool, "whether pools can lie in memory of the host.")
    host_numa_memory_pools_supported = _Attribute(bool, "whether pools can lie on a NUMA node of the host.")
    host_numa_multinode_ipc_supported = _Attribute(
        bool, "whether memory of a NUMA node of the host can be shared with other machines."
    )
    mempool_supported_handle_types = _Attribute(
        int, "how pools can be shared, a mask of ``CUmemAllocationHandleType``."
    )
    handle_type_posix_file_descriptor_supported = _Attribute(
        bool, "whether memory can be shared by a file descriptor."
    )
    handle_type_win32_handle_supported = _Attribute(bool, "whether memory can be shared by an NT handle.")
    handle_type_win32_kmt_handle_supported = _Attribute(bool, "whether memory can be shared by a KMT handle.")
    handle_type_fabric_supported = _Attribute(bool, "whether memory can be shared by a fabric handle.")
    ipc_event_supported = _Attribute(bool, "whether events can be shared between processes.")
    multicast_supported = _Attribute(bool, "whether one address can stand for memory of several devices.")
    dma_buf_supported = _Attribute(bool, "whether memory can be exported as a ``dma_buf``.")
    host_alloc_dma_buf_supported = _Attribute(
        bool, "whether pinned memory of the host can be exported as a ``dma_buf``."
    )
    gpu_direct_rdma_supported = _Attribute(bool, "whether other devices on the bus can reach the memory.")
    gpu_direct_rdma_with_cuda_vmm_supported = _Attribute(
        bool, "whether other devices on the bus can reach virtual memory."
    )
    gpu_direct_rdma_flush_writes_options = _Attribute(
        int, "ways to flush writes of other devices, a mask of ``CUflushGPUDirectRDMAWritesOptions``."
    )
    gpu_direct_rdma_writes_ordering = _Attribute(
        int, "up to where writes of other devices are in order, as ``CUGPUDirectRDMAWritesOrdering``."
    )
    can_flush_remote_writes = _Attribute(bool, "whether writes of other devices can be flushed by a stream.")

    # -- memory of the host -----------------------------------------------------------------------------------------

    can_map_host_memory = _Attribute(bool, "whether memory of the host can be mapped for the device.")
    host_register_supported = _Attribute(bool, "whether memory that exists already can be pinned.")
    read_only_host_register_supported = _Attribute(bool, "whether it can be pinned for reading only.")
    can_use_host_pointer_for_registered_mem = _Attribute(
        bool, "whether pinned memory has the same address for the device."
    )
    managed_memory = _Attribute(bool, "whether managed memory is there.")
    concurrent_managed_access = _Attribute(bool, "whether host and device can use managed memory at once.")
    direct_managed_mem_access_from_host = _Attribute(
        bool, "whether the host reaches managed memory on the device without moving it."
    )
    pageable_memory_access = _Attribute(bool, "whether the device reaches memory that is not pinned.")
    pageable_memory_access_uses_host_page_tables = _Attribute(
        bool, "whether it does so through the page tables of the host."
    )
    host_native_atomic_supported = _Attribute(
        bool, "whether atomic operations between host and device are native."
    )
    only_partial_host_native_atomic_supported = _Attribute(
        bool, "whether some of the native atomic operations between host and device are missing."
    )
    can_use_64_bit_stream_mem_ops = _Attribute(bool, "whether streams wait for and write values of 64 bits.")
    can_use_stream_wait_value_nor = _Attribute(bool, "whether streams wait with a NOR of a value.")

    # -- textures, surfaces, interoperation -------------------------------------------------------------------------

    texture_alignment = _Attribute(int, "alignment of a texture's memory.")
    texture_pitch_alignment = _Attribute(int, "alignment of the pitch of a texture's rows.")
    surface_alignment = _Attribute(int, "alignment of a surface's memory.")
    tensor_map_access_supported = _Attribute(bool, "whether kernels can copy by tensor maps.")
    sparse_cuda_array_supported = _Attribute(bool, "whether arrays can be mapped in parts.")
    deferred_mapping_cuda_array_supported = _Attribute(bool, "whether arrays can be mapped later.")
    timeline_semaphore_interop_supported = _Attribute(bool, "whether timeline semaphores can be imported.")
    d3d12_cig_supported = _Attribute(bool, "whether work can be shared with Direct3D 12.")
    vulkan_cig_supported = _Attribute(bool, "whether work can be shared with Vulkan.")
    maximum_texture1d_width = _Attribute(int, "largest width of a 1D texture.")
    maximum_texture1d_linear_width = _Attribute(int, "largest width of a 1D texture in linear memory.")
    maximum_texture1d_mipmapped_width = _Attribute(int, "largest width of a mipmapped 1D texture.")
    maximum_texture1d_layered_width = _Attribute(int, "largest width of a layered 1D texture.")
    maximum_texture1d_layered_layers = _Attribute(int, "most layers of a layered 1D texture.")
    maximum_texture2d_width = _Attribute(int, "largest width of a 2D texture.")
    maximum_texture2d_height = _Attribute(int, "largest height of a 2D texture.")
    maximum_texture2d_linear_width = _Attribute(int, "largest width of a 2D texture in linear memory.")
    maximum_texture2d_linear_height = _Attribute(int, "largest height of a 2D texture in linear memory.")
    maximum_texture2d_linear_pitch = _Attribute(
        int, "largest pitch of a 2D texture in linear memory, in bytes."
    )
    maximum_texture2d_mipmapped_width = _Attribute(int, "largest width of a mipmapped 2D texture.")
    maximum_texture2d_mipmapped_height = _Attribute(int, "largest height of a mipmapped 2D texture.")
    maximum_texture2d_layered_width = _Attribute(int, "largest width of a layered 2D texture.")
    maximum_texture2d_layered_height = _Attribute(int, "largest height of a layered 2D texture.")
    maximum_texture2d_layered_layers = _Attribute(int, "most layers of a layered 2D texture.")
    can_tex2d_gather = _Attribute(bool, "whether 2D textures can be gathered from.")
    maximum_texture2d_gather_width = _Attribute(int, "largest width of a 2D texture that is gathered from.")
    maximum_texture2d_gather_height = _Attribute(int, "largest height of a 2D texture that is gathered from.")
    maximum_texture3d_width = _Attribute(int, "largest width of a 3D texture.")
    maximum_texture3d_height = _Attribute(int, "largest height of a 3D texture.")
    maximum_texture3d_depth = _Attribute(int, "largest depth of a 3D texture.")
    maximum_texture3d_width_alternate = _Attribute(int, "largest width of a 3D texture of the other shape.")
    maximum_texture3d_height_alternate = _Attribute(int, "largest height of a 3D texture of the other shape.")
    maximum_texture3d_depth_alternate = _Attribute(int, "largest depth of a 3D texture of the other shape.")
    maximum_texturecubemap_width = _Attribute(int, "largest width of a cube map.")
    maximum_texturecubemap_layered_width = _Attribute(int, "largest width of a layered cube map.")
    maximum_texturecubemap_layered_layers = _Attribute(int, "most layers of a layered cube map.")
    maximum_surface1d_width = _Attribute(int, "largest width of a 1D surface.")
    maximum_surface1d_layered_width = _Attribute(int, "largest width of a layered 1D surface.")
    maximum_surface1d_layered_layers = _Attribute(int, "most layers of a layered 1D surface.")
    maximum_surface2d_width = _Attribute(int, "largest width of a 2D surface.")
    maximum_surface2d_height = _Attribute(int, "largest height of a 2D surface.")
    maximum_surface2d_layered_width = _Attribute(int, "largest width of a layered 2D surface.")
    maximum_surface2d_layered_height = _Attribute(int, "largest height of a layered 2D surface.")
    maximum_surface2d_layered_layers = _Attribute(int, "most layers of a layered 2D surface.")
    maximum_surface3d_width = _Attribute(int, "largest width of a 3D surface.")
    maximum_surface3d_height = _Attribute(int, "largest height of a 3D surface.")
    maximum_surface3d_depth = _Attribute(int, "largest depth of a 3D surface.")
    maximum_surfacecubemap_width = _Attribute(int, "largest width of a cube map surface.")
    maximum_surfacecubemap_layered_width = _Attribute(int, "largest width of a layered cube map surface.")
    maximum_surfacecubemap_layered_layers = _Attribute(int, "most layers of a layered cube map surface.")
