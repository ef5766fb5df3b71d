# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._virtual_parts cimport Failure
from cuda.core._memory._virtual_range cimport VirtualRange

# Taking the chunks away: hold, unmap, commit. Until the commit, restore makes everything what it was.
cdef bint hold_chunks(VirtualRange range_, Failure* failure) noexcept nogil
cdef bint unmap_chunks(VirtualRange range_, Failure* failure) noexcept nogil
cdef bint commit_absence(VirtualRange range_, Failure* failure) noexcept nogil
cdef bint restore_chunks(VirtualRange range_, Failure* failure) noexcept nogil
# Bringing chunks back: until the end, take_out_again makes the range absent once more.
cdef bint bring_back(VirtualRange range_, Failure* failure) noexcept nogil
cdef void take_out_again(VirtualRange range_) noexcept nogil
cdef void end_absence(VirtualRange range_) noexcept nogil
# Rights that a copy needs for its time, and the recorded ones again.
cdef bint open_to_device(VirtualRange range_, int ordinal, int flags, Failure* failure) noexcept nogil
cdef bint set_rights(VirtualRange range_, Failure* failure) noexcept nogil
