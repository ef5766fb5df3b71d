# SPDX-License-Identifier: Apache-2.0
"""Device memory that PyTorch allocates. Needs a GPU and PyTorch.

python examples/resources/torch_memory.py
"""

import operator

import torch

from cuda.core import Buffer, Device, MemoryResource


class TorchMemoryResource(MemoryResource):
    """Buffers over tensors of bytes, so that both share the memory that PyTorch's allocator keeps."""

    is_device_accessible = True
    is_host_accessible = False

    def __init__(self, device_id=0):
        self._device_id = device_id
        self.tensors = {}

    @property
    def device_id(self):
        return self._device_id

    def _torch_stream(self, stream):
        """Return PyTorch's object for a stream. Its name for the legacy default stream is another one."""
        handle = 0 if stream is None else int(stream.handle)
        if handle <= 1:
            return torch.cuda.default_stream(self._device_id)
        if handle == 2:
            raise ValueError("PyTorch knows no per-thread default stream")
        return torch.cuda.ExternalStream(handle, self._device_id)

    def allocate(self, size, *, stream=None):
        with torch.cuda.stream(self._torch_stream(stream)):
            tensor = torch.empty(operator.index(size), dtype=torch.uint8, device=f"cuda:{self._device_id}")
        address = tensor.data_ptr() if tensor.numel() else 0
        if address:
            self.tensors[address] = tensor
        try:
            return Buffer.from_handle(address, tensor.numel(), mr=self, stream=stream)
        except BaseException:
            self.tensors.pop(address, None)
            raise

    def deallocate(self, ptr, size, *, stream=None):
        if not size:
            return
        tensor = self.tensors.pop(ptr)  # first: when PyTorch has it back, another thread may get the address
        try:
            tensor.record_stream(
                self._torch_stream(stream)
            )  # given out again when this stream has come so far
        except BaseException:
            self.tensors[ptr] = tensor
            raise


def main():
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    resource = TorchMemoryResource()
    with resource.allocate(1 << 20, stream=stream) as buffer:
        buffer.fill(7, stream=stream)
        tensor = torch.from_dlpack(buffer)
        print(f"{buffer.size} bytes of PyTorch's, their sum is {int(tensor.sum(dtype=torch.int64))}")
        del tensor  # it is a loan on the buffer
    print(f"tensors in use: {len(resource.tensors)}")
    stream.close()


if __name__ == "__main__":
    main()
