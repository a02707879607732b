// Thread-block clusters: exchange through distributed shared memory. A CTA stores a state to the
// shared memory of another one by st.async, and an mbarrier there counts the bytes that have
// arrived.
#pragma once

#include "common/dtype.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr bool kClusters = true;
#else
constexpr bool kClusters = false;
#endif

// A transaction barrier (mbarrier) in shared memory. Each phase: one thread calls arrive_expect_tx,
// other CTAs st_async that number of bytes, and readers wait. Phases alternate in parity, so a CTA
// may be at most one phase ahead of another.
struct Barrier {
    unsigned long long state;

    __device__ unsigned address() const { return static_cast<unsigned>(__cvta_generic_to_shared(&state)); }
    __device__ void init() { asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address()) : "memory"); }

    // One thread of the CTA says how many bytes arrive in this phase.
    __device__ void arrive_expect_tx(int bytes) const
    {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
    }

    // Waits until they have arrived; `phase` counts the phases from 0.
    __device__ void wait(unsigned phase) const
    {
        asm volatile("{ .reg .pred all; RETRY: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 all, [%0], %1; "
                     "@!all bra RETRY; }" ::"r"(address()), "r"(phase & 1)
                     : "memory");
    }

    // Stores a state to the counterpart of `to` in the shared memory of CTA `other`, whose barrier
    // counts the bytes.
    template <typename S>
    __device__ void st_async(int other, const S& to, const S& s) const
    {
        static_assert(sizeof s == 4 || sizeof s == 8 || sizeof s == 16);
        unsigned word[sizeof s / 4], address_there = static_cast<unsigned>(__cvta_generic_to_shared(&to));
        unsigned full_barrier = address();
        memcpy(word, &s, sizeof s);
        asm volatile("mapa.shared::cluster.u32 %0, %0, %2; mapa.shared::cluster.u32 %1, %1, %2;"
                     : "+r"(address_there), "+r"(full_barrier) : "r"(other));
        if constexpr (sizeof s == 4)
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %2, [%1];"
                         ::"r"(address_there), "r"(full_barrier), "r"(word[0])
                         : "memory");
        else if constexpr (sizeof s == 8)
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%2, %3}, [%1];"
                         ::"r"(address_there), "r"(full_barrier), "r"(word[0]), "r"(word[1])
                         : "memory");
        else
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2, %3, %4, %5}, [%1];"
                         ::"r"(address_there), "r"(full_barrier), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                         : "memory");
    }
};

// Barrier over all threads of the cluster.
__device__ inline void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
