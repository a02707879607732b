// Warp transpose: loads and stores of the elements of a row that a warp owns. Global memory is
// accessed in striped order (lane l takes vectors u * 32 + l), which coalesces; a transpose through
// shared memory gives blocked order (lane l owns vectors l * U + u), which a thread scan needs. A
// swizzle avoids bank conflicts.
#pragma once

#include "scan/state/prefix_suffix.cuh"

// The elements of a warp: lane l owns those from l * I on, and lo..hi-1 exist. They belong to one
// row, or to whole rows laid end to end.
struct Span {
    // The (first) row, and the position in it of element 0 of the warp, negative if lo > 0.
    i64 row0, first;
    int lo, hi;
    bool several_rows;
    // The row is a chunk, which states enter at both ends: it has no segment head, and elements
    // that do not exist are no records.
    bool is_chunk = false;
};

// Loads the 16-byte vector that begins with element `m` if m < end, else leaves `word` unchanged.
// Predicated: a branch costs more than the access.
template <typename T, int V>
__device__ void load_if_below(int end, int m, Words<T, V>& word, const char* from)
{
    unsigned(&w)[4] = word.word;
    asm volatile("{ .reg .pred there; setp.lt.s32 there, %4, %5; @there ld.global.v4.u32 {%0, %1, %2, %3}, [%6]; }"
                 : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3])
                 : "r"(m), "r"(end), "l"(from));
}

template <typename T, int V>
__device__ void store_if_below(int end, int m, const Words<T, V>& word, char* to)
{
    const unsigned(&w)[4] = word.word;
    asm volatile("{ .reg .pred there; setp.lt.s32 there, %0, %1;"
                 " @there st.global.v4.u32 [%6], {%2, %3, %4, %5}; }" ::"r"(m), "r"(end),
                 "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(to)
                 : "memory");
}

// One operand, U vectors of 16 bytes a thread; `smem` is the shared memory of the warp. VECTORIZED:
// all vectors are aligned (unless the operand has stride 0) and whole, from element 0 on. With
// PARTIAL_ENDS the first and the last vector may hold elements of other rows, before lo and from hi
// on.
template <typename T, int U, bool VECTORIZED = false, bool PARTIAL_ENDS = false>
struct WarpTransposeIO {
    static constexpr int V = 16 / sizeof(T), I = U * V;
    static constexpr bool WHOLE = VECTORIZED && !PARTIAL_ENDS;
    using Vector = Words<T, V>;  // V elements, 16 bytes: one access if `vectorizable`

    const ScanArgs& args;
    const Strided& operand;
    const Span& span;
    T* p;               // element 0 of the warp
    bool vectorizable;  // order and alignment in memory allow 16-byte accesses

    __device__ WarpTransposeIO(const ScanArgs& args, const Strided& operand, const Span& span, i64 offset)
        : args(args), operand(operand), span(span)
    {
        p = reinterpret_cast<T*>(operand.data) + offset +
            (!VECTORIZED  ? span.first * operand.step
             : backward() ? -span.first
                          : span.first);
        vectorizable = VECTORIZED || (contiguous() && (operand.step == 1 || operand.step == -1) &&
                                      aligned<16>(backward() ? p - (V - 1) : p));
    }

    static __device__ int lane() { return threadIdx.x % 32; }
    __device__ bool contiguous() const
    {
        return !span.several_rows || args.dims == 0 || (args.dims == 1 && operand.stride[0] == args.n * operand.step);
    }
    __device__ bool backward() const { return operand.step < 0; }

    // Whether vector m of the warp, elements m * V .., exists whole and can be accessed at once.
    __device__ bool whole(int m) const
    {
        return WHOLE ? m * V < span.hi : vectorizable && m * V >= span.lo && m * V + V <= span.hi;
    }
    // Whether all vectors of the warp are whole and run forward.
    __device__ bool all_whole() const
    {
        return vectorizable && operand.step > 0 && (WHOLE || span.lo == 0) && span.hi >= 32 * I;
    }
    __device__ T* vector(int m) const { return p + (backward() ? -m * V - (V - 1) : m * V); }
    // Vector u * 32 + lane(), by one addition.
    __device__ T* lane_vector(int u) const { return vector(lane()) + u * (backward() ? -32 * V : 32 * V); }

    // The swizzle: the slot of vector m in shared memory. Lanes hit different banks both in striped
    // and in blocked order.
    static __device__ int swizzle(int m) { return m ^ (m >> 3 & 7); }

    __device__ T* element(int k) const
    {
        if (repeats()) return p - span.first;
        if (contiguous()) return p + k * operand.step;
        const int n = static_cast<int>(args.n), r = (k - span.lo) / n;
        return reinterpret_cast<T*>(operand.data) + offset_of(args, operand, span.row0 + r) +
               (k - span.lo - r * n) * operand.step;
    }

    // Calls f(u, address) for the striped vectors of this lane. For packed rows, which seldom fill
    // a warp.
    template <typename F>
    __device__ void for_each_lane_vector(const F& f) const
    {
        char* first = reinterpret_cast<char*>(lane_vector(0));
        const int bytes_apart = backward() ? -32 * 16 : 32 * 16;
#pragma unroll
        for (int u = 0; u < U; ++u) f(u, first + u * bytes_apart);
    }

    // Issues the loads of whole vectors and does not wait for them. `pad` replaces elements that do
    // not exist.
    __device__ void start(Vector (&word)[U], T pad) const
    {
        if (all_whole()) {
            if (WHOLE && span.several_rows) __syncwarp();  // keeps the compiler from predicating the whole branch
#pragma unroll
            for (int u = 0; u < U; ++u) word[u].load(p + (u * 32 + lane()) * V);
            return;
        }
#pragma unroll
        for (int u = 0; u < U; ++u)
            for (int v = 0; v < V; ++v) word[u].set(v, pad);
        if (WHOLE && span.several_rows) {
            for_each_lane_vector(
                [&](int u, const char* from) { load_if_below(span.hi, (u * 32 + lane()) * V, word[u], from); });
            return;
        }
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (whole(u * 32 + lane())) word[u].load(lane_vector(u));
    }

    // Whether the operand repeats one number (stride 0).
    __device__ bool repeats() const { return VECTORIZED && operand.step == 0; }

    __device__ void repeat(Vector (&word)[U], T pad) const
    {
        const T all = p[-span.first];
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int v = 0; v < V; ++v) word[u].set(v, whole(u * 32 + lane()) ? all : pad);
    }

    // Calls f(k) for the elements of partial vectors, and perhaps for some before lo and from hi
    // on.
    template <typename F>
    __device__ void for_each_partial_element(const F& f) const
    {
        if constexpr (WHOLE) {
        } else if (!vectorizable) {
#pragma unroll 1
            for (int k = lane(); k < 32 * I; k += 32) f(k);
        } else if ((span.lo | span.hi) % V) {
            // V lanes take the vector that holds lo, and the next V lanes the one that holds hi.
            const int k = lane() < V ? (span.lo & -V) + lane() : (span.hi & -V) + lane() - V;
            if (lane() < 2 * V && k < 32 * I && !whole(k / V)) f(k);
        }
    }

    // Completes the load: fills partial vectors, and transposes to blocked order; afterwards
    // elements are in scan order.
    __device__ void finish(Vector (&word)[U], uint4* smem, T pad) const
    {
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].store(striped(smem, u));
        if (!WHOLE && !all_whole()) {
            __syncwarp();
            for_each_partial_element([&](int k) { slot(smem, k) = k >= span.lo && k < span.hi ? *element(k) : pad; });
        }
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].load(blocked(smem, u));
        if (!all_whole()) flip(word);
    }

    // Transposes to striped order and stores. `own` is the lane; hide it by keep_here to recompute
    // addresses instead of keeping them in registers since the load.
    __device__ void store(Vector (&word)[U], uint4* smem, int own = lane()) const
    {
        if (!all_whole()) flip(word);
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].store(blocked(smem, u, own));
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].load(striped(smem, u));
        if (all_whole()) {
            if (WHOLE && span.several_rows) __syncwarp();
#pragma unroll
            for (int u = 0; u < U; ++u) word[u].store(p + (u * 32 + lane()) * V);
            return;
        }
        if (WHOLE && span.several_rows) {
            for_each_lane_vector([&](int u, char* to) { store_if_below(span.hi, (u * 32 + lane()) * V, word[u], to); });
            return;
        }
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (whole(u * 32 + lane())) word[u].store(lane_vector(u));
        for_each_partial_element([&](int k) {
            if (k >= span.lo && k < span.hi) *element(k) = slot(smem, k);
        });
    }

    // Loads without a transpose: lane l gets vectors u * 32 + l, in scan order.
    __device__ void fetch(Vector (&word)[U], T pad) const
    {
        start(word, pad);
        if (all_whole()) return;
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int m = u * 32 + lane();
            if (whole(m)) {
                if (backward()) word[u] = flipped(word[u]);
                continue;
            }
            if (WHOLE) continue;
            const int most = span.hi - m * V, least = span.lo - m * V;
#pragma unroll
            for (int v = 0; v < V; ++v)
                if (v >= least && v < most) word[u].replace(v, *element(m * V + v));
        }
    }

    __device__ void put(const Vector& word, int u) const
    {
        const int m = u * 32 + lane();
        if (all_whole()) return word.store(p + m * V);
        if (whole(m)) return (backward() ? flipped(word) : word).store(vector(m));
        if (WHOLE) return;
        const int most = span.hi - m * V, least = span.lo - m * V;
#pragma unroll
        for (int v = 0; v < V; ++v)
            if (v >= least && v < most) *element(m * V + v) = word.get(v);
    }

    // Reverses vectors if memory order is the reverse of scan order.
    __device__ void flip(Vector (&word)[U]) const
    {
        if (!vectorizable || !backward()) return;
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (whole(lane() * U + u)) word[u] = flipped(word[u]);
    }

    // Striped vector u * 32 + own and blocked vector own * U + u in shared memory. The swizzle is
    // linear in XOR, swizzle(a ^ b) == swizzle(a) ^ swizzle(b), so it is computed once for all u.
    static __device__ T* striped(uint4* smem, int u, int own = lane())
    {
        return reinterpret_cast<T*>(smem + u * 32 + (swizzle(own) ^ u % 2 * 4));
    }
    static __device__ T* blocked(uint4* smem, int u, int own = lane())
    {
        return reinterpret_cast<T*>(smem + (swizzle(own * U) ^ u));
    }

    static __device__ T& slot(uint4* smem, int k) { return reinterpret_cast<T*>(smem + swizzle(k / V))[k % V]; }

    static __device__ Vector flipped(const Vector& x)
    {
        Vector y;
#pragma unroll
        for (int v = 0; v < V; ++v) y.set(v, x.get(V - 1 - v));
        return y;
    }

    template <typename A>
    static __device__ Vector packed(const A (&x)[V])
    {
        const Pack<T, V> pack = narrowed<T, V>(x);
        Vector word;
        memcpy(word.word, &pack, sizeof pack);
        return word;
    }
};

// Hides the words from the compiler, so that widened values are recomputed instead of being kept in
// registers. For 16-bit types only: wider ones are not converted.
template <typename T, int N, int U>
__device__ void rematerialize(Words<T, N> (&word)[U])
{
    if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int i = 0; i < Words<T, N>::COUNT; ++i) word[u].word[i] = keep_here(word[u].word[i]);
    }
}
