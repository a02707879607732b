/* Launches kernels as executable graphs of one kernel each. Launching such a graph is faster than
   cuLaunchKernel (driver 580, H200), even if its parameters are updated first.

   Launches of one executable graph run one after the other. A graph is therefore used for one
   stream, where kernels are ordered anyway, and for one kernel, so that few updates are needed. The
   graphs of a device are created once, and launches allocate nothing. */
#ifndef STERNWAY_GRAPHS_H
#define STERNWAY_GRAPHS_H
#include "driver.h"

/* Creates the graphs of a device. The context must be current; function is any function of it.
   Returns NULL if memory is exhausted. */
sw_graphs *sw_graphs_make(uintptr_t context, uintptr_t function);

/* Launches a kernel as a graph and returns 1. Returns 0, without a launch, if the stream is
   captured, no graph is free, another thread uses the graphs, or the driver fails. The caller then
   uses cuLaunchKernel, which reports the error. */
int sw_graphs_launch(const sw_launch *launch, const uint64_t *words);

#endif
