# SPDX-License-Identifier: Apache-2.0
"""Devices by number, and their contexts: the current one, the primary one, and the object that names one."""

cimport cython
from cuda.bindings cimport cydriver

from cuda.core._shared_containers cimport dict_item
from cuda.core._driver cimport check, driver_is_the_parents, ensure_driver

# Imported here and not where it is used: a finalizer at exit may read a handle when nothing can be imported.
from cuda.bindings import driver

__all__ = ["Context"]

# The primary context of each device that was asked for. It stays retained until the process ends: a release would
# destroy memory that other libraries in the process may still own.
cdef dict _primary = {}
cdef int _ordinals = 0  # the highest that was asked for, and one
cdef object _turn = object()


cdef int device_count() except -1:
    """Return the number of devices that the driver shows."""
    cdef int count = 0
    cdef cydriver.CUresult result
    ensure_driver()
    with nogil:
        result = cydriver.cuDeviceGetCount(&count)
    check(result, b"cuDeviceGetCount")
    return count


cdef int device_attribute(int ordinal, cydriver.CUdevice_attribute attribute) except? -1:
    """Return what the driver says about a device."""
    cdef int value = 0
    cdef cydriver.CUresult result
    ensure_driver()
    with nogil:
        result = cydriver.cuDeviceGetAttribute(&value, attribute, ordinal)
    check(result, b"cuDeviceGetAttribute")
    return value


cdef cydriver.CUcontext current_context() except? NULL:
    """Return the calling thread's current context, or NULL when it has none."""
    cdef cydriver.CUcontext context = NULL
    cdef cydriver.CUresult result
    ensure_driver()
    result = cydriver.cuCtxGetCurrent(&context)
    check(result, b"cuCtxGetCurrent")
    return context


cdef cydriver.CUcontext primary_context(int ordinal) except? NULL:
    """Return the primary context of a device, retained once for the life of the process; again where it was reset.

    Only its state tells: a driver makes one that was reset current as if nothing had been.
    """
    cdef cydriver.CUcontext context = NULL
    cdef cydriver.CUresult result
    cdef unsigned int flags = 0
    cdef int active = 0
    cdef object mine
    cdef bint first
    global _ordinals
    ensure_driver()
    known = dict_item(_primary, ordinal)
    if known is not None:
        with nogil:
            result = cydriver.cuDevicePrimaryCtxGetState(ordinal, &flags, &active)
        check(result, b"cuDevicePrimaryCtxGetState")
        if active:
            return <cydriver.CUcontext><size_t>known
        with cython.critical_section(_turn):
            if dict_item(_primary, ordinal) is known:
                del _primary[ordinal]
    with nogil:
        result = cydriver.cuDevicePrimaryCtxRetain(&context, ordinal)
    check(result, b"cuDevicePrimaryCtxRetain")
    mine = <size_t>context
    with cython.critical_section(_turn):
        first = _primary.setdefault(ordinal, mine) is mine
        _ordinals = max(_ordinals, ordinal + 1)
    if not first:  # another thread came first: give the second reference back
        with nogil:
            cydriver.cuDevicePrimaryCtxRelease(ordinal)
    return context


cdef int device_of_primary_context(cydriver.CUcontext context) noexcept:
    """Return the device whose primary context this is, -1 if it is none that was asked for. Makes no driver call."""
    cdef int ordinal
    for ordinal in range(_ordinals):  # no list of them: a release must not need memory
        known = dict_item(_primary, ordinal)  # nor an iteration: another thread may change what is there
        if known is not None and <size_t>known == <size_t>context:
            return ordinal
    return -1


cdef cydriver.CUresult ask_for_context(cydriver.CUcontext context, unsigned long long id) noexcept nogil:
    """Answer CONTEXT_IS_DESTROYED if a context was destroyed or reset since it had a number. 0 where that is not known.

    Making it current does not tell: the driver does that with a context that is gone, too. A primary context that was
    reset comes back at its address with another number. Another failure is the driver's, which refused to tell.
    """
    cdef unsigned long long now = 0
    cdef cydriver.CUresult result
    if context == NULL:  # not known; the driver would take the current one
        return cydriver.CUresult.CUDA_SUCCESS
    result = cydriver.cuCtxGetId(context, &now)
    if result == cydriver.CUresult.CUDA_SUCCESS and id and now != id:
        return cydriver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED
    if result == cydriver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
        return cydriver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED
    return result


cdef bint context_is_gone(cydriver.CUcontext context, unsigned long long id) noexcept nogil:
    """The same where a refusal to tell changes nothing."""
    return ask_for_context(context, id) in (
        cydriver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED,
        cydriver.CUresult.CUDA_ERROR_DEINITIALIZED,
    )


cdef cydriver.CUresult ask_for_id(cydriver.CUcontext context, unsigned long long* id) noexcept nogil:
    """Ask for the number of a context, which no other ever has; 0 where no context is known."""
    id[0] = 0
    return cydriver.cuCtxGetId(context, id) if context != NULL else cydriver.CUresult.CUDA_SUCCESS


cdef int device_of_context(cydriver.CUcontext context) except -1:
    """Return the ordinal of a context's device."""
    cdef cydriver.CUdevice device = 0
    cdef cydriver.CUresult result
    cdef cydriver.CUcontext popped = NULL
    with nogil:
        result = cydriver.cuCtxPushCurrent(context)
    check(result, b"cuCtxPushCurrent")
    with nogil:
        result = cydriver.cuCtxGetDevice(&device)
        cydriver.cuCtxPopCurrent(&popped)
    check(result, b"cuCtxGetDevice")
    return device


cdef Context wrap_context(cydriver.CUcontext context, int device_id):
    cdef Context self = Context.__new__(Context)
    self._context = context
    self._key = <size_t>context
    self.device_id = device_id
    return self


cdef class Context:
    """A CUDA context. Get one from :attr:`Device.context` or :attr:`Stream.context`.

    Attributes
    ----------
    device_id : int
        Ordinal of the context's device.

    Notes
    -----
    The object names a context and does not own it: primary contexts live as long as the process. Safe from any thread.

    Examples
    --------
    >>> device.context.device_id
    0
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("Context objects cannot be made directly; use Device.context or Stream.context")

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("Context objects cannot be copied or pickled: each names one context of this process")

    @property
    def handle(self) -> driver.CUcontext | None:
        """CUcontext or None: the context as a ``cuda.bindings.driver`` object; None when it is closed."""
        return driver.CUcontext(<size_t>self._context) if self._context != NULL else None

    @property
    def _handle(self) -> driver.CUcontext | None:
        return self.handle

    @property
    def is_closed(self) -> bool:
        """bool: whether the object no longer names a context."""
        return self._context == NULL

    @property
    def is_green(self) -> bool:
        """bool: whether this is a green context. This build makes none."""
        return False

    def create_stream(self, options: StreamOptions | dict[str, Any] | None = None) -> Stream:
        """Not for the contexts of this build; use :meth:`Device.create_stream`.

        Parameters
        ----------
        options : StreamOptions or dict, optional
            Not looked at.

        Raises
        ------
        RuntimeError
            Always: only a green context creates its streams itself.

        Examples
        --------
        >>> device.create_stream().context.is_green
        False
        """
        raise RuntimeError("Context.create_stream() is for green contexts; use Device.create_stream() for this one")

    def close(self) -> None:
        """Forget the context. It is not destroyed: the object never owned it. Closing twice is harmless.

        Raises
        ------
        RuntimeError
            If the context is current on the calling thread. The object then stays open.

        Examples
        --------
        >>> context = Device(0).context
        >>> context.close()  # doctest: +SKIP
        """
        if self._context != NULL and not driver_is_the_parents() and current_context() == self._context:
            raise RuntimeError(f"{self!r} is current on this thread; make another one current before closing it")
        self._context = NULL

    def __getattr__(self, name):
        if name == "resources":
            raise AttributeError("Context.resources is not in this build, which makes no green contexts")
        raise AttributeError(f"'Context' object has no attribute {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Context):
            return NotImplemented
        return self._key == (<Context>other)._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"<Context handle={<size_t>self._context:#x} device={self.device_id}>"
