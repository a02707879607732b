// States handed from tile to tile of one strip (a row, or some columns).
//
// Position p counts the tiles of a strip in the order of the chain: from the left for heads, from the right for tails. R positions make a
// group. Tiles announce their own state; the last of a group joins those of the group, and then all up to the end of the group. What
// enters a tile is what precedes its group, joined with the states ahead of it in the group. All up to the end of a group is always that
// up to the group before it joined with the group, whoever computes it, so that a reader may begin at any group that is complete: the
// order of all joins depends on p alone.
#pragma once

#include "scan.cuh"

template <typename S, int R>
struct Chain {
    unsigned* ready;  // of this strip: for each tile 1; for each group 1, then 2 when all up to its end is there as well
    S* states;        // for each tile, for each group, for all up to the end of each group: a state for each column
    i64 tiles, groups;
    int columns;

    static __device__ i64 groups_of(const ScanArgs& args) { return static_cast<unsigned>(args.tiles + R - 1) / R; }
    static __device__ i64 entries(const ScanArgs& args) { return args.tiles + 2 * groups_of(args); }

    // `ready` and `states` are where this kind of state begins.
    __device__ Chain(const ScanArgs& args, unsigned* ready, char* states, i64 strip, int columns)
        : tiles(args.tiles), groups(groups_of(args)), columns(columns)
    {
        this->ready = ready + strip * (tiles + groups);
        this->states = reinterpret_cast<S*>(states) + strip * entries(args) * columns;
    }

    __device__ i64 group(i64 g) const { return tiles + g; }
    __device__ i64 up_to(i64 g) const { return tiles + groups + g; }

    __device__ unsigned look(i64 flag) const
    {
        unsigned value;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(ready + flag) : "memory");
        return value;
    }

    __device__ void wait(i64 flag) const
    {
        while (look(flag) == 0) {}
    }

    __device__ void announce(i64 flag, unsigned value) const
    {
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(ready + flag), "r"(value) : "memory");
    }

    __device__ void write(i64 entry, int column, const S& s) const { states[entry * columns + column] = s; }

    __device__ S read(i64 entry, int column) const
    {
        const S* p = states + entry * columns + column;
        unsigned word[sizeof(S) / 4];
#pragma unroll
        for (unsigned i = 0; i < sizeof(S) / 4; ++i) word[i] = __ldcg(reinterpret_cast<const unsigned*>(p) + i);
        S s;
        memcpy(&s, word, sizeof s);
        return s;
    }

    // One warp: waits for the groups before g, and tells how many of them, from the nearest on, are to be joined to what was up to their
    // end; lanes hold the numbers of groups g - 1 - lane.
    __device__ int complete(i64 g) const
    {
        const i64 mine = g - 1 - static_cast<int>(threadIdx.x % 32);
        while (true) {
            const unsigned flag = mine < 0 ? 2 : look(group(mine));
            const unsigned there = __ballot_sync(0xffffffff, flag != 0), all = __ballot_sync(0xffffffff, flag == 2);
            const int nearest = __ffs(all) - 1;
            if (nearest >= 0 && (~there & ((1u << nearest) - 1)) == 0) return nearest;
        }
    }
};

// For rows: one warp does it. The state that enters position p; `own` is published if asked. With `last` nothing else is wanted.
template <typename S, typename Join>
__device__ S row_carry(const Chain<S, 32>& chain, i64 p, const S& own, bool publish, bool last, S nothing, Join join)
{
    const int lane = threadIdx.x % 32;
    const i64 g = p / 32;
    const int k = static_cast<int>(p % 32);
    const bool ends = publish && k == 31;
    const auto put = [&](i64 entry, i64 flag, unsigned value, const S& s) {
        if (lane != 0) return;
        chain.write(entry, 0, s);
        chain.announce(flag, value);
    };
    if (publish) put(p, p, 1, own);
    if (last && !ends) return nothing;
    S near = nothing;
    if (lane < k) {
        chain.wait(p - k + lane);
        near = chain.read(p - k + lane, 0);
    }
    __syncwarp();
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const S next = from_above(near, d);
        if (lane + d < 32) near = join(near, next);
    }
    near = from_lane(near, 0);
    const S whole = join(near, own);
    if (ends) put(chain.group(g), chain.group(g), 1, whole);
    if (g == 0) {
        if (ends) put(chain.up_to(g), chain.group(g), 2, whole);
        return near;
    }
    const int nearest = chain.complete(g);
    S before = nothing;
    const i64 mine = g - 1 - lane;
    if (lane <= nearest && mine >= 0) before = chain.read(lane == nearest ? chain.up_to(mine) : chain.group(mine), 0);
    __syncwarp();
    S far = from_lane(before, nearest);
    for (int i = nearest - 1; i >= 0; --i) far = join(far, from_lane(before, i));
    if (ends) put(chain.up_to(g), chain.group(g), 2, join(far, whole));
    return join(far, near);
}

constexpr int kRadix = 8;  // tiles of a group of columns

// For columns: the whole block does it, thread c for column c, which passes the state of that column. `shared` is free to use.
template <typename S, typename Join>
__device__ S column_carry(const Chain<S, kRadix>& chain, int* shared, i64 p, const S& own, bool publish, bool last, S nothing, Join join)
{
    const int column = threadIdx.x;
    const bool has = column < chain.columns;
    const i64 g = static_cast<unsigned>(p) / kRadix;
    const int k = static_cast<int>(p) % kRadix;
    const bool ends = publish && k == kRadix - 1;
    const auto put = [&](i64 entry, i64 flag, unsigned value, const S& s) {
        if (has) chain.write(entry, column, s);
        __syncthreads();
        if (threadIdx.x == 0) chain.announce(flag, value);
    };
    if (publish) put(p, p, 1, own);
    if (last && !ends) return nothing;
    if (column < k) chain.wait(p - k + column);
    __syncthreads();
    S near = nothing;
    if (has) {
        S state[kRadix - 1];
#pragma unroll
        for (int i = 0; i < kRadix - 1; ++i) state[i] = i < k ? chain.read(p - k + i, column) : nothing;
#pragma unroll
        for (int i = 0; i < kRadix - 1; ++i)
            if (i < k) near = i == 0 ? state[0] : join(near, state[i]);
    }
    const S whole = k > 0 ? join(near, own) : own;
    if (ends) put(chain.group(g), chain.group(g), 1, whole);
    if (g == 0) {
        if (ends) put(chain.up_to(g), chain.group(g), 2, whole);
        return near;
    }
    if (threadIdx.x < 32) {
        const int nearest = chain.complete(g);
        if (threadIdx.x == 0) *shared = nearest;
    }
    __syncthreads();
    const int nearest = *shared;
    S far = nothing;
    if (has) {
        if (g - 1 - nearest >= 0) far = chain.read(chain.up_to(g - 1 - nearest), column);
#pragma unroll 4
        for (int i = nearest - 1; i >= 0; --i) far = join(far, chain.read(chain.group(g - 1 - i), column));
    }
    if (ends) put(chain.up_to(g), chain.group(g), 2, join(far, whole));
    return k > 0 ? join(far, near) : far;
}
