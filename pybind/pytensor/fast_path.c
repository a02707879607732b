/*
 * The fast path for plain torch tensors, given by name. It checks conditions that the DLPack
 * exchange API does not: operands that autograd records, lazy negation, a storage that was resized
 * below its view. All other operands, and every error, go to the fallback, which supports more
 * kinds of arrays and returns detailed errors.
 *
 * It uses Python's own calling convention (METH_FASTCALL). A function of gopy would convert its
 * arguments to integers, and release and take the GIL twice for each call.
 */
#include "reader.h"

/* The torch types and functions that are used, in the order of the list of sw_store_torch. */
enum {
    TENSOR, PARAMETER, REQUIRES_GRAD, STORAGE, OFFSET, IS_NEG, INCREMENT,
    IS_GRAD_ENABLED, /* of the thread */
    FORWARD_AD,      /* the dict of the module torch.autograd.forward_ad */
    CURRENT_LEVEL,   /* its name there: at least 0 while tensors may have tangents */
    WORDS
};

static PyObject *torch[WORDS]; /* guarded by the GIL; NULL until sw_store_torch */

/* Stores the integer function(x) in *number; 0 if it is none. */
static int int64_of(PyObject *function, PyObject *x, int64_t *number)
{
    PyObject *answer = x ? PyObject_CallFunctionObjArgs(function, x, NULL) : NULL;
    if (!answer)
        return 0;
    *number = PyLong_AsLongLong(answer);
    Py_DecRef(answer);
    return !PyErr_Occurred();
}

/* Whether a result is not False; an error counts as such a result. */
static int not_false(PyObject *answer)
{
    if (answer)
        Py_DecRef(answer);
    return answer != &_Py_FalseStruct;
}

static int requires_grad(PyObject *x)
{
    return not_false(PyObject_GetAttr(x, torch[REQUIRES_GRAD]));
}

static int is_grad_enabled(void)
{
    return not_false(PyObject_CallFunctionObjArgs(torch[IS_GRAD_ENABLED], NULL));
}

static int may_have_tangents(void)
{
    PyObject *level = PyDict_GetItem(torch[FORWARD_AD], torch[CURRENT_LEVEL]); /* borrowed */
    return !level || PyLong_AsLongLong(level) != -1;
}

/* Whether the elements of x, as read into t, are inside its storage, and x is no lazily negated
   view. */
static int is_resolved_in_storage(PyObject *x, const sw_tensor *t)
{
    int64_t offset, negated, elements = 1, reach = 1, size = t->bits / 8;
    PyObject *storage = PyObject_CallFunctionObjArgs(torch[STORAGE], x, NULL);
    if (!storage)
        return 0;
    int64_t bytes = PyObject_Size(storage);
    Py_DecRef(storage);
    if (bytes < 0 || !int64_of(torch[OFFSET], x, &offset))
        return 0;
    for (int32_t i = 0; i < t->ndim; i++) {
        int64_t step;
        if (__builtin_mul_overflow(elements, t->shape[i], &elements) ||
            __builtin_mul_overflow(t->shape[i] - 1, t->strides[i], &step)
                || __builtin_add_overflow(reach, step, &reach))
            return 0;
    }
    if (__builtin_mul_overflow(elements, size, &elements) || __builtin_add_overflow(reach, offset, &reach) ||
        __builtin_mul_overflow(reach, size, &reach) || (elements && reach > bytes))
        return 0;
    return int64_of(torch[IS_NEG], x, &negated) && !negated;
}

/* The index of a name in the tuple; -1 if it is not there, or is of a subclass of str, which may
   equal many names or none. */
static Py_ssize_t index_of(PyObject *name, PyObject *names, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyTuple_GetItem(names, i) == name)
            return i;
    if (name->ob_type != &PyUnicode_Type)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) /* a name that was put together at run time */
        if (PyUnicode_Compare(PyTuple_GetItem(names, i), name) == 0)
            return i;
    return -1;
}

typedef struct {
    sw_tensor tensors[SW_MAX_OPERANDS]; /* in the plan's order */
    sw_answer answer;
    PyObject *written[SW_MAX_OPERANDS];
    int32_t writes;
} operands_read;

/* Reads a dict of operands by name, in the order of the tuple of names, of which the first are
   inputs. recorded: autograd records the run as a whole, so that inputs may require grad. */
static int read_named(PyObject *operands, PyObject *names, int64_t inputs, int recorded, Py_ssize_t count,
                      operands_read *read)
{
    PyObject *name, *x;
    Py_ssize_t cursor = 0;
    if (!recorded && may_have_tangents())
        return 0;
    while (PyDict_Next(operands, &cursor, &name, &x)) {
        Py_ssize_t i = index_of(name, names, count);
        if (i < 0 || read->tensors[i].present)
            return 0;
        if (x == &_Py_NoneStruct)
            continue;
        PyObject *type = x->ob_type;
        if (type != torch[TENSOR] && type != torch[PARAMETER])
            return 0;
        const DLPackExchangeAPI *api = sw_exchange_api(type);
        sw_tensor *tensor = &read->tensors[i];
        if (sw_read_exchange(x, api, 0, tensor, &read->answer) != SW_OK
            || !sw_take_stream(api, tensor, &read->answer) || !is_resolved_in_storage(x, tensor))
            return 0;
        if (i >= inputs) {
            if (requires_grad(x))
                return 0;
            read->written[read->writes++] = x;
        } else if (!recorded && requires_grad(x) && is_grad_enabled()) {
            return 0;
        }
    }
    if (read->answer.stream == -1)
        read->answer.stream = 0;
    return 1;
}

/* Increments the version counters of the outputs, which were overwritten. Returns whether torch
   did. */
static int count_writes(const operands_read *read)
{
    PyObject *done = NULL, *list = PyList_New(read->writes);
    for (int32_t i = 0; list && i < read->writes; i++) {
        Py_IncRef(read->written[i]); /* the list takes the reference */
        PyList_SetItem(list, i, read->written[i]);
    }
    if (list) {
        done = PyObject_CallFunctionObjArgs(torch[INCREMENT], list, NULL);
        Py_DecRef(list);
    }
    if (done)
        Py_DecRef(done);
    return done != NULL;
}

/* Nothing was done; it ran; it ran, and torch failed to count the writes. As in _library.py. */
enum { NOT_RUN, RAN, RAN_UNCOUNTED };

/* run(handle of the plan, names of its operands and "workspace", number of inputs, whether autograd
   records the run as a whole, operands by name, stream or -1) -> an outcome */
static PyObject *run(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (given != 6)
        return PyLong_FromLong(NOT_RUN);
    PyObject *names = arguments[1], *operands = arguments[4];
    int recorded = arguments[3] != &_Py_FalseStruct;
    int64_t plan = PyLong_AsLongLong(arguments[0]), inputs = PyLong_AsLongLong(arguments[2]);
    Py_ssize_t count = PyTuple_Size(names);
    long outcome = NOT_RUN;
    operands_read read;
    read.answer.stream = PyLong_AsLongLong(arguments[5]);
    read.writes = 0;
    if (count >= 0 && count <= SW_MAX_OPERANDS) {
        memset(read.tensors, 0, count * sizeof *read.tensors);
        if (read_named(operands, names, inputs, recorded, count, &read)) {
            sw_attach_thread();
            PyThreadState *thread = PyEval_SaveThread();
            int32_t ran = sw_go_run(plan, read.tensors, (int32_t)count, read.answer.stream);
            PyEval_RestoreThread(thread);
            if (ran)
                outcome = count_writes(&read) ? RAN : RAN_UNCOUNTED;
        }
    }
    if (PyErr_Occurred())
        PyErr_Clear();
    return PyLong_FromLong(outcome);
}

static PyMethodDef run_definition = {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL,
                                     "The fast path of Plan.run."};

int32_t sw_store_torch(int64_t words)
{
    PyObject *list = (PyObject *)(intptr_t)words;
    if (!PyGILState_Ensure)
        return SW_NO_PYTHON;
    PyGILState_STATE gil = PyGILState_Ensure();
    int32_t code = PyList_Size(list) == WORDS ? SW_OK : SW_NO_TUPLE;
    for (int i = 0; code == SW_OK && i < WORDS; i++) {
        torch[i] = PyList_GetItem(list, i);
        Py_IncRef(torch[i]); /* for good: the functions of a module that is never unloaded */
    }
    PyObject *function = code == SW_OK ? PyCFunction_NewEx(&run_definition, NULL, NULL) : NULL;
    if (!function || PyList_Append(list, function))
        code = SW_NO_TUPLE;
    if (function)
        Py_DecRef(function);
    PyErr_Clear();
    PyGILState_Release(gil);
    return code;
}
