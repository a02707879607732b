/*
 * The part of XLA's foreign function interface (xla/ffi/api/c_api.h) that the handlers use. Names
 * and layouts are XLA's; they are the same in all versions from 0.1 to 0.3.
 *
 * It stands in for XLA's own header, so that building needs no jaxlib.
 */
#ifndef STERNWAY_XLA_FFI_H
#define STERNWAY_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

typedef struct XLA_FFI_Error XLA_FFI_Error; /* made by XLA; NULL: success */
typedef struct XLA_FFI_ExecutionContext XLA_FFI_ExecutionContext;

enum { XLA_FFI_Extension_Metadata = 1 };

typedef struct XLA_FFI_Extension_Base {
    size_t struct_size;
    int type;
    struct XLA_FFI_Extension_Base *next;
} XLA_FFI_Extension_Base;

/* Every structure that crosses the interface begins with these two fields. */
#define XLA_FFI_HEADER \
    size_t struct_size; \
    XLA_FFI_Extension_Base *extension_start

typedef struct {
    XLA_FFI_HEADER;
    int dtype; /* a number of xla::PrimitiveType */
    void *data;
    int64_t rank;
    int64_t *dims;
} XLA_FFI_Buffer; /* dense, in the layout of the call: row-major */

enum { XLA_FFI_ArgType_BUFFER = 1, XLA_FFI_RetType_BUFFER = 1, XLA_FFI_AttrType_STRING = 4 };

typedef struct {
    const char *ptr;
    size_t len;
} XLA_FFI_ByteSpan;

typedef struct {
    XLA_FFI_HEADER;
    int64_t size;
    int *types;
    void **args;
} XLA_FFI_Args;

typedef struct {
    XLA_FFI_HEADER;
    int64_t size;
    int *types;
    void **rets;
} XLA_FFI_Rets;

typedef struct {
    XLA_FFI_HEADER;
    int64_t size;
    int *types;
    XLA_FFI_ByteSpan **names;
    void **attrs;
} XLA_FFI_Attrs;

enum { XLA_FFI_ExecutionStage_INITIALIZE = 2, XLA_FFI_ExecutionStage_EXECUTE = 3 };

struct XLA_FFI_Api;

typedef struct {
    XLA_FFI_HEADER;
    const struct XLA_FFI_Api *api;
    XLA_FFI_ExecutionContext *ctx;
    int stage;
    XLA_FFI_Args args;
    XLA_FFI_Rets rets;
    XLA_FFI_Attrs attrs;
} XLA_FFI_CallFrame;

enum {
    XLA_FFI_Error_Code_INVALID_ARGUMENT = 3,
    XLA_FFI_Error_Code_UNIMPLEMENTED = 12,
    XLA_FFI_Error_Code_INTERNAL = 13
};

typedef struct {
    XLA_FFI_HEADER;
    const char *message;
    int errc;
} XLA_FFI_Error_Create_Args;

typedef struct {
    XLA_FFI_HEADER;
    XLA_FFI_ExecutionContext *ctx;
    void *stream; /* out: a CUstream */
} XLA_FFI_Stream_Get_Args;

typedef struct {
    XLA_FFI_HEADER;
    XLA_FFI_ExecutionContext *ctx;
    int32_t device_ordinal; /* out */
} XLA_FFI_DeviceOrdinal_Get_Args;

typedef struct {
    XLA_FFI_HEADER;
    int major_version;
    int minor_version;
} XLA_FFI_Api_Version;

typedef struct XLA_FFI_Api {
    XLA_FFI_HEADER;
    XLA_FFI_Api_Version api_version;
    const void *internal_api;
    XLA_FFI_Error *(*XLA_FFI_Error_Create)(XLA_FFI_Error_Create_Args *);
    void *XLA_FFI_Error_GetMessage;
    void *XLA_FFI_Error_Destroy;
    void *XLA_FFI_Handler_Register;
    XLA_FFI_Error *(*XLA_FFI_Stream_Get)(XLA_FFI_Stream_Get_Args *);
    void *XLA_FFI_Type_Register;
    void *XLA_FFI_ExecutionContext_Get;
    void *XLA_FFI_State_Set;
    void *XLA_FFI_State_Get;
    void *XLA_FFI_DeviceMemory_Allocate;
    void *XLA_FFI_DeviceMemory_Free;
    void *XLA_FFI_ThreadPool_Schedule;
    void *XLA_FFI_ThreadPool_NumThreads;
    void *XLA_FFI_Future_Create;
    void *XLA_FFI_Future_SetAvailable;
    void *XLA_FFI_Future_SetError;
    void *XLA_FFI_RunId_Get;
    XLA_FFI_Error *(*XLA_FFI_DeviceOrdinal_Get)(XLA_FFI_DeviceOrdinal_Get_Args *);
} XLA_FFI_Api;

enum { XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE = 1 };

typedef struct {
    size_t struct_size;
    XLA_FFI_Api_Version api_version; /* out: the version that the handler was written for */
    uint32_t traits;                 /* out */
} XLA_FFI_Metadata;                  /* newer versions append fields */

typedef struct {
    XLA_FFI_Extension_Base extension_base;
    XLA_FFI_Metadata *metadata;
} XLA_FFI_Metadata_Extension;

#endif
