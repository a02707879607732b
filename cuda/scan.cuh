// Backward of scans: the launch arguments, and how the elements of one row come from memory and go back.
//
// Element i of a row, in scan order, with E what is known of the elements before it:
//
//     (w_i, c_i, E') = step(E, x_i)         R_i = dy_i + c_{i+1} R_{i+1}         dx_i = w_i R_i
//
// A head is the state E, which runs forward over x. A tail is the affine map Q -> c_i (dy_i + Q), or several of them one after another;
// Q = c_{i+1} R_{i+1} is what an element gets from the right. Heads and tails are joined by fixed trees to find what enters a thread;
// the thread then walks its own elements by the plain recurrence.
#pragma once

#include "kernel.cuh"

enum : i64 {
    kFirst = 1,      // among equals the first wins
    kMinimum = 2,    // cummin
    kReversed = 4,   // positions run against scan order (matters to indices alone)
    kHeads = 8,      // find the heads of parts, and nothing else
    kTails = 16      // find the tails of parts, given the heads
};

struct Strided {
    char* data;
    i64 first, step, stride[7];  // in elements: where the first is in scan order; along the scanned dim
};

struct ScanArgs {
    i64 n, dims, extent[7];  // the scanned dim; the other dims, fastest first
    i64 tiles, parts, strips, width, height, flags, skip;
    char* states;  // of parts and tiles, after `skip` bytes
    int* bad;      // indices: [0] some row, [1 + row] this row has indices that no scan gives
    Strided dy, x, dx;
};

#define EXPORT_SCAN(symbol, threads, blocks, Args, ...) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) symbol(const __grid_constant__ Args args) { __VA_ARGS__; }

// Where `index` of the other dims from..dims-1 is in each operand.
struct Places {
    i64 dy, x, dx;

    __device__ Places(const ScanArgs& args, int from, i64 index)
    {
        if (args.dims <= from + 1) {
            dy = args.dy.first + index * args.dy.stride[from];
            x = args.x.first + index * args.x.stride[from];
            dx = args.dx.first + index * args.dx.stride[from];
            return;
        }
        dy = args.dy.first, x = args.x.first, dx = args.dx.first;
#pragma unroll 1
        for (int d = from; d < args.dims; ++d) {
            const i64 extent = args.extent[d];
            const bool small = index >> 31 == 0 && extent >> 31 == 0;  // a short division will do
            const i64 rest = small ? static_cast<unsigned>(index) / static_cast<unsigned>(extent) : index / extent;
            const i64 k = index - rest * extent;
            dy += k * args.dy.stride[d], x += k * args.x.stride[d], dx += k * args.dx.stride[d];
            index = rest;
        }
    }
};

__device__ inline i64 place_of(const ScanArgs& args, const Strided& operand, i64 index)
{
    i64 place = operand.first;
#pragma unroll 1
    for (int d = 0; d < args.dims; ++d) {
        place += index % args.extent[d] * operand.stride[d];
        index /= args.extent[d];
    }
    return place;
}

// ---------------------------------------------------------------------------------------------------- elements of a warp

// The elements that a warp owns: lane l those from l * I on; lo..hi-1 exist. They are of one row, or of whole rows laid end to end.
struct Span {
    i64 row0, first;  // the (first) row, and the position of element 0 in it
    int lo, hi;
    bool many;  // rows
};

// One operand: U vectors of 16 bytes for each thread. Memory is read with lanes side by side, and vectors change places in `room`, which
// is shared memory of the warp. PLAIN: all elements exist, and lie aligned and forward.
template <typename T, int U, bool PLAIN = false>
struct Line {
    static constexpr int V = 16 / sizeof(T), I = U * V;
    using Vector = Words<T, V>;

    const ScanArgs& args;
    const Strided& operand;
    const Span& at;
    T* p;  // element 0 of the warp
    bool wide;

    __device__ Line(const ScanArgs& args, const Strided& operand, const Span& at, i64 place) : args(args), operand(operand), at(at)
    {
        p = reinterpret_cast<T*>(operand.data) + place + at.first * (PLAIN ? 1 : operand.step);
        wide = PLAIN || (joined() && (operand.step == 1 || operand.step == -1) && aligned<16>(backward() ? p - (V - 1) : p));
    }

    static __device__ int lane() { return threadIdx.x % 32; }
    __device__ bool joined() const { return !at.many || args.dims == 0 || (args.dims == 1 && operand.stride[0] == args.n * operand.step); }
    __device__ bool backward() const { return operand.step < 0; }

    // Vector m of the warp is elements m * V..
    __device__ bool whole(int m) const { return wide && m * V >= at.lo && m * V + V <= at.hi; }
    __device__ bool plain() const { return PLAIN || (wide && !backward() && at.lo == 0 && at.hi >= 32 * I); }
    __device__ T* vector(int m) const { return p + (backward() ? -m * V - (V - 1) : m * V); }

    // Where it is in the room: lanes meet different banks, both side by side and U apart.
    static __device__ int place(int m) { return m ^ (m >> 3 & 7); }

    __device__ T* element(int k) const
    {
        if (joined()) return p + k * operand.step;
        const int n = static_cast<int>(args.n), r = (k - at.lo) / n;
        return reinterpret_cast<T*>(operand.data) + place_of(args, operand, at.row0 + r) + (k - at.lo - r * n) * operand.step;
    }

    // Starts the loads of whole vectors; nothing waits for them here. `pad` stands for elements that do not exist.
    __device__ void start(Vector (&word)[U], T pad) const
    {
        if (plain()) {
#pragma unroll
            for (int u = 0; u < U; ++u) word[u].load(p + (u * 32 + lane()) * V);
            return;
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            for (int v = 0; v < V; ++v) word[u].set(v, pad);
            if (whole(u * 32 + lane())) word[u].load(vector(u * 32 + lane()));
        }
    }

    // Calls f(k) for the elements of vectors that are not whole, and perhaps for some before lo and from hi on.
    template <typename F>
    __device__ void each_other(const F& f) const
    {
        if (!wide) {
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
        for (int u = 0; u < U; ++u) word[u].store(&slot(room, (u * 32 + lane()) * V));
        if (!plain()) {
            __syncwarp();
            each_other([&](int k) { slot(room, k) = k >= at.lo && k < at.hi ? *element(k) : pad; });
        }
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].load(&slot(room, (lane() * U + u) * V));
        if (!plain()) flip(word);
    }

    __device__ void store(Vector (&word)[U], uint4* room) const
    {
        if (!plain()) flip(word);
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].store(&slot(room, (lane() * U + u) * V));
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].load(&slot(room, (u * 32 + lane()) * V));
        if (plain()) {
#pragma unroll
            for (int u = 0; u < U; ++u) word[u].store(p + (u * 32 + lane()) * V);
            return;
        }
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (whole(u * 32 + lane())) word[u].store(vector(u * 32 + lane()));
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
        Pack<T, V> pack;
#pragma unroll
        for (int v = 0; v < V; v += 2) {
            const A pair[2] = {x[v], x[v + 1]};
            narrow(pair, pack.at + v);
        }
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

// ---------------------------------------------------------------------------------------------------- states

template <typename S, typename Shuffle>
__device__ S shuffled(const S& s, Shuffle shuffle)
{
    static_assert(sizeof(S) % 4 == 0);
    unsigned word[sizeof(S) / 4];
    memcpy(word, &s, sizeof s);
#pragma unroll
    for (unsigned i = 0; i < sizeof(S) / 4; ++i) word[i] = shuffle(word[i]);
    S t;
    memcpy(&t, word, sizeof t);
    return t;
}

template <typename S>
__device__ S from_below(const S& s, int distance)
{
    return shuffled(s, [=](unsigned w) { return __shfl_up_sync(0xffffffff, w, distance); });
}

template <typename S>
__device__ S from_above(const S& s, int distance)
{
    return shuffled(s, [=](unsigned w) { return __shfl_down_sync(0xffffffff, w, distance); });
}

template <typename S>
__device__ S from_lane(const S& s, int lane)
{
    return shuffled(s, [=](unsigned w) { return __shfl_sync(0xffffffff, w, lane); });
}

// Each lane gets the join of the `reach` lanes ahead of it that share its row, and its own; `width` rows lie side by side in a warp.
template <typename K>
__device__ typename K::Head heads_up_to(typename K::Head head, int width, int reach)
{
#pragma unroll
    for (int d = 1; d < 32; d *= 2)
        if (d >= width) {
            const auto left = from_below(head, d);
            if (d <= reach) head = K::join(left, head);
        }
    return head;
}

template <typename K>
__device__ typename K::Tail tails_down_to(typename K::Tail tail, int width, int reach)
{
#pragma unroll
    for (int d = 1; d < 32; d *= 2)
        if (d >= width) {
            const auto right = from_above(tail, d);
            if (d <= reach) tail = K::join(tail, right);
        }
    return tail;
}

// Room in shared memory for states without constructors.
template <typename S, int N>
struct Room {
    alignas(16) char bytes[N * sizeof(S)];
    __device__ S& operator[](int i) { return reinterpret_cast<S*>(bytes)[i]; }
};

// The head of a kind that needs none.
struct Nothing {};

// ---------------------------------------------------------------------------------------------------- kinds

// States that tiles hand on are those of threads; `base` is what kinds without such states measure theirs from.
template <typename H, typename T>
struct SameStates {
    using FarHead = H;
    using Far = T;
    template <typename S, typename A>
    static __device__ S far(const S& s, A)
    {
        return s;
    }
    template <typename S, typename A>
    static __device__ S near(const S& s, A)
    {
        return s;
    }
};

// The kind that is tried first: it does only some rows, and its cells know in the end whether they were such. See scan_tame.cuh.
template <typename K>
struct TameOf {
    using Kind = K;
};
template <typename K>
using TameKind = typename TameOf<K>::Kind;
template <typename K>
constexpr bool kTame = false;
template <typename K>
constexpr bool kTamed = kTame<TameKind<K>>;

// What enters a tile, or leaves it.
template <typename Head, typename Tail>
struct Passing {
    Head head;
    Tail tail;
};
template <typename K>
using Passed = Passing<typename K::FarHead, typename K::Far>;

// Scan::run as a call, with registers of its own: for what is seldom needed.
template <typename Scan, typename P, typename... Where>
__device__ __noinline__ P apart(Scan scan, P passed, Where... where)
{
    scan.run(passed, where...);
    return passed;
}

// Whether cells hold numbers of every element; whether their states have a base, the first x of a row.
template <typename K>
constexpr bool kHolds = false;
template <typename K>
constexpr bool kBased = false;
