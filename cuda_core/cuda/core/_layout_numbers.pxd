# SPDX-License-Identifier: Apache-2.0
cdef object fitting(object number)
cdef object integer(object value, str name)
cdef tuple extents_of(tuple shape)
cdef int check_ndim(int ndim) except -1
cdef int positive_itemsize(object itemsize) except -1
cdef int axis_of(object axis, int ndim, str what) except -1
cdef tuple dense_strides(tuple shape, object order)
cdef list permutation(object order, int ndim, str what, str repeated)
cdef tuple ordered_strides(tuple shape, object order, str names)
