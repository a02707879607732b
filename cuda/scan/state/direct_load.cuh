// Direct loads: each lane reads the vectors that it owns, without a transpose through shared
// memory.
#pragma once

#include "scan/state/warp_transpose.cuh"

// WarpTransposeIO for whole vectors when the vectors of a lane fill a 32-byte sector: direct loads
// waste no bandwidth then.
template <typename T, int U>
struct DirectLoadIO : WarpTransposeIO<T, U, true, false> {
    using Base = WarpTransposeIO<T, U, true, false>;
    using typename Base::Vector;
    using Base::Base, Base::p, Base::span, Base::V;

    static __device__ int own(int u) { return Base::lane() * U + u; }

    __device__ void start(Vector (&word)[U], T pad) const
    {
        if (this->all_whole()) {
#pragma unroll
            for (int u = 0; u < U; ++u) word[u].load(p + own(0) * V + u * V);
            return;
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            for (int v = 0; v < V; ++v) word[u].set(v, pad);
            if (this->whole(own(u))) word[u].load(this->vector(own(u)));
        }
    }

    __device__ void repeat(Vector (&word)[U], T pad) const
    {
        const T all = p[-span.first];
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int v = 0; v < V; ++v) word[u].set(v, this->whole(own(u)) ? all : pad);
    }

    __device__ void finish(Vector (&word)[U], uint4*, T) const
    {
        if (!this->all_whole()) this->flip(word);
    }
};
