// How the elements of a row that a warp owns come from memory and go back.
#pragma once

#include "scan/state/prefix_suffix.cuh"

// The elements that a warp owns: lane l those from l * I on; lo..hi-1 exist. They are of one row, or of whole rows laid end to end.
struct Span {
    i64 row0, first;  // the (first) row, and the position of element 0 in it
    int lo, hi;
    bool many;  // rows
};

// A vector of 16 bytes that may be beyond `end`: then it stays as it is. A branch would cost more than the access.
template <typename T, int V>
__device__ void load_before(int end, int m, Words<T, V>& word, const char* from)
{
    unsigned(&w)[4] = word.word;
    asm volatile("{ .reg .pred there; setp.lt.s32 there, %4, %5; @there ld.global.v4.u32 {%0, %1, %2, %3}, [%6]; }"
                 : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3])
                 : "r"(m), "r"(end), "l"(from));
}

template <typename T, int V>
__device__ void store_before(int end, int m, const Words<T, V>& word, char* to)
{
    const unsigned(&w)[4] = word.word;
    asm volatile("{ .reg .pred there; setp.lt.s32 there, %0, %1; @there st.global.v4.u32 [%6], {%2, %3, %4, %5}; }" ::"r"(m), "r"(end),
                 "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(to)
                 : "memory");
}

// One operand: U vectors of 16 bytes for each thread. Memory is read with lanes side by side, and vectors change places in `room`, which
// is shared memory of the warp. DENSE: whole vectors alone exist, from element 0 on, and they are aligned unless they repeat a number.
// LEADS: vectors are aligned, but some before lo and from hi on does not exist. FULL: all of them exist, and run forward.
template <typename T, int U, bool DENSE = false, bool LEADS = false, bool FULL = false>
struct Line {
    static constexpr int V = 16 / sizeof(T), I = U * V;
    static constexpr bool WHOLE = DENSE && !LEADS;
    using Vector = Words<T, V>;

    const ScanArgs& args;
    const Strided& operand;
    const Span& at;
    T* p;  // element 0 of the warp
    bool wide;

    __device__ Line(const ScanArgs& args, const Strided& operand, const Span& at, i64 place) : args(args), operand(operand), at(at)
    {
        p = reinterpret_cast<T*>(operand.data) + place + (!DENSE ? at.first * operand.step : backward() ? -at.first : at.first);
        wide = DENSE || (joined() && (operand.step == 1 || operand.step == -1) && aligned<16>(backward() ? p - (V - 1) : p));
    }

    static __device__ int lane() { return threadIdx.x % 32; }
    __device__ bool joined() const { return !at.many || args.dims == 0 || (args.dims == 1 && operand.stride[0] == args.n * operand.step); }
    __device__ bool backward() const { return !FULL && operand.step < 0; }

    // Vector m of the warp is elements m * V..
    __device__ bool whole(int m) const { return FULL || (WHOLE ? m * V < at.hi : wide && m * V >= at.lo && m * V + V <= at.hi); }
    __device__ bool plain() const { return FULL || (wide && operand.step > 0 && (WHOLE || at.lo == 0) && at.hi >= 32 * I); }
    __device__ T* vector(int m) const { return p + (backward() ? -m * V - (V - 1) : m * V); }
    __device__ T* own_vector(int u) const { return vector(lane()) + u * (backward() ? -32 * V : 32 * V); }  // u * 32 + lane(), by one addition

    // Where it is in the room: lanes meet different banks, both side by side and U apart.
    static __device__ int place(int m) { return m ^ (m >> 3 & 7); }

    __device__ T* element(int k) const
    {
        if (repeats()) return p - at.first;
        if (joined()) return p + k * operand.step;
        const int n = static_cast<int>(args.n), r = (k - at.lo) / n;
        return reinterpret_cast<T*>(operand.data) + place_of(args, operand, at.row0 + r) + (k - at.lo - r * n) * operand.step;
    }

    // Calls f(u, address) for the vectors of the lane in rows, which seldom fill a warp.
    template <typename F>
    __device__ void each_own(const F& f) const
    {
        char* first = reinterpret_cast<char*>(own_vector(0));
        const int apart = backward() ? -32 * 16 : 32 * 16;
#pragma unroll
        for (int u = 0; u < U; ++u) f(u, first + u * apart);
    }

    // Starts the loads of whole vectors; nothing waits for them here. `pad` stands for elements that do not exist.
    __device__ void start(Vector (&word)[U], T pad) const
    {
        if (plain()) {
            if (WHOLE && at.many) __syncwarp();  // lest all of this be predicated, where it is seldom so
#pragma unroll
            for (int u = 0; u < U; ++u) word[u].load(p + (u * 32 + lane()) * V);
            return;
        }
#pragma unroll
        for (int u = 0; u < U; ++u)
            for (int v = 0; v < V; ++v) word[u].set(v, pad);
        if (WHOLE && at.many) {
            each_own([&](int u, const char* from) { load_before(at.hi, (u * 32 + lane()) * V, word[u], from); });
            return;
        }
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (whole(u * 32 + lane())) word[u].load(own_vector(u));
    }

    // Whether one number is all elements that are here.
    __device__ bool repeats() const { return DENSE && !FULL && operand.step == 0; }

    __device__ void repeat(Vector (&word)[U]) const
    {
        const T all = p[-at.first];
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int v = 0; v < V; ++v) word[u].set(v, whole(u * 32 + lane()) ? all : T());
    }

    // Calls f(k) for the elements of vectors that are not whole, and perhaps for some before lo and from hi on.
    template <typename F>
    __device__ void each_other(const F& f) const
    {
        if constexpr (WHOLE) {
        } else if (!wide) {
#pragma unroll 1
            for (int k = lane(); k < 32 * I; k += 32) f(k);
        } else if ((at.lo | at.hi) % V) {
            const int k = lane() < V ? (at.lo & -V) + lane() : (at.hi & -V) + lane() - V;
            if (lane() < 2 * V && k < 32 * I && !whole(k / V)) f(k);
        }
    }

    // Makes them the elements of the lane in scan order, with the rest of the elements.
    __device__ void finish(Vector (&word)[U], uint4* room, T pad) const
    {
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].store(across(room, u));
        if (!WHOLE && !plain()) {
            __syncwarp();
            each_other([&](int k) { slot(room, k) = k >= at.lo && k < at.hi ? *element(k) : pad; });
        }
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].load(along(room, u));
        if (!plain()) flip(word);
    }

    // `own` is the lane, hidden where places would be kept in registers since they were read from.
    __device__ void store(Vector (&word)[U], uint4* room, int own = lane()) const
    {
        if (!plain()) flip(word);
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].store(along(room, u, own));
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].load(across(room, u));
        if (plain()) {
            if (WHOLE && at.many) __syncwarp();
#pragma unroll
            for (int u = 0; u < U; ++u) word[u].store(p + (u * 32 + lane()) * V);
            return;
        }
        if (WHOLE && at.many) {
            each_own([&](int u, char* to) { store_before(at.hi, (u * 32 + lane()) * V, word[u], to); });
            return;
        }
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (whole(u * 32 + lane())) word[u].store(own_vector(u));
        each_other([&](int k) {
            if (k >= at.lo && k < at.hi) *element(k) = slot(room, k);
        });
    }

    // Without the room: lane l gets vectors u * 32 + l, in scan order.
    __device__ void fetch(Vector (&word)[U], T pad) const
    {
        start(word, pad);
        if (plain()) return;
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int m = u * 32 + lane();
            if (whole(m)) {
                if (backward()) word[u] = flipped(word[u]);
                continue;
            }
            if (WHOLE) continue;
            const int most = at.hi - m * V, least = at.lo - m * V;
#pragma unroll
            for (int v = 0; v < V; ++v)
                if (v >= least && v < most) word[u].replace(v, *element(m * V + v));
        }
    }

    __device__ void put(const Vector& word, int u) const
    {
        const int m = u * 32 + lane();
        if (plain()) return word.store(p + m * V);
        if (whole(m)) return (backward() ? flipped(word) : word).store(vector(m));
        if (WHOLE) return;
        const int most = at.hi - m * V, least = at.lo - m * V;
#pragma unroll
        for (int v = 0; v < V; ++v)
            if (v >= least && v < most) *element(m * V + v) = word.get(v);
    }

    // Memory's order is scan order backwards.
    __device__ void flip(Vector (&word)[U]) const
    {
        if (!wide || !backward()) return;
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (whole(lane() * U + u)) word[u] = flipped(word[u]);
    }

    // Vectors u * 32 + own and own * U + u, their places reckoned once: place(a ^ b) is place(a) ^ place(b).
    static __device__ T* across(uint4* room, int u, int own = lane()) { return reinterpret_cast<T*>(room + u * 32 + (place(own) ^ u % 2 * 4)); }
    static __device__ T* along(uint4* room, int u, int own = lane()) { return reinterpret_cast<T*>(room + (place(own * U) ^ u)); }

    static __device__ T& slot(uint4* room, int k) { return reinterpret_cast<T*>(room + place(k / V))[k % V]; }

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

// What was widened from these words is not kept in registers: it is widened again.
template <typename T, int N, int U>
__device__ void renew(Words<T, N> (&word)[U])
{
    if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int i = 0; i < Words<T, N>::COUNT; ++i) word[u].word[i] = opaque(word[u].word[i]);
    }
}
