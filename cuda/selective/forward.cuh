// The selective scan: a CTA takes one batch and a channel for each of its warps, which share the
// tiles of B and C. A warp scans the positions of a tile, a lane POSITIONS of them, for one state
// after another: within a lane, across lanes (a warp scan of affine maps), and again within the
// lane with the state that enters it.
#pragma once

#include "selective/tile.cuh"

// State -> decay state + term. With EXACT a decay of 0 cuts off infinity and NaN, as in the
// sequential recurrence, and a product of decays is 0 only if one of them is.
template <bool EXACT, typename A>
__device__ A step(A decay, A state, A term)
{
    return EXACT && decay == A(0) ? term : fma(decay, state, term);
}
template <bool EXACT, typename A>
__device__ A product(A x, A y)
{
    const A p = x * y;
    if (!EXACT) return p;
    if (x == A(0) || y == A(0)) return A(0);  // even if the other one is infinite or NaN
    constexpr A least = sizeof(A) == 4 ? A(0x1p-126) : A(0x1p-1022);
    return p == A(0) ? least : p;
}

// The decays after the `count` positions that exist pass on a state, even if A is infinite.
template <int P, typename A>
__device__ void pass_through(int count, A (&a)[P])
{
#pragma unroll
    for (int k = 0; k < P; ++k)
        if (k >= count) a[k] = A(1);
}

template <typename T, typename A, bool PACKED>
struct SelectiveForward {
    using Shape = TileShape<A>;
    static constexpr int P = Shape::POSITIONS, TILE = Shape::TILE, STATES = Shape::STATES;

    // Of a CTA; after it, rows of all states for each warp.
    struct Shared {
        A b[STATES * Shape::PITCH], c[STATES * Shape::PITCH];
        unsigned heads[TILE / 32 + 1];
    };

    const SelectiveArgs& args;
    Shared& shared;
    A *state, *decay;  // of all states of the channel, in shared memory: what enters the tile; A log2(e)
    i64 batch, channel, group;
    bool exists;  // the channel

    __device__ SelectiveForward(const SelectiveArgs& args, char* memory)
        : args(args), shared(*reinterpret_cast<Shared*>(memory))
    {
        const i64 in_group = args.channels / args.groups, ctas = (in_group + kWarps - 1) / kWarps;
        const int warp = threadIdx.x / 32;
        batch = blockIdx.x / (args.groups * ctas);
        const i64 of_batch = blockIdx.x - batch * args.groups * ctas;
        group = of_batch / ctas;
        const i64 c = (of_batch - group * ctas) * kWarps + warp;
        exists = c < in_group;
        channel = group * in_group + min(c, in_group - 1);
        A* rows = reinterpret_cast<A*>(memory + (sizeof(Shared) + 15) / 16 * 16);
        state = rows + warp * args.states;
        decay = rows + (kWarps + warp) * args.states;
    }

    template <typename S>
    __device__ S* at(const SelectiveOperand& o, i64 state, i64 position) const
    {
        return reinterpret_cast<S*>(o.data) + batch * o.batch + channel * o.channel + state * o.state +
               position * o.position;
    }

    // What the positions of a lane share over all states.
    struct Lane {
        A d[P], du[P], y[P], sum;  // step sizes; step size times u; results; the sum of d
        unsigned heads, tails;     // positions at which a sequence begins, or ends
        int count;                 // of positions that exist
    };

    __device__ void run()
    {
        for (i64 n = threadIdx.x % 32; n < args.states; n += 32) {
            decay[n] = *at<const A>(args.a, n, 0) * kLog2e<A>;
            state[n] = args.initial.data && !PACKED ? *at<const A>(args.initial, n, 0) : A(0);
        }
        for (i64 position = 0; position < args.length; position += TILE) run_tile(position);
        if (!PACKED && args.last.data && exists) {
            __syncwarp();
            for (i64 n = threadIdx.x % 32; n < args.states; n += 32) *at<A>(args.last, n, 0) = state[n];
        }
        if (PACKED && args.last.data && exists) pass_states();
    }

    __device__ void run_tile(i64 position)
    {
        __syncthreads();
        if constexpr (PACKED) find_heads<TILE>(args, position, shared.heads);
        if (args.chunks.data && position % kChunkLength == 0 && exists) {
            const bool begins = PACKED && shared.heads[0] & 1;  // a sequence, at the first position
            for (i64 n = threadIdx.x % 32; n < args.states; n += 32) {
                A enters = begins ? A(0) : state[n];
                if (begins && args.initial.data) enters = *at<const A>(args.initial, n, sequence_of(args, position));
                at<A>(args.chunks, n, position / kChunkLength)[args.first_chunk] = enters;
            }
        }
        const int lane = threadIdx.x % 32;
        const i64 first = position + lane * P;
        Lane own;
        const int count = own.count = static_cast<int>(max(min(args.length - first, i64(P)), i64(0)));
        A u[P];
        load_positions<P>(at<const T>(args.delta, 0, first), args.delta.position, count, own.d);
        load_positions<P>(at<const T>(args.u, 0, first), args.u.position, count, u);
        const A bias = args.bias.data ? *at<const A>(args.bias, 0, 0) : A(0),
                skip = args.d.data ? *at<const A>(args.d, 0, 0) : A(0);
        own.sum = A(0);
#pragma unroll
        for (int k = 0; k < P; ++k) {
            A d = own.d[k] + bias;
            if (args.flags & kSoftplus) d = softplus(d);
            own.d[k] = k < count ? d : A(0);
            own.du[k] = own.d[k] * u[k];
            own.y[k] = args.d.data ? skip * u[k] : A(0);
            own.sum += own.d[k];
        }
        own.heads = own.tails = 0;
        if constexpr (PACKED) {
            const i64 bits = static_cast<i64>(shared.heads[lane * P / 32 + 1]) << 32 | shared.heads[lane * P / 32];
            const unsigned all = static_cast<unsigned>(bits >> lane * P % 32), mask = (1u << count) - 1;
            own.heads = all & mask, own.tails = all >> 1 & mask;
        } else if (first == 0 && !args.initial.data) {
            own.heads = 1;  // the first decay is not applied
        }
        for (i64 n = 0; n < args.states; n += STATES) {
            const int states = static_cast<int>(min(args.states - n, i64(STATES)));
            if (n) __syncthreads();
            load_group(args.b, args.flags & kConstantB, n, states, position, shared.b);
            load_group(args.c, args.flags & kConstantC, n, states, position, shared.c);
            __syncthreads();
            scan_states(own, n, states, first);
        }
        if (!exists || !args.y.data) return;  // a gradient wants chunk states alone
        if (args.z.data) {
            A z[P];
            load_positions<P>(at<const T>(args.z, 0, first), args.z.position, count, z);
#pragma unroll
            for (int k = 0; k < P; ++k) own.y[k] *= z[k] * sigmoid(z[k]);
        }
        store_positions(at<T>(args.y, 0, first), args.y.position, count, own.y);
    }

    __device__ void load_group(
        const SelectiveOperand& o, bool is_constant, i64 n, int states, i64 position, A* to) const
    {
        if (is_constant) return;
        const T* from = reinterpret_cast<const T*>(o.data) + batch * o.batch + group * o.channel;
        load_shared(o, from, n, states, position, args.length, to);
    }

    // Adds C h of some states to y. Plain arithmetic is tried first: if it leaves the range, an
    // infinite state may have met a decay of 0. Lane n keeps the numbers of state from + n.
    __device__ void scan_states(Lane& own, i64 from, int states, i64 first)
    {
        const int lane = threadIdx.x % 32, kept = min(lane, states - 1);
        const A rate = decay[from + kept], carry_in = state[from + kept];
        A y[P], carry_out = A(0);
#pragma unroll
        for (int k = 0; k < P; ++k) y[k] = own.y[k];
        if (states == STATES) {
#pragma unroll 4
            for (int n = 0; n < STATES; ++n) scan_state<false>(own, from, n, rate, carry_in, carry_out, first, y);
        } else {
#pragma unroll 1
            for (int n = 0; n < states; ++n) scan_state<false>(own, from, n, rate, carry_in, carry_out, first, y);
        }
        bool is_finite = fabs(carry_out) < A(INFINITY);
#pragma unroll
        for (int k = 0; k < P; ++k) is_finite = is_finite && fabs(y[k]) < A(INFINITY);
        if (__all_sync(~0u, is_finite)) {
#pragma unroll
            for (int k = 0; k < P; ++k) own.y[k] = y[k];
        } else {
            Lane copy = own;  // `own` itself stays in registers
            carry_out = exact_states(copy, from, states, rate, carry_in, first);
            own = copy;
        }
        if (lane < states) state[from + lane] = carry_out;
        __syncwarp();
    }

    __device__ __noinline__ A exact_states(Lane& own, i64 from, int states, A rate, A carry_in, i64 first)
    {
        A carry_out = A(0);
#pragma unroll 1
        for (int n = 0; n < states; ++n) scan_state<true>(own, from, n, rate, carry_in, carry_out, first, own.y);
        return carry_out;
    }

    // Scans state from + n, which is number n of those in shared memory, and adds C h to y.
    template <bool EXACT>
    __device__ void scan_state(
        const Lane& own, i64 from, int n, A rates, A all_carries, A& all_carries_out, i64 first, A (&y)[P])
    {
        const int lane = threadIdx.x % 32;
        const A rate = __shfl_sync(~0u, rates, n), carry_in = __shfl_sync(~0u, all_carries, n);
        A a[P], b[P], c[P], after = A(0), all = exp2_of(rate * own.sum);
        if (args.flags & kConstantB)
            fill(b, *at<const A>(args.b, from + n, 0));
        else
            read_shared(shared.b + n * Shape::PITCH, b);
#pragma unroll
        for (int k = 0; k < P; ++k) a[k] = exp2_of(rate * own.d[k]), b[k] *= own.du[k];
        if (EXACT) pass_through(own.count, a);
        if (own.heads) begin_sequences(own.heads, from + n, first, a, b), all = A(0);
#pragma unroll
        for (int k = 0; k < P; ++k) after = step<EXACT>(a[k], after, b[k]);
        if (EXACT) {  // the sum of step sizes may be NaN beside a decay of 0
            all = a[0];
#pragma unroll
            for (int k = 1; k < P; ++k) all = product<EXACT>(all, a[k]);
        }
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            const A left = __shfl_up_sync(~0u, all, i), before = __shfl_up_sync(~0u, after, i);
            if (lane >= i) after = step<EXACT>(all, before, after), all = product<EXACT>(all, left);
        }
        const A carry_out = step<EXACT>(all, carry_in, after), last = __shfl_sync(~0u, carry_out, 31);
        if (lane == n) all_carries_out = last;
        A h = __shfl_up_sync(~0u, carry_out, 1);
        if (lane == 0) h = carry_in;
        if (args.flags & kConstantC)
            fill(c, *at<const A>(args.c, from + n, 0));
        else
            read_shared(shared.c + n * Shape::PITCH, c);
#pragma unroll
        for (int k = 0; k < P; ++k) {
            h = step<EXACT>(a[k], h, b[k]);
            y[k] = fma(c[k], h, y[k]);
            if (PACKED && own.tails >> k & 1) store_last(from + n, first + k, h);
        }
    }

    static __device__ void fill(A (&x)[P], A value)
    {
#pragma unroll
        for (int k = 0; k < P; ++k) x[k] = value;
    }

    // At the first position of a sequence the state is that of its term and of its initial state.
    __device__ void begin_sequences(unsigned heads, i64 n, i64 first, A (&a)[P], A (&b)[P]) const
    {
#pragma unroll
        for (int k = 0; k < P; ++k) {
            if (!(heads >> k & 1)) continue;
            if (PACKED && args.initial.data)
                b[k] = step<true>(a[k], *at<const A>(args.initial, n, sequence_of(args, first + k)), b[k]);
            a[k] = A(0);
        }
    }

    __device__ void store_last(i64 n, i64 position, A h) const
    {
        if (args.last.data && exists) *at<A>(args.last, n, sequence_of(args, position)) = h;
    }

    // Passes on the states of sequences without positions.
    __device__ void pass_states() const
    {
        for (i64 k = threadIdx.x % 32; k < args.bound_count - 1; k += 32) {
            if (bound_at(args, k) != bound_at(args, k + 1)) continue;
            for (i64 n = 0; n < args.states; ++n)
                *at<A>(args.last, n, k) = args.initial.data ? *at<const A>(args.initial, n, k) : A(0);
        }
    }
};
