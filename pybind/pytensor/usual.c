/*
 * The quick way for the usual operands: plain tensors of torch, by name. What the exchange API lends without a word is checked
 * here: an output that autograd records, lazy negation, a storage that shrank under a view. Anything else is left
 * to the general way, which knows more kinds of arrays and says what is wrong.
 */
#include "reader.h"

/* What torch is asked with, in the order of the tuple of sw_meet. */
enum { TENSOR, PARAMETER, REQUIRES_GRAD, STORAGE, OFFSET, IS_NEG, INCREMENT, WORDS };

static PyObject *torch[WORDS]; /* guarded by the GIL; NULL until torch was met */

int32_t sw_meet(int64_t words)
{
    PyObject *tuple = (PyObject *)(intptr_t)words;
    if (!PyGILState_Ensure)
        return SW_NO_PYTHON;
    PyGILState_STATE gil = PyGILState_Ensure();
    int32_t code = PyTuple_Size(tuple) == WORDS ? SW_OK : SW_NO_TUPLE;
    for (int i = 0; code == SW_OK && i < WORDS; i++) {
        torch[i] = PyTuple_GetItem(tuple, i);
        Py_IncRef(torch[i]); /* for good: the functions of a module that is never unloaded */
    }
    PyErr_Clear();
    PyGILState_Release(gil);
    return code;
}

/* Whether function(x) gave an integer, which is left in *number. */
static int ask(PyObject *function, PyObject *x, int64_t *number)
{
    PyObject *answer = x ? PyObject_CallFunctionObjArgs(function, x, NULL) : NULL;
    if (!answer)
        return 0;
    *number = PyLong_AsLongLong(answer);
    Py_DecRef(answer);
    return !PyErr_Occurred();
}

static int recorded_by_autograd(PyObject *x)
{
    PyObject *answer = PyObject_GetAttr(x, torch[REQUIRES_GRAD]);
    if (answer)
        Py_DecRef(answer);
    return answer != &_Py_FalseStruct;
}

/* Whether the elements of x, as read into t, lie inside its storage, and are no lazily negated view. */
static int plain(PyObject *x, const sw_tensor *t)
{
    int64_t offset, negated, elements = 1, reach = 1, size = t->bits / 8;
    PyObject *storage = PyObject_CallFunctionObjArgs(torch[STORAGE], x, NULL);
    if (!storage)
        return 0;
    int64_t bytes = PyObject_Size(storage);
    Py_DecRef(storage);
    if (bytes < 0 || !ask(torch[OFFSET], x, &offset))
        return 0;
    for (int32_t i = 0; i < t->ndim; i++) {
        int64_t step;
        if (__builtin_mul_overflow(elements, t->shape[i], &elements) ||
            __builtin_mul_overflow(t->shape[i] - 1, t->strides[i], &step) || __builtin_add_overflow(reach, step, &reach))
            return 0;
    }
    if (__builtin_mul_overflow(elements, size, &elements) || __builtin_add_overflow(reach, offset, &reach) ||
        __builtin_mul_overflow(reach, size, &reach) || (elements && reach > bytes))
        return 0;
    return ask(torch[IS_NEG], x, &negated) && !negated;
}

/* The place of a name in the tuple; -1: it is not there. */
static Py_ssize_t place(PyObject *name, PyObject *names, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyTuple_GetItem(names, i) == name)
            return i;
    for (Py_ssize_t i = 0; i < count; i++) /* a name that was put together at run time */
        if (PyUnicode_Compare(PyTuple_GetItem(names, i), name) == 0)
            return i;
    return -1;
}

static int read_named(PyObject *operands, PyObject *names, int32_t inputs, Py_ssize_t count, sw_tensor *out, sw_answer *answer)
{
    PyObject *name, *x;
    Py_ssize_t cursor = 0;
    while (PyDict_Next(operands, &cursor, &name, &x)) {
        Py_ssize_t i = place(name, names, count);
        if (i < 0)
            return 0;
        if (x == &_Py_NoneStruct)
            continue;
        PyObject *type = x->ob_type;
        if (type != torch[TENSOR] && type != torch[PARAMETER])
            return 0;
        const DLPackExchangeAPI *api = sw_exchange_api(type);
        if (sw_read_exchange(x, api, &out[i], answer) != SW_OK || !sw_take_stream(api, &out[i], answer) || !plain(x, &out[i]))
            return 0;
        if (i >= inputs) {
            if (recorded_by_autograd(x))
                return 0;
            answer->written[answer->writes++] = (uintptr_t)x;
        }
    }
    if (answer->stream == -1)
        answer->stream = 0;
    return 1;
}

int32_t sw_read_usual(int64_t operands, int64_t names, int32_t inputs, int32_t capacity, sw_tensor *out, sw_answer *answer)
{
    answer->writes = 0;
    if (!PyGILState_Ensure)
        return SW_NO_PYTHON;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *tuple = (PyObject *)(intptr_t)names;
    Py_ssize_t count = PyTuple_Size(tuple);
    int32_t code = SW_UNUSUAL;
    if (torch[TENSOR] && count >= 0 && count <= capacity && count <= SW_MAX_OPERANDS) {
        memset(out, 0, count * sizeof *out);
        if (read_named((PyObject *)(intptr_t)operands, tuple, inputs, count, out, answer))
            code = SW_OK;
    }
    answer->item = (int32_t)count;
    if (PyErr_Occurred())
        PyErr_Clear();
    PyGILState_Release(gil);
    return code;
}

/* Tells autograd that the outputs of the last read were overwritten. */
int32_t sw_count_writes(sw_answer *answer)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *done = NULL, *list = PyList_New(answer->writes);
    for (int32_t i = 0; list && i < answer->writes; i++) {
        PyObject *x = (PyObject *)(uintptr_t)answer->written[i];
        Py_IncRef(x); /* which the list takes over */
        PyList_SetItem(list, i, x);
    }
    if (list) {
        done = PyObject_CallFunctionObjArgs(torch[INCREMENT], list, NULL);
        Py_DecRef(list);
    }
    if (done)
        Py_DecRef(done);
    else
        PyErr_Clear();
    PyGILState_Release(gil);
    return done ? SW_OK : SW_UNUSUAL;
}
