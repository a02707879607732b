// Scans of states across the lanes of a warp and the warps of a row.
#pragma once

#include "scan/state/prefix_suffix.cuh"

template <typename K>
struct RowShared {
    Uninitialized<typename K::Prefix, 32> warp_prefixes;  // totals of warps
    Uninitialized<typename K::Suffix, 32> warp_suffixes;
    Uninitialized<typename K::Prefix, 1> carry_prefix;  // carry-in of the tile
    Uninitialized<typename K::Suffix, 1> carry_suffix;
};

// SEG: rows lie inside a warp, which may have several of them. TILED: states enter the tile from the
// tiles before and after it.
template <typename K, bool SEG, bool TILED>
struct RowScan {
    using Prefix = typename K::Prefix;
    using Suffix = typename K::Suffix;

    RowShared<K>* shared;
    int first_warp, end_warp;  // the warps that share the row

    // The combined states of all warps of the CTA, in every lane of a warp.
    template <typename S>
    static __device__ S total(Uninitialized<S, 32>& smem)
    {
        const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
        S s = smem[min(lane, warps - 1)];
#pragma unroll (K::LONG_COMBINE ? 1 : 5)
        for (int d = 1; d < 32; d *= 2) {
            const S next = shuffle_down(s, d);
            if (lane + d < warps) s = K::combine(s, next);
        }
        return from_lane(s, 0);
    }

    // The combined states of `count` warps from `smem` on.
    template <typename S, typename Combine>
    __device__ S combined(S* smem, int count, S identity, Combine combine) const
    {
        const int lane = threadIdx.x % 32;
        S s = lane < count ? smem[lane] : identity;
#pragma unroll (K::IS_FAST && K::KEEPS_ELEMENTS ? 5 : 1)
        for (int d = 1; d < (K::IS_FAST && K::KEEPS_ELEMENTS ? kRowResidentThreads / 32 : end_warp - first_warp);
             d *= 2) {
            const S next = shuffle_down(s, d);
            s = lane + d < 32 ? combine(s, next) : s;
        }
        return from_lane(s, 0);
    }

    // The combined states of the warps of the row before this one, and after it.
    __device__ Prefix prefix_of_warps(int warp) const
    {
        return combined(
            &shared->warp_prefixes[first_warp], warp - first_warp, K::Prefix::identity(),
            [](const Prefix& l, const Prefix& r) { return K::combine(l, r); });
    }
    __device__ Suffix suffix_of_warps(int warp) const
    {
        return combined(
            &shared->warp_suffixes[warp + 1], end_warp - 1 - warp, K::Suffix::identity(),
            [](const Suffix& l, const Suffix& r) { return K::combine(l, r); });
    }

    // The prefix of everything before this thread, given that of the lanes before it.
    __device__ Prefix prefix_before(const Prefix& in_warp) const
    {
        if (SEG || (!TILED && end_warp - first_warp == 1)) return in_warp;
        const Prefix preceding = prefix_of_warps(threadIdx.x / 32);
        return K::combine(TILED ? K::combine(shared->carry_prefix[0], preceding) : preceding, in_warp);
    }

    __device__ Suffix suffix_after(const Suffix& in_warp) const
    {
        if (SEG || (!TILED && end_warp - first_warp == 1)) return in_warp;
        const Suffix following = suffix_of_warps(threadIdx.x / 32);
        return K::combine(in_warp, TILED ? K::combine(following, shared->carry_suffix[0]) : following);
    }

    // Exclusive warp scans. Bit l of `lane_heads` is set if a row begins in lane l (SEG). Without
    // SEG the total of the warp goes to shared memory.
    __device__ Suffix exclusive_suffix(const Suffix& own, unsigned lane_heads) const
    {
        const int lane = threadIdx.x % 32;
        const unsigned above = lane_heads & ~((1u << lane) - 1);
        const Suffix all = inclusive_suffix<K>(own, SEG && above ? __ffs(above) - 1 - lane : 31 - lane);
        if (!SEG && lane == 0) shared->warp_suffixes[threadIdx.x / 32] = all;
        const Suffix next = shuffle_down(all, 1);
        return lane == 31 ? K::Suffix::identity() : next;
    }

    __device__ Prefix exclusive_prefix(const Prefix& own, unsigned lane_heads) const
    {
        const int lane = threadIdx.x % 32;
        const unsigned below = lane_heads & (2u << lane) - 1;
        const Prefix all = inclusive_prefix<K>(own, SEG && below ? lane - (31 - __clz(below)) : lane);
        if (!SEG && lane == 31) shared->warp_prefixes[threadIdx.x / 32] = all;
        const Prefix next = shuffle_up(all, 1);
        return lane == 0 ? K::Prefix::identity() : next;
    }
};
