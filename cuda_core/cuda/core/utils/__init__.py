# SPDX-License-Identifier: Apache-2.0
"""Views of arrays of any library; operations on many buffers at once, and the options of copies."""

from typing import TYPE_CHECKING

from cuda.core._memory._copy_batch import copy_batch
from cuda.core._memory._copy_options import CopyOptions, MemcpyOverlapMode, MemcpySrcAccessOrder
from cuda.core._memory._managed_operations import discard_batch, discard_prefetch_batch, prefetch_batch
from cuda.core._memoryview import StridedMemoryView
from cuda.core._viewable_arguments import args_viewable_as_strided_memory

__all__ = [
    "CopyOptions",
    "MemcpyOverlapMode",
    "MemcpySrcAccessOrder",
    "StridedMemoryView",
    "args_viewable_as_strided_memory",
    "copy_batch",
    "discard_batch",
    "discard_prefetch_batch",
    "prefetch_batch",
]

# Public names of cuda-core 1.2.2 that this build does not have.
_ABSENT = frozenset(
    {
        "FileStreamProgramCache",
        "InMemoryProgramCache",
        "ProgramCacheResource",
        "make_program_cache_key",
    }
)

if not TYPE_CHECKING:  # a checker would believe that every name is there

    def __getattr__(name: str) -> object:
        if name in _ABSENT:
            raise AttributeError(f"cuda.core.utils.{name} is not in this build")
        raise AttributeError(f"module 'cuda.core.utils' has no attribute {name!r}")
