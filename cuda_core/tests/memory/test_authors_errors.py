# SPDX-License-Identifier: Apache-2.0
"""What an author's error says of the memory: whatever it is, the release that has asked comes to its end."""

import gc

import pytest

from cuda.core import Buffer, CUDAError, LegacyPinnedMemoryResource, MemoryResource, Ownership
from support import child_output, warnings_seen

pytestmark = pytest.mark.usefixtures("device")


class Busy(MemoryResource):
    """Raises what it was told to, until it frees."""

    is_device_accessible, is_host_accessible, device_id = True, True, -1

    def __init__(self, error):
        self.inner, self.error = LegacyPinnedMemoryResource(), error

    def allocate(self, size, *, stream=None):
        self.buffer = self.inner.allocate(size)
        return Buffer.from_handle(self.buffer.handle, size, mr=self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        if self.error is not None:
            raise self.error
        self.buffer.close(stream)


class Named(CUDAError):
    def __init__(self, result):
        super().__init__("busy")
        self.result = result


class Unreadable(CUDAError):
    def __init__(self):
        super().__init__("busy")

    @property
    def result(self):
        raise ValueError("no result")


class Sealed(Named):
    """Which nobody can mark once it is made."""

    def __setattr__(self, name, value):
        if name.startswith("lost"):
            raise AttributeError(name)
        super().__setattr__(name, value)


class Closed(RuntimeError):
    def __getattr__(self, name):
        raise ValueError(name)


class Silent(RuntimeError):
    def __str__(self):
        raise ValueError("no text")


ERRORS = {
    "a result that is a text": lambda: Named("CUDA_ERROR_NOT_READY"),
    "a result that is too large": lambda: Named(1 << 70),
    "a result that cannot be read": Unreadable,
    "no attribute can be read": Closed,
    "a context that is gone": lambda: Named(709),
    "the same, and no mark can be made": lambda: Sealed(709),
    "no text": Silent,
}


@pytest.mark.parametrize("kind", ERRORS)
def test_a_close_raises_the_very_error_and_can_be_made_again(kind):
    error = ERRORS[kind]()
    resource = Busy(error)
    buffer = resource.allocate(64)
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            buffer.close()
        assert raised.value is error
        assert buffer.ownership is Ownership.OWNED
    resource.error = None
    assert buffer.close().name == "DONE"


@pytest.mark.parametrize("ending", ["drop", "last loan"])
@pytest.mark.parametrize("kind", ERRORS)
def test_nobody_who_can_be_told_is_warned_once(kind, ending):
    resource = Busy(ERRORS[kind]())
    buffer = resource.allocate(64)
    part = buffer[:8] if ending == "last loan" else None
    if part is not None:
        buffer.close()
    with warnings_seen() as seen:
        if part is not None:
            part.close()
        del buffer, part
        gc.collect()
    assert ["It stays allocated" in str(warning.message) for warning in seen] == [True]
    resource.buffer.close()


def test_a_note_is_made_of_an_error_without_a_text():
    resource = Busy(Silent())
    with pytest.raises(KeyError) as raised, resource.allocate(64) as buffer:
        raise KeyError("the program's own")
    if hasattr(raised.value, "__notes__"):  # since Python 3.11
        assert "raises ValueError" in raised.value.__notes__[0]
    resource.error = None
    assert buffer.close().name == "DONE"


COMPANION = """
from cuda.bindings import driver
from cuda.core import CUDAError, Device, DeviceMemoryResource, DeviceMemoryResourceOptions, LegacyPinnedMemoryResource
from cuda.core import memory_report
import cuda_driver_sim as sim
from support import check
other, device = Device(1), Device(0)
other.set_current()
device.set_current()
plain = LegacyPinnedMemoryResource()
class WithCompanion(DeviceMemoryResource):
    pages = {}
    def allocate(self, size, *, stream=None):
        buffer = super().allocate(size, stream=stream)
        other.set_current()
        self.pages[buffer.handle] = plain.allocate(4096)
        device.set_current()
        return buffer
    def deallocate(self, ptr, size, *, stream=None):
        if ptr in self.pages:
            self.pages[ptr].close()
            del self.pages[ptr]
        super().deallocate(ptr, size, stream=stream)
resource = WithCompanion(device, DeviceMemoryResourceOptions())
buffer = resource.allocate(64, stream=device.create_stream())
check(driver.cuDevicePrimaryCtxReset(1))
try:
    buffer.close()
except CUDAError as error:
    print(str(error).split(":")[0])
print(buffer.ownership.name, buffer.close().name, str(memory_report()).splitlines()[0])
print({name for name in sim.live() if name.startswith("pool")})
"""


@pytest.mark.sim_only
def test_the_loss_of_something_else_is_none_of_the_memory():
    assert child_output(COMPANION).splitlines() == [
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "OWNED DONE nothing is live",
        "set()",
    ]


UNRETURNED = """
import gc, sys, warnings
from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions
import cuda_driver_sim as sim
warnings.simplefilter("ignore")
device = Device(0)
device.set_current()
class Refusing(DeviceMemoryResource):
    def deallocate(self, ptr, size, *, stream=None):
        raise RuntimeError("not now")
own = Refusing if sys.argv[1] == "refused" else DeviceMemoryResource
resource = own(device, DeviceMemoryResourceOptions())
buffer = resource.allocate(64, stream=device.create_stream())
part = buffer[:]
buffer.close()
fault = "CUDA_ERROR_ILLEGAL_ADDRESS"
with sim.fail("cuMemFreeAsync", result=fault), sim.fail("cuMemFree", result=fault):
    part.close()
del part, buffer
gc.collect()
resource.close()
print(sim.live().get("memory_pool"), sim.live().get("pool_destroyed_in_use"))
"""


@pytest.mark.sim_only
@pytest.mark.parametrize("how", ["refused", "lost"])
def test_a_pool_stays_with_memory_that_its_last_loan_could_not_return(how):
    """A real driver may crash where a pool is destroyed that has memory."""
    assert child_output(UNRETURNED, how).splitlines()[-1] == "1 None"
