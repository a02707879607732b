// How slabs of columns come to shared memory, from there to the threads that own them, and back to memory.
#pragma once

#include "scan/column/cluster.cuh"

// Lanes that are side by side ask for the vectors of a row.
template <typename K, typename T>
__device__ void Slab<K, T>::ask(unsigned strip) const
{
    if (strip >= args.strips) return;
    const Item item = locate(strip);
    const int row = lane / SIDE, side = lane % SIDE * 16, size = sizeof(T);
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(room)) + side;
    const auto at = [&](const Strided& from, i64 begin, int row) { return from.data + (begin + row * from.step) * size + side; };
    const char *x = at(args.x, item.place.x, first + row), *y = at(args.dy, item.place.dy, first + row);
    if (whole(item)) {
        const unsigned even = to + row * SIDE * 16, odd = to + (row ^ GROUPS - 1) * SIDE * 16;
        ask_all<0>(even, odd, x, DOWN * args.x.step * size);
        ask_all<0>(even + OPERAND * 16, odd + OPERAND * 16, y, DOWN * args.dy.step * size);
    } else if (side < item.held * size) {
#pragma unroll 1
        for (int r = row; r < rest; r += DOWN, x += DOWN * args.x.step * size, y += DOWN * args.dy.step * size)
            fetch(to + place_of_row(r) * SIDE * 16, x), fetch(to + (OPERAND + place_of_row(r) * SIDE) * 16, y);
    }
    if constexpr (kBased<K>) {
        if (side < item.held * size)
            for (int r = row; r < kSlabSeen && r < args.n; r += DOWN) fetch(to + (2 * OPERAND + r * SIDE) * 16, at(args.x, item.place.x, r));
    }
}

// Of a warp that has all of its rows, whole.
template <typename K, typename T>
template <int M>
__device__ void Slab<K, T>::ask_all(unsigned even, unsigned odd, const char* from, i64 apart)
{
    if constexpr (M < ROWS) {
        fetch<M * SIDE * 16>(M / R % 2 ? odd : even, from);
        ask_all<M + DOWN>(even, odd, from + apart, apart);
    }
}

template <typename K, typename T>
__device__ void Slab<K, T>::read(Word (&word)[R], const uint4* from) const
{
    const T* even = reinterpret_cast<const T*>(from + (group * R + group) * SIDE) + place * PER;
    const T* odd = reinterpret_cast<const T*>(from + (group * R - group) * SIDE) + place * PER;
#pragma unroll
    for (int r = 0; r < R; ++r) word[r].load((r % 2 == 0 ? even : odd) + r * COLUMNS);
}

// Where x is taken again there are no registers for it meanwhile.
template <typename K, typename T>
__device__ void Slab<K, T>::keep(const Word (&word)[R]) const
{
#pragma unroll
    for (int r = 0; r < AGAIN; ++r) word[r].store(kept(r));
}

template <typename K, typename T>
__device__ void Slab<K, T>::remember(Word (&word)[R]) const
{
    if constexpr (AGAIN == 0) return renew(word);
#pragma unroll
    for (int r = 0; r < AGAIN; ++r) word[r].load(kept(r));
}

template <typename K, typename T>
__device__ void Slab<K, T>::write(const Word (&word)[R], const Item& item) const
{
    const int column = place * PER, row = group * R, left = column < item.held ? rest - row : 0;
    T* dx = reinterpret_cast<T*>(args.dx.data) + item.place.dx + column + (first + row) * args.dx.step;
    if (whole(item)) {
#pragma unroll
        for (int r = 0; r < R; ++r, dx += args.dx.step) word[r].store(dx);
    } else {
#pragma unroll
        for (int r = 0; r < R; ++r, dx += args.dx.step)
            if (r < left) word[r].store(dx);
    }
}
