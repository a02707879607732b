// Where the strips of aligned columns lie, and the ring in shared memory to which their tiles come.
#pragma once

#include "scan.cuh"

constexpr int kStripThreads = 512;

// A warp owns R rows of a tile, a lane W of its columns.
template <typename K, typename T>
struct StripShape {
    static constexpr bool X = __is_same(typename K::Value, typename K::Number);
    static constexpr int W = sizeof(T) == 2 ? 2 : sizeof(T) == 4 && !X ? 2 : 1, R = sizeof(T) == 8 || !X ? 8 : 16;
    static constexpr int WARPS = kStripThreads / 32, ROWS = WARPS * R, ACROSS = 32 * W;
    static constexpr int SIDE = ACROSS * sizeof(T) / 16, DOWN = kStripThreads / SIDE;  // vectors of a row; rows of one for each thread
    static constexpr int STAGE = ROWS * SIDE * (X ? 2 : 1);                             // vectors of a tile, of x and then of dy
};

// The steps of a block: for each of its items, which are parts of strips, tiles forward to find heads, where nobody else does, and tiles
// back. Tiles are asked for in the order of the steps, as many ahead as the ring holds.
template <typename K, typename T>
struct StripRing : StripShape<K, T> {
    using Shape = StripShape<K, T>;
    using Shape::X, Shape::ROWS, Shape::ACROSS, Shape::SIDE, Shape::DOWN, Shape::STAGE;

    const ScanArgs& args;
    const uint4* ring;
    unsigned vector;          // of the thread, the first of the ring
    int stages;               // tiles that the ring holds
    i64 phase, items;         // a block takes every gridDim.x-th
    int count, ahead, steps;  // tiles of a part; steps that find heads alone, and all
    struct {                  // what is asked for next
        i64 item;
        int step, rest;
        const char *x, *y;  // of the thread, the first vector
        bool held;
    } asked;

    __device__ StripRing(const ScanArgs& a, const uint4* r) : args(a), ring(r)
    {
        vector = opaque(static_cast<unsigned>(__cvta_generic_to_shared(ring + threadIdx.x)));
        stages = static_cast<int>(args.width), count = static_cast<int>(args.tiles);
        phase = args.flags & (kHeads | kTails), items = args.strips * args.parts;
        ahead = K::HEAD && (phase == kHeads || (phase == 0 && args.parts == 1 && count > 1)) ? count : 0;
        steps = phase == kHeads ? ahead : ahead + count;
    }

    // Where an item is; the columns of its strip that exist, and the rows from its first one on.
    struct Item {
        i64 strip, part, column;
        Places place;
        int held, rest;
    };
    __device__ Item locate(i64 number) const
    {
        Item item;
        const unsigned i = static_cast<unsigned>(number), side = static_cast<unsigned>((args.extent[0] + ACROSS - 1) / ACROSS);
        const unsigned parts = static_cast<unsigned>(args.parts), strip = parts == 1 ? i : i / parts, outer = args.dims == 1 ? 0 : strip / side;
        item.strip = strip, item.part = i - strip * parts, item.column = static_cast<i64>(strip - outer * side) * ACROSS;
        item.place = Places::of(args, 1, outer);
        item.held = static_cast<int>(min(args.extent[0] - item.column, static_cast<i64>(ACROSS)));
        item.rest = static_cast<int>(args.n - item.part * args.tiles * ROWS);
        return item;
    }

    __device__ int tile_of(int step) const { return step < ahead ? step : count - 1 - (step - ahead); }

    // Asks for nothing yet, but for tiles of this item next.
    __device__ void turn_to(i64 number)
    {
        asked.item = number, asked.step = 0;
        if (number >= items) return;
        const Item item = locate(number);
        const auto first = [&](const Strided& operand, i64 from, i64 tile) {
            const i64 row = (item.part * args.tiles + tile) * ROWS + threadIdx.x / SIDE;
            return operand.data + (from + item.column + row * operand.step) * sizeof(T) + threadIdx.x % SIDE * 16;
        };
        if constexpr (X) asked.x = first(args.x, item.place.x, ahead > 0 ? 0 : count);
        asked.y = first(args.dy, item.place.dy, count);
        asked.held = threadIdx.x % SIDE * (16 / sizeof(T)) < item.held;
        asked.rest = opaque(item.rest);
    }

    // Asks for the next tile.
    __device__ void ask(int slot)
    {
        if (asked.item < items) {
            const bool heads = asked.step < ahead;
            const i64 across = ROWS * static_cast<i64>(sizeof(T));
            if (!heads) {
                if constexpr (X) asked.x -= across * args.x.step;
                asked.y -= across * args.dy.step;
            }
            const int left = asked.held ? asked.rest - tile_of(asked.step) * ROWS - static_cast<int>(threadIdx.x / SIDE) : 0;
            const auto fetch = [&](const char* from, const Strided& operand, unsigned to) {
                const i64 apart = DOWN * static_cast<i64>(sizeof(T)) * operand.step;
#pragma unroll
                for (int k = 0; k < ROWS / DOWN; ++k, from += apart)
                    if (k * DOWN < left) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + k * kStripThreads * 16), "l"(from) : "memory");
            };
            const unsigned to = vector + slot * STAGE * 16;
            if constexpr (X) fetch(asked.x, args.x, to);
            if (!heads) fetch(asked.y, args.dy, to + (X ? ROWS * SIDE * 16 : 0));
            if (X && heads) asked.x += across * args.x.step;
            if (++asked.step == steps) turn_to(asked.item + gridDim.x);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
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
};
