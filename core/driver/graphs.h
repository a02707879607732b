/*
 * Launches as executable graphs of one kernel each. The driver (580, on an H200) starts one sooner
 * than cuLaunchKernel launches a kernel, also where the argument or the grid is changed before.
 *
 * A graph does not run beside itself, so it belongs to a stream, where kernels wait for each other
 * anyway, and to a kernel there. Graphs are made once for a device: launches allocate nothing.
 */
#ifndef STERNWAY_GRAPHS_H
#define STERNWAY_GRAPHS_H
#include "driver.h"

/* With any function of the context, which is current; NULL where there is no memory for them. */
sw_graphs *sw_graphs_make(uintptr_t context, uintptr_t function);

/* Whether the launch was started in a graph. It was not where the stream is being captured, no
   graph is free, another thread is here or the driver refuses it; a launch will say why. */
int sw_graphs_launch(const sw_launch *launch, const uint64_t *words);

#endif
