#include "reader.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* No system maps memory below it. */
enum { LOWEST_ADDRESS = 1 << 16 };

/* Copies the first line of text; what follows in a producer's message is often a stack trace. */
static int32_t set_error(sw_answer *answer, int32_t code, const char *text)
{
    size_t n = strcspn(text, "\n");
    snprintf(answer->text, SW_TEXT, "%.*s", (int)(n < SW_TEXT ? n : SW_TEXT), text);
    return code;
}

/* Refuses with str(object), which is stolen and may be NULL. */
static int32_t set_error_str(sw_answer *answer, int32_t code, PyObject *object)
{
    PyObject *str = object ? PyObject_Str(object) : NULL;
    const char *text = str ? PyUnicode_AsUTF8AndSize(str, NULL) : NULL;
    set_error(answer, code, text ? text : "no further word");
    if (str)
        Py_DecRef(str);
    if (object)
        Py_DecRef(object);
    PyErr_Clear();
    return code;
}

/* Takes the Python error that the producer of an item set. */
static int32_t set_error_raised(sw_answer *answer)
{
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    PyErr_Fetch(&type, &value, &trace);
    if (trace)
        Py_DecRef(trace);
    if (!value)
        return set_error_str(answer, SW_NO_PRODUCER, type);
    if (type)
        Py_DecRef(type);
    return set_error_str(answer, SW_NO_PRODUCER, value);
}

static int32_t fill(sw_tensor *out, const DLTensor *tensor, int read_only, sw_answer *answer)
{
    int64_t compact = 1;
    if (tensor->ndim < 0 || (tensor->ndim > 0 && !tensor->shape))
        return set_error(answer, SW_MALFORMED, "no shape");
    if (tensor->ndim > SW_MAX_RANK) {
        snprintf(answer->text, SW_TEXT, "%d", (int)tensor->ndim);
        return SW_RANK;
    }
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        int64_t extent = tensor->shape[i];
        if (extent < 0)
            return set_error(answer, SW_MALFORMED, "a negative extent");
        out->shape[i] = extent;
        out->strides[i] = tensor->strides ? tensor->strides[i] : compact;
        if (__builtin_mul_overflow(compact, extent > 1 ? extent : 1, &compact) && !tensor->strides)
            return set_error(answer, SW_MALFORMED, "more elements than an address space holds");
    }
    if (__builtin_add_overflow((uint64_t)(uintptr_t)tensor->data, tensor->byte_offset, &out->data))
        return set_error(answer, SW_MALFORMED, "a byte offset that leaves the address space");
    if (out->data < LOWEST_ADDRESS)
        out->data = 0; /* an offset into a storage that is not there: a fake tensor, or a view of one */
    out->code = tensor->dtype.code;
    out->bits = tensor->dtype.bits;
    out->lanes = tensor->dtype.lanes;
    out->device_type = tensor->device.device_type;
    out->device_index = tensor->device.device_type == kDLCPU ? 0 : tensor->device.device_id; /* there is one host */
    out->ndim = tensor->ndim;
    out->present = 1;
    out->read_only = read_only != 0;
    return SW_OK;
}

/*
 * Found ones are kept, with a reference to their type: the address of a type that died could be
 * given to another.
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

int32_t sw_read_exchange(PyObject *item, const DLPackExchangeAPI *api, int with_flags, sw_tensor *out,
                         sw_answer *answer)
{
    int managed = api->managed_tensor_from_py_object_no_sync != NULL;
    if (api->dltensor_from_py_object_no_sync && !(managed && with_flags)) {
        DLTensor borrowed;
        if (api->dltensor_from_py_object_no_sync(item, &borrowed)
            || PyErr_Occurred()) /* a warning may have become an error */
            return set_error_raised(answer);
        return fill(out, &borrowed, 0, answer);
    }
    DLManagedTensorVersioned *owned = NULL;
    if (!managed)
        return set_error(answer, SW_NO_PRODUCER, "a DLPack exchange API without a function that lends a tensor");
    if (api->managed_tensor_from_py_object_no_sync(item, &owned) || !owned)
        return set_error_raised(answer);
    int32_t code = owned->version.major != DLPACK_MAJOR_VERSION
        ? set_error(answer, SW_NO_PRODUCER, "a DLPack tensor of another major version than 1")
        : owned->flags & DLPACK_FLAG_BITMASK_IS_COPIED
        ? set_error(answer, SW_NO_PRODUCER, "a copy of the tensor in place of the tensor")
        : fill(out, &owned->dl_tensor, owned->flags & DLPACK_FLAG_BITMASK_READ_ONLY, answer);
    if (owned->deleter)
        owned->deleter(owned); /* the caller's tuple keeps the tensor itself alive */
    return code;
}

int sw_take_stream(const DLPackExchangeAPI *api, const sw_tensor *tensor, sw_answer *answer)
{
    void *stream = NULL;
    if (answer->stream != -1 || tensor->device_type != kDLCUDA || !api->current_work_stream)
        return 1;
    if (api->current_work_stream(tensor->device_type, tensor->device_index, &stream))
        return 0;
    answer->stream = (int64_t)(intptr_t)stream;
    return 1;
}

/* Reads a capsule and leaves it unconsumed: the tuple keeps it, and so the memory, alive. What is
   written to a copy is lost. */
static int32_t read_capsule(PyObject *capsule, sw_tensor *out, sw_answer *answer)
{
    const char *name = PyCapsule_GetName(capsule);
    if (name && !strcmp(name, "dltensor_versioned")) {
        const DLManagedTensorVersioned *owned = PyCapsule_GetPointer(capsule, name);
        if (owned->version.major != DLPACK_MAJOR_VERSION)
            return set_error(answer, SW_NO_PRODUCER, "a DLPack capsule of another major version than 1");
        return fill(out, &owned->dl_tensor,
                    owned->flags & (DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_COPIED), answer);
    }
    if (name && !strcmp(name, "dltensor"))
        return fill(out, &((const DLManagedTensor *)PyCapsule_GetPointer(capsule, name))->dl_tensor, 0, answer);
    snprintf(answer->text, SW_TEXT, "a capsule named %.100s", name ? name : "nothing");
    PyErr_Clear();
    return SW_NO_TENSOR;
}

static int32_t read_object(PyObject *item, int with_flags, sw_tensor *out, sw_answer *answer)
{
    const DLPackExchangeAPI *api = sw_exchange_api(item->ob_type);
    if (!api)
        return PyErr_Occurred() ? set_error_raised(answer)
                                : set_error_str(answer, SW_NO_TENSOR,
                                                PyObject_GetAttrString(item->ob_type, "__name__"));
    int32_t code = sw_read_exchange(item, api, with_flags, out, answer);
    return code != SW_OK || sw_take_stream(api, out, answer) ? code : set_error_raised(answer);
}

/*
 * Refuses elements that lie outside the address space or, on the host, in pages that are not
 * mapped: reading them would end the process. msync with MS_ASYNC writes nothing back and looks at
 * mappings alone, so its time does not grow with the tensor.
 */
static int32_t check_reach(const sw_tensor *t, sw_answer *answer)
{
    int64_t low = 0, high = 0, size = ((int64_t)t->bits * t->lanes + 7) / 8, base = (int64_t)t->data;
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0)
            return SW_OK;
    for (int32_t i = 0; i < t->ndim; i++) {
        int64_t step, *end = t->strides[i] < 0 ? &low : &high;
        if (__builtin_mul_overflow(t->shape[i] - 1, t->strides[i], &step) || __builtin_add_overflow(*end, step, end))
            return set_error(answer, SW_MALFORMED, "strides that leave the address space");
    }
    if (__builtin_mul_overflow(low, size, &low) || __builtin_add_overflow(high, 1, &high) ||
        __builtin_mul_overflow(high, size, &high) || base < 0 || __builtin_add_overflow(base, high, &high) ||
        (low += base) < 0)
        return set_error(answer, SW_MALFORMED, "elements outside the address space");
    if (base == 0 || size == 0 || (t->device_type != kDLCPU && t->device_type != kDLCUDAHost))
        return SW_OK;
    low -= low % sysconf(_SC_PAGESIZE);
    if (msync((void *)low, (size_t)(high - low), MS_ASYNC) && errno == ENOMEM)
        return set_error(answer, SW_MALFORMED, "elements in memory that is not mapped");
    return SW_OK;
}

/* Reads a tuple of 64-bit integers; -1: it is none, or has more of them than there are
   dimensions. */
static int32_t read_extents(PyObject *tuple, int64_t *extents)
{
    Py_ssize_t n = PyTuple_Size(tuple);
    if (n < 0 || n > SW_MAX_RANK)
        return -1;
    for (Py_ssize_t i = 0; i < n; i++)
        extents[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    return PyErr_Occurred() ? -1 : (int32_t)n;
}

/*
 * Reads what a producer lent that is not trusted to describe it well: (object of a type with the
 * exchange API,), or (what __dlpack__ returned, code of the dtype or None), or (one of these, code
 * or None, shape, strides) for a view of it.
 */
static int32_t read_lent(PyObject *lent, sw_tensor *out, sw_answer *answer)
{
    Py_ssize_t n = PyTuple_Size(lent);
    PyObject *object = n > 0 ? PyTuple_GetItem(lent, 0) : &_Py_NoneStruct;
    if (n == 2 && object->ob_type != &PyCapsule_Type)
        return set_error_str(answer, SW_NO_CAPSULE, PyObject_GetAttrString(object->ob_type, "__name__"));
    int32_t code = object->ob_type == &PyCapsule_Type ? read_capsule(object, out, answer)
        : read_object(object, 1, out, answer);
    if (code != SW_OK)
        return code;
    if (n > 1 && PyTuple_GetItem(lent, 1) != &_Py_NoneStruct)
        out->code = (uint8_t)PyLong_AsLongLong(PyTuple_GetItem(lent, 1));
    if (n > 3) {
        out->ndim = read_extents(PyTuple_GetItem(lent, 2), out->shape);
        if (out->ndim < 0 || read_extents(PyTuple_GetItem(lent, 3), out->strides) != out->ndim)
            code = set_error(answer, SW_MALFORMED, "a view that is none");
    }
    PyErr_Clear();
    return code == SW_OK ? check_reach(out, answer) : code;
}

static int32_t read_item(PyObject *item, sw_tensor *out, sw_answer *answer)
{
    memset(out, 0, sizeof *out);
    if (item == &_Py_NoneStruct)
        return SW_OK;
    if (item->ob_type == &PyCapsule_Type)
        return read_capsule(item, out, answer);
    return item->ob_type == &PyTuple_Type ? read_lent(item, out, answer) : read_object(item, 0, out, answer);
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
