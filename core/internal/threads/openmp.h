#ifndef STERNWAY_OPENMP_H
#define STERNWAY_OPENMP_H
#include <stdint.h>

/*
 * Runs work on the thread team of an OpenMP runtime that is already loaded, such as the one of
 * torch.
 *
 * The threads of a team spin for some milliseconds after each parallel region and occupy the
 * processors meanwhile. A backward that follows a parallel forward of torch would compete with them
 * if it used threads of its own.
 *
 * A team does not survive fork(): a parallel region in the child would wait for threads that do not
 * exist there. Once a runtime was found, a pthread_atfork handler therefore releases the team
 * before each fork; the runtime creates a new one on demand.
 */

/* Whether the calling thread has a team with `others` members beside itself. This requires a
   runtime that can release its teams, that the thread is the main thread and outside of any
   parallel region, and that omp_get_max_threads() exceeds `others`. */
int sw_openmp_has_team(int others);

/* Calls swOpenMPMember(handle, k) on member k of the team for 0 <= k <= others; member 0 is the
   calling thread. Returns when all members have left the parallel region. */
void sw_openmp_run(uintptr_t handle, int others);

#endif
