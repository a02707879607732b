/* Runs plans for XLA. */
#ifndef STERNWAY_XLA_HANDLER_H
#define STERNWAY_XLA_HANDLER_H

#include "../pytensor/pytensor.h"

#include <stddef.h>

enum { SW_XLA_TEXT = 600, SW_XLA_CPU = -1 };

/* A call that XLA makes of a handler. */
typedef struct {
    const char *text;    /* the attribute "call": a problem and its operands as JSON, which package xla reads */
    size_t length;       /* of text in bytes */
    int32_t ordinal;     /* of the CUDA device; SW_XLA_CPU: the CPU */
    int32_t prepares;    /* 1: select the plan, run nothing */
    uint64_t stream;     /* a CUstream */
    int32_t count;       /* of buffers */
    sw_tensor buffers[SW_MAX_OPERANDS]; /* inputs, then outputs */
    int32_t code;        /* out: an error code of XLA; 0: success */
    char message[SW_XLA_TEXT]; /* out, with an error */
} sw_xla_call;

/* The versions 0.x of XLA's interface of which the part in xla_ffi.h is the same. */
enum { SW_XLA_OLDEST_MINOR = 1, SW_XLA_NEWEST_MINOR = 3 };

/* Sets the minor version that handlers state, clamped to this range. An old XLA takes no handler of
   a newer version, and a new one may refuse an old version. Call it before XLA gets a handler. */
void sw_xla_set_minor(int minor);

struct XLA_FFI_Error;

/* The handlers of the two platforms, of type XLA_FFI_Handler. No Python is called and no lock of
   Python is taken: XLA calls them on threads of its own. */
struct XLA_FFI_Error *sw_xla_cpu(void *frame);
struct XLA_FFI_Error *sw_xla_cuda(void *frame);

/* In Go: makes the call and sets its code. */
void sw_go_xla(sw_xla_call *call);

#endif
