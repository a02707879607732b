#ifndef STERNWAY_THREADS_H
#define STERNWAY_THREADS_H
#include <stdint.h>

/* torch.get_num_threads() on this thread; 0 if torch is not loaded. */
int sw_torch_threads(void);

/* The CPU time that this thread has used, in nanoseconds. */
int64_t sw_thread_time(void);

/* The number of processors in the affinity mask of this thread; 0 if the system does not report
   it. */
int sw_affinity(void);

/* The number of shared libraries that this process has loaded so far; it never falls. */
unsigned long long sw_count_libraries(void);

#endif
