// Strips that are done again by a kernel that can do everything, as one that was tried first marked them.
#pragma once

#include "scan/state/split_state.cuh"

// Whether a strip is to be done again, by what each of so many blocks found against it. All lanes of a warp ask.
__device__ inline bool undone(const ScanArgs& args, i64 strip, int marks)
{
    const int* bad = args.bad + strip * marks;
    unsigned faults = 0;
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < marks; i += 32) faults |= static_cast<unsigned>(bad[i]);
    return __reduce_or_sync(0xffffffff, faults) == kUndone;
}

// Waits until all blocks, which are on the device at once, have met so many times. Their count is 0 before the launch.
__device__ inline void meet_device(int* count, unsigned times)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(count, 1);
        unsigned met;
        do
            asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(met) : "l"(count) : "memory");
        while (met < times * gridDim.x);
    }
    __syncthreads();
}

// What a block does: an item, which is a part of a strip, in a phase. In shared memory, lest it hold registers.
struct Turn {
    unsigned item;
    int phase;
};
__device__ inline Turn& turn()
{
    __shared__ Turn shared;
    return shared;
}

// Whether the block has something to do: where strips are marked, few blocks look at all marks, of which as a rule there is none. A thread
// looks at a strip with one of them.
__device__ inline bool some_item(const ScanArgs& args, int marks)
{
    const bool share = args.flags & kMarked && args.parts > 1;  // blocks share strips
    const unsigned first = share ? 0 : blockIdx.x, apart = share ? 1 : gridDim.x, readers = marks == 1 ? 1 : 32;
    bool some = !(args.flags & kMarked);
#pragma unroll 1
    for (unsigned strip = first + threadIdx.x / readers * apart; strip < args.strips && !some; strip += blockDim.x / readers * apart)
        some = marks == 1 ? args.bad[strip] == static_cast<int>(kUndone) : undone(args, strip, marks);
    return __syncthreads_or(some);
}

// Does the item of the block, or all of marked strips. Blocks that share these meet between the phases.
template <typename Each>
__device__ void do_items(const ScanArgs& args, int marks, Each each)
{
    unsigned& item = turn().item;
    int& phase = turn().phase;
    const bool again = args.flags & kMarked, share = again && args.parts > 1;
    const unsigned all = again ? static_cast<unsigned>(args.strips * args.parts) : blockIdx.x + 1;
    if (threadIdx.x == 0) phase = share ? kHeads : static_cast<int>(args.flags) & (kHeads | kTails);
#pragma unroll 1
    for (unsigned met = 1;; ++met) {
        if (threadIdx.x == 0) item = blockIdx.x;
        __syncthreads();
#pragma unroll 1
        while (item < all) {
            if (!again || undone(args, item / static_cast<unsigned>(args.parts), marks)) each();
            __syncthreads();
            if (threadIdx.x == 0) item += gridDim.x;
            __syncthreads();
        }
        if (!share || phase == 0) return;
        meet_device(args.bad + args.strips * marks, met);
        if (threadIdx.x == 0) phase = phase == kHeads ? kTails : 0;
    }
}
