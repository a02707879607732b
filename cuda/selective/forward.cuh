// The selective scan: a CTA takes one batch and a channel for each of its warps, which share the
// tiles of B and C. A warp scans the positions of a tile, a lane POSITIONS of them, for one state
// after another: within a lane, across lanes (a warp scan of affine maps), and again within the
// lane with the state that enters it. A plain form of this serves most tiles, and a general one
// those with bounds of packed sequences, with constant B or C, or with numbers out of range.
#pragma once

#include "selective/tile.cuh"

template <typename T, typename A, bool PACKED>
struct SelectiveForward : SelectiveChannels<T, A, kForwardRows> {
    using Channels = SelectiveChannels<T, A, kForwardRows>;
    using Channels::P, Channels::TILE, Channels::STATES, Channels::PITCH;
    using Channels::exists;
    using Lane = typename Channels::Lane;

    // Of a CTA; after it, channels, and rows of all states for each of them.
    struct Shared {
        A b[STATES * PITCH], c[STATES * PITCH];
        unsigned heads[TILE / 32 + 1];
    };

    const SelectiveArgs& args;
    Shared& shared;
    Pack<A, 2>* own_states;  // of all states of the channel, in shared memory: A log2(e); what enters the tile
    A sum_d;           // of the positions of this lane in the tile

    __device__ SelectiveForward(const SelectiveArgs& args, char* memory)
        : args(args), shared(*reinterpret_cast<Shared*>(memory))
    {
        this->place_cta(args, kWarps);
        this->all = reinterpret_cast<typename Channels::Shared*>(memory + (sizeof(Shared) + 15) / 16 * 16);
        const int warp = threadIdx.x / 32;
        this->take(warp);
        own_states = reinterpret_cast<Pack<A, 2>*>(this->all + kWarps) + warp * args.states;
        if (threadIdx.x < kWarps) {
            this->keep(args, threadIdx.x);
            this->keep_row(args.y, ROW_Y, threadIdx.x);
        }
        __syncthreads();
    }

    __device__ A& state(int n) const { return own_states[n].at[1]; }

    template <typename S>
    __device__ S* at(const SelectiveOperand& o, i64 state, i64 position) const
    {
        return Channels::template at<S>(o, state, position);
    }

    __device__ void run()
    {
#pragma unroll 1
        for (int n = threadIdx.x % 32; n < args.states; n += 32) {
            own_states[n].at[0] = *at<const A>(args.a, n, 0) * kLog2e<A>;
            state(n) = args.initial.data && !PACKED ? *at<const A>(args.initial, n, 0) : A(0);
        }
        for (int position = 0; position < args.length; position += TILE) run_tile(position);
        if (!PACKED && args.last.data && exists) {
            __syncwarp();
#pragma unroll 1
            for (int n = threadIdx.x % 32; n < args.states; n += 32) *at<A>(args.last, n, 0) = state(n);
        }
        if (PACKED && args.last.data && exists) pass_states();
    }

    __device__ void run_tile(int position)
    {
        if constexpr (PACKED) {
            __syncthreads();
            find_heads<TILE>(args, position, shared.heads);
        }
        if (args.chunks.data && exists) store_chunk_state(position);
        Lane own;
        this->load_lane(args, position, PACKED ? shared.heads : nullptr, shared.b, own);
        sum_d = A(0);
#pragma unroll
        for (int k = 0; k < P; ++k) sum_d += own.d[k];
        const int all_states = static_cast<int>(args.states);
        for (int n = 0; n < all_states; n += STATES) {
            const int states = min(all_states - n, STATES);
            __syncthreads();
            this->load_factor(args, args.b, args.flags & kConstantB, n, states, position, shared.b);
            this->load_factor(args, args.c, args.flags & kConstantC, n, states, position, shared.c);
            __syncthreads();
            scan_states(own, n, states);
        }
        if (!args.y.data) return;  // a gradient wants chunk states alone
        if (args.z.data) {
            A z[P];
            this->load_row(args, args.z, ROW_Z, position, shared.b, z);
#pragma unroll
            for (int k = 0; k < P; ++k) own.y[k] *= z[k] * sigmoid(z[k]);
        }
        this->store_row(args, args.y, ROW_Y, position, shared.b, own.y);
    }

    __device__ void store_chunk_state(int position) const
    {
        const bool begins = PACKED && shared.heads[0] & 1;  // a sequence, at the first position
#pragma unroll 1
        for (int n = threadIdx.x % 32; n < args.states; n += 32) {
            A enters = begins ? A(0) : state(n);
            if (begins && args.initial.data) enters = *at<const A>(args.initial, n, sequence_of(args, position));
            at<A>(args.chunks, n, position / kChunkLength)[args.first_chunk] = enters;
        }
    }

    // Adds C h of some states to y, in the plain form if that is enough.
    __device__ void scan_states(Lane& own, int from, int states)
    {
        const bool has_bounds = PACKED && __any_sync(~0u, own.heads | own.tails);
        if (!has_bounds && !(args.flags & (kConstantB | kConstantC)) && try_states(own, from, states)) return;
#pragma unroll 1
        for (int n = 0; n < states; ++n) scan_state<true>(own, from, n, own.y);
        __syncwarp();
    }

    // The plain form. It returns false, and has changed nothing, if it leaves the range: an
    // infinite state may have met a decay of 0.
    __device__ bool try_states(Lane& own, int from, int states)
    {
        const int lane = threadIdx.x % 32;
        const int n = from + min(lane, states - 1);
        const A carry_in = state(n);
        A y[P];
#pragma unroll
        for (int k = 0; k < P; ++k) y[k] = own.y[k];
#pragma unroll 4
        for (int i = 0; i < states; ++i) scan_state<false>(own, from, i, y);
        __syncwarp();
        bool is_finite = fabs(state(n)) < A(INFINITY);
#pragma unroll
        for (int k = 0; k < P; ++k) is_finite = is_finite && fabs(y[k]) < A(INFINITY);
        is_finite = __all_sync(~0u, is_finite);
        if (is_finite) {
#pragma unroll
            for (int k = 0; k < P; ++k) own.y[k] = y[k];
        } else if (lane < states) {
            state(n) = carry_in;
        }
        __syncwarp();
        return is_finite;
    }

    // Scans state from + n, which is number n of those in shared memory, and adds C h to y. The
    // plain form has neither bounds of packed sequences nor constants.
    template <bool GENERAL>
    __device__ void scan_state(const Lane& own, int from, int n, A (&y)[P])
    {
        const int lane = threadIdx.x % 32;
        const auto [rate, carry_in] = load_wide<2>(own_states[from + n].at).at;
        A a[P], b[P], c[P], after = lane == 0 ? carry_in : A(0), all;
        if (GENERAL && args.flags & kConstantB)
            this->fill(b, own.count, *at<const A>(args.b, from + n, 0));
        else
            read_shared(shared.b + n * PITCH, b);
#pragma unroll
        for (int k = 0; k < P; ++k) a[k] = exp2_of(rate * own.d[k]), b[k] *= own.du[k];
        if constexpr (GENERAL) {  // the sum of step sizes may be NaN beside a decay of 0
            pass_through(own.count, a);
            begin_sequences(own, from + n, a, b);
            all = a[0];
#pragma unroll
            for (int k = 1; k < P; ++k) all = product<true>(all, a[k]);
        } else {
            all = exp2_of(rate * sum_d);
        }
#pragma unroll
        for (int k = 0; k < P; ++k) after = step<GENERAL>(a[k], after, b[k]);
        // Lane 0 has the carry-in and decay 0, and so has each lane that already knows its state.
        if (lane == 0) all = A(0);
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            after = step<GENERAL>(all, __shfl_up_sync(~0u, after, i), after);
            if (i < 16) all = product<GENERAL>(all, __shfl_up_sync(~0u, all, i));
        }
        A h = __shfl_up_sync(~0u, after, 1);
        if (lane == 0) h = carry_in;
        if (lane == 31) state(from + n) = after;
        if (GENERAL && args.flags & kConstantC)
            this->fill(c, own.count, *at<const A>(args.c, from + n, 0));
        else
            read_shared(shared.c + n * PITCH, c);
#pragma unroll
        for (int k = 0; k < P; ++k) {
            h = step<GENERAL>(a[k], h, b[k]);
            y[k] = fma(c[k], h, y[k]);
            if (GENERAL && PACKED && own.tails >> k & 1) store_last(from + n, own.first + k, h);
        }
    }

    // At the first position of a sequence the state is that of its term and of its initial state.
    __device__ void begin_sequences(const Lane& own, int n, A (&a)[P], A (&b)[P]) const
    {
#pragma unroll
        for (int k = 0; k < P; ++k) {
            if (!(own.heads >> k & 1)) continue;
            if (PACKED && args.initial.data)
                b[k] = step<true>(a[k], *at<const A>(args.initial, n, sequence_of(args, own.first + k)), b[k]);
            a[k] = A(0);
        }
    }

    __device__ void store_last(int n, int position, A h) const
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
