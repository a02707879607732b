// The rows of tables that have entries: their update by an optimizer, whose rules are in
// core/internal/ops/embedding/learning.go, or their gradients. Other rows are not touched.
#pragma once

#include "embedding/optimizer.cuh"
#include "embedding/row_sums.cuh"

template <typename T, typename A, int V, Kind KIND, int FLIGHT>
struct Update : Sum<T, A, V, KIND, FLIGHT, true> {
    using Base = Sum<T, A, V, KIND, FLIGHT, true>;
    using Base::args, Base::lanes, Base::lane, Base::unit, Base::column, Base::active, Base::group, Base::begin,
        Base::take_row, Base::PART;
    static constexpr bool ONLY_ENTRIES = true;
    bool adds_squares = true, stores = true;  // of this pass, if the state has one number for each row

    // The entries of a chunk are all of one row. For maxima, chunks and rows share their places in
    // shared memory.
    using Chunks = Sum<T, A, V, KIND, KIND == Kind::Argmax ? FLIGHT : sizeof(T) == 2 ? 4 : 6, true>;

    __device__ explicit Update(const BagArgs& a) : Base(a), table{0, 0, 0, a.tables ? 0 : a.rows, a.columns}
    {
        if (!args.options) return;
        rate = option(args.state2 ? kOptionStepSize : kOptionLr), eps = option(kOptionEps);
        inverse = 1 / option(kOptionGradScale), decay = option(kOptionWeightDecay);
        if (!args.state2) return;
        one_minus_beta1 = 1 - args.options[kOptionBeta1], one_minus_beta2 = 1 - args.options[kOptionBeta2];
    }

    // A state of one number for each row needs all of its gradient, so a group of threads takes all
    // slices of a unit.
    __device__ i64 row_slices() const { return args.by_row ? 1 : args.slices; }

    template <typename Work>
    __device__ __forceinline__ void each_slice(Work work)
    {
        const int slices = args.by_row ? static_cast<int>(args.slices) : 1;
#pragma unroll 1
        for (int slice = 0; slice < slices; ++slice) {
            if (args.by_row) begin(unit, slice);
            work();
        }
    }

    // If a row has several slices, their squares are added up in a pass of its own.
    template <typename Work>
    __device__ __forceinline__ void each_pass(Work work)
    {
        const int slices = args.by_row ? static_cast<int>(args.slices) : 1, passes = slices > 1 ? 2 : 1;
#pragma unroll 1
        for (int k = 0; k < passes * slices; ++k) {
            if (args.by_row) begin(unit, k < slices ? k : k - slices);
            adds_squares = k < slices;
            stores = k >= (passes - 1) * slices;
            work();
        }
    }

    // Begins to load a row and its state, before the entries of the row are added.
    __device__ void fetch_row(u32 row)
    {
        if (row >= args.rows) return;
        if (row < table.row || row >= table.row + table.rows) find_table(row);
        active = column < table.columns;
        if (!args.options) return;
        values = {};
        state[0] = state[1] = {};
        if (args.by_row && lane == 0) state[0].at[0] = reinterpret_cast<const A*>(args.state)[row];
        if (!active) return;
        const i64 first = element(row);
        const T* p = reinterpret_cast<const T*>(args.dweight) + first;
        if constexpr (V > 1)
            values.load(p);
        else
            values.set(0, *p);
        if (args.state && !args.by_row) load_state(0, args.state, first);
        if (args.state2) load_state(1, args.state2, first);
    }

    // The sum so far is the gradient of the row that was fetched; updates the row, or stores its
    // gradient.
    __device__ void store_row(T*, u32 row, u32 occurrences)
    {
        if (occurrences == 0) return;
        A g[V + 1];
        take_row(g, occurrences);
        if (args.options && !update(g, row)) return;
        if (active) store_values(g, element(row));
    }

    __device__ void store_zeros(T*) const {}

private:
    A rate, eps, inverse, decay, one_minus_beta1, one_minus_beta2;  // of the optimizer
    Table table;  // of the row that was fetched
    Words<T, V> values;
    Pack<A, V> state[2];

    __device__ A option(int which) const { return static_cast<A>(args.options[which]); }

    __device__ void find_table(u32 row)
    {
        i64 low = 0, high = args.num_tables - 1;  // the last table that does not begin after the row
        while (low < high) {
            const i64 middle = (low + high + 1) / 2;
            if (args.tables[middle * 3] <= row)
                low = middle;
            else
                high = middle - 1;
        }
        table = table_at(args, low);
    }

    // Where the thread's columns of a row are in the tables and in states of their shape.
    __device__ i64 element(u32 row) const { return table.element + (row - table.row) * table.columns + column; }

    // The new values of the row from its gradient, and the new state, which is stored. False: the
    // row is updated in a later pass.
    __device__ bool update(A (&g)[V + 1], u32 row)
    {
#pragma unroll
        for (int v = 0; v < V; ++v) g[v] = g[v] * inverse + decay * values.template value<A>(v);
        A step = rate;
        if (args.by_row) {
            step *= rate_of_row(g, row);
            if (!stores) return false;
        } else if (args.state2) {
            adam(g);
        } else if (args.state) {
            adagrad(g);
        }
        if (active && args.state && !args.by_row) store_state(0, args.state, element(row));
        if (active && args.state2) store_state(1, args.state2, element(row));
#pragma unroll
        for (int v = 0; v < V; ++v) g[v] = values.template value<A>(v) - step * g[v];
        return true;
    }

    __device__ void load_state(int which, const char* from, i64 first)
    {
#pragma unroll
        for (int v = 0; v < V; v += PART) {
            const Pack<A, PART> some = load_wide<PART>(reinterpret_cast<const A*>(from) + first + v);
            memcpy(state[which].at + v, &some, sizeof some);
        }
    }

    __device__ void store_state(int which, char* to, i64 first) const
    {
#pragma unroll
        for (int v = 0; v < V; v += PART) {
            Pack<A, PART> some;
            memcpy(&some, state[which].at + v, sizeof some);
            store_wide(reinterpret_cast<A*>(to) + first + v, some);
        }
    }

    __device__ void store_values(const A (&value)[V + 1], i64 first) const
    {
        Pack<T, V> pack;
        if constexpr (V > 1)
            pack = narrowed<T, V>(value);
        else
            pack.at[0] = static_cast<T>(value[0]);
        if constexpr (sizeof(T) == 2) {
            if (args.stochastic) {
                const Random random(args.options);
#pragma unroll
                for (int v = 0; v < V; ++v) pack.at[v] = rounded_at_random<T>(value[v], random.bits(first + v));
            }
        }
        store_wide(reinterpret_cast<T*>(args.dweight) + first, pack);
    }

    // Adagrad: the gradient over the root of the sum of squares.
    __device__ void adagrad(A (&g)[V + 1])
    {
#pragma unroll
        for (int v = 0; v < V; ++v) {
            A& sum = state[0].at[v];
            sum += g[v] * g[v];
            g[v] /= sqrt(sum) + eps;
        }
    }

    // Adam: the mean of the gradients over the root of the mean of their squares.
    __device__ void adam(A (&g)[V + 1])
    {
#pragma unroll
        for (int v = 0; v < V; ++v) {
            A &mean = state[0].at[v], &mean2 = state[1].at[v];
            mean += one_minus_beta1 * (g[v] - mean);
            mean2 += one_minus_beta2 * (g[v] * g[v] - mean2);
            g[v] = mean / (sqrt(mean2) + eps);
        }
    }

    // Row-wise Adagrad: adds the mean of the squares of this slice to the number of the row, and
    // returns one over the root of that. One thread of the group has the number.
    __device__ A rate_of_row(const A (&g)[V + 1], u32 row)
    {
        A& number = state[0].at[0];
        if (adds_squares) {
            A squares = 0;
#pragma unroll
            for (int v = 0; v < V; ++v) squares += active ? g[v] * g[v] : A(0);
            for (int reach = lanes / 2; reach > 0; reach /= 2)
                squares += __shfl_xor_sync(group(), squares, reach, lanes);
            number += squares / A(max(table.columns, i64(1)));
            if (lane == 0) reinterpret_cast<A*>(args.state)[row] = number;
        }
        return 1 / (sqrt(__shfl_sync(group(), number, 0, lanes)) + eps);
    }
};
