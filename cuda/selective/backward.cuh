// The gradient of the selective scan: a CTA takes channels of one batch and group in rounds, a
// channel for each warp, and goes through tiles from the last to the first. For each state a warp
// scans the states forward, from the state that the forward scan kept, and the gradient of states,
//
//     g[t] = C[t] dy'[t] + q[t+1]    q[t] = a[t] g[t]    a[t] = e^{d[t] A}    dy' = dy silu(z)
//
// backward. Sums over channels, dB and dC, are in shared memory: warps take turns at the states, so
// that no two add to the same one and the order is fixed.
#pragma once

#include "selective/backward_sums.cuh"

template <typename T, typename A, bool PACKED>
struct SelectiveBackward : SelectiveSums<T, A, PACKED> {
    using Sums = SelectiveSums<T, A, PACKED>;
    using Shape = typename Sums::Shape;
    using typename Sums::Lane, typename Sums::StateSums;
    using Sums::args, Sums::shared, Sums::exists, Sums::row;
    using Sums::take_round, Sums::begin_channel, Sums::store_channel, Sums::at_state, Sums::sum_at;
    using Sums::load_kept, Sums::add_sums, Sums::store_group, Sums::load_sums, Sums::store_lane_sums;
    using Sums::P, Sums::TILE, Sums::STATES, Sums::PITCH;
    using Sums::RATE, Sums::CARRY, Sums::SUM_D, Sums::SUM_BIAS;
    static constexpr int TURN = STATES / kWarps;  // states between barriers

    __device__ SelectiveBackward(const SelectiveBackwardArgs& args, char* memory) : Sums(args, memory) {}

    __device__ void run()
    {
        for (int round = 0; round < args.rounds; ++round) {
            take_round(round);
            begin_channel();
        }
        const int length = static_cast<int>(args.length);
        for (int position = ((length + TILE - 1) / TILE - 1) * TILE; position >= 0; position -= TILE)
            for (int n = 0; n < args.states; n += STATES) run_states(position, n);
        __syncthreads();
        for (int round = 0; round < args.rounds; ++round) {
            take_round(round);
            if (exists) store_channel();
        }
    }

    // Some states of all channels, over a tile.
    __device__ void run_states(int position, int from)
    {
        const int states = min(static_cast<int>(args.states) - from, STATES);
        __syncthreads();
        if constexpr (PACKED) find_heads<TILE>(args, position, shared.heads);
        this->load_factor(args, args.b, args.flags & kConstantB, from, states, position, shared.b);
        this->load_factor(args, args.c, args.flags & kConstantC, from, states, position, shared.c);
        for (int i = threadIdx.x * Shape::VECTOR; i < STATES * PITCH; i += blockDim.x * Shape::VECTOR) {
            store_wide(shared.db + i, Pack<A, Shape::VECTOR>{});
            store_wide(shared.dc + i, Pack<A, Shape::VECTOR>{});
        }
        __syncthreads();
        for (int round = 0; round < args.rounds; ++round) {
            take_round(round);
            Lane own;
            this->load_lane(args, position, PACKED ? shared.heads : nullptr, shared.rows, own);
            load_gradient(own, position);
            if (from) load_sums(own);
            StateSums of_states = load_kept(from, states, position);
            const bool has_bounds = PACKED && __any_sync(~0u, own.heads | own.tails),
                       // After the last position a h times the gradient of the last state may be
                       // infinite.
                       is_cut = args.dlast.data && position + TILE > args.length,
                       is_plain = !has_bounds && !is_cut && !(args.flags & (kConstantB | kConstantC));
#pragma unroll 1
            for (int i = 0; i < STATES; ++i) {
                const int n = (i + TURN * static_cast<int>(threadIdx.x / 32)) % STATES;
                if (n < states && !(is_plain && scan_state<false>(own, of_states, from, n)))
                    scan_state<true>(own, of_states, from, n);
                if (i % TURN == TURN - 1) __syncthreads();
            }
            add_sums(of_states, from, states);
            if (from + states < args.states)
                store_lane_sums(own);
            else
                finish(own, position);
        }
        if (!(args.flags & kConstantB) && args.b_sums >= 0) store_group(args.b_sums, shared.db, from, states, position);
        if (!(args.flags & kConstantC) && args.c_sums >= 0) store_group(args.c_sums, shared.dc, from, states, position);
    }

    __device__ void load_gradient(Lane& own, int position) const
    {
        this->load_row(args, args.dy, ROW_DY, position, shared.rows, own.dy);
        if (args.z.data) {
            A z[P];
            this->load_row(args, args.z, ROW_Z, position, shared.rows, z);
#pragma unroll
            for (int k = 0; k < P; ++k) own.dy[k] *= z[k] * sigmoid(z[k]);
        }
        this->fill(own.g, P, A(0));
        this->fill(own.dd, P, A(0));
    }

    // Scans one state of a channel. The plain form has neither bounds of packed sequences nor
    // constants; it returns false, and has added nothing, if it leaves the range: an infinite state
    // may have met a decay of 0.
    template <bool GENERAL>
    __device__ bool scan_state(Lane& own, StateSums& sums, int from, int n)
    {
        const int lane = threadIdx.x % 32;
        const bool constant_b = GENERAL && args.flags & kConstantB, constant_c = GENERAL && args.flags & kConstantC;
        const A rate = at_state(RATE, from + n), carry_in = at_state(CARRY, from + n),
                kept = __shfl_sync(~0u, sums.kept, n);
        A a[P], b[P], c[P], before[P];  // before: a h of the position before
        if (constant_b)
            this->fill(b, own.count, *this->template at<const A>(args.b, from + n, 0));
        else
            read_shared(shared.b + n * PITCH, b);
        if (constant_c)
            this->fill(c, own.count, *this->template at<const A>(args.c, from + n, 0));
        else
            read_shared(shared.c + n * PITCH, c);
#pragma unroll
        for (int k = 0; k < P; ++k) a[k] = exp2_of(rate * own.d[k]), before[k] = A(0);
        if constexpr (GENERAL) {
            pass_through(own.count, a);
            begin_sequences(own, from + n, a, before);
        }
        A all = a[0], h = lane == 0 ? kept : A(0), q = lane == 31 ? carry_in : A(0);
#pragma unroll
        for (int k = 0; k < P; ++k) {
            if (k) all = product<GENERAL>(all, a[k]);
            h = step<GENERAL>(a[k], h, before[k] + own.du[k] * b[k]);
        }
#pragma unroll
        for (int k = P - 1; k >= 0; --k) q = gated<GENERAL>(a[k], gradient<GENERAL>(own, from + n, k, c[k], q));
        A h_all = lane == 0 ? A(0) : all, q_all = lane == 31 ? A(0) : all;
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            h = step<GENERAL>(h_all, __shfl_up_sync(~0u, h, i), h);
            q = step<GENERAL>(q_all, __shfl_down_sync(~0u, q, i), q);
            if (i == 16) break;
            h_all = product<GENERAL>(h_all, __shfl_up_sync(~0u, h_all, i));
            q_all = product<GENERAL>(q_all, __shfl_down_sync(~0u, q_all, i));
        }
        h = __shfl_up_sync(~0u, h, 1);
        q = __shfl_down_sync(~0u, q, 1);
        if (lane == 0) h = kept;
        if (lane == 31) q = carry_in;
        A db[P], dc[P], sum_a = A(0);  // g and h, until they are multiplied
#pragma unroll
        for (int k = 0; k < P; ++k) {
            before[k] += gated<GENERAL>(a[k], h);  // of a sequence's first position a is 0
            dc[k] = h = fma(own.du[k], b[k], before[k]);
        }
#pragma unroll
        for (int k = P - 1; k >= 0; --k) {
            db[k] = gradient<GENERAL>(own, from + n, k, c[k], q);
            q = gated<GENERAL>(a[k], db[k]);
        }
        if (!GENERAL && !__all_sync(~0u, fabs(h) < A(INFINITY) && fabs(q) < A(INFINITY))) return false;
        if (GENERAL) __syncwarp();  // all lanes have read the carry; the plain form has just met
        if (lane == 0) at_state(CARRY, from + n) = q;
#pragma unroll
        for (int k = 0; k < P; ++k) {
            const A g = db[k], x = before[k] * g;
            if (GENERAL && PACKED && own.heads >> k & 1)
                store_initial(from + n, own.first + k, exp2_of(rate * own.d[k]), g);
            own.y[k] = fma(c[k], dc[k], own.y[k]);
            own.g[k] = fma(g, b[k], own.g[k]);
            own.dd[k] = fma(rate, x, own.dd[k]);
            // After the last position x may be infinite.
            if (!GENERAL || k < own.count) sum_a = fma(own.d[k], x, sum_a);
            db[k] *= own.du[k];
            dc[k] *= own.dy[k];
        }
        sum_a = over_lanes(sum_a);
        if (lane == n) sums.sum_a += sum_a;
        if (constant_b) {
            const A sum = over_lanes(sum_of(db, own.count));
            if (lane == n) sums.sum_b += sum;
        } else if (exists) {
            add_shared(shared.db + n * PITCH, db);
        }
        if (constant_c) {
            const A sum = over_lanes(sum_of(dc, own.count));
            if (lane == n) sums.sum_c += sum;
        } else if (exists) {
            add_shared(shared.dc + n * PITCH, dc);
        }
        return true;
    }

    // The gradient of the state at position k of the lane.
    template <bool GENERAL>
    __device__ A gradient(const Lane& own, int n, int k, A c, A q) const
    {
        const A g = fma(c, own.dy[k], q);
        if (!GENERAL || !PACKED || !args.dlast.data || !(own.tails >> k & 1)) return g;
        return g + *this->template at<const A>(args.dlast, n, sequence_of(args, own.first + k));
    }

    // a x, 0 if a is 0 (EXACT).
    template <bool EXACT>
    static __device__ A gated(A a, A x)
    {
        return EXACT && a == A(0) ? A(0) : a * x;
    }

    static __device__ A sum_of(const A (&x)[P], int count)
    {
        A sum = A(0);
#pragma unroll
        for (int k = 0; k < P; ++k) sum += k < count ? x[k] : A(0);
        return sum;
    }

    static __device__ A over_lanes(A x)
    {
#pragma unroll
        for (int i = 16; i; i /= 2) x += __shfl_xor_sync(~0u, x, i);
        return x;
    }

    static __device__ void add_shared(A* state, const A (&x)[P])
    {
#pragma unroll
        for (int k = 0; k < P; k += Shape::VECTOR) {
            A* to = state + Shape::place(threadIdx.x % 32, k);
            Pack<A, Shape::VECTOR> pack = load_wide<Shape::VECTOR>(to);
#pragma unroll
            for (int v = 0; v < Shape::VECTOR; ++v) pack.at[v] += x[k + v];
            store_wide(to, pack);
        }
    }

    // At the first position of a sequence the state before is the initial one, to which a h in
    // `before` belongs, and the decay is 0.
    __device__ void begin_sequences(const Lane& own, int n, A (&a)[P], A (&before)[P]) const
    {
#pragma unroll
        for (int k = 0; k < P; ++k) {
            if (!(own.heads >> k & 1)) continue;
            if (PACKED && args.initial.data) {
                const i64 sequence = sequence_of(args, own.first + k);
                before[k] = gated<true>(a[k], *this->template at<const A>(args.initial, n, sequence));
            }
            a[k] = A(0);
        }
    }

    __device__ void store_initial(int n, int position, A decay, A g) const
    {
        if (args.dinitial.data && exists)
            *this->template at<A>(args.dinitial, n, sequence_of(args, position)) = gated<true>(decay, g);
    }

    // The results at the positions of a tile.
    __device__ void finish(Lane& own, int position)
    {
        A u[P], raw[P], result[P], sum_d = A(0), sum_bias = A(0);
        this->load_row(args, args.u, ROW_U, position, shared.rows, u);
        const A skip = this->all[row].skip, bias = this->all[row].bias;
        if (args.du.data) {
#pragma unroll
            for (int k = 0; k < P; ++k) {
                result[k] = own.d[k] * own.g[k];
                if (args.d.data) result[k] = fma(skip, own.dy[k], result[k]);
            }
            this->store_row(args, args.du, ROW_DU, position, shared.rows, result);
        }
        this->load_row(args, args.delta, ROW_DELTA, position, shared.rows, raw);
#pragma unroll
        for (int k = 0; k < P; ++k) {
            result[k] = fma(u[k], own.g[k], own.dd[k] * kLn2<A>);
            if (args.flags & kSoftplus) result[k] *= sigmoid(raw[k] + bias);
            sum_bias += k < own.count ? result[k] : A(0);
            sum_d = fma(own.dy[k], u[k], sum_d);
        }
        if (args.ddelta.data) this->store_row(args, args.ddelta, ROW_DDELTA, position, shared.rows, result);
        sum_d = over_lanes(sum_d), sum_bias = over_lanes(sum_bias);
        if (threadIdx.x % 32 == 0) sum_at(SUM_D).add(sum_d), sum_at(SUM_BIAS).add(sum_bias);
        if (!args.dz.data) return;
        A z[P];
        this->load_row(args, args.z, ROW_Z, position, shared.rows, z);
        this->load_row(args, args.dy, ROW_DY, position, shared.rows, result);
#pragma unroll
        for (int k = 0; k < P; ++k) result[k] *= own.y[k] * silu_slope(z[k]);
        this->store_row(args, args.dz, ROW_DZ, position, shared.rows, result);
    }
};
