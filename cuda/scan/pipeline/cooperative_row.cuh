// Cooperative rows: several CTAs share a row. Precondition: all CTAs of the grid are resident
// (cooperative launch).
//
// In the first launch each CTA finds the prefix of its split of the row and, by look-back over
// tile-status words, the prefix before it. In the second the CTAs take the tiles of the row in
// turn, the last tile first: a CTA publishes the suffix of its tile and, one turn later, looks back
// at the suffixes of the tiles to its right, up to its own last one, which are usually published
// by then.
#pragma once

#include "scan/pipeline/async_pipeline.cuh"
#include "scan/state/tile_status.cuh"

// AsyncPipeline for a CTA of a cooperative row, or of one that has rows to itself. Self provides
// the members that AsyncPipeline needs, and
//
//     TILE, SECTOR           elements of a tile, and of a 32-byte sector
//     COOPERATIVE, WARPS     whether rows are shared; warps of a CTA
//     set_carry_in(suffix)   sets the suffix that enters the tile
//     shared.warp_states     space for a state of each warp
template <typename Self, typename K>
struct CooperativeRow : AsyncPipeline<Self, K> {
    using Base = AsyncPipeline<Self, K>;
    using Prefix = typename K::Prefix;
    using Carry = typename K::Carry;
    using Base::args, Base::segment, Base::split, Base::prefix, Base::prefix_in_split, Base::suffix, Base::count,
        Base::prefix_steps, Base::steps;
    using Base::self, Base::split_state, Base::phase;

    const int retained_stages;  // steps that a tile stays in the buffer after its own: 1 if CTAs take turns
    int first_backward_tile;    // tile of the first step backward

    __device__ CooperativeRow(const ScanArgs& args, uint4* buffer)
        : Base(args, buffer), retained_stages(Self::COOPERATIVE && args.splits > 1 && !(phase() & kUpsweepPrefix))
    {
        split = blockIdx.x % static_cast<unsigned>(args.splits);
        if (prefix_steps > 0) prefix_steps = split_tiles();
        steps = retained_stages ? (tiles() - static_cast<int>(split) + ctas_per_row() - 1) / ctas_per_row()
                : K::FINDS_RECORDS || phase() == kUpsweepPrefix ? prefix_steps
                                                                : prefix_steps + split_tiles();
        first_backward_tile = keep_here(
            (retained_stages ? tiles() - static_cast<int>(split) : first_tile() + split_tiles()) - 1);
    }

    __device__ TileStatus<K> tile_status() const { return TileStatus<K>(args); }
    // Tiles of a row, with the largest misalignment that line-aligned tiles may have if rows do not
    // begin with a sector.
    __device__ int tiles() const
    {
        return static_cast<int>(
            (args.n + (args.n % Self::SECTOR ? 4 * Self::SECTOR - 1 : 0) + Self::TILE - 1) / Self::TILE);
    }
    __device__ int ctas_per_row() const { return retained_stages ? static_cast<int>(args.splits) : 1; }

    __device__ unsigned row_of(unsigned item) const { return item / static_cast<unsigned>(args.splits); }
    __device__ int tile_of(int step) const
    {
        return step < prefix_steps ? first_tile() + step : first_backward_tile - (step - prefix_steps) * ctas_per_row();
    }

    // The split of the CTA: its first tile, and its number of tiles.
    __device__ int first_tile() const { return static_cast<int>(split) * count; }
    __device__ int split_tiles() const { return min(count, tiles() - first_tile()); }

    // Cooperative rows load it with the tile.
    __device__ Prefix prefix_before_split() const
    {
        return Self::COOPERATIVE ? K::Prefix::identity() : split_state().prefix_before_split_by_warp();
    }
    __device__ Carry suffix_after_split() const
    {
        return Self::COOPERATIVE ? K::to_carry(K::Suffix::identity()) : split_state().suffix_after_split_by_warp();
    }

    // Loads the prefix before the split of a tile, and before the tile in its split.
    __device__ void load_tile_prefix(int t)
    {
        if constexpr (K::NEEDS_PREFIX) {
            if (!Self::COOPERATIVE) return Base::load_tile_prefix(t - first_tile());
            const int split = retained_stages ? t / count : static_cast<int>(this->split),
                      tile_in_split = t - split * count;
            if (t < 0 || tile_in_split < 0 || !self().owns_column() || tiles() == 1) return;
            const SplitState<K> split_state(args, segment, split, 1);
            prefix_in_split = split_state.prefix_before(tile_in_split, 0);
            if (retained_stages) prefix = split_state.prefix(0);
        }
    }

    // Publishes the prefix of the split, looks back for the prefix before it, and stores the latter
    // as the prefix of the split, or (record pass) filters the record flags by it.
    __device__ void publish_prefix(const Prefix& all)
    {
        if constexpr (!Self::COOPERATIVE) return Base::publish_prefix(all);
        const uint4* others = tile_status().prefixes + segment * args.splits * TileStatus<K>::template WORDS<Prefix>;
        if (self().owns_column())
            TileStatus<K>::publish(
                tile_status().prefixes + (segment * args.splits + split) * TileStatus<K>::template WORDS<Prefix>, all);
        look_back(others, TileStatus<K>::template WORDS<Prefix>, split, K::Prefix::identity());
        __syncthreads();
        if constexpr (K::FINDS_RECORDS)
            self().filter_records(look_back_result(K::Prefix::identity()));
        else if (self().owns_column())
            split_state().prefix(0) = look_back_result(K::Prefix::identity());
    }

    __device__ uint4* suffix_status(int t) const
    {
        return tile_status().suffixes +
               (static_cast<i64>(segment) * tiles() + tiles() - 1 - t) * TileStatus<K>::template WORDS<Carry>;
    }

    // Looks back for the suffix that enters a tile: the tiles since the last one of this CTA,
    // combined with the previous carry.
    __device__ void read_carry(int t)
    {
        const int index_from_end = tiles() - 1 - t;
        look_back(
            suffix_status(t + 1), -TileStatus<K>::template WORDS<Carry>, min(index_from_end, ctas_per_row()),
            K::to_carry(K::Suffix::identity()));
        __syncthreads();
        if (self().owns_column()) {
            const Carry since = look_back_result(K::to_carry(K::Suffix::identity()));
            suffix = index_from_end >= ctas_per_row() ? K::combine(since, suffix) : since;
            self().set_carry_in(suffix);
        }
        __syncthreads();
    }

    // The combined states of the first LANES lanes, in every lane.
    template <int LANES, typename S>
    static __device__ S combined(S s)
    {
        if constexpr (K::SEGMENTED_SUM && __is_same(S, Carry))
            return from_lane(inclusive_suffix<K>(s, 31 - static_cast<int>(threadIdx.x) % 32), 0);
#pragma unroll (K::LONG_COMBINE ? 1 : 5)
        for (int d = 1; d < LANES; d *= 2) {
            const S next = shuffle_down(s, d);
            if (threadIdx.x % 32 + d < 32) s = K::combine(s, next);
        }
        return from_lane(s, 0);
    }

    // The combined states of `count` warps from `smem` on, in every lane.
    template <typename S>
    __device__ S combined(const S* smem, int count, S identity) const
    {
        const int lane = threadIdx.x % 32;
        return combined<Self::WARPS>(lane < count ? smem[lane] : identity);
    }

    // Look-back: combines `count` published states from left to right. A thread waits for one, or
    // for several adjacent ones.
    template <typename S>
    __device__ void look_back(const uint4* status, int stride, int count, S sum)
    {
        const int threads = 32 * Self::WARPS, each = (count + threads - 1) / threads,
                  first = static_cast<int>(threadIdx.x) * each;
#pragma unroll 1
        for (int i = first; i < min(first + each, count); ++i)
            sum = K::combine(sum, TileStatus<K>::template wait<S>(status + i * stride));
        sum = combined<32>(sum);
        if (threadIdx.x % 32 == 0) reinterpret_cast<S*>(self().shared.warp_states)[threadIdx.x / 32] = sum;
    }

    template <typename S>
    __device__ S look_back_result(S identity)
    {
        return combined(reinterpret_cast<const S*>(self().shared.warp_states), Self::WARPS, identity);
    }
};
