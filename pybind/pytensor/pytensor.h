/* Reads Python tensors into plain structures. */
#ifndef STERNWAY_PYTENSOR_H
#define STERNWAY_PYTENSOR_H

#include <stdint.h>

enum { SW_MAX_RANK = 8, SW_MAX_OPERANDS = 16, SW_TEXT = 200 };

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
    SW_NO_PRODUCER, /* text: what the producer of the item raised */
    SW_RANK,        /* text: the number of dimensions */
    SW_MALFORMED,   /* text: what is wrong with the description that the producer gave */
    SW_UNUSUAL,     /* nothing was done: the general way is for the caller to take */
};

typedef struct {
    int64_t stream;   /* in: a stream, or -1 for the producer's current one; out: the stream */
    int32_t item;     /* the number of items read; with an error, the number of the item that it is about */
    int32_t writes;   /* the number of outputs among operands read by name */
    uint64_t written[SW_MAX_OPERANDS]; /* their objects; no pointers, which cgo would follow */
    char text[SW_TEXT];
} sw_answer;

/* Reads the tuple whose id() is `operands` into out[0..capacity). Takes the GIL. */
int32_t sw_read(int64_t operands, int32_t capacity, sw_tensor *out, sw_answer *answer);

/* Keeps what plain tensors of torch are asked with: the tuple whose id() is `words`, in the order of the enum in usual.c. */
int32_t sw_meet(int64_t words);

/* Reads the dict of operands by name whose id() is `operands` into out, in the order of the tuple of names, of which
   the first are inputs. SW_UNUSUAL where one is no plain tensor of torch, or not as it should be. Takes the GIL. */
int32_t sw_read_usual(int64_t operands, int64_t names, int32_t inputs, int32_t capacity, sw_tensor *out, sw_answer *answer);

/* Tells torch that the outputs of that read were overwritten; SW_UNUSUAL when it would not count all of them. */
int32_t sw_count_writes(sw_answer *answer);

#endif
