/*
 * The binary interface of DLPack 1.x: the structures of a tensor, of an owned tensor with and
 * without a version, and of the C exchange API that a producer hangs on its tensor type. Names and
 * layouts are DLPack's.
 */
#ifndef STERNWAY_DLPACK_H
#define STERNWAY_DLPACK_H

#include <stdint.h>

enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3 };
enum { DLPACK_MAJOR_VERSION = 1 };
enum { DLPACK_FLAG_BITMASK_READ_ONLY = 1, DLPACK_FLAG_BITMASK_IS_COPIED = 2 };

typedef struct {
    uint32_t major, minor;
} DLPackVersion;

typedef struct {
    int32_t device_type, device_id;
} DLDevice;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; before version 1.2 NULL stands for compact row-major strides */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

/* What a producer offers for its tensor type. The functions answer 0, or -1 with a Python error
   set. */
typedef struct DLPackExchangeAPI {
    DLPackVersion version;
    const struct DLPackExchangeAPI *prev_api; /* an older version of the same, or NULL */
    void *managed_tensor_allocator;
    int (*managed_tensor_from_py_object_no_sync)(void *object, DLManagedTensorVersioned **out);
    void *managed_tensor_to_py_object_no_sync;
    int (*dltensor_from_py_object_no_sync)(void *object, DLTensor *out); /* may be NULL */
    int (*current_work_stream)(int32_t device_type, int32_t device_id, void **stream);
} DLPackExchangeAPI;

#endif
