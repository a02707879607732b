#ifndef STERNWAY_OPENMP_H
#define STERNWAY_OPENMP_H
#include <stdint.h>

/* The threads of an OpenMP runtime that this process has, of torch for example: they keep looking out for work for a while after each
   piece of it, and others that want their processors meanwhile have to share these. */

/* Calls swOpenMPMember(job, member) on this thread, which is member 0, and on so many others of its team, and returns 1 when all have
   returned. 0: there are not so many, there is no runtime, the thread is in a team already, or it is not the one that the process began
   with; each thread has a team of its own. */
int sw_openmp_team(uintptr_t job, int helpers);
#endif
