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

// Loads B or C of `states` states of a tile, whose first state and position are at `from`; 0 where
// there is none of `count` positions.
template <typename A, typename T>
__device__ void load_shared(const SelectiveOperand& operand, const T* from, int states, int count, A* to)
{
    using Shape = TileShape<A>;
    if (operand.position == 1) {
        constexpr int P = Shape::POSITIONS;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        from += warp * operand.state + lane * P;
#pragma unroll 2
        for (int n = warp; n < states; n += kWarps, from += kWarps * operand.state) {
            A x[P];
            load_positions<P>(from, count - lane * P, x);
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
__device__ void find_heads(const SelectiveArgs& args, int position, unsigned (&heads)[TILE / 32 + 1])
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

// A channel of a CTA, in shared memory: where its rows of positions begin, D and the bias.
template <typename A, int ROWS>
struct ChannelShared {
    char* rows[ROWS];
    A skip, bias;
};
enum Row { ROW_U, ROW_DELTA, ROW_Z, ROW_Y, ROW_DY = ROW_Y, ROW_DU, ROW_DDELTA, ROW_DZ };

// The channels of a CTA, of one batch and one group. Each warp takes one at a time.
template <typename T, typename A, int ROWS>
struct SelectiveChannels {
    using Shape = TileShape<A>;
    using Shared = ChannelShared<A, ROWS>;
    static constexpr int P = Shape::POSITIONS, TILE = Shape::TILE, STATES = Shape::STATES, PITCH = Shape::PITCH;

    i64 batch, group, first_channel;
    int existing;  // channels
    Shared* all;
    int row;      // of the channel of this warp in `all`
    bool exists;  // whether there is such a channel; without one a warp stores nothing

    // Takes the batch and the group of this CTA, which has so many channels, and returns its number
    // in the group.
    __device__ i64 place_cta(const SelectiveArgs& args, int of_cta)
    {
        const i64 in_group = args.channels / args.groups, ctas = (in_group + of_cta - 1) / of_cta;
        batch = blockIdx.x / (args.groups * ctas);
        const i64 of_batch = blockIdx.x - batch * args.groups * ctas;
        group = of_batch / ctas;
        const i64 number = of_batch - group * ctas;
        first_channel = group * in_group + number * of_cta;
        existing = static_cast<int>(min(in_group - number * of_cta, i64(of_cta)));
        return number;
    }

    // Keeps what is the same at all positions of channel `i` of the CTA.
    __device__ void keep(const SelectiveArgs& args, int i) const
    {
        const i64 channel = first_channel + min(i, existing - 1);
        keep_row(args.u, ROW_U, i), keep_row(args.delta, ROW_DELTA, i), keep_row(args.z, ROW_Z, i);
        all[i].skip = args.d.data ? reinterpret_cast<const A*>(args.d.data)[channel * args.d.channel] : A(0);
        all[i].bias = args.bias.data ? reinterpret_cast<const A*>(args.bias.data)[channel * args.bias.channel] : A(0);
    }
    __device__ void keep_row(const SelectiveOperand& o, Row kind, int i) const
    {
        const i64 channel = first_channel + min(i, existing - 1);
        all[i].rows[kind] = o.data + (batch * o.batch + channel * o.channel) * i64(sizeof(T));
    }

    // The row of an operand of channel `i` of the CTA, at position 0.
    __device__ T* begin(Row kind, int i) const
    {
        T* p = reinterpret_cast<T*>(all[i].rows[kind]);
        __builtin_assume(__isGlobal(p));
        return p;
    }

    __device__ void take(int number) { row = number, exists = row < existing; }

    template <typename S>
    __device__ S* at(const SelectiveOperand& o, i64 state, i64 position) const
    {
        const i64 channel = first_channel + min(row, existing - 1);
        return reinterpret_cast<S*>(o.data) + batch * o.batch + channel * o.channel + state * o.state +
               position * o.position;
    }

    // Loads B or C of some states of a tile into shared memory.
    __device__ void load_factor(
        const SelectiveArgs& args, const SelectiveOperand& o, bool is_constant, int first, int states, int position,
        A* to) const
    {
        if (is_constant) return;
        const T* from = reinterpret_cast<const T*>(o.data) + batch * o.batch + group * o.channel + first * o.state +
                        position * o.position;
        load_shared(o, from, states, count(args, position), to);
    }

    // The positions of a tile that exist.
    static __device__ int count(const SelectiveArgs& args, int position)
    {
        return min(static_cast<int>(args.length) - position, TILE);
    }

    // The positions of a lane in a row of its channel; 0 where there are none. Where positions are
    // not adjacent, as in Mamba, channels often are: threads then read a position of all channels
    // together, and `rows`, kWarps of them in shared memory, transpose them. All warps of the CTA
    // call this with the same operand, as it has barriers.
    __device__ void load_row(
        const SelectiveArgs& args, const SelectiveOperand& o, Row kind, int position, A* rows, A (&x)[P]) const
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, all_count = count(args, position);
        if (o.position == 1) {
            const T* from = begin(kind, row) + position + lane * P;
            load_positions<P>(from, all_count - lane * P, x);
            return;
        }
        __syncthreads();
        const int t = threadIdx.x / kWarps, c = row - warp + threadIdx.x % kWarps,
                  end = c < existing ? all_count - t : 0;
        A* to = rows + threadIdx.x % kWarps * PITCH + Shape::place(t / P, t % P);
        const T* from = begin(kind, c) + (position + t) * o.position;
        const i64 step = 32 * o.position;
#pragma unroll 4
        for (int i = 0; i < TILE; i += 32, from += step)
            to[Shape::place(i / P, 0)] = i < end ? widen<A>(*from) : A(0);
        __syncthreads();
        read_shared(rows + warp * PITCH, x);
    }

    __device__ void store_row(
        const SelectiveArgs& args, const SelectiveOperand& o, Row kind, int position, A* rows, const A (&x)[P]) const
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, all_count = count(args, position);
        if (o.position == 1) {
            T* to = begin(kind, row) + position + lane * P;
            if (exists) store_positions(to, all_count - lane * P, x);
            return;
        }
        __syncthreads();
        write_shared(rows + warp * PITCH, x);
        __syncthreads();
        const int t = threadIdx.x / kWarps, c = row - warp + threadIdx.x % kWarps,
                  end = c < existing ? all_count - t : 0;
        const A* from = rows + threadIdx.x % kWarps * PITCH + Shape::place(t / P, t % P);
        T* to = begin(kind, c) + (position + t) * o.position;
        const i64 step = 32 * o.position;
#pragma unroll 4
        for (int i = 0; i < TILE; i += 32, to += step)
            if (i < end) *to = static_cast<T>(from[Shape::place(i / P, 0)]);
    }

    // What the positions of a lane share over all states.
    struct Lane {
        A d[P], du[P], y[P];    // step sizes; step size times u; D u
        unsigned heads, tails;  // positions at which a sequence begins, or ends
        int first;              // position
        int count;              // of positions that exist
    };

    // Loads the positions of a lane. `bits` has the heads of packed sequences in the tile, or is
    // null; `rows` is as for load_row.
    __device__ void load_lane(
        const SelectiveArgs& args, int position, const unsigned* bits, A* rows, Lane& own) const
    {
        const int lane = threadIdx.x % 32;
        own.first = position + lane * P;
        own.count = max(min(static_cast<int>(args.length) - own.first, P), 0);
        A u[P];
        load_row(args, args.delta, ROW_DELTA, position, rows, own.d);
        load_row(args, args.u, ROW_U, position, rows, u);
        const A bias = all[row].bias, skip = all[row].skip;
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
