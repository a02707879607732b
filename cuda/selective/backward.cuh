// The gradient of the selective scan: a CTA takes channels of one batch and group in rounds, a
// channel for each warp, and goes through tiles from the last to the first. For each state a warp
// scans the states forward, from the state that the forward scan kept, and the gradient of states,
//
//     g[t] = C[t] dy'[t] + q[t+1]    q[t] = a[t] g[t]    a[t] = e^{d[t] A}    dy' = dy silu(z)
//
// backward. Sums over channels, dB and dC, are in shared memory: warps take turns at the states, so
// that no two add to the same one and the order is fixed.
#pragma once

#include "selective/tile.cuh"

template <typename T, typename A, bool PACKED>
struct SelectiveBackward : SelectiveChannels<T, A, kBackwardRows> {
    using Channels = SelectiveChannels<T, A, kBackwardRows>;
    using Shape = typename Channels::Shape;
    using Channels::P, Channels::TILE, Channels::STATES, Channels::PITCH;
    using Channels::batch, Channels::group, Channels::exists, Channels::row;
    static constexpr int TURN = STATES / kWarps;  // states between barriers

    // Of a CTA. In shared memory there follow, for its channels:
    //     ChannelShared   [channel]
    //     StateRow        [channel][A log2(e); what leaves a tile to the one before][state]
    //     CompensatedSum  [channel][dA; dB and dC, where constant][state]
    //     CompensatedSum  [channel][dD; dbias]
    struct Shared {
        A b[STATES * PITCH], c[STATES * PITCH], db[STATES * PITCH], dc[STATES * PITCH];
        A rows[kWarps * PITCH];  // that are transposed
        unsigned heads[TILE / 32 + 1];
    };

    // What the positions of a lane share over all states; y is the sum of C h and D u.
    struct Lane : Channels::Lane {
        A dy[P], g[P], dd[P];  // dy'; sums over states: of g B; of A log2(e) a h g
    };

    const SelectiveBackwardArgs& args;
    Shared& shared;
    A* state_rows;
    CompensatedSum<A>*state_sums, *channel_sums;
    int sums_of_state;
    i64 cta_in_group;

    __device__ SelectiveBackward(const SelectiveBackwardArgs& args, char* memory)
        : args(args), shared(*reinterpret_cast<Shared*>(memory))
    {
        const int channels = kWarps * args.rounds;
        cta_in_group = this->place_cta(args, channels);
        this->all = reinterpret_cast<typename Channels::Shared*>(memory + (sizeof(Shared) + 15) / 16 * 16);
        state_rows = reinterpret_cast<A*>(this->all + channels);
        state_sums = reinterpret_cast<CompensatedSum<A>*>(state_rows + STATE_ROWS * channels * args.states);
        sums_of_state = 1 + (args.flags & kConstantB ? 1 : 0) + (args.flags & kConstantC ? 1 : 0);
        channel_sums = state_sums + sums_of_state * channels * args.states;
        for (int i = threadIdx.x; i < channels; i += blockDim.x) {
            this->keep(args, i);
            this->keep_row(args.dy, ROW_DY, i), this->keep_row(args.du, ROW_DU, i);
            this->keep_row(args.ddelta, ROW_DDELTA, i), this->keep_row(args.dz, ROW_DZ, i);
        }
        __syncthreads();
    }

    // Numbers of each state of a channel, and sums over the positions of a batch.
    enum StateRow { RATE, CARRY, STATE_ROWS };
    enum ChannelSum { SUM_D, SUM_BIAS, CHANNEL_SUMS };
    static_assert(STATE_ROWS == kStateRows && CHANNEL_SUMS == kChannelSums);
    __device__ A& at_state(StateRow kind, int n) const
    {
        return state_rows[(row * STATE_ROWS + kind) * static_cast<int>(args.states) + n];
    }
    __device__ CompensatedSum<A>& sum_at(int number, int n) const
    {
        return state_sums[(row * sums_of_state + number) * static_cast<int>(args.states) + n];
    }
    __device__ CompensatedSum<A>& sum_of_a(int n) const { return sum_at(0, n); }
    __device__ CompensatedSum<A>& sum_of_b(int n) const { return sum_at(1, n); }  // if B is constant
    __device__ CompensatedSum<A>& sum_of_c(int n) const { return sum_at(sums_of_state - 1, n); }  // if C is
    __device__ CompensatedSum<A>& sum_at(ChannelSum kind) const { return channel_sums[row * CHANNEL_SUMS + kind]; }

    template <typename S>
    __device__ S* at(const SelectiveOperand& o, i64 state, i64 position) const
    {
        return Channels::template at<S>(o, state, position);
    }

    // Numbers of the workspace.
    __device__ A* workspace_at(i64 first) const { return reinterpret_cast<A*>(args.workspace) + first; }

    // Takes a channel of a round.
    __device__ void take_round(int round) { this->take(round * kWarps + threadIdx.x / 32); }

    __device__ void run()
    {
        for (int round = 0; round < args.rounds; ++round) {
            take_round(round);
            for (int n = threadIdx.x % 32; n < args.states; n += 32) {
                at_state(RATE, n) = *at<const A>(args.a, n, 0) * kLog2e<A>;
                at_state(CARRY, n) = args.dlast.data && !PACKED && exists ? *at<const A>(args.dlast, n, 0) : A(0);
                for (int i = 0; i < sums_of_state; ++i) sum_at(i, n) = {};
            }
            if (threadIdx.x % 32 == 0) sum_at(SUM_D) = sum_at(SUM_BIAS) = {};
        }
        const int length = static_cast<int>(args.length);
        for (int position = ((length + TILE - 1) / TILE - 1) * TILE; position >= 0; position -= TILE)
            for (int n = 0; n < args.states; n += STATES) run_states(position, n);
        __syncthreads();
        for (int round = 0; round < args.rounds; ++round) {
            take_round(round);
            if (exists) store_sums();
        }
    }

    // Of a tile; lane n has the numbers of state from + n.
    struct StateSums {
        A kept;  // the state that enters the tile
        A sum_a, sum_b, sum_c;
    };
    __device__ StateSums load_kept(int from, int states, int position) const
    {
        const int n = from + min(static_cast<int>(threadIdx.x % 32), states - 1);
        return {at<const A>(args.chunks, n, position / kChunkLength)[args.first_chunk], A(0), A(0), A(0)};
    }
    __device__ void add_sums(const StateSums& sums, int from, int states) const
    {
        const int lane = threadIdx.x % 32;
        if (lane >= states) return;
        sum_of_a(from + lane).add(sums.sum_a);
        if (args.flags & kConstantB) sum_of_b(from + lane).add(sums.sum_b);
        if (args.flags & kConstantC) sum_of_c(from + lane).add(sums.sum_c);
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

    // Stores the sums over the channels of the CTA: [CTA, batch, group, state, position].
    __device__ void store_group(i64 sums, const A* from, int first, int states, int position) const
    {
        const int lane = threadIdx.x % 32, count = this->count(args, position) - lane * P;
        const i64 first_row = ((cta_in_group * args.batches + batch) * args.groups + group) * args.states + first;
        A* to = workspace_at(sums) + first_row * args.length + position + lane * P;
        for (int n = threadIdx.x / 32; n < states; n += kWarps) {
            A x[P];
            read_shared(from + n * PITCH, x);
            store_positions(to + n * args.length, count, x);
        }
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

    // Sums of a lane over the states before `from`, where they do not all fit into shared memory.
    __device__ A* lane_sums() const
    {
        const i64 channel_row = args.rounds * kWarps * blockIdx.x + row;
        return workspace_at(args.lanes) + (channel_row * 32 + threadIdx.x % 32) * kLaneSums * P;
    }
    __device__ void load_sums(Lane& own) const
    {
        const A* from = lane_sums();
#pragma unroll
        for (int k = 0; k < P; ++k) own.y[k] = from[k], own.g[k] = from[P + k], own.dd[k] = from[2 * P + k];
    }
    __device__ void store_lane_sums(const Lane& own) const
    {
        A* to = lane_sums();
#pragma unroll
        for (int k = 0; k < P; ++k) to[k] = own.y[k], to[P + k] = own.g[k], to[2 * P + k] = own.dd[k];
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
            this->fill(b, own.count, *at<const A>(args.b, from + n, 0));
        else
            read_shared(shared.b + n * PITCH, b);
        if (constant_c)
            this->fill(c, own.count, *at<const A>(args.c, from + n, 0));
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
        return g + *at<const A>(args.dlast, n, sequence_of(args, own.first + k));
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
            if (PACKED && args.initial.data)
                before[k] = gated<true>(a[k], *at<const A>(args.initial, n, sequence_of(args, own.first + k)));
            a[k] = A(0);
        }
    }

    __device__ void store_initial(int n, int position, A decay, A g) const
    {
        if (args.dinitial.data && exists)
            *at<A>(args.dinitial, n, sequence_of(args, position)) = gated<true>(decay, g);
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

    // Stores the sums of a channel over the positions of a batch.
    __device__ void store_sums() const
    {
        const i64 number = batch * args.channels + this->first_channel + row;
        for (int n = threadIdx.x % 32; n < args.states; n += 32) {
            const i64 i = number * args.states + n;
            if (args.a_sums >= 0) workspace_at(args.a_sums)[i] = sum_of_a(n).sum;
            if (args.flags & kConstantB && args.b_sums >= 0) workspace_at(args.b_sums)[i] = sum_of_b(n).sum;
            if (args.flags & kConstantC && args.c_sums >= 0) workspace_at(args.c_sums)[i] = sum_of_c(n).sum;
            if (!PACKED && args.dinitial.data) *at<A>(args.dinitial, n, 0) = at_state(CARRY, n);
        }
        if (threadIdx.x % 32) return;
        if (args.d_sums >= 0) workspace_at(args.d_sums)[number] = sum_at(SUM_D).sum;
        if (args.bias_sums >= 0) workspace_at(args.bias_sums)[number] = sum_at(SUM_BIAS).sum;
        if (PACKED && args.dinitial.data) pass_states();
    }

    // Passes on the gradients of the states of sequences without positions.
    __device__ void pass_states() const
    {
        for (i64 k = 0; k < args.bound_count - 1; ++k) {
            if (bound_at(args, k) != bound_at(args, k + 1)) continue;
            for (i64 n = 0; n < args.states; ++n)
                *at<A>(args.dinitial, n, k) = args.dlast.data ? *at<const A>(args.dlast, n, k) : A(0);
        }
    }
};
