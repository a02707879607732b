// The fallback pass: segments that the fast path rejected are recomputed by the general kind.
#pragma once

#include "scan/state/split_state.cuh"

// Whether a segment needs the fallback pass: the OR of its flags is kRejected.
// Called by all lanes of a warp.
__device__ inline bool needs_fallback(const ScanArgs& args, i64 segment, int flags_per_row)
{
    const int* reject_flags = args.reject_flags + segment * flags_per_row;
    unsigned rejections = 0;
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < flags_per_row; i += 32) rejections |= static_cast<unsigned>(reject_flags[i]);
    return __reduce_or_sync(0xffffffff, rejections) == kRejected;
}

// Grid-wide barrier; `barrier_number` counts the barriers of this launch from 1. Preconditions: all
// CTAs are resident (cooperative launch), and *count is 0 before the launch.
__device__ inline void grid_sync(int* count, unsigned barrier_number)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(count, 1);
        unsigned arrivals;
        do
            asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(arrivals) : "l"(count) : "memory");
        while (arrivals < barrier_number * gridDim.x);
    }
    __syncthreads();
}

// The work item of a CTA: one split of a segment, in one phase. It is in shared memory to save
// registers.
struct WorkItem {
    unsigned item;
    int phase;
};
__device__ inline WorkItem& work_item()
{
    __shared__ WorkItem shared;
    return shared;
}

// Whether the CTA has any work. A fallback pass has few CTAs, as usually no flag is set; together
// (each alone, if splits are shared by CTAs) they read all flags, a thread per segment or, with
// several flags per segment, a warp. All threads of the CTA must call it.
__device__ inline bool has_work_item(const ScanArgs& args, int flags_per_row)
{
    const bool splits_shared = args.flags & kFallback && args.splits > 1;  // splits of a segment are shared by CTAs
    const unsigned first = splits_shared ? 0 : blockIdx.x, stride = splits_shared ? 1 : gridDim.x,
                   readers = flags_per_row == 1 ? 1 : 32;
    bool some = !(args.flags & kFallback);
#pragma unroll 1
    for (unsigned segment = first + threadIdx.x / readers * stride; segment < args.segments && !some;
         segment += blockDim.x / readers * stride)
        some = flags_per_row == 1 ? args.reject_flags[segment] == static_cast<int>(kRejected)
                                  : needs_fallback(args, segment, flags_per_row);
    return __syncthreads_or(some);
}

// Calls each() for the work item of the CTA or, in a fallback pass, for all splits of rejected
// segments (persistent CTAs). If segments are split, the CTAs meet in grid_sync between the phases;
// this needs a cooperative launch.
template <typename Each>
__device__ void for_each_work_item(const ScanArgs& args, int flags_per_row, Each each)
{
    unsigned& item = work_item().item;
    int& phase = work_item().phase;
    const bool fallback = args.flags & kFallback, splits_shared = fallback && args.splits > 1;
    // Outside a fallback pass, the loop over items runs once.
    const unsigned all = fallback ? static_cast<unsigned>(args.segments * args.splits) : blockIdx.x + 1;
    if (threadIdx.x == 0)
        phase = splits_shared ? kUpsweepPrefix : static_cast<int>(args.flags) & (kUpsweepPrefix | kUpsweepSuffix);
#pragma unroll 1
    for (unsigned barrier_number = 1;; ++barrier_number) {
        if (threadIdx.x == 0) item = blockIdx.x;
        __syncthreads();
#pragma unroll 1
        while (item < all) {
            if (!fallback || needs_fallback(args, item / static_cast<unsigned>(args.splits), flags_per_row)) each();
            __syncthreads();
            if (threadIdx.x == 0) item += gridDim.x;
            __syncthreads();
        }
        if (!splits_shared || phase == kDownsweep) return;
        grid_sync(args.reject_flags + args.segments * flags_per_row, barrier_number);
        if (threadIdx.x == 0) phase = phase == kUpsweepPrefix ? kUpsweepSuffix : kDownsweep;
    }
}
