// scan/pipeline/: multi-stage cp.async pipelines for long rows and columns. Tiles are prefetched to
// a circular buffer in shared memory; a row may be shared by CTAs that are all resident.
//
// This file: AsyncPipeline, the loop of a CTA over its work items and their tiles. A fast path adds
// its rejections to the flag of each segment; the fallback pass recomputes rejected segments.
#pragma once

#include "scan/state/split_state.cuh"

// The steps of a CTA: for each work item (a split of a segment), tiles forward to find prefixes,
// unless an upsweep has, then tiles backward. Tiles are prefetched in the order of the steps. Self
// (CRTP) lays a tile out and provides
//
//     COLUMNS                       columns of a segment
//     TILE_ELEMENTS, STAGE_VECTORS  elements of a tile; 16-byte vectors of a stage
//     set_work_item(item)           producer: tiles of this item are prefetched from here on
//     fetch(tile, prefix_only, to)  producer: copies x, or x and dy, of a tile to shared memory
//     start_work_item(item)         consumer: segment and split are those of this item
//     owns_column(), column()       whether the thread keeps the carry of a column, and of which
//     tile_prefix(parity), tile_suffix()  combined states of all warps, for
//                                   threads that own a column
//     prefix_before_split(), suffix_after_split()  of other splits, for the same threads
//     find_prefix(tile, stage, parity)  leaves the prefixes of warps in shared memory
//     find_suffix(tile, stage)      a tile of the downsweep, or of the upsweep of suffixes: updates
//                                   `suffix`, stores dx, and loads the prefix of the next tile
//     find_record_flags(tile, stage)  record pass, in place of the last two: stores record flags
//     publish_prefix(prefix)        upsweep: publishes the prefix of a split
//
// Self may also replace publish_prefix, tile_of, load_tile_prefix and retained_stages of this
// class.
template <typename Self, typename K>
struct AsyncPipeline {
    using Prefix = typename K::Prefix;
    using Carry = typename K::Carry;

    const ScanArgs& args;
    uint4* buffer;
    unsigned vector;                 // address of the first vector of the thread in the buffer
    int stages;                      // tiles resident in shared memory
    int count, prefix_steps, steps;  // tiles of a split; steps that find prefixes only; steps that prefetch
    unsigned producer_item;          // work item being prefetched; the next is producer_item + gridDim.x
    unsigned segment, split;         // of the work item being computed
    int producer_step;               // next step of producer_item to prefetch; == steps if no item is left
    Prefix prefix;                   // prefix before the split; on the walk forward, the prefix so far
    Prefix prefix_in_split;          // prefix before the tile in its split
    Carry suffix;
    unsigned rejections;  // of the thread
    bool rejected;        // the split needs no second walk: the first one rejected its segment

    __device__ AsyncPipeline(const ScanArgs& a, uint4* buffer) : args(a), buffer(buffer)
    {
        vector = keep_here(static_cast<unsigned>(__cvta_generic_to_shared(buffer + threadIdx.x)));
        stages = static_cast<int>(args.stages);
        count = static_cast<int>(args.tiles_per_split);
        prefix_steps = K::NEEDS_PREFIX && (K::FINDS_RECORDS || phase() == kUpsweepPrefix ||
                                           (phase() == kDownsweep && args.splits == 1 && count > 1))
                           ? count
                           : 0;
        steps = K::FINDS_RECORDS || phase() == kUpsweepPrefix ? prefix_steps : prefix_steps + count;
    }

    // Record flags of a tile, numbered over all segments.
    __device__ char* records_of(i64 tile) const
    {
        return args.states + args.record_offset + tile * (Self::TILE_ELEMENTS / 8);
    }

    __device__ int phase() const { return static_cast<int>(args.flags) & (kUpsweepPrefix | kUpsweepSuffix); }
    __device__ unsigned items() const
    {
        return static_cast<unsigned>(args.segments) * static_cast<unsigned>(args.splits);
    }

    // Tiles of a split are walked from the last one on.
    static constexpr int retained_stages = 0;  // steps that a tile stays in the buffer after its own
    __device__ int tile_of(int step) const { return step < prefix_steps ? step : count - 1 - (step - prefix_steps); }
    __device__ void load_tile_prefix(int t)
    {
        if constexpr (K::NEEDS_PREFIX) {
            if (t >= 0) prefix_in_split = before(t);
        }
    }
    __device__ void publish_prefix(const Prefix& all)
    {
        if constexpr (K::NEEDS_PREFIX) {
            if (self().owns_column()) split_state().prefix(self().column()) = all;
        }
    }

    __device__ Self& self() { return *static_cast<Self*>(this); }
    __device__ SplitState<K> split_state() const { return SplitState<K>(args, segment, split, Self::COLUMNS); }

    __device__ void advance_work_item(unsigned item)
    {
        producer_item = item;
        producer_step = item < items() ? 0 : steps;
        if (producer_step < steps) self().set_work_item(item);
    }

    // Prefetches the next tile to a slot, or nothing if none is left. Commits one cp.async group
    // either way, so that groups count steps.
    __device__ void prefetch_tile(int slot)
    {
        if (producer_step < steps) {
            self().fetch(
                self().tile_of(producer_step), producer_step < prefix_steps, vector + slot * Self::STAGE_VECTORS * 16);
            if (++producer_step == steps) advance_work_item(producer_item + gridDim.x);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // Waits for the oldest of the tiles being prefetched. wait_group takes a constant; a smaller
    // one than needed only waits longer.
    __device__ void wait_stage()
    {
        const int others = stages - 2 - self().retained_stages;  // groups that may still be in flight
        if (others == 1)                                         // the usual number of stages
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        else if (others >= 4)
            asm volatile("cp.async.wait_group 4;" ::: "memory");
        else if (others >= 2)
            asm volatile("cp.async.wait_group 2;" ::: "memory");
        else
            asm volatile("cp.async.wait_group 0;" ::: "memory");
    }

    // The prefix before a tile in its split.
    __device__ Prefix before(int t)
    {
        return args.splits * count > 1 && self().owns_column() ? split_state().prefix_before(t, self().column())
                                                               : K::Prefix::identity();
    }

    __device__ void begin(unsigned item)
    {
        if constexpr (K::FINDS_RECORDS) __syncthreads();  // all threads have read the best of the previous panel
        self().start_work_item(item);
        rejections = 0;
        rejected = false;
        if constexpr (K::NEEDS_PREFIX) prefix = prefix_in_split = K::Prefix::identity();
        suffix = K::FINDS_RECORDS || args.splits == 1 || phase() != kDownsweep ? K::to_carry(K::Suffix::identity())
                 : self().owns_column()                                        ? self().suffix_after_split()
                                                                               : Carry();
    }

    // Publishes the states of a split.
    __device__ void end()
    {
        if constexpr (K::FINDS_RECORDS) {
            if (phase() == kUpsweepPrefix) self().publish_prefix(prefix);
            return;
        }
        if constexpr (K::NEEDS_PREFIX) {
            if (phase() == kUpsweepPrefix) {
                __syncthreads();
                self().publish_prefix(
                    self().owns_column() ? K::combine(prefix, self().tile_prefix(steps - 1 & 1))
                                         : K::Prefix::identity());
            }
        }
        if (phase() == kUpsweepSuffix && self().owns_column()) split_state().suffix(self().column()) = suffix;
        if constexpr (K::IS_FAST) {
            const unsigned all = block_rejections(rejections);
            if (threadIdx.x == 0) store_rejections(args, segment, phase(), all);
        }
    }

    // A step of the walk forward: combines prefixes tile by tile, and stores the prefix before each
    // for the walk back.
    __device__ void upsweep_step(int step, uint4* stage)
    {
        if constexpr (K::NEEDS_PREFIX) {
            if (self().owns_column()) {
                if (step > 0) prefix = K::combine(prefix, self().tile_prefix(step - 1 & 1));
                split_state().prefix_before(step, self().column()) = prefix;
            }
            self().find_prefix(self().tile_of(step), stage, step & 1);
        }
    }

    // Walks the work items of the CTA. Each step waits for its tile, prefetches a later tile into
    // the slot that was freed last, and computes.
    __device__ void run()
    {
        advance_work_item(blockIdx.x);
        const int back = 1 + self().retained_stages, all = steps + self().retained_stages;
        int slot = back, first_step = back - stages;  // negative steps only prefetch: they fill the pipeline
#pragma unroll 1
        for (unsigned item = blockIdx.x; item < items(); item += gridDim.x) {
            begin(item);
#pragma unroll 1
            for (int step = first_step; step < all; ++step, slot = slot + 1 == stages ? 0 : slot + 1) {
                if (step >= 0) {
                    wait_stage();
                    __syncthreads();
                }
                prefetch_tile(slot < back ? slot - back + stages : slot - back);
                if (step < 0) continue;
                first_step = 0;
                if constexpr (K::NEEDS_PREFIX && !K::FINDS_RECORDS) {
                    if (step == prefix_steps) {
                        // A CTA of a cooperative row goes on: others wait for its suffixes.
                        if constexpr (K::IS_FAST)
                            rejected = block_rejections(rejections) == kRejected && !self().retained_stages;
                        prefix = args.splits > 1 && self().owns_column() ? self().prefix_before_split()
                                                                         : K::Prefix::identity();
                        self().load_tile_prefix(self().tile_of(step));
                    }
                }
                if (K::IS_FAST && rejected) continue;
                uint4* stage = buffer + slot * Self::STAGE_VECTORS;
                if constexpr (K::FINDS_RECORDS)
                    self().find_record_flags(self().tile_of(step), stage);
                else if (K::NEEDS_PREFIX && step < prefix_steps)
                    upsweep_step(step, stage);
                else
                    self().find_suffix(self().tile_of(step), stage);
            }
            end();
        }
    }
};
