// Tiles of positions that the channels of a CTA share: B and C of some states, and the positions at
// which sequences begin.
#pragma once

#include "selective/numbers.cuh"

// A tile has the positions of a warp, POSITIONS adjacent ones for each lane. A row of it in shared
// memory has vectors in striped order: a warp reads adjacent ones.
template <typename A>
struct TileShape {
    static constexpr int POSITIONS = kPositions,  // of a lane
        TILE = 32 * POSITIONS,
        STATES = kStateBytes / sizeof(A),  // whose B and C are in shared memory at once
        VECTOR = 16 / sizeof(A),           // numbers of an access to shared memory
        PITCH = TILE + VECTOR;             // of rows: transposed accesses of 8 use different banks
    static_assert(kChunkLength == TILE);

    // The place of position k of a lane in a row.
    static __device__ int place(int lane, int k) { return (k / VECTOR * 32 + lane) * VECTOR + k % VECTOR; }
};

// The numbers of this lane at a state.
template <typename A>
__device__ void read_shared(const A* state, A (&x)[TileShape<A>::POSITIONS])
{
    using Shape = TileShape<A>;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < Shape::POSITIONS; k += Shape::VECTOR) {
        const Pack<A, Shape::VECTOR> pack = load_wide<Shape::VECTOR>(state + Shape::place(lane, k));
#pragma unroll
        for (int v = 0; v < Shape::VECTOR; ++v) x[k + v] = pack.at[v];
    }
}

template <typename A>
__device__ void write_shared(A* state, const A (&x)[TileShape<A>::POSITIONS])
{
    using Shape = TileShape<A>;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < Shape::POSITIONS; k += Shape::VECTOR)
        store_wide(state + Shape::place(lane, k), narrowed<A, Shape::VECTOR>(x + k));
}

// Loads B or C of `states` states from `first` on, at the positions of a tile; 0 where there is
// none.
template <typename A, typename T>
__device__ void load_shared(
    const SelectiveOperand& operand, const T* from, i64 first, int states, i64 position, i64 length, A* to)
{
    using Shape = TileShape<A>;
    const int count = static_cast<int>(min(length - position, i64(Shape::TILE)));
    from += first * operand.state + position * operand.position;
    if (operand.position == 1) {
        constexpr int P = Shape::POSITIONS;
        for (int i = threadIdx.x; i < states * 32; i += blockDim.x) {
            const int n = i / 32, lane = i % 32;
            A x[P];
            load_positions<P>(from + n * operand.state + lane * P, count - lane * P, x);
            write_shared(to + n * Shape::PITCH, x);
        }
        return;
    }
    // Adjacent threads read adjacent states, as they are in Mamba.
    const int n = threadIdx.x % Shape::STATES, t = threadIdx.x / Shape::STATES;
    if (n >= states) return;
    constexpr int STEP = 32 * kWarps / Shape::STATES;  // a multiple of POSITIONS
    const i64 step = STEP * operand.position;
    from += n * operand.state + t * operand.position;
    to += n * Shape::PITCH + Shape::place(t / Shape::POSITIONS, t % Shape::POSITIONS);
#pragma unroll 4
    for (int i = 0; i < Shape::TILE; i += STEP, from += step)
        to[Shape::place(i / Shape::POSITIONS, 0)] = t + i < count ? widen<A>(*from) : A(0);
}

// Marks the positions of a tile, and the one after it, at which sequences begin, as bits. The
// caller has a barrier before, after the last reader of `heads`; this ends with one.
template <int TILE>
__device__ void find_heads(const SelectiveArgs& args, i64 position, unsigned (&heads)[TILE / 32 + 1])
{
    for (int i = threadIdx.x; i <= TILE / 32; i += blockDim.x) heads[i] = 0;
    __syncthreads();
    for (i64 k = bounds_below(args, position) + threadIdx.x; k < args.bound_count; k += blockDim.x) {
        const i64 i = bound_at(args, k) - position;
        if (i < 0 || i > TILE) break;
        atomicOr(&heads[i / 32], 1u << i % 32);
    }
    __syncthreads();
}

// The channels of a CTA, one for each warp, of one batch and one group.
template <typename T, typename A>
struct SelectiveChannels {
    using Shape = TileShape<A>;
    static constexpr int P = Shape::POSITIONS, TILE = Shape::TILE, STATES = Shape::STATES, PITCH = Shape::PITCH;

    i64 batch, group, in_group;
    i64 base, channel;  // of the first warp, and of this one
    int channels;       // that exist
    bool exists;        // whether this warp has a channel; without one it stores nothing

    // Takes the batch and the group of this CTA, which has so many channels, and returns its number
    // in the group.
    __device__ i64 place_cta(const SelectiveArgs& args, i64 of_cta)
    {
        in_group = args.channels / args.groups;
        const i64 ctas = (in_group + of_cta - 1) / of_cta;
        batch = blockIdx.x / (args.groups * ctas);
        const i64 of_batch = blockIdx.x - batch * args.groups * ctas;
        group = of_batch / ctas;
        return of_batch - group * ctas;
    }

    // Takes the channels of the group from one on.
    __device__ void take(i64 first)
    {
        const int warp = threadIdx.x / 32;
        channels = static_cast<int>(max(min(in_group - first, i64(kWarps)), i64(0)));
        exists = warp < channels;
        base = group * in_group + first;
        channel = exists ? base + warp : group * in_group + in_group - 1;
    }

    template <typename S>
    __device__ S* at(const SelectiveOperand& o, i64 state, i64 position) const
    {
        return reinterpret_cast<S*>(o.data) + batch * o.batch + channel * o.channel + state * o.state +
               position * o.position;
    }

    // Loads B or C of some states of a tile into shared memory.
    __device__ void load_factor(
        const SelectiveArgs& args, const SelectiveOperand& o, bool is_constant, i64 first, int states, i64 position,
        A* to) const
    {
        if (is_constant) return;
        const T* from = reinterpret_cast<const T*>(o.data) + batch * o.batch + group * o.channel;
        load_shared(o, from, first, states, position, args.length, to);
    }

    // The positions of a lane in a row of its channel; 0 where there are none. Where positions are
    // not adjacent, as in Mamba, channels often are: threads then read a position of all channels
    // together, and `rows`, kWarps of them in shared memory, transpose them. All warps of the CTA
    // call this with the same operand, as it has barriers.
    __device__ void load_row(
        const SelectiveArgs& args, const SelectiveOperand& o, i64 position, A* rows, A (&x)[P]) const
    {
        const int lane = threadIdx.x % 32, count = static_cast<int>(min(args.length - position, i64(TILE)));
        if (o.position == 1) {
            load_positions<P>(at<const T>(o, 0, position + lane * P), count - lane * P, x);
            return;
        }
        const T* from = reinterpret_cast<const T*>(o.data) + batch * o.batch + base * o.channel + position * o.position;
        __syncthreads();
        const int t = threadIdx.x / kWarps, c = threadIdx.x % kWarps, existing = c < channels ? count - t : 0;
        A* row = rows + c * PITCH + Shape::place(t / P, t % P);
        from += c * o.channel + t * o.position;
        const i64 step = 32 * o.position;
#pragma unroll 4
        for (int i = 0; i < TILE; i += 32, from += step)
            row[Shape::place(i / P, 0)] = i < existing ? widen<A>(*from) : A(0);
        __syncthreads();
        read_shared(rows + threadIdx.x / 32 * PITCH, x);
    }

    __device__ void store_row(
        const SelectiveArgs& args, const SelectiveOperand& o, i64 position, A* rows, const A (&x)[P]) const
    {
        const int lane = threadIdx.x % 32, count = static_cast<int>(min(args.length - position, i64(TILE)));
        if (o.position == 1) {
            if (exists) store_positions(at<T>(o, 0, position + lane * P), count - lane * P, x);
            return;
        }
        T* to = reinterpret_cast<T*>(o.data) + batch * o.batch + base * o.channel + position * o.position;
        __syncthreads();
        write_shared(rows + threadIdx.x / 32 * PITCH, x);
        __syncthreads();
        const int t = threadIdx.x / kWarps, c = threadIdx.x % kWarps, existing = c < channels ? count - t : 0;
        const A* row = rows + c * PITCH + Shape::place(t / P, t % P);
        to += c * o.channel + t * o.position;
        const i64 step = 32 * o.position;
#pragma unroll 4
        for (int i = 0; i < TILE; i += 32, to += step)
            if (i < existing) *to = static_cast<T>(row[Shape::place(i / P, 0)]);
    }

    // What the positions of a lane share over all states.
    struct Lane {
        A d[P], du[P], y[P];    // step sizes; step size times u; D u
        unsigned heads, tails;  // positions at which a sequence begins, or ends
        i64 first;              // position
        int count;              // of positions that exist
    };

    // Loads the positions of a lane. `bits` has the heads of packed sequences in the tile, or is
    // null; `rows` is as for load_row.
    __device__ void load_lane(
        const SelectiveArgs& args, i64 position, const unsigned* bits, A* rows, Lane& own) const
    {
        const int lane = threadIdx.x % 32;
        own.first = position + lane * P;
        own.count = static_cast<int>(max(min(args.length - own.first, i64(P)), i64(0)));
        A u[P];
        load_row(args, args.delta, position, rows, own.d);
        load_row(args, args.u, position, rows, u);
        const A bias = args.bias.data ? *at<const A>(args.bias, 0, 0) : A(0),
                skip = args.d.data ? *at<const A>(args.d, 0, 0) : A(0);
#pragma unroll
        for (int k = 0; k < P; ++k) {
            A d = own.d[k] + bias;
            if (args.flags & kSoftplus) d = softplus(d);
            own.d[k] = k < own.count ? d : A(0);
            own.du[k] = own.d[k] * u[k];
            own.y[k] = args.d.data ? skip * u[k] : A(0);
        }
        own.heads = own.tails = 0;
        if (bits) {
            const i64 two = static_cast<i64>(bits[lane * P / 32 + 1]) << 32 | bits[lane * P / 32];
            const unsigned all = static_cast<unsigned>(two >> lane * P % 32), mask = (1u << own.count) - 1;
            own.heads = all & mask, own.tails = all >> 1 & mask;
        } else if (own.first == 0 && !args.initial.data) {
            own.heads = 1;  // the first decay is not applied
        }
    }

    // A constant at the positions that exist; 0 at the others.
    static __device__ void fill(A (&x)[P], int count, A value)
    {
#pragma unroll
        for (int k = 0; k < P; ++k) x[k] = k < count ? value : A(0);
    }
};
