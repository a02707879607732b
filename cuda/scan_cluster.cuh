// What blocks of a cluster tell each other: a state is left in the shared memory of another block, where a barrier counts what has come.
#pragma once

#include "kernel.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr bool kClusters = true;
#else
constexpr bool kClusters = false;
#endif

constexpr int kClusterBlocks = 16;  // at most

// Where a block hears the others: of those ahead their heads, of those behind their tails, in packets of 16 bytes. All of them have to be
// heard before one is told again.
template <int PACKETS>
struct Letterbox {
    uint4 state[kClusterBlocks][PACKETS];
    unsigned long long come[2];  // barriers: of what is told at once, and of what is told when that is heard

    static __device__ unsigned shared(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

    __device__ void open()
    {
        for (const auto& barrier : come) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared(&barrier)) : "memory");
    }

    // Leaves a state of block `own` with another one.
    template <typename S>
    __device__ void tell(int then, int other, int own, const S& s)
    {
        unsigned word[PACKETS * 4] = {};
        static_assert(sizeof s <= sizeof word);
        memcpy(word, &s, sizeof s);
#pragma unroll
        for (int i = 0; i < PACKETS; ++i)
            asm volatile("{ .reg .b32 to, come; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 come, %1, %2;"
                         " st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%3, %4, %5, %6}, [come]; }" ::"r"(shared(&state[own][i])),
                         "r"(shared(&come[then])), "r"(other), "r"(word[4 * i]), "r"(word[4 * i + 1]), "r"(word[4 * i + 2]), "r"(word[4 * i + 3])
                         : "memory");
    }

    // A warp waits for so many states, the turn-th time.
    __device__ void wait(int then, int states, unsigned turn)
    {
        const unsigned barrier = shared(&come[then]);
        if (threadIdx.x % 32 == 0)
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(states * PACKETS * 16) : "memory");
        asm volatile("{ .reg .pred all; AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 all, [%0], %1; @!all bra AGAIN; }" ::"r"(barrier),
                     "r"(turn & 1)
                     : "memory");
    }

    template <typename S>
    __device__ S hear(int other) const
    {
        S s;
        memcpy(&s, state[other], sizeof s);
        return s;
    }
};

// Waits for all blocks of the cluster.
__device__ inline void meet_cluster()
{
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
