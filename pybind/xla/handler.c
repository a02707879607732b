#include "dtypes.gen.h"
#include "handler.h"
#include "xla_ffi.h"

#include <string.h>

enum { DL_CPU = 1, DL_CUDA = 2 }; /* DLPack's devices */

/* The minor version of the interface that handlers state. */
static int minor_version = SW_XLA_NEWEST_MINOR;

void sw_xla_set_minor(int minor)
{
    minor = minor < SW_XLA_OLDEST_MINOR ? SW_XLA_OLDEST_MINOR : minor;
    minor_version = minor > SW_XLA_NEWEST_MINOR ? SW_XLA_NEWEST_MINOR : minor;
}

static XLA_FFI_Error *fail(const XLA_FFI_Api *api, int code, const char *message)
{
    XLA_FFI_Error_Create_Args args = {sizeof args, NULL, message, code};
    return api->XLA_FFI_Error_Create(&args);
}

/* Describes a dense row-major buffer. Returns NULL, or what is wrong with it. */
static const char *read_buffer(const XLA_FFI_Buffer *buffer, int32_t ordinal, sw_tensor *out)
{
    size_t row = 0, rows = sizeof dtypes / sizeof *dtypes;
    while (row < rows && dtypes[row].xla != buffer->dtype)
        row++;
    if (row == rows)
        return "sternway: a buffer has a dtype that no operand has";
    if (buffer->rank < 0 || buffer->rank > SW_MAX_RANK)
        return "sternway: a buffer has more than 8 dimensions";
    *out = (sw_tensor){
        .data = (uint64_t)(uintptr_t)buffer->data,
        .code = dtypes[row].code,
        .bits = dtypes[row].bits,
        .lanes = 1,
        .device_type = ordinal == SW_XLA_CPU ? DL_CPU : DL_CUDA,
        .device_index = ordinal == SW_XLA_CPU ? 0 : ordinal,
        .ndim = (int32_t)buffer->rank,
        .present = 1,
    };
    int64_t compact = 1;
    for (int64_t i = buffer->rank - 1; i >= 0; i--) {
        out->shape[i] = buffer->dims[i];
        out->strides[i] = compact;
        compact *= buffer->dims[i] > 1 ? buffer->dims[i] : 1;
    }
    return NULL;
}

static const char *read_buffers(const XLA_FFI_CallFrame *frame, sw_xla_call *call)
{
    int64_t inputs = frame->args.size, outputs = frame->rets.size;
    if (inputs < 0 || outputs < 0 || inputs > SW_MAX_OPERANDS || outputs > SW_MAX_OPERANDS - inputs)
        return "sternway: a call has too many buffers";
    call->count = (int32_t)(inputs + outputs);
    for (int32_t i = 0; i < call->count; i++) {
        int is_input = i < inputs;
        int64_t place = is_input ? i : i - inputs;
        int type = is_input ? frame->args.types[place] : frame->rets.types[place];
        const char *wrong = "sternway: an operand is no buffer";
        if (type == XLA_FFI_ArgType_BUFFER)
            wrong = read_buffer(is_input ? frame->args.args[place] : frame->rets.rets[place], call->ordinal,
                                &call->buffers[i]);
        if (wrong)
            return wrong;
    }
    return NULL;
}

static const char *read_text(const XLA_FFI_CallFrame *frame, sw_xla_call *call)
{
    static const char name[] = "call";
    for (int64_t i = 0; i < frame->attrs.size; i++) {
        const XLA_FFI_ByteSpan *found = frame->attrs.names[i];
        if (found->len == sizeof name - 1 && !memcmp(found->ptr, name, found->len)
            && frame->attrs.types[i] == XLA_FFI_AttrType_STRING) {
            const XLA_FFI_ByteSpan *text = frame->attrs.attrs[i];
            call->text = text->ptr;
            call->length = text->len;
            return NULL;
        }
    }
    return "sternway: the attribute \"call\" is missing";
}

/* Reads the device of a call on CUDA, and its stream in the stage that runs. */
static XLA_FFI_Error *read_device(const XLA_FFI_CallFrame *frame, sw_xla_call *call)
{
    const XLA_FFI_Api *api = frame->api;
    XLA_FFI_DeviceOrdinal_Get_Args device = {.struct_size = sizeof device, .ctx = frame->ctx};
    if (api->struct_size < sizeof *api)
        return fail(api, XLA_FFI_Error_Code_UNIMPLEMENTED, "sternway: this jaxlib is too old; install a newer jax");
    XLA_FFI_Error *error = api->XLA_FFI_DeviceOrdinal_Get(&device);
    if (error)
        return error;
    call->ordinal = device.device_ordinal;
    if (call->prepares)
        return NULL;
    if (call->ordinal < 0)
        return fail(api, XLA_FFI_Error_Code_INTERNAL, "sternway: XLA names no CUDA device");
    XLA_FFI_Stream_Get_Args stream = {.struct_size = sizeof stream, .ctx = frame->ctx};
    error = api->XLA_FFI_Stream_Get(&stream);
    call->stream = (uint64_t)(uintptr_t)stream.stream;
    return error;
}

/* Answers XLA's question for the version of the interface and the traits of a handler. */
static void describe(const XLA_FFI_CallFrame *frame, uint32_t traits)
{
    XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)frame->extension_start)->metadata;
    metadata->api_version.struct_size = sizeof metadata->api_version;
    metadata->api_version.extension_start = NULL;
    metadata->api_version.major_version = 0;
    metadata->api_version.minor_version = minor_version;
    metadata->traits = traits;
}

static XLA_FFI_Error *handle(const XLA_FFI_CallFrame *frame, int on_cuda)
{
    if (frame->extension_start && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
        /* On CUDA a run launches kernels on one stream, and neither allocates nor waits. */
        describe(frame, on_cuda ? XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE : 0);
        return NULL;
    }
    if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE && frame->stage != XLA_FFI_ExecutionStage_INITIALIZE)
        return NULL;
    sw_xla_call call;
    call.ordinal = SW_XLA_CPU;
    call.prepares = frame->stage == XLA_FFI_ExecutionStage_INITIALIZE;
    call.stream = 0;
    call.count = 0;
    call.code = 0;
    call.message[0] = 0;
    XLA_FFI_Error *error = on_cuda ? read_device(frame, &call) : NULL;
    if (error)
        return error;
    if (call.prepares && call.ordinal < 0)
        return NULL; /* nothing to load, or XLA does not say where; the run selects the plan */
    const char *wrong = read_text(frame, &call);
    if (!wrong && !call.prepares)
        wrong = read_buffers(frame, &call);
    if (wrong)
        return fail(frame->api, XLA_FFI_Error_Code_INVALID_ARGUMENT, wrong);
    sw_attach_thread();
    sw_go_xla(&call);
    return call.code ? fail(frame->api, call.code, call.message) : NULL;
}

struct XLA_FFI_Error *sw_xla_cpu(void *frame) { return handle(frame, 0); }

struct XLA_FFI_Error *sw_xla_cuda(void *frame) { return handle(frame, 1); }
