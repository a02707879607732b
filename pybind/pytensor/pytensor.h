/* Reads Python tensors into plain structures. */
#ifndef STERNWAY_PYTENSOR_H
#define STERNWAY_PYTENSOR_H

#include <stdint.h>

enum { SW_MAX_RANK = 8, SW_MAX_OPERANDS = 24, SW_TEXT = 200 };

/* A tensor that somebody else owns. core.Tensor has the same layout. */
typedef struct {
    uint64_t data; /* address of the first element, byte offset added */
    uint8_t code, bits;
    uint16_t lanes;
    int32_t device_type, device_index;
    int32_t ndim;
    int32_t present; /* 0: the operand was None */
    int32_t read_only;
    int64_t shape[SW_MAX_RANK];
    int64_t strides[SW_MAX_RANK]; /* in elements, always filled in */
    uint64_t pin;                 /* 0; Go keeps its own memory alive with it */
} sw_tensor;

enum {
    SW_OK,
    SW_NO_PYTHON,   /* not inside a Python process */
    SW_NO_TUPLE,    /* operands are no tuple, or one with more items than there is room for */
    SW_NO_TENSOR,   /* text: what the item is */
    SW_NO_CAPSULE,  /* text: what __dlpack__ returned in place of a capsule */
    SW_NO_PRODUCER, /* text: what the producer of the item raised */
    SW_RANK,        /* text: the number of dimensions */
    SW_MALFORMED,   /* text: what is wrong with the description that the producer gave */
};

typedef struct {
    int64_t stream;   /* in: a stream, or -1 for the producer's current one; out: the stream */
    int32_t item;     /* the number of items read; with an error, the number of the item that it is about */
    char text[SW_TEXT];
} sw_answer;

/* Reads the tuple whose id() is `operands` into out[0..capacity). Takes the GIL. */
int32_t sw_read(int64_t operands, int32_t capacity, sw_tensor *out, sw_answer *answer);

/* Stores the torch functions of the list whose id() is `words`, in the order of the enum in
   fast_path.c, and appends the fast path of Run to the list. */
int32_t sw_store_torch(int64_t words);

/* Must be called before a thread first calls Go. It keeps the signal mask of the thread, which the
   Go runtime would change. */
void sw_attach_thread(void);

/* In Go: does nothing. */
void sw_go_attach(void);

/* In Go: runs a plan with operands in its order and the workspace, and reports whether it did. */
int32_t sw_go_run(int64_t plan, sw_tensor *tensors, int32_t count, int64_t stream);

#endif
