#ifndef STERNWAY_DRIVER_H
#define STERNWAY_DRIVER_H
#include <stddef.h>
#include <stdint.h>

/* The part of the CUDA driver interface that is used, declared by hand: no CUDA header is needed to
   build. A driver status is an int, 0 for success; a handle is an integer that only the driver
   understands. */

/* What a device keeps of its launches, see graphs.h. */
typedef struct sw_graphs sw_graphs;

enum { SW_MAX_WORDS = 192 }; /* of the argument of a kernel */

typedef struct {
  uint32_t grid, block, shared;  /* blocks, threads per block, bytes of dynamic shared memory */
  uint32_t cluster;              /* so many blocks one after the other are a cluster; 0: they are blocks alone */
  int cooperative;               /* all CTAs must be resident at once; otherwise the launch fails */
  uintptr_t stream, function, context;
  sw_graphs *graphs;             /* may be NULL */
  size_t words;                  /* of the argument */
} sw_launch;

/* Opens libcuda once. NULL on success, otherwise what is missing, in words. */
const char *sw_open(int *version);

/* The name of a status, or NULL when the driver does not know it. */
const char *sw_status_name(int status);

int sw_device_count(int *count);
int sw_device_open(int ordinal, int *device, uintptr_t *context);
int sw_device_name(int device, char *name, int size);
int sw_device_attribute(int device, int attribute, int *value);
int sw_device_memory(int device, size_t *bytes);
int sw_library_load(const void *image, uintptr_t *library);
/* Finds a kernel, loads its code into the context as a function, which is launched sooner than a
   kernel that the driver has to look up there, and lets it ask for what is left of `shared` bytes
   of shared memory. With the first one, the graphs of the device are made. */
int sw_kernel_get(uintptr_t library, const char *name, uintptr_t context, int shared, uintptr_t *function,
                  sw_graphs **graphs);
/* These make the context current on the calling thread for the call, and put back what was current
   before. */
int sw_launch_kernel(const sw_launch *launch, const uint64_t *words);
/* How many clusters of a launch the device holds at once; 0 where it has none, or where the kernel
   is not code for devices that do. */
int sw_clusters(const sw_launch *launch);
int sw_synchronize(uintptr_t context, uintptr_t stream);
/* Waits for the stream, and copies bytes of the device that its work left. */
int sw_read_device(uintptr_t context, uintptr_t stream, void *to, uintptr_t from, size_t bytes);
#endif
