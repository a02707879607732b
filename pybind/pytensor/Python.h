/*
 * The part of CPython's stable ABI (version 3.10 and later, 64 bits, with the GIL) that the seam
 * uses.
 *
 * It stands in for Python's own header, so that building needs no Python headers and the bytes of
 * the library do not depend on whose headers were there. Everything here is frozen by the stable
 * ABI. Functions are weak: a Go program that runs outside Python links all the same, and finds
 * their addresses to be null.
 */
#ifndef STERNWAY_PYTHON_H
#define STERNWAY_PYTHON_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__LP64__) || defined(Py_GIL_DISABLED)
#error "sternway needs a 64-bit system and a Python with the GIL"
#endif

#define PY_VERSION_HEX 0x030a0000
#define PYTHON_ABI_VERSION 3
#define Py_WEAK extern __attribute__((weak))
#define Py_UNUSED(name) _unused_##name __attribute__((unused))

/* Objects. */
typedef intptr_t Py_ssize_t;
typedef struct _object {
    Py_ssize_t ob_refcnt;
    struct _object *ob_type;
} PyObject;

Py_WEAK PyObject _Py_NoneStruct;
Py_WEAK PyObject _Py_FalseStruct;
Py_WEAK void Py_IncRef(PyObject *);
Py_WEAK void Py_DecRef(PyObject *);
Py_WEAK PyObject *PyObject_GetAttr(PyObject *, PyObject *);
Py_WEAK PyObject *PyObject_GetAttrString(PyObject *, const char *);
Py_WEAK PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
Py_WEAK Py_ssize_t PyObject_Size(PyObject *);
Py_WEAK PyObject *PyObject_Str(PyObject *);
Py_WEAK PyObject PyTuple_Type;
Py_WEAK Py_ssize_t PyTuple_Size(PyObject *);
Py_WEAK PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
Py_WEAK PyObject *PyList_New(Py_ssize_t);
Py_WEAK Py_ssize_t PyList_Size(PyObject *);
Py_WEAK PyObject *PyList_GetItem(PyObject *, Py_ssize_t);
Py_WEAK int PyList_Append(PyObject *, PyObject *);
Py_WEAK int PyList_SetItem(PyObject *, Py_ssize_t, PyObject *);
Py_WEAK PyObject *PyDict_GetItem(PyObject *, PyObject *);
Py_WEAK int PyDict_Next(PyObject *, Py_ssize_t *, PyObject **, PyObject **);
Py_WEAK PyObject PyUnicode_Type;
Py_WEAK long long PyLong_AsLongLong(PyObject *);
Py_WEAK PyObject *PyLong_FromLong(long);
Py_WEAK PyObject *PyLong_FromLongLong(long long);
Py_WEAK PyObject *PyUnicode_FromString(const char *);
Py_WEAK int PyUnicode_Compare(PyObject *, PyObject *);
Py_WEAK const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *);
Py_WEAK PyObject PyCapsule_Type;
Py_WEAK const char *PyCapsule_GetName(PyObject *);
Py_WEAK void *PyCapsule_GetPointer(PyObject *, const char *);

/* Errors. */
Py_WEAK PyObject *PyExc_AttributeError;
Py_WEAK PyObject *PyExc_RuntimeError;
Py_WEAK void PyErr_Clear(void);
Py_WEAK int PyErr_ExceptionMatches(PyObject *);
Py_WEAK void PyErr_Fetch(PyObject **, PyObject **, PyObject **);
Py_WEAK PyObject *PyErr_Occurred(void);
Py_WEAK void PyErr_SetString(PyObject *, const char *);

/* The interpreter lock. */
typedef int PyGILState_STATE;
typedef struct _ts PyThreadState;
Py_WEAK PyGILState_STATE PyGILState_Ensure(void);
Py_WEAK void PyGILState_Release(PyGILState_STATE);
Py_WEAK PyThreadState *PyEval_SaveThread(void);
Py_WEAK void PyEval_RestoreThread(PyThreadState *);

/* Modules and functions. */
#define METH_VARARGS 0x0001
#define METH_NOARGS 0x0004
#define METH_FASTCALL 0x0080
typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);
typedef struct {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;

Py_WEAK PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *, PyObject *);

struct PyModuleDef {
    struct {
        PyObject ob_base;
        PyObject *(*m_init)(void);
        Py_ssize_t m_index;
        PyObject *m_copy;
    } m_base;
    const char *m_name;
    const char *m_doc;
    Py_ssize_t m_size;
    PyMethodDef *m_methods;
    void *m_slots;
    void *m_traverse;
    void *m_clear;
    void *m_free;
};
#define PyModuleDef_HEAD_INIT { { 1, NULL }, NULL, 0, NULL }
#define PyModule_Create(def) PyModule_Create2(def, PYTHON_ABI_VERSION)
Py_WEAK PyObject *PyModule_Create2(struct PyModuleDef *, int);
Py_WEAK int PyArg_ParseTuple(PyObject *, const char *, ...);

#endif
