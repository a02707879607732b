// What blocks of a cluster tell each other: a state is left in the shared memory of another block, where a barrier counts what has come.
#pragma once

#include "common/dtype.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr bool kClusters = true;
#else
constexpr bool kClusters = false;
#endif

constexpr int kClusterBlocks = 16;  // at most

// In shared memory: bytes that come are counted, and waited for.
struct Barrier {
    unsigned long long state;

    __device__ unsigned address() const { return static_cast<unsigned>(__cvta_generic_to_shared(&state)); }
    __device__ void open() { asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address()) : "memory"); }

    // One thread says how many bytes come this turn.
    __device__ void expect(int bytes) const { asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory"); }

    // Waits for them, the turn-th time.
    __device__ void wait(unsigned turn) const
    {
        asm volatile("{ .reg .pred all; AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 all, [%0], %1; @!all bra AGAIN; }" ::"r"(address()),
                     "r"(turn & 1)
                     : "memory");
    }

    // Leaves a state where `to` is in another block, whose barrier counts it.
    template <typename S>
    __device__ void leave(int other, const S& to, const S& s) const
    {
        static_assert(sizeof s == 4 || sizeof s == 8 || sizeof s == 16);
        unsigned word[sizeof s / 4], place = static_cast<unsigned>(__cvta_generic_to_shared(&to)), come = address();
        memcpy(word, &s, sizeof s);
        asm volatile("mapa.shared::cluster.u32 %0, %0, %2; mapa.shared::cluster.u32 %1, %1, %2;" : "+r"(place), "+r"(come) : "r"(other));
        if constexpr (sizeof s == 4)
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %2, [%1];" ::"r"(place), "r"(come), "r"(word[0]) : "memory");
        else if constexpr (sizeof s == 8)
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%2, %3}, [%1];" ::"r"(place), "r"(come), "r"(word[0]), "r"(word[1]) : "memory");
        else
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(place), "r"(come), "r"(word[0]),
                         "r"(word[1]), "r"(word[2]), "r"(word[3])
                         : "memory");
    }
};

// Waits for all blocks of the cluster.
__device__ inline void meet_cluster()
{
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
