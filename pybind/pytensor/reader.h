/* Functions shared by the readers of operands. The caller holds the GIL. */
#ifndef STERNWAY_READER_H
#define STERNWAY_READER_H

#include "Python.h"
#include "dlpack.h"
#include "pytensor.h"

/* The exchange API of a type, or NULL with no Python error when it has none that we understand. */
const DLPackExchangeAPI *sw_exchange_api(PyObject *type);

/* Reads an item of a type with that API, with the flags that say whether it may be written where
   these are asked for; a refusal leaves its text in answer, and no Python error. */
int32_t sw_read_exchange(PyObject *item, const DLPackExchangeAPI *api, int with_flags, sw_tensor *out,
                         sw_answer *answer);

/* The stream of an answer that has none becomes that of the producer of a CUDA tensor; 0 and a
   Python error where it does not tell. */
int sw_take_stream(const DLPackExchangeAPI *api, const sw_tensor *tensor, sw_answer *answer);

#endif
