// Blocks that share a row: a few rows have a team of blocks each, all of which are on the device at once.
//
// In one launch each of them finds the heads of a part of the row, and learns what precedes it. In the next they take the tiles by turns, the
// last one first: a block tells what its tile comes to, and a turn later joins what the tiles behind it came to, which have been told by then.
#pragma once

#include "scan/pipeline/async_pipeline.cuh"
#include "scan/state/tile_status.cuh"

// The steps of a block of a team, or of one that has rows to itself. Self lays tiles out, as for a ring, and says
//
//     TILE, SECTOR           elements of a tile, and of a quarter of a cache line
//     TEAM, WARPS            whether there are teams; warps of a block
//     let_in(tail)           what enters the tile from the right
//     shared.told            room for a state of each warp
template <typename Self, typename K>
struct Team : Ring<Self, K> {
    using Base = Ring<Self, K>;
    using Head = typename K::Head;
    using Far = typename K::Far;
    using Base::args, Base::strip, Base::part, Base::head, Base::next, Base::tail, Base::count, Base::ahead, Base::steps;
    using Base::self, Base::walk, Base::phase;

    const int hold;  // steps that a tile stays in the ring after its own: blocks take turns
    int last;        // the tile of the first step back

    __device__ Team(const ScanArgs& args, uint4* ring) : Base(args, ring), hold(Self::TEAM && args.parts > 1 && !(phase() & kHeads))
    {
        part = blockIdx.x % static_cast<unsigned>(args.parts);
        if (ahead > 0) ahead = mine();
        steps = hold ? (tiles() - static_cast<int>(part) + team() - 1) / team() : kFinds<K> || phase() == kHeads ? ahead : ahead + mine();
        last = opaque((hold ? tiles() - static_cast<int>(part) : first() + mine()) - 1);
    }

    __device__ Told<K> told() const { return Told<K>(args); }
    __device__ int tiles() const { return static_cast<int>((args.n + (args.n % Self::SECTOR ? 4 * Self::SECTOR - 1 : 0) + Self::TILE - 1) / Self::TILE); }
    __device__ int team() const { return hold ? static_cast<int>(args.parts) : 1; }

    __device__ unsigned row_of(unsigned item) const { return item / static_cast<unsigned>(args.parts); }
    __device__ int tile_of(int step) const
    {
        return step < ahead ? first() + step : last - (step - ahead) * team();
    }

    // The part of the block: its first tile, and how many there are.
    __device__ int first() const { return static_cast<int>(part) * count; }
    __device__ int mine() const { return min(count, tiles() - first()); }

    __device__ Head ahead_of_part() const { return Self::TEAM ? K::empty() : walk().ahead_by_warp(); }  // a team foresees it
    __device__ Far behind() const { return Self::TEAM ? K::far(K::nothing()) : walk().behind_by_warp(); }

    // What precedes the part of a tile, and the tile in its part.
    __device__ void foresee(int t)
    {
        if constexpr (K::HEAD) {
            if (!Self::TEAM) return Base::foresee(t - first());
            const int part = hold ? t / count : static_cast<int>(this->part), at = t - part * count;
            if (t < 0 || at < 0 || !self().charged() || tiles() == 1) return;
            const Walk<K> walk(args, strip, part, 1);
            next = walk.head_before(at, 0);
            if (hold) head = walk.head(0);
        }
    }

    // Tells the head of the part, and learns what precedes it.
    __device__ void leave(const Head& all)
    {
        if constexpr (!Self::TEAM) return Base::leave(all);
        const uint4* others = told().heads + strip * args.parts * Told<K>::template PACKETS<Head>;
        if (self().charged()) Told<K>::tell(told().heads + (strip * args.parts + part) * Told<K>::template PACKETS<Head>, all);
        collect(others, Told<K>::template PACKETS<Head>, part, K::empty());
        __syncthreads();
        if constexpr (kFinds<K>)
            self().settle(collected(K::empty()));
        else if (self().charged())
            walk().head(0) = collected(K::empty());
    }

    __device__ uint4* tail_of(int t) const { return told().tails + (static_cast<i64>(strip) * tiles() + tiles() - 1 - t) * Told<K>::template PACKETS<Far>; }

    // Learns what enters a tile: from the tiles since the last one of this block, and before.
    __device__ void learn(int t)
    {
        const int turn = tiles() - 1 - t;
        collect(tail_of(t + 1), -Told<K>::template PACKETS<Far>, min(turn, team()), K::far(K::nothing()));
        __syncthreads();
        if (self().charged()) {
            const Far since = collected(K::far(K::nothing()));
            tail = turn >= team() ? K::join(since, tail) : since;
            self().let_in(tail);
        }
        __syncthreads();
    }

    // The join of the first LANES lanes.
    template <int LANES, typename S>
    static __device__ S joined(S s)
    {
        if constexpr (kRuns<S>) return from_lane(tails_down_to<K>(s, 31 - static_cast<int>(threadIdx.x) % 32), 0);
#pragma unroll (kLong<S> ? 1 : 5)
        for (int d = 1; d < LANES; d *= 2) {
            const S next = from_above(s, d);
            if (threadIdx.x % 32 + d < 32) s = K::join(s, next);
        }
        return from_lane(s, 0);
    }

    // The join of `count` states of warps from `room` on, in every lane.
    template <typename S>
    __device__ S joined(const S* room, int count, S nothing) const
    {
        const int lane = threadIdx.x % 32;
        return joined<Self::WARPS>(lane < count ? room[lane] : nothing);
    }

    // Joins so many states that were told, from left to right. Each thread hears one, or some side by side.
    template <typename S>
    __device__ void collect(const uint4* packets, int apart, int count, S sum)
    {
        const int threads = 32 * Self::WARPS, each = (count + threads - 1) / threads, first = static_cast<int>(threadIdx.x) * each;
#pragma unroll 1
        for (int i = first; i < min(first + each, count); ++i) sum = K::join(sum, Told<K>::template hear<S>(packets + i * apart));
        sum = joined<32>(sum);
        if (threadIdx.x % 32 == 0) reinterpret_cast<S*>(self().shared.told)[threadIdx.x / 32] = sum;
    }

    template <typename S>
    __device__ S collected(S nothing)
    {
        return joined(reinterpret_cast<const S*>(self().shared.told), Self::WARPS, nothing);
    }
};
