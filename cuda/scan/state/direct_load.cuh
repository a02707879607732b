// How whole vectors come to the lane that owns them straight from memory.
#pragma once

#include "scan/state/warp_transpose.cuh"

// A Line of whole vectors alone, where those of a lane make a sector: each lane reads its own, and they need not change places.
template <typename T, int U, bool FULL>
struct OwnLine : Line<T, U, true, false, FULL> {
    using Base = Line<T, U, true, false, FULL>;
    using typename Base::Vector;
    using Base::Base, Base::p, Base::at, Base::V;

    static __device__ int own(int u) { return Base::lane() * U + u; }

    __device__ void start(Vector (&word)[U], T pad) const
    {
        if (this->plain()) {
#pragma unroll
            for (int u = 0; u < U; ++u) word[u].load(p + own(0) * V + u * V);
            if (FULL) __syncwarp();  // lest it be asked for late
            return;
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            for (int v = 0; v < V; ++v) word[u].set(v, pad);
            if (this->whole(own(u))) word[u].load(this->vector(own(u)));
        }
    }

    __device__ void repeat(Vector (&word)[U]) const
    {
        const T all = p[-at.first];
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int v = 0; v < V; ++v) word[u].set(v, this->whole(own(u)) ? all : T());
    }

    __device__ void finish(Vector (&word)[U], uint4*, T) const
    {
        if (!this->plain()) this->flip(word);
    }
};
