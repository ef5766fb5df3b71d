# SPDX-License-Identifier: Apache-2.0
# Made from _device.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""``Device``: the top of the package, from which contexts, streams and events are made."""

from cuda.core._context import Context
from cuda.core._device_properties import DeviceProperties
from cuda.core._event import Event
from cuda.core._event import EventOptions
from cuda.core._memory import Buffer
from cuda.core._memory._memory_resource import MemoryResource
from cuda.core._stream import Stream
from cuda.core._stream import StreamOptions
from cuda.core._utils.cuda_utils import ComputeCapability
from cuda.core._utils.cuda_utils import ComputeCapability as ComputeCapability
from cuda.core.graph._graph_builder import GraphBuilder
from cuda.core.typing import IsStreamType
from typing import Any

__all__ = ["ComputeCapability", "Device"]

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

    def __new__(cls, device_id: Device | int | None = None) -> Device:
        ...

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

    @property
    def device_id(self) -> int:
        """int: ordinal of the device."""

    @property
    def properties(self) -> DeviceProperties:
        """DeviceProperties: what the device is and can do."""

    @property
    def name(self) -> str:
        """str: the device's name, such as ``"NVIDIA H200"``."""

    @property
    def uuid(self) -> str:
        """str: the device's unique name, in the form 8-4-4-4-12."""

    @property
    def pci_bus_id(self) -> str:
        """str: the device's place on the bus, as ``domain:bus:device.function`` in hexadecimal digits."""

    @property
    def compute_capability(self) -> ComputeCapability:
        """ComputeCapability: version of the device's instruction set."""

    @property
    def arch(self) -> str:
        """str: the compute capability as compilers write it, such as ``"90"``."""

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

    @property
    def context(self) -> Context:
        """Context: the context of this device that is current on the calling thread."""

    @property
    def default_stream(self) -> Stream:
        """Stream: the default stream, which stands for "no stream"."""

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

    def create_stream(self, obj: IsStreamType | None = None, options: StreamOptions | dict[str, Any] | None = None) -> Stream:
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

    @memory_resource.setter
    def memory_resource(self, resource: MemoryResource) -> None:
        ...

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

    def __int__(self) -> int:
        ...

    def __repr__(self) -> str:
        ...

    def __hash__(self) -> int:
        ...

    def __eq__(self, other: object) -> bool:
        ...

    def __reduce__(self) -> tuple[object, ...]:
        ...
