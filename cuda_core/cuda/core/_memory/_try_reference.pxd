# SPDX-License-Identifier: Apache-2.0
# A way to an object by a pointer that is not counted, where another thread may be ending the object.
from cpython.ref cimport PyObject

cdef extern from *:
    """
    #ifndef CUDA_CORE_TRY_REFERENCE
    #define CUDA_CORE_TRY_REFERENCE
    #if !defined(Py_GIL_DISABLED)
      #define cuda_core_allow_try(object) ((void)(object))
      static inline int cuda_core_try(PyObject *object) {
          if (Py_REFCNT(object) == 0) return 0;
          Py_INCREF(object);
          return 1;
      }
    #else
      #if PY_VERSION_HEX >= 0x030E0000
        #define cuda_core_allow_try PyUnstable_EnableTryIncRef
        #define cuda_core_try_any PyUnstable_TryIncRef
      #else
        /* What these calls of 3.14 do, for 3.13: an object says beforehand that other threads may try. */
        static inline void cuda_core_allow_try(PyObject *object) {
            Py_ssize_t shared = _Py_atomic_load_ssize_relaxed(&object->ob_ref_shared);
            while (!(shared & _Py_REF_SHARED_FLAG_MASK) &&
                   !_Py_atomic_compare_exchange_ssize(&object->ob_ref_shared, &shared, shared | 1)) {
            }
        }
        static inline int cuda_core_try_any(PyObject *object) {
            Py_ssize_t shared;
            if (_Py_IsOwnedByCurrentThread(object)) {
                uint32_t local = _Py_atomic_load_uint32_relaxed(&object->ob_ref_local);
                if (local + 1 != 0) _Py_atomic_store_uint32_relaxed(&object->ob_ref_local, local + 1);
                return 1;
            }
            shared = _Py_atomic_load_ssize_relaxed(&object->ob_ref_shared);
            do {
                if (shared == 0 || shared == 3) return 0;  /* not allowed, or merged and without references */
            } while (!_Py_atomic_compare_exchange_ssize(&object->ob_ref_shared, &shared,
                                                        shared + (1 << _Py_REF_SHARED_SHIFT)));
            return 1;
        }
      #endif
      /* The sum of both counts is 0 where this very thread is ending it. */
      static inline int cuda_core_try(PyObject *object) {
          return Py_REFCNT(object) != 0 && cuda_core_try_any(object);
      }
    #endif
    #endif
    """
    # Said once of an object whose pointer is kept somewhere without a count.
    void allow_try "cuda_core_allow_try"(PyObject*) noexcept
    # Takes a reference, unless the object is going. The memory must not go meanwhile: whoever ends the object has to
    # take the pointer away first, under a lock that the caller holds.
    bint try_reference "cuda_core_try"(PyObject*) noexcept nogil

cdef extern from "Python.h":
    void drop_reference "Py_DECREF"(PyObject*) noexcept
