#ifndef STERNWAY_THREADS_H
#define STERNWAY_THREADS_H
#include <stdint.h>

/* What torch.get_num_threads() says on this thread; 0 where torch is not loaded. */
int sw_torch_threads(void);

/* The processor time of this thread in nanoseconds. */
int64_t sw_thread_time(void);

/* The number of processors that this thread may run on; 0 where the system does not tell. */
int sw_affinity(void);

/* How many libraries this process has loaded so far. */
unsigned long long sw_count_libraries(void);

#endif
