/* A libcuda.so.1 without a GPU: it tells on standard output what it is asked to do.
   FAKE_REFUSES="cuInit=100" makes a call fail. */
#pragma GCC diagnostic ignored "-Wunused-parameter" /* the functions have the parameters of the real ones */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uintptr_t current;

static int answer(const char *call)
{
    const char *refuses = getenv("FAKE_REFUSES");
    size_t n = strlen(call);
    return refuses && strncmp(refuses, call, n) == 0 && refuses[n] == '=' ? atoi(refuses + n + 1) : 0;
}

int cuInit(unsigned flags) { return answer("cuInit"); }
#ifdef OLD
int cuDriverGetVersion(int *version) { *version = 11040; return 0; }
#else
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
#endif

int cuGetErrorName(int status, const char **name)
{
    if (status == 100) *name = "CUDA_ERROR_NO_DEVICE";
    else if (status == 2) *name = "CUDA_ERROR_OUT_OF_MEMORY";
    else if (status == 209) *name = "CUDA_ERROR_NO_BINARY_FOR_GPU";
    else if (status == 700) *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
    else return 1;
    return 0;
}

int cuDeviceGetCount(int *count) { *count = 2; return answer("cuDeviceGetCount"); }
int cuDeviceGet(int *device, int ordinal) { *device = 40 + ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "Fake %d", device); return 0; }
int cuDeviceGetAttribute(int *value, int which, int device)
{
    *value = which == 16 ? 132 : which == 75 ? 9 : which == 97 ? 232448 : which == 36 ? 2619000 : which == 37 ? 5120
        : 0;
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)1 << 37; return 0; }
int cuDevicePrimaryCtxRetain(uintptr_t *context, int device) { *context = 10 * device;
    return answer("cuDevicePrimaryCtxRetain"); }

int cuCtxGetCurrent(uintptr_t *context)
{
    const char *others = getenv("FAKE_CURRENT");
    if (others && !current) current = atoi(others);
    *context = current;
    return 0;
}

int cuCtxSetCurrent(uintptr_t context)
{
    dprintf(1, "context %d\n", (int)context);
    current = context;
    return 0;
}

int cuLibraryLoadData(uintptr_t *library, const void *image, void *a, void *b, unsigned c, void *d, void *e, unsigned f)
{
    dprintf(1, "load %s\n", (const char *)image);
    *library = 7;
    return answer("cuLibraryLoadData");
}

int cuLibraryGetKernel(uintptr_t *kernel, uintptr_t library, const char *name)
{
    dprintf(1, "kernel %s of library %d\n", name, (int)library);
    *kernel = 8;
    return answer("cuLibraryGetKernel");
}

int cuKernelGetFunction(uintptr_t *function, uintptr_t kernel)
{
    dprintf(1, "function of kernel %d\n", (int)kernel);
    *function = 9;
    return 0;
}

int cuFuncGetAttribute(int *value, int which, uintptr_t function)
{
    const char *made_for = getenv("FAKE_PTX");
    *value = which == 1 ? 448 : which == 5 && made_for ? atoi(made_for) : 0;
    return 0;
}

int cuFuncSetAttribute(uintptr_t function, int which, int value)
{
    dprintf(1, "attribute %d of function %d is %d\n", which, (int)function, value);
    return answer("cuFuncSetAttribute");
}

int cuLaunchKernel(uintptr_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, uintptr_t stream, void **arguments, void **extra) {
    const uint64_t *words = arguments[0]; /* the first word says how many follow */
    dprintf(1, "launch %d grid %u,%u,%u block %u,%u,%u shared %u stream %d words", (int)function, gx, gy, gz, bx, by,
            bz, shared, (int)stream);
    for (uint64_t i = 1; i <= words[0]; i++) dprintf(1, " %llu", (unsigned long long)words[i]);
    dprintf(1, "\n");
    return answer("cuLaunchKernel");
}

int cuLaunchCooperativeKernel(uintptr_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, uintptr_t stream, void **arguments) {
    dprintf(1, "together: ");
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, 0) ? 1
        : answer("cuLaunchCooperativeKernel");
}

/* CUlaunchAttribute, CUlaunchConfig */
typedef struct {
    uint64_t id;
    unsigned value[16];
} launch_attribute;

typedef struct {
    unsigned grid[3], block[3], shared;
    uintptr_t stream;
    const launch_attribute *attributes;
    unsigned count;
} launch_config;

int cuLaunchKernelEx(const launch_config *c, uintptr_t function, void **arguments, void **extra)
{
    for (unsigned i = 0; i < c->count; i++)
        dprintf(1, "attribute %d: %u,%u,%u: ", (int)c->attributes[i].id, c->attributes[i].value[0],
                c->attributes[i].value[1], c->attributes[i].value[2]);
    return cuLaunchKernel(function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2],
                          c->shared, c->stream, arguments, extra)
               ? 1 : answer("cuLaunchKernelEx");
}

int cuOccupancyMaxActiveClusters(int *count, uintptr_t function, const launch_config *c)
{
    dprintf(1, "clusters of %u in a grid of %u, block %u, shared %u of %d\n", c->attributes[0].value[0], c->grid[0],
            c->block[0], c->shared, (int)function);
    *count = 31;
    return answer("cuOccupancyMaxActiveClusters");
}

/* CUDA_KERNEL_NODE_PARAMS_v2 */
typedef struct {
    uintptr_t function;
    unsigned grid[3], block[3], shared;
    void **arguments, **extra;
    uintptr_t kernel, context;
} node_params;

int cuGraphCreate(uintptr_t *graph, unsigned flags)
{
    static int graphs = 20;
    *graph = graphs++;
    return 0;
}

int cuGraphAddKernelNode_v2(uintptr_t *added, uintptr_t graph, const uintptr_t *before, size_t count,
                            const node_params *p) {
    *added = graph + 100;
    return 0;
}

int cuGraphInstantiateWithFlags(uintptr_t *ready, uintptr_t graph, unsigned long long flags)
{
    *ready = graph;
    dprintf(1, "graph %d\n", (int)graph);
    return answer("cuGraphInstantiateWithFlags");
}

int cuGraphExecKernelNodeSetParams_v2(uintptr_t ready, uintptr_t node, const node_params *p)
{
    const uint64_t *words = p->arguments[0]; /* the first word says how many follow */
    dprintf(1, "set graph %d of node %d to %d in %d grid %u,%u,%u block %u,%u,%u shared %u words", (int)ready,
            (int)node, (int)p->function,
            (int)p->context, p->grid[0], p->grid[1], p->grid[2], p->block[0], p->block[1], p->block[2], p->shared);
    for (uint64_t i = 1; i <= words[0]; i++) dprintf(1, " %llu", (unsigned long long)words[i]);
    dprintf(1, "\n");
    return answer("cuGraphExecKernelNodeSetParams_v2");
}

int cuGraphLaunch(uintptr_t ready, uintptr_t stream)
{
    dprintf(1, "start graph %d on stream %d\n", (int)ready, (int)stream);
    return answer("cuGraphLaunch");
}

int cuStreamIsCapturing(uintptr_t stream, int *status)
{
    *status = getenv("FAKE_CAPTURED") != NULL;
    return answer("cuStreamIsCapturing");
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    static int of_thread;
    int former = of_thread;
    of_thread = *mode;
    *mode = former;
    dprintf(1, "capture mode %d\n", of_thread);
    return 0;
}

int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, uintptr_t stream)
{
    dprintf(1, "read %d bytes at %d on stream %d\n", (int)bytes, (int)from, (int)stream);
    memset(to, 'x', bytes);
    return answer("cuMemcpyDtoHAsync_v2");
}

#ifndef OLD
int cuStreamSynchronize(uintptr_t stream)
{
    dprintf(1, "wait for stream %d\n", (int)stream);
    return answer("cuStreamSynchronize");
}
#endif
