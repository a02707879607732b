/* Functions shared by the readers of operands. The caller holds the GIL. */
#ifndef STERNWAY_READER_H
#define STERNWAY_READER_H

#include "Python.h"
#include "dlpack.h"
#include "pytensor.h"

/* Returns the exchange API of a type, or NULL without a Python error if the type has no known
   version of it. */
const DLPackExchangeAPI *sw_exchange_api(PyObject *type);

/* Reads an item of a type with that API. with_flags: also reads whether the item may be written. An
   error leaves its text in answer, and no Python error. */
int32_t sw_read_exchange(PyObject *item, const DLPackExchangeAPI *api, int with_flags, sw_tensor *out,
                         sw_answer *answer);

/* Sets the stream of an answer that has none to the current stream of the producer of a CUDA
   tensor. Returns 0 with a Python error if the producer fails. */
int sw_take_stream(const DLPackExchangeAPI *api, const sw_tensor *tensor, sw_answer *answer);

#endif
