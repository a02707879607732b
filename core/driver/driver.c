#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>

/* One list of functions: each is a static pointer, found by name when libcuda is opened. */
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
  X(cuLaunchKernel, (uintptr_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, uintptr_t, void **, void **)) \
  X(cuLaunchCooperativeKernel, (uintptr_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, uintptr_t, void **)) \
  X(cuMemcpyDtoHAsync_v2, (void *, uintptr_t, size_t, uintptr_t)) \
  X(cuStreamSynchronize, (uintptr_t))

#define DECLARE(name, parameters) static int (*name) parameters;
FUNCTIONS(DECLARE)

static const char *missing = "libcuda was never opened";
static int driver_version;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_library(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    missing = "no NVIDIA driver (libcuda.so.1 was not found)";
    return;
  }
#define FIND(name, parameters) \
  if (!(*(void **)&name = dlsym(library, #name))) { \
    missing = "an NVIDIA driver too old for CUDA 12 (no " #name ")"; \
    return; \
  }
  FUNCTIONS(FIND)
  int status = cuInit(0);
  if (status) {
    missing = sw_status_name(status);
    if (!missing) missing = "a driver that does not start";
    return;
  }
  cuDriverGetVersion(&driver_version);
  missing = NULL;
}

const char *sw_open(int *version) {
  pthread_once(&once, open_library);
  *version = driver_version;
  return missing;
}

const char *sw_status_name(int status) {
  const char *name = NULL;
  return cuGetErrorName(status, &name) == 0 ? name : NULL;
}

int sw_device_count(int *count) { return cuDeviceGetCount(count); }

int sw_device_open(int ordinal, int *device, uintptr_t *context) {
  int status = cuDeviceGet(device, ordinal);
  return status ? status : cuDevicePrimaryCtxRetain(context, *device);
}

int sw_device_name(int device, char *name, int size) { return cuDeviceGetName(name, size, device); }
int sw_device_attribute(int device, int attribute, int *value) { return cuDeviceGetAttribute(value, attribute, device); }
int sw_device_memory(int device, size_t *bytes) { return cuDeviceTotalMem_v2(bytes, device); }

int sw_library_load(const void *image, uintptr_t *library) { return cuLibraryLoadData(library, image, NULL, NULL, 0, NULL, NULL, 0); }

/* Makes context current; *before is what to hand to leave(). A thread of autograd has no context at first. */
static int enter(uintptr_t context, uintptr_t *before) {
  int status = cuCtxGetCurrent(before);
  if (status || *before == context) return status;
  return cuCtxSetCurrent(context);
}

static void leave(uintptr_t context, uintptr_t before) {
  if (before != context) cuCtxSetCurrent(before);
}

int sw_kernel_get(uintptr_t library, const char *name, uintptr_t context, int shared, uintptr_t *function) {
  enum { SHARED_SIZE_BYTES = 1, MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
  uintptr_t before, kernel;
  int used, status = enter(context, &before);
  if (status) return status;
  status = cuLibraryGetKernel(&kernel, library, name);
  if (!status) status = cuKernelGetFunction(function, kernel);
  if (!status) status = cuFuncGetAttribute(&used, SHARED_SIZE_BYTES, *function);
  if (!status) status = cuFuncSetAttribute(*function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared - used);
  leave(context, before);
  return status;
}

int sw_launch_kernel(const sw_launch *l, const uint64_t *words) {
  uintptr_t before;
  void *arguments[] = {(void *)words};
  int status = enter(l->context, &before);
  if (status) return status;
  if (l->together)
    status = cuLaunchCooperativeKernel(l->function, l->grid, 1, 1, l->block, 1, 1, l->shared, l->stream, arguments);
  else
    status = cuLaunchKernel(l->function, l->grid, 1, 1, l->block, 1, 1, l->shared, l->stream, arguments, NULL);
  leave(l->context, before);
  return status;
}

int sw_synchronize(uintptr_t context, uintptr_t stream) {
  uintptr_t before;
  int status = enter(context, &before);
  if (status) return status;
  status = cuStreamSynchronize(stream);
  leave(context, before);
  return status;
}

int sw_read_device(uintptr_t context, uintptr_t stream, void *to, uintptr_t from, size_t bytes) {
  uintptr_t before;
  int status = enter(context, &before);
  if (status) return status;
  status = cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
  if (!status) status = cuStreamSynchronize(stream);
  leave(context, before);
  return status;
}
