/* The functions of libcuda that package driver calls, and their parameter structs. */
#ifndef STERNWAY_FUNCTIONS_H
#define STERNWAY_FUNCTIONS_H
#include <stddef.h>
#include <stdint.h>

typedef struct { /* CUDA_KERNEL_NODE_PARAMS_v2 */
  uintptr_t function;
  unsigned grid[3], block[3], shared;
  void **arguments, **extra;
  uintptr_t kernel, context;
} node_params;

typedef struct { /* CUlaunchAttribute */
  uint64_t id;
  unsigned value[16];
} launch_attribute;

typedef struct { /* CUlaunchConfig */
  unsigned grid[3], block[3], shared;
  uintptr_t stream;
  launch_attribute *attributes;
  unsigned count;
} launch_config;

/* One list of functions, found by name when libcuda is opened. */
#define FUNCTIONS(X) \
  X(cuInit, (unsigned)) \
  X(cuDriverGetVersion, (int *)) \
  X(cuGetErrorName, (int, const char **)) \
  X(cuDeviceGetCount, (int *)) \
  X(cuDeviceGet, (int *, int)) \
  X(cuDeviceGetName, (char *, int, int)) \
  X(cuDeviceGetAttribute, (int *, int, int)) \
  X(cuDeviceTotalMem_v2, (size_t *, int)) \
  X(cuDevicePrimaryCtxRetain, (uintptr_t *, int)) \
  X(cuCtxGetCurrent, (uintptr_t *)) \
  X(cuCtxSetCurrent, (uintptr_t)) \
  X(cuLibraryLoadData, (uintptr_t *, const void *, void *, void *, unsigned, void *, void *, unsigned)) \
  X(cuLibraryGetKernel, (uintptr_t *, uintptr_t, const char *)) \
  X(cuKernelGetFunction, (uintptr_t *, uintptr_t)) \
  X(cuFuncGetAttribute, (int *, int, uintptr_t)) \
  X(cuFuncSetAttribute, (uintptr_t, int, int)) \
  X(cuLaunchKernel, (uintptr_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, uintptr_t, \
                     void **, void **)) \
  X(cuLaunchCooperativeKernel, (uintptr_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                                uintptr_t, void **)) \
  X(cuLaunchKernelEx, (const launch_config *, uintptr_t, void **, void **)) \
  X(cuOccupancyMaxActiveClusters, (int *, uintptr_t, const launch_config *)) \
  X(cuGraphCreate, (uintptr_t *, unsigned)) \
  X(cuGraphAddKernelNode_v2, (uintptr_t *, uintptr_t, const uintptr_t *, size_t, const node_params *)) \
  X(cuGraphInstantiateWithFlags, (uintptr_t *, uintptr_t, unsigned long long)) \
  X(cuGraphExecKernelNodeSetParams_v2, (uintptr_t, uintptr_t, const node_params *)) \
  X(cuGraphLaunch, (uintptr_t, uintptr_t)) \
  X(cuStreamIsCapturing, (uintptr_t, int *)) \
  X(cuThreadExchangeStreamCaptureMode, (int *)) \
  X(cuMemcpyDtoHAsync_v2, (void *, uintptr_t, size_t, uintptr_t)) \
  X(cuStreamSynchronize, (uintptr_t))

#define MEMBER(name, parameters) int (*name) parameters;
extern struct sw_functions { FUNCTIONS(MEMBER) } sw_cuda;

#endif
