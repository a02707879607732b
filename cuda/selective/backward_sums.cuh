// The numbers that the gradient of the selective scan keeps beside a lane's positions: in shared
// memory those of states, and sums over positions and channels; in the workspace sums of a CTA.
#pragma once

#include "selective/tile.cuh"

template <typename T, typename A, bool PACKED>
struct SelectiveSums : SelectiveChannels<T, A, kBackwardRows> {
    using Channels = SelectiveChannels<T, A, kBackwardRows>;
    using Channels::P, Channels::TILE, Channels::STATES, Channels::PITCH;
    using Channels::batch, Channels::group, Channels::exists, Channels::row;

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

    __device__ SelectiveSums(const SelectiveBackwardArgs& args, char* memory)
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

    // Begins a channel: its rates, the gradients of its last states, and no sums.
    __device__ void begin_channel() const
    {
        for (int n = threadIdx.x % 32; n < args.states; n += 32) {
            at_state(RATE, n) = *at<const A>(args.a, n, 0) * kLog2e<A>;
            at_state(CARRY, n) = args.dlast.data && !PACKED && exists ? *at<const A>(args.dlast, n, 0) : A(0);
            for (int i = 0; i < sums_of_state; ++i) sum_at(i, n) = {};
        }
        if (threadIdx.x % 32 == 0) sum_at(SUM_D) = sum_at(SUM_BIAS) = {};
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

    // Stores the sums of a channel over the positions of a batch.
    __device__ void store_channel() const
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
