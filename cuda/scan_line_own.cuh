// How whole vectors come to the lane that owns them: straight from memory, or from where its warp asked for them.
#pragma once

#include "scan_line.cuh"

// A Line of whole vectors alone, where those of a lane make a sector: each lane reads its own, and they need not change places.
template <typename T, int U>
struct OwnLine : Line<T, U, true> {
    using Base = Line<T, U, true>;
    using typename Base::Vector;
    using Base::Base, Base::p, Base::at, Base::V;

    static __device__ int own(int u) { return Base::lane() * U + u; }

    __device__ void start(Vector (&word)[U], T pad) const
    {
        if (this->plain()) {
#pragma unroll
            for (int u = 0; u < U; ++u) word[u].load(p + own(u) * V);
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

// The same for vectors that a warp asks for ahead of time, in its part of the room.
template <typename T, int U>
struct StagedLine : OwnLine<T, U> {
    using Base = OwnLine<T, U>;
    using typename Base::Vector;
    using Base::Base, Base::own, Base::V, Base::lane, Base::place;

    __device__ void ask(uint4* room) const
    {
        const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(room));
        if (this->plain()) return ask_plain(to + place(lane()) * 16, to + (place(32 + lane()) - 32) * 16, this->vector(lane()));
        if (this->repeats()) return;
#pragma unroll 1
        for (int m = lane(); m < 32 * U; m += 32)
            if (this->whole(m)) fetch_vector(to + place(m) * 16, this->vector(m));
    }

    // Vectors of every other 32 change places alike.
    template <int M = 0>
    __device__ void ask_plain(unsigned even, unsigned odd, const T* from) const
    {
        if constexpr (M < U) {
            fetch_vector<M * 32 * 16>(M % 2 ? odd : even, from);
            ask_plain<M + 1>(even, odd, from);
        }
    }

    __device__ void start(Vector (&)[U], T) const {}

    __device__ void finish(Vector (&word)[U], uint4* room, T pad) const
    {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].load(Base::along(room, u));
        if (this->plain()) return;
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (!this->whole(own(u)))
                for (int v = 0; v < V; ++v) word[u].set(v, pad);
        this->flip(word);
    }
};
