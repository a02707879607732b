// scan/pipeline/: long rows and columns. Tiles are prefetched to a circular buffer in shared memory by cp.async, in several stages; a row may
// be shared by CTAs that are all resident.
//
// Tiles that come to a ring in shared memory, ahead of the block that walks them.
//
// A kind that is tried first says in `bad` what is against it in each strip. A kernel that can do everything does those again.
#pragma once

#include "scan/state/split_state.cuh"

// The steps of a block: for each of its items, which are parts of strips, tiles forward to find heads, where nobody else does, and tiles
// back. Tiles are asked for in the order of the steps. Self is one way to lay a tile out; it says
//
//     COLUMNS, BITS, STAGE          of a strip; elements of a tile; 16-byte vectors of the ring that it takes
//     aim(item)                     tiles of this item are asked for from here on
//     fetch(tile, heads, to)        asks for one, x alone or dy too, as shared memory from address `to` on
//     enter(item)                   strip and part are those of this item
//     charged(), column()           whether the thread has charge of a column of the strip, and which
//     all_heads(parity), all_tails()    the join of all warps, for threads that have charge
//     ahead_of_part(), behind()         the join of other parts, for the same threads
//     find_head(tile, stage, parity)    leaves the heads of warps
//     find_tail(tile, stage)            stores dx, and adds to `tail`; turns to what precedes the tile before
//     find_records(tile, stage)         instead of the last two: stores which elements are records
//     leave(head)                       of a part, for others
template <typename Self, typename K>
struct Ring {
    using Head = typename K::Head;
    using Far = typename K::Far;

    const ScanArgs& args;
    uint4* ring;
    unsigned vector;          // of the thread, the first of the ring
    int stages;               // tiles that the ring holds
    int count, ahead, steps;  // tiles of a part; steps that find heads alone, and that ask for tiles
    unsigned asked;           // the item that is asked for: a block takes every gridDim.x-th
    unsigned strip, part;     // where the other one is
    int next_step;            // that is asked for; all of them are where no item is left
    Head head, next;          // what enters the part; what precedes the tile in its part
    Far tail;
    unsigned faults;          // of the thread
    bool lost;                // nobody need look at the part: that shows where its heads are found

    __device__ Ring(const ScanArgs& a, uint4* r) : args(a), ring(r)
    {
        vector = opaque(static_cast<unsigned>(__cvta_generic_to_shared(ring + threadIdx.x)));
        stages = static_cast<int>(args.width), count = static_cast<int>(args.tiles);
        ahead = K::HEAD && (kFinds<K> || phase() == kHeads || (phase() == 0 && args.parts == 1 && count > 1)) ? count : 0;
        steps = kFinds<K> || phase() == kHeads ? ahead : ahead + count;
    }

    // Of a tile, of those of all strips.
    __device__ char* records_of(i64 tile) const { return args.states + args.records + tile * (Self::BITS / 8); }

    __device__ int phase() const { return static_cast<int>(args.flags) & (kHeads | kTails); }
    __device__ unsigned items() const { return static_cast<unsigned>(args.strips) * static_cast<unsigned>(args.parts); }

    // Tiles of a part from the last one on, and threads that have charge know what precedes them.
    static constexpr int hold = 0;  // steps that a tile stays in the ring after its own
    __device__ int tile_of(int step) const { return step < ahead ? step : count - 1 - (step - ahead); }
    __device__ void foresee(int t)
    {
        if constexpr (K::HEAD) {
            if (t >= 0) next = before(t);
        }
    }
    __device__ void leave(const Head& all)
    {
        if constexpr (K::HEAD) {
            if (self().charged()) walk().head(self().column()) = all;
        }
    }

    __device__ Self& self() { return *static_cast<Self*>(this); }
    __device__ Walk<K> walk() const { return Walk<K>(args, strip, part, Self::COLUMNS); }

    __device__ void turn_to(unsigned item)
    {
        asked = item, next_step = item < items() ? 0 : steps;
        if (next_step < steps) self().aim(item);
    }

    // Asks for the next tile.
    __device__ void ask(int slot)
    {
        if (next_step < steps) {
            self().fetch(self().tile_of(next_step), next_step < ahead, vector + slot * Self::STAGE * 16);
            if (++next_step == steps) turn_to(asked + gridDim.x);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // Waits for the oldest of the tiles that were asked for.
    __device__ void wait()
    {
        const int others = stages - 2 - self().hold;  // that may still be on their way
        if (others == 1)  // what there is room for as a rule
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        else if (others >= 4)
            asm volatile("cp.async.wait_group 4;" ::: "memory");
        else if (others >= 2)
            asm volatile("cp.async.wait_group 2;" ::: "memory");
        else
            asm volatile("cp.async.wait_group 0;" ::: "memory");
    }

    // What precedes a tile in its part.
    __device__ Head before(int t) { return args.parts * count > 1 && self().charged() ? walk().head_before(t, self().column()) : K::empty(); }

    __device__ void begin(unsigned item)
    {
        if constexpr (kFinds<K>) __syncthreads();  // all know the best of the strip before
        self().enter(item);
        faults = 0, lost = false;
        if constexpr (K::HEAD) head = next = K::empty();
        tail = kFinds<K> || args.parts == 1 || phase() != 0 ? K::far(K::nothing()) : self().charged() ? self().behind() : Far();
    }

    // Leaves what others need of a part.
    __device__ void end()
    {
        if constexpr (kFinds<K>) {
            if (phase() == kHeads) self().leave(head);
            return;
        }
        if constexpr (K::HEAD) {
            if (phase() == kHeads) {
                __syncthreads();
                self().leave(self().charged() ? K::join(head, self().all_heads(steps - 1 & 1)) : K::empty());
            }
        }
        if (phase() == kTails && self().charged()) walk().tail(self().column()) = tail;
        if constexpr (kTame<K>) {
            const unsigned all = faults_of_block(faults);
            if (threadIdx.x == 0) tell_faults(args, strip, phase(), all);
        }
    }

    // Heads of tiles are found one after another, what precedes each being kept for the way back.
    __device__ void step_ahead(int step, uint4* stage)
    {
        if constexpr (K::HEAD) {
            if (self().charged()) {
                if (step > 0) head = K::join(head, self().all_heads(step - 1 & 1));
                walk().head_before(step, self().column()) = head;
            }
            self().find_head(self().tile_of(step), stage, step & 1);
        }
    }

    __device__ void run()
    {
        turn_to(blockIdx.x);
        const int back = 1 + self().hold, all = steps + self().hold;
        int slot = back, lead = back - stages;  // steps until the first tile is needed, counted up
#pragma unroll 1
        for (unsigned item = blockIdx.x; item < items(); item += gridDim.x) {
            begin(item);
#pragma unroll 1
            for (int step = lead; step < all; ++step, slot = slot + 1 == stages ? 0 : slot + 1) {
                if (step >= 0) {
                    wait();
                    __syncthreads();
                }
                ask(slot < back ? slot - back + stages : slot - back);
                if (step < 0) continue;
                lead = 0;
                if constexpr (K::HEAD && !kFinds<K>) {
                    if (step == ahead) {
                        if constexpr (kTame<K>) lost = faults_of_block(faults) == kUndone && !self().hold;
                        head = args.parts > 1 && self().charged() ? self().ahead_of_part() : K::empty();
                        self().foresee(self().tile_of(step));
                    }
                }
                if (kTame<K> && lost) continue;
                uint4* stage = ring + slot * Self::STAGE;
                if constexpr (kFinds<K>)
                    self().find_records(self().tile_of(step), stage);
                else if (K::HEAD && step < ahead)
                    step_ahead(step, stage);
                else
                    self().find_tail(self().tile_of(step), stage);
            }
            end();
        }
    }
};
