/* Opens libcuda at first use and makes the calls of package driver. */
#include "driver.h"
#include "functions.h"
#include "graphs.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

struct sw_functions sw_cuda;

static const char *missing = "libcuda was never opened";
static char too_old[128];
static int driver_version;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The words for a driver that lacks a function. Its version is known before cuInit. */
static const char *describe_old(const char *function) {
  int version = 0;
  if (sw_cuda.cuDriverGetVersion) sw_cuda.cuDriverGetVersion(&version);
  snprintf(too_old, sizeof too_old, "an NVIDIA driver of CUDA %d.%d, older than CUDA 12.0 (no %s)", version / 1000,
           version % 1000 / 10, function);
  return too_old;
}

static void open_library(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    missing = "no NVIDIA driver (libcuda.so.1 was not found)";
    return;
  }
#define FIND(name, parameters) \
  if (!(*(void **)&sw_cuda.name = dlsym(library, #name))) { \
    missing = describe_old(#name); \
    return; \
  }
  FUNCTIONS(FIND)
  int status = sw_cuda.cuInit(0);
  if (status) {
    missing = sw_status_name(status);
    if (!missing) missing = "a driver that does not start";
    return;
  }
  sw_cuda.cuDriverGetVersion(&driver_version);
  missing = NULL;
}

const char *sw_open(int *version) {
  pthread_once(&once, open_library);
  *version = driver_version;
  return missing;
}

const char *sw_status_name(int status) {
  const char *name = NULL;
  return sw_cuda.cuGetErrorName(status, &name) == 0 ? name : NULL;
}

int sw_device_count(int *count) { return sw_cuda.cuDeviceGetCount(count); }

int sw_device_open(int ordinal, int *device, uintptr_t *context) {
  int status = sw_cuda.cuDeviceGet(device, ordinal);
  return status ? status : sw_cuda.cuDevicePrimaryCtxRetain(context, *device);
}

int sw_device_name(int device, char *name, int size) { return sw_cuda.cuDeviceGetName(name, size, device); }
int sw_device_attribute(int device, int attribute, int *value) {
  return sw_cuda.cuDeviceGetAttribute(value, attribute, device);
}
int sw_device_memory(int device, size_t *bytes) { return sw_cuda.cuDeviceTotalMem_v2(bytes, device); }

int sw_library_load(const void *image, uintptr_t *library) {
  return sw_cuda.cuLibraryLoadData(library, image, NULL, NULL, 0, NULL, NULL, 0);
}

/* Makes context current; *before is the argument of pop_context(). A thread of autograd has no
   context at first. */
static int push_context(uintptr_t context, uintptr_t *before) {
  int status = sw_cuda.cuCtxGetCurrent(before);
  if (status || *before == context) return status;
  return sw_cuda.cuCtxSetCurrent(context);
}

static void pop_context(uintptr_t context, uintptr_t before) {
  if (before != context) sw_cuda.cuCtxSetCurrent(before);
}

int sw_kernel_get(uintptr_t library, const char *name, uintptr_t context, int shared, uintptr_t *function,
                  sw_graphs **graphs) {
  enum { SHARED_SIZE_BYTES = 1, MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
  uintptr_t before, kernel;
  int used, status = push_context(context, &before);
  if (status) return status;
  status = sw_cuda.cuLibraryGetKernel(&kernel, library, name);
  if (!status) status = sw_cuda.cuKernelGetFunction(function, kernel);
  if (!status) status = sw_cuda.cuFuncGetAttribute(&used, SHARED_SIZE_BYTES, *function);
  if (!status) status = sw_cuda.cuFuncSetAttribute(*function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared - used);
  if (!status && !*graphs) *graphs = sw_graphs_make(context, *function);
  pop_context(context, before);
  return status;
}

/* The configuration of a launch with clusters, for which graphs are not used. */
static launch_config clusters_of(const sw_launch *l, launch_attribute *attribute) {
  enum { CLUSTER_DIMENSION = 4 };
  *attribute = (launch_attribute){CLUSTER_DIMENSION, {l->cluster, 1, 1}};
  return (launch_config){{l->grid, 1, 1}, {l->block, 1, 1}, l->shared, l->stream, attribute, 1};
}

int sw_clusters(const sw_launch *l) {
  enum { PTX_VERSION = 5, NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14 };
  uintptr_t before;
  launch_attribute attribute;
  launch_config config = clusters_of(l, &attribute);
  int made_for = 0, count = 0;
  if (push_context(l->context, &before)) return 0;
  if (sw_cuda.cuFuncGetAttribute(&made_for, PTX_VERSION, l->function) || made_for < 90 ||
      sw_cuda.cuFuncSetAttribute(l->function, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1) ||
      sw_cuda.cuOccupancyMaxActiveClusters(&count, l->function, &config))
    count = 0;
  pop_context(l->context, before);
  return count;
}

int sw_launch_kernel(const sw_launch *l, const uint64_t *words) {
  uintptr_t before;
  void *arguments[] = {(void *)words};
  int status = push_context(l->context, &before);
  if (status) return status;
  if (l->cluster) {
    launch_attribute attribute;
    launch_config config = clusters_of(l, &attribute);
    status = sw_cuda.cuLaunchKernelEx(&config, l->function, arguments, NULL);
  } else if (l->cooperative)
    status = sw_cuda.cuLaunchCooperativeKernel(l->function, l->grid, 1, 1, l->block, 1, 1, l->shared, l->stream,
                                               arguments);
  else if (!sw_graphs_launch(l, words))
    status = sw_cuda.cuLaunchKernel(l->function, l->grid, 1, 1, l->block, 1, 1, l->shared, l->stream, arguments, NULL);
  pop_context(l->context, before);
  return status;
}

int sw_synchronize(uintptr_t context, uintptr_t stream) {
  uintptr_t before;
  int status = push_context(context, &before);
  if (status) return status;
  status = sw_cuda.cuStreamSynchronize(stream);
  pop_context(context, before);
  return status;
}

int sw_read_device(uintptr_t context, uintptr_t stream, void *to, uintptr_t from, size_t bytes) {
  uintptr_t before;
  int status = push_context(context, &before);
  if (status) return status;
  status = sw_cuda.cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
  if (!status) status = sw_cuda.cuStreamSynchronize(stream);
  pop_context(context, before);
  return status;
}
