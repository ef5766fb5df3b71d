# SPDX-License-Identifier: Apache-2.0
# Dictionaries and lists that other threads change meanwhile.

# Cython's own ``get`` of a ``dict`` takes its reference after the lookup, and without a GIL what was found may be gone
# by then.
cdef extern from *:
    """
    #ifndef CUDA_CORE_DICT_ITEM
    #define CUDA_CORE_DICT_ITEM
    static inline PyObject *cuda_core_dict_item(PyObject *dict, PyObject *key) {
        PyObject *found = NULL;
    #if PY_VERSION_HEX >= 0x030D0000
        if (PyDict_GetItemRef(dict, key, &found) < 0) return NULL;
    #else
        found = PyDict_GetItemWithError(dict, key);
        if (found == NULL && PyErr_Occurred()) return NULL;
        Py_XINCREF(found);
    #endif
        if (found == NULL) {
            found = Py_None;
            Py_INCREF(found);
        }
        return found;
    }
    #endif
    """
    # What is there under a key, or None.
    object dict_item "cuda_core_dict_item"(dict known, object key)


cdef inline list take_all(list kept):
    """Empty a list, and return what was in it. Of several threads at it each thing goes to one. Needs memory."""
    cdef list taken = []
    while kept:
        try:
            taken.append(kept.pop(0))
        except IndexError:  # another thread has come first
            break
    return taken
