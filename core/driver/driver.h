#ifndef STERNWAY_DRIVER_H
#define STERNWAY_DRIVER_H
#include <stddef.h>
#include <stdint.h>

/* Calls of the CUDA driver. They are declared by hand, so that the build needs no CUDA header. A
   status is an int, 0 for success. A handle of the driver is an integer. */

/* The executable graphs of a device (graphs.h). */
typedef struct sw_graphs sw_graphs;

enum { SW_MAX_WORDS = 192 }; /* largest argument of a kernel [8-byte words] */

typedef struct {
  uint32_t grid, block, shared;  /* blocks, threads per block, bytes of dynamic shared memory */
  uint32_t cluster;              /* blocks per cluster; 0: no clusters */
  int cooperative;               /* all blocks must be resident at once; otherwise the launch fails */
  uintptr_t stream, function, context;
  sw_graphs *graphs;             /* may be NULL */
  size_t words;                  /* 8-byte words of the argument */
} sw_launch;

/* Opens libcuda once. Returns NULL on success, otherwise a text that says what is missing. */
const char *sw_open(int *version);

/* Returns the name of a status, or NULL if the driver does not know it. */
const char *sw_status_name(int status);

int sw_device_count(int *count);
int sw_device_open(int ordinal, int *device, uintptr_t *context);
int sw_device_name(int device, char *name, int size);
int sw_device_attribute(int device, int attribute, int *value);
int sw_device_memory(int device, size_t *bytes);
int sw_library_load(const void *image, uintptr_t *library);
/* Finds a kernel and resolves it to a function of the context, because launching a function is
   faster than launching a kernel handle. Raises its limit of dynamic shared memory to `shared`
   bytes less its static shared memory. The first call for a device creates its graphs. */
int sw_kernel_get(uintptr_t library, const char *name, uintptr_t context, int shared, uintptr_t *function,
                  sw_graphs **graphs);
/* The functions below make the context current on the calling thread and restore the former context
   before they return. */
int sw_launch_kernel(const sw_launch *launch, const uint64_t *words);
/* Returns how many clusters of a launch can be resident at once; 0 if the device or the code of the
   kernel does not support clusters. */
int sw_clusters(const sw_launch *launch);
int sw_synchronize(uintptr_t context, uintptr_t stream);
/* Waits for the stream, then copies device memory to the host. */
int sw_read_device(uintptr_t context, uintptr_t stream, void *to, uintptr_t from, size_t bytes);
#endif
