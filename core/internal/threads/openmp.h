#ifndef STERNWAY_OPENMP_H
#define STERNWAY_OPENMP_H
#include <stdint.h>

/*
 * The team that an OpenMP runtime of this process, of torch for example, has for the thread that the process began with.
 *
 * Its threads spin for some milliseconds after each parallel region, and other threads have to share the processors with them
 * meanwhile: the backward of a step, after a parallel forward of torch, would gain nothing from threads of its own.
 *
 * A team does not survive fork(): a parallel region in the child would wait for threads that are not there. So it is released before a
 * fork once it was found here, whoever used it, and the runtime makes a new one when it needs one.
 */

/* Whether the calling thread has a team with so many members beside itself: there is a runtime that can release its teams, the thread is the
   first of the process and in no parallel region, and its setting allows for as many threads. */
int sw_openmp_has_team(int others);

/* Calls swOpenMPMember(handle, k) on member k of the team, 0 <= k <= others, of which 0 is this thread, and returns when all members have
   come to the end of the region. */
void sw_openmp_run(uintptr_t handle, int others);

#endif
