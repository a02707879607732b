#include "reader.h"

#include <stdio.h>

/* No system maps memory below it. */
enum { LOWEST_ADDRESS = 1 << 16 };

/* Copies the first line of text; what follows in a producer's message is often a stack trace. */
static int32_t refuse(sw_answer *answer, int32_t code, const char *text)
{
    size_t n = strcspn(text, "\n");
    snprintf(answer->text, SW_TEXT, "%.*s", (int)(n < SW_TEXT ? n : SW_TEXT), text);
    return code;
}

/* Refuses with str(object), which is stolen and may be NULL. */
static int32_t refuse_str(sw_answer *answer, int32_t code, PyObject *object)
{
    PyObject *str = object ? PyObject_Str(object) : NULL;
    const char *text = str ? PyUnicode_AsUTF8AndSize(str, NULL) : NULL;
    refuse(answer, code, text ? text : "no further word");
    if (str)
        Py_DecRef(str);
    if (object)
        Py_DecRef(object);
    PyErr_Clear();
    return code;
}

/* Takes the Python error that the producer of an item set. */
static int32_t refuse_raised(sw_answer *answer)
{
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    PyErr_Fetch(&type, &value, &trace);
    if (trace)
        Py_DecRef(trace);
    if (!value)
        return refuse_str(answer, SW_NO_PRODUCER, type);
    if (type)
        Py_DecRef(type);
    return refuse_str(answer, SW_NO_PRODUCER, value);
}

static int32_t fill(sw_tensor *out, const DLTensor *tensor, int read_only, sw_answer *answer)
{
    int64_t compact = 1;
    if (tensor->ndim < 0 || (tensor->ndim > 0 && !tensor->shape))
        return refuse(answer, SW_MALFORMED, "no shape");
    if (tensor->ndim > SW_MAX_RANK) {
        snprintf(answer->text, SW_TEXT, "%d", (int)tensor->ndim);
        return SW_RANK;
    }
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        int64_t extent = tensor->shape[i];
        if (extent < 0)
            return refuse(answer, SW_MALFORMED, "a negative extent");
        out->shape[i] = extent;
        out->strides[i] = tensor->strides ? tensor->strides[i] : compact;
        if (__builtin_mul_overflow(compact, extent > 1 ? extent : 1, &compact) && !tensor->strides)
            return refuse(answer, SW_MALFORMED, "more elements than an address space holds");
    }
    out->data = (uint64_t)(uintptr_t)tensor->data + tensor->byte_offset;
    if (out->data < LOWEST_ADDRESS)
        out->data = 0; /* an offset into a storage that is not there: a fake tensor, or a view of one */
    out->code = tensor->dtype.code;
    out->bits = tensor->dtype.bits;
    out->lanes = tensor->dtype.lanes;
    out->device_type = tensor->device.device_type;
    out->device_index = tensor->device.device_id;
    out->ndim = tensor->ndim;
    out->present = 1;
    out->read_only = read_only != 0;
    return SW_OK;
}

/*
 * Found ones are kept, with a reference to their type: the address of a type that died could be given to another.
 */
const DLPackExchangeAPI *sw_exchange_api(PyObject *type)
{
    enum { SIZE = 16 };
    static struct {
        PyObject *type;
        const DLPackExchangeAPI *api;
    } cache[SIZE]; /* guarded by the GIL */
    static unsigned next;

    for (int i = 0; i < SIZE && cache[i].type; i++)
        if (cache[i].type == type)
            return cache[i].api;

    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    if (!capsule) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Clear();
        return NULL;
    }
    const DLPackExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DecRef(capsule); /* the table outlives it: it lives as long as the process */
    while (api && api->version.major != DLPACK_MAJOR_VERSION)
        api = api->prev_api;
    if (!api)
        return NULL;

    PyObject *evicted = cache[next % SIZE].type;
    Py_IncRef(type);
    cache[next % SIZE].type = type;
    cache[next % SIZE].api = api;
    next++;
    if (evicted)
        Py_DecRef(evicted);
    return api;
}

int32_t sw_read_exchange(PyObject *item, const DLPackExchangeAPI *api, sw_tensor *out, sw_answer *answer)
{
    if (api->dltensor_from_py_object_no_sync) {
        DLTensor borrowed;
        if (api->dltensor_from_py_object_no_sync(item, &borrowed) || PyErr_Occurred()) /* a warning may have become an error */
            return refuse_raised(answer);
        return fill(out, &borrowed, 0, answer);
    }
    DLManagedTensorVersioned *owned = NULL;
    if (api->managed_tensor_from_py_object_no_sync(item, &owned) || !owned)
        return refuse_raised(answer);
    int32_t code = owned->flags & DLPACK_FLAG_BITMASK_IS_COPIED
        ? refuse(answer, SW_NO_PRODUCER, "a copy of the tensor in place of the tensor")
        : fill(out, &owned->dl_tensor, owned->flags & DLPACK_FLAG_BITMASK_READ_ONLY, answer);
    if (owned->deleter)
        owned->deleter(owned); /* the caller's tuple keeps the tensor itself alive */
    return code;
}

int sw_take_stream(const DLPackExchangeAPI *api, const sw_tensor *tensor, sw_answer *answer)
{
    void *stream = NULL;
    if (answer->stream != -1 || tensor->device_type != kDLCUDA)
        return 1;
    if (api->current_work_stream(tensor->device_type, tensor->device_index, &stream))
        return 0;
    answer->stream = (int64_t)(intptr_t)stream;
    return 1;
}

/* Reads a capsule and leaves it unconsumed: the tuple keeps it, and so the memory, alive. What is written to a copy is lost. */
static int32_t read_capsule(PyObject *capsule, sw_tensor *out, sw_answer *answer)
{
    const char *name = PyCapsule_GetName(capsule);
    if (name && !strcmp(name, "dltensor_versioned")) {
        const DLManagedTensorVersioned *owned = PyCapsule_GetPointer(capsule, name);
        if (owned->version.major != DLPACK_MAJOR_VERSION)
            return refuse(answer, SW_NO_PRODUCER, "a DLPack capsule of another major version than 1");
        return fill(out, &owned->dl_tensor,
                    owned->flags & (DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_COPIED), answer);
    }
    if (name && !strcmp(name, "dltensor"))
        return fill(out, &((const DLManagedTensor *)PyCapsule_GetPointer(capsule, name))->dl_tensor, 0, answer);
    snprintf(answer->text, SW_TEXT, "a capsule named %.100s", name ? name : "nothing");
    PyErr_Clear();
    return SW_NO_TENSOR;
}

static int32_t read_item(PyObject *item, sw_tensor *out, sw_answer *answer)
{
    memset(out, 0, sizeof *out);
    if (item == &_Py_NoneStruct)
        return SW_OK;
    if (item->ob_type == &PyCapsule_Type)
        return read_capsule(item, out, answer);
    const DLPackExchangeAPI *api = sw_exchange_api(item->ob_type);
    if (!api)
        return PyErr_Occurred() ? refuse_raised(answer)
                                : refuse_str(answer, SW_NO_TENSOR, PyObject_GetAttrString(item->ob_type, "__name__"));
    int32_t code = sw_read_exchange(item, api, out, answer);
    return code != SW_OK || sw_take_stream(api, out, answer) ? code : refuse_raised(answer);
}

static int32_t read_tuple(PyObject *tuple, int32_t capacity, sw_tensor *out, sw_answer *answer)
{
    Py_ssize_t n = PyTuple_Size(tuple);
    if (n < 1 || n > capacity) {
        PyErr_Clear();
        return SW_NO_TUPLE;
    }
    for (answer->item = 0; answer->item < n; answer->item++) {
        int32_t code = read_item(PyTuple_GetItem(tuple, answer->item), &out[answer->item], answer);
        if (code != SW_OK)
            return code;
    }
    if (answer->stream == -1)
        answer->stream = 0; /* no CUDA tensor, or no producer that can tell: the legacy default stream */
    return SW_OK;
}

int32_t sw_read(int64_t operands, int32_t capacity, sw_tensor *out, sw_answer *answer)
{
    answer->item = 0;
    if (!PyGILState_Ensure)
        return SW_NO_PYTHON;
    PyGILState_STATE gil = PyGILState_Ensure();
    int32_t code = read_tuple((PyObject *)(intptr_t)operands, capacity, out, answer);
    PyGILState_Release(gil);
    return code;
}
