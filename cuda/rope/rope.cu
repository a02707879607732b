// rope/: rotary position embedding (RoPE).
//
// Each pair of elements of a token is rotated by an angle that all heads share. Backward:
//
//     dx_i = c_i dy_i + s_j dy_j      dx_j = c_j dy_j - s_i dy_i
//
// The forward is the transpose. A thread owns one unit of one place: the pairs in one or two
// vectors of V elements, at a token. It computes their sines and cosines once, while the first rows
// are being loaded, and rotates `run` rows (heads of batches) with them. If a token has few rows, a
// thread owns the unit of several tokens instead and computes angles for each. Elements outside the
// rotated part are units that are copied. Places are tokens, or tokens of each batch if batches
// have angles of their own.
#include "rope/angles.cuh"

// Resident CTAs for each SM, and rows that a thread has in flight if it reads its angles or has
// several tokens: as many as registers allow.
constexpr int kBlocks = 4, kTableRows = 2, kTokenRows = 4;

// Elements of the widest access: a thread holds 16 bytes of a row, in one vector or two.
template <bool HALF, typename T>
constexpr int kWidest = (HALF ? 8 : 16) / sizeof(T);

// The work item of a thread: a unit of a place, and `count` rows of a group from `row` on.
struct WorkItem {
    i64 place, row;
    u32 unit, group;
    int count;  // 0 if there is no work
};

// Copies words to shared memory by cp.async.
template <int N>
__device__ void cp_async(unsigned (&to)[N], const char* from)
{
    const u32 address = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(N * 4) : "memory");
}

// HALF: the members of a pair are in two vectors; otherwise adjacent in one. Single elements are
// always in two.
template <bool HALF, bool TABLES, int ROWS, typename T, typename A, int V>
struct Rotator {
    static constexpr bool TWO = HALF || V == 1;
    static constexpr int PAIRS = TWO ? V : V / 2, VECTORS = TWO ? 2 : 1;
    using Vector = Words<T, V>;

    Rotation<A, PAIRS, TABLES> rotation;
    bool rotates;
    Vector x[ROWS][VECTORS];  // rows in flight
    u32 first, second_offset;  // [elements] position of the first vector in a row; distance of the second

    // The position of a unit in a row; its pairs begin with number unit * PAIRS.
    __device__ Rotator(const RopeProblem& problem, u32 unit)
    {
        if (unit < static_cast<u32>(problem.rotating)) {
            first = static_cast<u32>(problem.start) + unit * (HALF ? V : 2 * PAIRS);
            second_offset = HALF ? static_cast<u32>(problem.pairs) : 1;
        } else {
            const u32 vector = (unit - static_cast<u32>(problem.rotating)) * VECTORS;
            first = copied(problem, vector);
            second_offset = vector + 1 < static_cast<u32>(problem.copied) ? copied(problem, vector + 1) - first : 0;
        }
    }

    // The first element of a vector outside the rotated part.
    __device__ static u32 copied(const RopeProblem& problem, u32 vector)
    {
        return vector * V < static_cast<u32>(problem.start) ? vector * V
            : vector * V + 2 * static_cast<u32>(problem.pairs);
    }

    __device__ void load(int k, const char* in, i64 second_offset)
    {
        x[k][0].load(reinterpret_cast<const T*>(in));
        if constexpr (TWO) x[k][1].load(reinterpret_cast<const T*>(in + second_offset));
    }

    __device__ void store(int k, char* out, i64 second_offset) const
    {
        x[k][0].store(reinterpret_cast<T*>(out));
        if constexpr (TWO) x[k][1].store(reinterpret_cast<T*>(out + second_offset));
    }

    // Loads up to ROWS rows, `step` bytes apart.
    __device__ void load(const char* in, i64 step, int count, i64 second_offset, bool expanded)
    {
        if (V > 1 && expanded) {
#pragma unroll
            for (int k = 0; k < ROWS; ++k, in += step) {
                if (k >= count) continue;
                const T same = *reinterpret_cast<const T*>(in);
#pragma unroll
                for (int v = 0; v < V * VECTORS; ++v) x[k][v / V].set(v % V, same);
            }
            return;
        }
#pragma unroll
        for (int k = 0; k < ROWS; ++k, in += step)
            if (k < count) load(k, in, second_offset);
    }

    __device__ void rotate_and_store(char* out, i64 step, int count, i64 second_offset)
    {
#pragma unroll
        for (int k = 0; k < ROWS; ++k, out += step) {
            if (rotates) rotate_pair(k);
            if (k < count) store(k, out, second_offset);
        }
    }

    __device__ void rotate_pair(int k)
    {
        Vector &low = x[k][0], &high = x[k][VECTORS - 1];
        if constexpr (V == 1) {
            A i = low.template value<A>(0), j = high.template value<A>(0);
            T both[2];
            rotate_pair(0, i, j);
            narrow({i, j}, both);
            low.set(0, both[0]), high.set(0, both[1]);
        } else if constexpr (TWO) {
#pragma unroll
            for (int p = 0; p < V; p += 2) {
                A i = low.template value<A>(p), j = high.template value<A>(p), k = low.template value<A>(p + 1),
                    l = high.template value<A>(p + 1);
                rotate_pair(p, i, j), rotate_pair(p + 1, k, l);
                put(low, p, i, k), put(high, p, j, l);
            }
        } else {
#pragma unroll
            for (int p = 0; p < V; p += 2) {
                A i = low.template value<A>(p), j = low.template value<A>(p + 1);
                rotate_pair(p / 2, i, j);
                put(low, p, i, j);
            }
        }
    }

    __device__ void rotate_pair(int pair, A& i, A& j) const
    {
        const A rotated = fma(rotation.b[pair], j, rotation.a[pair] * i);
        j = fma(-rotation.d(pair), i, rotation.c(pair) * j);
        i = rotated;
    }

    // Two adjacent elements of a vector.
    __device__ static void put(Vector& y, int v, A low, A high)
    {
        T pair[2];
        narrow({low, high}, pair);
        y.set(v, pair[0]), y.set(v + 1, pair[1]);
    }

    // The position of a token: its number if no positions are given.
    __device__ static i64 position_of(const RopeProblem& problem, i64 batch, i64 token)
    {
        if (!problem.positions) return token;
        const char* from = problem.positions + batch * problem.position_stride[0] + token * problem.position_stride[1];
        return problem.position_dtype == I64 ? *reinterpret_cast<const i64*>(from)
            : *reinterpret_cast<const int*>(from);
    }

    // Computes the factors of the place. Without a row of the tables for it, the elements are
    // copied.
    __device__ void compute_factors(const RopeProblem& problem, const Fine& fine, i64 batch, i64 token, u32 unit)
    {
        rotates = unit < static_cast<u32>(problem.rotating);
        if (!rotates) return;
        const i64 position = position_of(problem, batch, token);
        if constexpr (!TABLES) {
            double frequency[PAIRS];
            rotation.frequencies(problem, fine, unit * PAIRS, frequency);
            rotation.compute(problem, frequency, position);
        } else if ((rotates = position >= 0 && position < problem.rows)) {
            rotation.template look_up<!TWO, T>(problem, batch, position, unit * PAIRS);
        }
    }

    // The offset of the first row.
    __device__ i64 offset(const i64 (&stride)[5], const WorkItem& work, i64 batch, i64 token) const
    {
        i64 at = work.group * stride[1] + work.row * stride[2] + token * stride[3];
        if (V == 1 || stride[4]) at += first * (V == 1 ? stride[4] : static_cast<i64>(sizeof(T)));
        return batch ? at + batch * stride[0] : at;
    }

    // [bytes] distance of the two vectors of a row.
    __device__ static i64 distance(const i64 (&stride)[5], u32 second_offset)
    {
        return V == 1 ? second_offset * stride[4] : static_cast<i64>(second_offset * static_cast<u32>(sizeof(T)));
    }

    __device__ void run(const RopeProblem& problem, const RopeOperand& o, Fine& fine, const WorkItem& work)
    {
        const i64 batch = problem.places == problem.tokens ? 0 : quotient(work.place, problem.by_tokens),
            token = work.place - batch * problem.tokens;
        const i64 in_step = o.in_stride[2], out_step = o.out_stride[2],
            in_second = distance(o.in_stride, second_offset), out_second = distance(o.out_stride, second_offset);
        const bool expanded = o.in_stride[4] == 0;
        int count = work.count;
        const char* in = o.in + offset(o.in_stride, work, batch, token);
        load(in, in_step, count, in_second, expanded);  // in flight while the angles are computed
        if constexpr (!TABLES) fine.fill(problem);
        if (count == 0) return;
        compute_factors(problem, fine, batch, token, work.unit);
        char* out = o.out + offset(o.out_stride, work, batch, token);
        while (true) {
            rotate_and_store(out, out_step, count, out_second);
            if (!TABLES || (count -= ROWS) <= 0) return;  // without tables all rows are in flight at once
            in += ROWS * in_step, out += ROWS * out_step;
            load(in, in_step, count, in_second, expanded);
        }
    }

    // Rotates one row of each of several tokens, problem.stride tokens apart. Rows are prefetched
    // to shared memory by cp.async, so that many are in flight in few registers; a thread reads
    // only its own copies, so no barrier is needed.
    __device__ void run_tokens(const RopeProblem& problem, const RopeOperand& o, Fine& fine, const WorkItem& work)
    {
        __shared__ alignas(16) Vector buffer[kTokenRows][VECTORS][kBlockThreads];
        const i64 in_step = problem.stride * o.in_stride[3], out_step = problem.stride * o.out_stride[3];
        const i64 in_second = distance(o.in_stride, second_offset), out_second = distance(o.out_stride, second_offset);
        i64 token = work.place;
        const char* in = o.in + offset(o.in_stride, work, 0, token);
        char* out = o.out + offset(o.out_stride, work, 0, token);
        int left = 0;  // tokens
        if (work.count)
            left = static_cast<int>(problem.most) - (token + (problem.most - 1) * problem.stride >= problem.tokens);
        const auto prefetch = [&](u32 slot, bool more) {
            if (more) {
#pragma unroll
                for (int v = 0; v < VECTORS; ++v) cp_async(buffer[slot][v][threadIdx.x].word, in + v * in_second);
            }
            in += in_step;
            asm volatile("cp.async.commit_group;" ::: "memory");
        };
#pragma unroll
        for (int slot = 0; slot < kTokenRows; ++slot) prefetch(slot, slot < left);
        fine.fill(problem);
        if (left == 0) return;
        rotates = work.unit < static_cast<u32>(problem.rotating);
        double frequency[PAIRS];
        if (rotates) rotation.frequencies(problem, fine, work.unit * PAIRS, frequency);
        i64 position = position_of(problem, 0, token);
#pragma unroll 1
        for (u32 slot = 0; left > 0; slot = (slot + 1) % kTokenRows, --left, out += out_step) {
            if (rotates) rotation.compute(problem, frequency, position);
            if (left > 1) position = position_of(problem, 0, token += problem.stride);
            asm volatile("cp.async.wait_group %0;" ::"n"(kTokenRows - 1) : "memory");
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) x[0][v] = buffer[slot][v][threadIdx.x];
            if (rotates) rotate_pair(0);
            store(0, out, out_second);
            prefetch(slot, left > kTokenRows);
        }
    }
};

// Finds the work item of the thread, in the operand of its CTA, by few multiplications: nothing
// else precedes the first load.
__device__ inline const RopeOperand& find_work(const RopeArgs& args, WorkItem& work)
{
    const RopeProblem& problem = args.problem;
    const u32 chunks = static_cast<u32>(problem.chunks);
    u32 chunk = quotient(blockIdx.x, problem.by_tiles);
    const u32 tile = blockIdx.x - chunk * static_cast<u32>(problem.tiles);
    const RopeOperand& o = args.operand[chunk >= chunks];
    if (chunk >= chunks) chunk -= chunks;
    const int lanes = static_cast<int>(problem.lanes);
    const i64 index = (static_cast<i64>(tile) << lanes) + (threadIdx.x & (1u << lanes) - 1);
    work.place = quotient(index, problem.by_units);
    work.unit = static_cast<u32>(index) - static_cast<u32>(work.place) * static_cast<u32>(problem.units);
    work.group = quotient(chunk, o.by_chunks);
    chunk -= work.group * static_cast<u32>(o.chunks);
    work.row = ((static_cast<i64>(chunk) << 8 - lanes) + (threadIdx.x >> lanes)) * problem.run;
    work.count = work.place < problem.places ? static_cast<int>(min(problem.run, max(o.rows - work.row, i64(0)))) : 0;
    return o;
}

template <bool HALF, bool TABLES, int ROWS, typename T, typename A>
__device__ void rotate(const RopeArgs& args)
{
    constexpr int WIDE = kWidest<HALF, T>, NARROW = 8 / sizeof(T);
    __shared__ Fine fine;
    const RopeProblem& problem = args.problem;
    WorkItem work;
    const RopeOperand& o = find_work(args, work);
    if (problem.vector == WIDE)
        Rotator<HALF, TABLES, ROWS, T, A, WIDE>(problem, work.unit).run(problem, o, fine, work);
    else if (NARROW > 1 && NARROW < WIDE && problem.vector == NARROW)
        Rotator<HALF, TABLES, ROWS, T, A, NARROW>(problem, work.unit).run(problem, o, fine, work);
    else
        Rotator<HALF, TABLES, ROWS, T, A, 1>(problem, work.unit).run(problem, o, fine, work);
}

template <bool HALF, typename T, typename A>
__device__ void rotate_tokens(const RopeArgs& args)
{
    __shared__ Fine fine;
    WorkItem work;
    const RopeOperand& o = find_work(args, work);
    Rotator<HALF, false, 1, T, A, kWidest<HALF, T>>(args.problem, work.unit).run_tokens(args.problem, o, fine, work);
}

#define EXPORT_ROPE(suffix, T, A, ...) \
    EXPORT(rope_backward_interleaved_##suffix, kBlocks, RopeArgs, rotate<false, false, kMaxRowsPerThread, T, A>(args)) \
    EXPORT(rope_backward_half_##suffix, kBlocks, RopeArgs, rotate<true, false, kMaxRowsPerThread, T, A>(args)) \
    EXPORT(rope_backward_interleaved_tables_##suffix, kBlocks, RopeArgs, rotate<false, true, kTableRows, T, A>(args)) \
    EXPORT(rope_backward_half_tables_##suffix, kBlocks, RopeArgs, rotate<true, true, kTableRows, T, A>(args)) \
    EXPORT(rope_backward_interleaved_tokens_##suffix, kBlocks, RopeArgs, rotate_tokens<false, T, A>(args)) \
    EXPORT(rope_backward_half_tokens_##suffix, kBlocks, RopeArgs, rotate_tokens<true, T, A>(args))
FOR_EACH_FLOAT(EXPORT_ROPE, )
