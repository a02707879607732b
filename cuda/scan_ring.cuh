// Tiles that come to a ring in shared memory, ahead of the block that walks them.
//
// A kind that is tried first says in `bad` which strips it cannot do. A kernel that can do everything does those again.
#pragma once

#include "scan_walk.cuh"

// The steps of a block: for each of its items, which are parts of strips, tiles forward to find heads, where nobody else does, and tiles
// back. Tiles are asked for in the order of the steps. Self is one way to lay a tile out; it says
//
//     COLUMNS, STAGE                of a strip; 16-byte vectors of the ring that a tile takes
//     aim(item)                     tiles of this item are asked for from here on
//     fetch(tile, heads, to)        asks for one, x alone or dy too, as shared memory from address `to` on
//     enter(item)                   strip and part are those of this item
//     charged(), column()           whether the thread has charge of a column of the strip, and which
//     all_heads(parity), all_tails()    the join of all warps, for threads that have charge
//     ahead_of_part(), behind()         the join of other parts, for the same threads
//     find_head(tile, stage, parity)    leaves the heads of warps
//     find_tail(tile, stage, next)      stores dx, and adds to `tail`; `next` is what precedes the tile in its part, then the one before
template <typename Self, typename K>
struct Ring {
    using Head = typename K::Head;
    using Far = typename K::Far;

    const ScanArgs& args;
    uint4* ring;
    unsigned vector;          // of the thread, the first of the ring
    int stages;               // tiles that the ring holds
    i64 phase, items;         // a block takes every gridDim.x-th
    int count, ahead, steps;  // tiles of a part; steps that find heads alone, and all
    i64 asked, strip, part;   // the item that is asked for; where the other one is
    int next_step;            // that is asked for
    Head head;                // what enters
    Far tail;
    bool bad;

    __device__ Ring(const ScanArgs& a, uint4* r) : args(a), ring(r)
    {
        vector = opaque(static_cast<unsigned>(__cvta_generic_to_shared(ring + threadIdx.x)));
        stages = static_cast<int>(args.width), count = static_cast<int>(args.tiles);
        phase = args.flags & (kHeads | kTails), items = args.strips * args.parts;
        ahead = K::HEAD && (phase == kHeads || (phase == 0 && args.parts == 1 && count > 1)) ? count : 0;
        steps = phase == kHeads ? ahead : ahead + count;
    }

    __device__ Self& self() { return *static_cast<Self*>(this); }
    __device__ Walk<K> walk() const { return Walk<K>(args, strip, part, Self::COLUMNS); }
    __device__ int tile_of(int step) const { return step < ahead ? step : count - 1 - (step - ahead); }

    __device__ void turn_to(i64 item)
    {
        asked = item, next_step = 0;
        if (item < items) self().aim(static_cast<unsigned>(item));
    }

    // Asks for the next tile.
    __device__ void ask(int slot)
    {
        if (asked < items) {
            self().fetch(tile_of(next_step), next_step < ahead, vector + slot * Self::STAGE * 16);
            if (++next_step == steps) turn_to(asked + gridDim.x);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    static __device__ void fetch_vector(unsigned to, const char* from)
    {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    }

    // Waits for the oldest of the tiles that were asked for.
    __device__ void wait() const
    {
        if (stages >= 6)
            asm volatile("cp.async.wait_group 4;" ::: "memory");
        else if (stages >= 4)
            asm volatile("cp.async.wait_group 2;" ::: "memory");
        else if (stages == 3)
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        else
            asm volatile("cp.async.wait_group 0;" ::: "memory");
    }

    // What precedes a tile in its part.
    __device__ Head before(int t) { return args.parts * count > 1 && self().charged() ? walk().head_before(t, self().column()) : K::empty(); }

    __device__ void begin(i64 item)
    {
        self().enter(static_cast<unsigned>(item));
        bad = false;
        if constexpr (K::HEAD) head = K::empty();
        tail = args.parts == 1 || phase != 0 ? K::far(K::nothing()) : self().charged() ? self().behind() : Far();
    }

    // Leaves what others need of a part.
    __device__ void end()
    {
        if constexpr (K::HEAD) {
            if (phase == kHeads) {
                __syncthreads();
                if (self().charged()) walk().head(self().column()) = K::join(head, self().all_heads(steps - 1 & 1));
            }
        }
        if (phase == kTails && self().charged()) walk().tail(self().column()) = tail;
        if constexpr (kTame<K>) {
            bad = __syncthreads_or(bad);
            if (threadIdx.x == 0 && (phase != 0 || args.parts == 1 || bad)) args.bad[strip] = phase == 0 && bad;
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
            self().find_head(step, stage, step & 1);
        }
    }

    __device__ void run()
    {
        turn_to(blockIdx.x);
        int slot = 1, lead = 1 - stages;  // steps until the first tile is needed, counted up
        Head next;
#pragma unroll 1
        for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
            begin(item);
#pragma unroll 1
            for (int step = lead; step < steps; ++step, slot = slot + 1 == stages ? 0 : slot + 1) {
                if (step >= 0) {
                    wait();
                    if constexpr (kTame<K>)
                        bad = __syncthreads_or(bad);
                    else
                        __syncthreads();
                }
                ask(slot == 0 ? stages - 1 : slot - 1);
                if (step < 0 || (kTame<K> && bad)) continue;
                lead = 0;
                if constexpr (K::HEAD) {
                    if (step == ahead) {
                        head = args.parts > 1 && self().charged() ? self().ahead_of_part() : K::empty();
                        next = before(count - 1);
                    }
                }
                uint4* stage = ring + slot * Self::STAGE;
                if (K::HEAD && step < ahead)
                    step_ahead(step, stage);
                else
                    self().find_tail(tile_of(step), stage, next);
            }
            end();
        }
    }
};
