# SPDX-License-Identifier: Apache-2.0
"""``Device``: the top of the package, from which contexts, streams and events are made."""

import operator
import threading

from cuda.bindings cimport cydriver

from cuda.core._context cimport current_context, device_count, device_of_context, primary_context, wrap_context
from cuda.core._driver cimport check, driver_is_the_parents, ensure_driver
from cuda.core._event cimport create_event
from cuda.core._stream cimport create_stream, default_stream

from cuda.core import _event, _stream
from cuda.core._context import Context
from cuda.core._error_text import shown
from cuda.core._errors import CUDAError
from cuda.core._memory import _location, _peer_access, _virtual_memory_base
from cuda.core._memory._device_memory_resource import DeviceMemoryResource
from cuda.core._memory._memory_resource import MemoryResource
from cuda.core._memory._synchronous import _SynchronousMemoryResource
from cuda.core._utils.cuda_utils import ComputeCapability

__all__ = ["ComputeCapability", "Device"]

_tls = threading.local()


# What a device of cuda-core 1.2.2 has beside this: other modules' things.
_ABSENT = frozenset(
    {
        "create_context",
        "create_mipmapped_array",
        "create_opaque_array",
        "create_surface_object",
        "create_texture_object",
        "resources",
        "to_system_device",
    }
)


class Device:
    """A CUDA device. ``Device(i)`` gives the same object each time, on each thread its own.

    Parameters
    ----------
    device_id : int or Device, optional
        Ordinal of the device. By default the device of the current context, or device 0 where none is current.

    Raises
    ------
    RuntimeError
        If there is no driver. The text names the simulated driver as a way out.
    TypeError, ValueError
        If ``device_id`` is no integer, negative, or names a device that is not there.

    Notes
    -----
    An object may be used from the thread that made it. A subclass gives the same ``Device``.

    Examples
    --------
    >>> device = Device(0)
    >>> device.set_current()
    >>> stream = device.create_stream()
    """

    __slots__ = ("__weakref__", "_device_id", "_memory_resource", "_properties")

    def __new__(cls, device_id: Device | int | None = None) -> Device:
        cdef cydriver.CUcontext context
        if isinstance(device_id, Device):
            return device_id
        count = device_count()
        if device_id is None:
            context = current_context()
            device_id = device_of_context(context) if context != NULL else 0
        else:
            try:
                ordinal = operator.index(device_id)
            except TypeError:
                raise TypeError(
                    f"device_id must be an integer or a Device, got {type(device_id).__name__}: {shown(device_id)}"
                ) from None
            if ordinal < 0:
                raise ValueError(f"device_id must be >= 0, got {shown(ordinal)}")
            device_id = ordinal
        if device_id >= count:
            raise ValueError(f"device_id must be within [0, {count}), got {shown(device_id)}")
        devices = _tls.__dict__.setdefault("devices", {})
        known = devices.get(device_id)
        if known is None:
            known = devices[device_id] = object.__new__(Device)
            known._device_id = device_id
            known._memory_resource = None
            known._properties = None
        return known

    @classmethod
    def get_all_devices(cls) -> tuple[Device, ...]:
        """Return all devices, in the order of their ordinals.

        Raises
        ------
        RuntimeError
            If there is no driver.

        Examples
        --------
        >>> [device.device_id for device in Device.get_all_devices()][:1]
        [0]
        """
        return tuple(cls(ordinal) for ordinal in range(device_count()))

    @property
    def device_id(self) -> int:
        """int: ordinal of the device."""
        return self._device_id

    @property
    def properties(self) -> DeviceProperties:
        """DeviceProperties: what the device is and can do."""
        if self._properties is None:
            from cuda.core._device_properties import DeviceProperties

            self._properties = DeviceProperties._init(self._device_id)
        return self._properties

    @property
    def name(self) -> str:
        """str: the device's name, such as ``"NVIDIA H200"``."""
        cdef char text[256]
        cdef int ordinal = self._device_id
        cdef cydriver.CUresult result
        ensure_driver()
        with nogil:
            result = cydriver.cuDeviceGetName(text, sizeof(text), ordinal)
        check(result, b"cuDeviceGetName")
        return (<const char*>text).decode()

    @property
    def uuid(self) -> str:
        """str: the device's unique name, in the form 8-4-4-4-12."""
        cdef cydriver.CUuuid identity
        cdef int ordinal = self._device_id
        cdef cydriver.CUresult result
        ensure_driver()
        with nogil:
            result = cydriver.cuDeviceGetUuid(&identity, ordinal)
        check(result, b"cuDeviceGetUuid")
        text = (<const char*>&identity.bytes[0])[:16].hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    @property
    def pci_bus_id(self) -> str:
        """str: the device's place on the bus, as ``domain:bus:device.function`` in hexadecimal digits."""
        cdef char text[64]
        cdef int ordinal = self._device_id
        cdef cydriver.CUresult result
        ensure_driver()
        with nogil:
            result = cydriver.cuDeviceGetPCIBusId(text, sizeof(text), ordinal)
        check(result, b"cuDeviceGetPCIBusId")
        return (<const char*>text).decode()

    @property
    def compute_capability(self) -> ComputeCapability:
        """ComputeCapability: version of the device's instruction set."""
        return ComputeCapability(
            self.properties.compute_capability_major, self.properties.compute_capability_minor
        )

    @property
    def arch(self) -> str:
        """str: the compute capability as compilers write it, such as ``"90"``."""
        return f"{self.compute_capability.major}{self.compute_capability.minor}"

    def can_access_peer(self, peer: Device | int) -> bool:
        """Return whether this device can use memory of another. It can use its own.

        Parameters
        ----------
        peer : Device or int
            The other device.

        Returns
        -------
        bool

        Raises
        ------
        TypeError, ValueError
            If ``peer`` is no device, or not there.

        Examples
        --------
        >>> peers = [peer for peer in Device.get_all_devices() if device.can_access_peer(peer)]
        """
        cdef int able = 0
        cdef int ordinal = self._device_id
        cdef int other = Device(peer).device_id
        cdef cydriver.CUresult result
        if other == ordinal:
            return True
        ensure_driver()
        with nogil:
            result = cydriver.cuDeviceCanAccessPeer(&able, ordinal, other)
        check(result, b"cuDeviceCanAccessPeer")
        return bool(able)

    # -- the current context ---------------------------------------------------------------------------------------

    def set_current(self, ctx: Context | None = None) -> Context | None:
        """Make a context of this device current on the calling thread.

        Parameters
        ----------
        ctx : Context, optional
            The context; by default the device's primary one, which lives as long as the process. One that other code
            has reset begins anew.

        Returns
        -------
        Context or None
            With ``ctx``, the context that was current before. None otherwise.

        Raises
        ------
        TypeError
            If ``ctx`` is no Context.
        ValueError, RuntimeError
            If ``ctx`` is a context of another device, or closed.
        CUDAError
            If the driver refuses.

        Examples
        --------
        >>> device.set_current()
        >>> previous = device.set_current(device.context)
        """
        cdef cydriver.CUcontext context
        cdef cydriver.CUcontext before = NULL
        cdef cydriver.CUresult result
        if ctx is None:
            context = primary_context(self._device_id)
        else:
            if not isinstance(ctx, Context):
                raise TypeError(f"ctx must be a Context or None, got {type(ctx).__name__}: {shown(ctx)}")
            if ctx.is_closed:
                raise ValueError("ctx has been closed")
            if ctx.device_id != self._device_id:
                raise RuntimeError(f"ctx belongs to device {ctx.device_id}, not to device {self._device_id}")
            before = current_context()
            context = <cydriver.CUcontext><size_t>int(ctx.handle)
        with nogil:
            result = cydriver.cuCtxSetCurrent(context)
        check(result, b"cuCtxSetCurrent")
        if ctx is None or before == NULL:
            return None
        return wrap_context(before, device_of_context(before))

    def _check_context_initialized(self):
        _context_of(self)

    @property
    def context(self) -> Context:
        """Context: the context of this device that is current on the calling thread."""
        return wrap_context(_context_of(self), self._device_id)

    @property
    def default_stream(self) -> Stream:
        """Stream: the default stream, which stands for "no stream"."""
        return default_stream()

    def sync(self) -> None:
        """Wait, without the GIL, until all work in the device's current context has run.

        Raises
        ------
        CUDAError
            If the driver refuses: work has failed, or a stream of the context is being captured, which the call breaks.

        Examples
        --------
        >>> buffer.fill(0, stream=stream)
        >>> device.sync()
        """
        cdef cydriver.CUresult result
        _context_of(self)
        with nogil:
            result = cydriver.cuCtxSynchronize()
        check(result, b"cuCtxSynchronize")

    # -- what is made on a device ----------------------------------------------------------------------------------

    def create_stream(
        self, obj: IsStreamType | None = None, options: StreamOptions | dict[str, Any] | None = None
    ) -> Stream:
        """Create a stream in the device's current context, or wrap one of another library.

        Parameters
        ----------
        obj : object with ``__cuda_stream__``, optional
            The foreign stream to wrap. It is kept alive and never destroyed.
        options : StreamOptions or dict, optional
            How to create a new stream.

        Returns
        -------
        Stream

        Raises
        ------
        TypeError, ValueError
            If ``obj`` is no stream, an option is wrong, or both are given.
        RuntimeError
            If no context of the device is current.
        CUDAError
            If the driver refuses.

        Examples
        --------
        >>> urgent = device.create_stream(options={"priority": -1})
        >>> urgent.close()
        """
        cdef cydriver.CUcontext context = _context_of(self)
        if obj is not None:
            if options is not None:
                raise ValueError("obj and options cannot be given together: a wrapped stream is what it is")
            return _stream.Stream_accept(obj, True)
        return create_stream(context, self._device_id, options)

    def create_event(self, options: EventOptions | dict[str, Any] | None = None) -> Event:
        """Create an event in the device's current context.

        Parameters
        ----------
        options : EventOptions or dict, optional
            How to create it. An event for other processes is made by :meth:`Stream.record`.

        Returns
        -------
        Event

        Raises
        ------
        TypeError
            If the options are wrong, or ask for an event for other processes.

        Examples
        --------
        >>> event = device.create_event({"timing_enabled": True})
        >>> event.close()
        """
        cdef cydriver.CUcontext context = _context_of(self)
        return create_event(context, self._device_id, options, False)

    def create_graph_builder(self) -> GraphBuilder:
        """Make a graph builder with a stream of its own, which goes with the builder.

        Returns
        -------
        GraphBuilder

        Raises
        ------
        CUDAError
            If no context of this device is current, or the driver refuses.

        Examples
        --------
        >>> builder = device.create_graph_builder()
        >>> builder.close()
        """
        return _stream.graph_builder_factory(self.create_stream(), True)

    @property
    def memory_resource(self) -> MemoryResource:
        """MemoryResource: what :meth:`allocate` allocates from, on the thread that this object belongs to.

        By default a :class:`DeviceMemoryResource` on the device's current pool; on a device without memory pools a
        resource that allocates plain memory. It can be set.

        Raises
        ------
        TypeError
            If it is set to something that is no memory resource. The old one stays.
        """
        if self._memory_resource is None:
            kind = DeviceMemoryResource if self.properties.memory_pools_supported else _SynchronousMemoryResource
            self._memory_resource = kind(self._device_id)
        return self._memory_resource

    @memory_resource.setter
    def memory_resource(self, resource: MemoryResource) -> None:
        if not isinstance(resource, MemoryResource):
            raise TypeError(
                f"memory_resource must be a MemoryResource, got {type(resource).__name__}: {shown(resource)}"
            )
        self._memory_resource = resource

    def allocate(self, size: int, *, stream: Stream | GraphBuilder) -> Buffer:
        """Allocate from the device's :attr:`memory_resource`.

        Parameters
        ----------
        size : int
            Bytes wanted.
        stream : Stream
            The stream that orders the allocation. It must be given; ``device.default_stream`` is the default one.

        Returns
        -------
        Buffer
            The new buffer, OWNED.

        Raises
        ------
        CUDAError
            If no context of this device is current, or the driver refuses.
        TypeError, ValueError, OverflowError
            If ``size`` is no size, or ``stream`` is None or no stream.

        Examples
        --------
        >>> with device.allocate(1024, stream=stream) as scratch:
        ...     scratch.size
        1024
        """
        _context_of(self)
        return self.memory_resource.allocate(size, stream=stream)

    def __getattr__(self, name):
        if name in _ABSENT:
            raise AttributeError(f"Device.{name} is not in this build, which has the memory layer of cuda-core")
        raise AttributeError(f"'Device' object has no attribute {name!r}")

    def __int__(self) -> int:
        return self._device_id

    def __repr__(self) -> str:
        if driver_is_the_parents():  # a forked process cannot ask for the name, and is to see which it is
            return f"<Device {self._device_id}>"
        return f"<Device {self._device_id} ({self.name})>"

    def __hash__(self) -> int:
        return hash((Device, self._device_id))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Device):
            return NotImplemented
        return self._device_id == other._device_id

    def __reduce__(self) -> tuple[object, ...]:
        return (Device, (self._device_id,))


cdef cydriver.CUcontext _context_of(object device) except? NULL:
    """Return the current context if it is one of ``device``."""
    cdef cydriver.CUcontext context = current_context()
    if context == NULL or device_of_context(context) != device._device_id:
        raise CUDAError(
            f"Device {device._device_id} is not yet initialized on this thread: no context of it is current; "
            "call .set_current() first"
        )
    return context


# The modules below make devices without importing this one.
_event.device_factory = Device
_location.device_factory = Device
_peer_access.device_factory = Device
_stream.device_factory = Device
_virtual_memory_base.device_factory = Device
