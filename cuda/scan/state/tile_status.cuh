// Tile status: how CTAs that share a row exchange states through global memory, by look-back over
// aggregates. Unlike in the decoupled look-back of CUB, no inclusive prefixes are published: each
// CTA waits for the aggregates of all parts that it needs, and combines them itself.
//
// A state is cut into 16-byte status words of 12 data bytes and a flag; each word is written and
// read atomically, so the flag guards the data of its word. Preconditions: the words are 0 when the
// launch that publishes them begins, and the CTAs that wait for each other are resident.
#pragma once

#include "scan/state/prefix_suffix.cuh"

template <typename K>
struct TileStatus {
    using Prefix = typename K::Prefix;
    using Carry = typename K::Carry;
    template <typename S>
    static constexpr int WORDS = (sizeof(S) + 11) / 12;

    uint4* prefixes;  // [row, split, word]
    uint4* suffixes;  // [row, tile, word]; of a cooperative row the last tile comes first

    __device__ explicit TileStatus(const ScanArgs& args)
    {
        prefixes = reinterpret_cast<uint4*>(args.states + args.status_offset);
        suffixes = prefixes + (K::NEEDS_PREFIX ? args.segments * args.splits * WORDS<Prefix> : 0);
    }

    // Several lanes may publish the same state to the same words.
    template <typename S>
    static __device__ void publish(uint4* status, const S& s)
    {
        unsigned word[WORDS<S> * 3] = {};
        memcpy(word, &s, sizeof s);
#pragma unroll
        for (int i = 0; i < WORDS<S>; ++i)
            asm volatile("{ .reg .b64 a, b; .reg .b128 packet; mov.b64 a, {%1, %2}; mov.b64 b, {%3, 1};"
                         " mov.b128 packet, {a, b};"
                         " st.relaxed.gpu.global.b128 [%0], packet; }" ::"l"(status + i),
                         "r"(word[i * 3]), "r"(word[i * 3 + 1]), "r"(word[i * 3 + 2])
                         : "memory");
    }

    // Waits until all words of a state are published.
    template <typename S>
    static __device__ S wait(const uint4* status)
    {
        unsigned word[WORDS<S> * 3], flag, all;
        do {
            all = 1;
#pragma unroll
            for (int i = 0; i < WORDS<S>; ++i) {
                asm volatile("{ .reg .b64 a, b; .reg .b128 packet; ld.relaxed.gpu.global.b128 packet, [%4];"
                             " mov.b128 {a, b}, packet; mov.b64 {%0, %1}, a; mov.b64 {%2, %3}, b; }"
                             : "=r"(word[i * 3]), "=r"(word[i * 3 + 1]), "=r"(word[i * 3 + 2]), "=r"(flag)
                             : "l"(status + i)
                             : "memory");
                all &= flag;
            }
        } while (all == 0);
        S s;
        memcpy(&s, word, sizeof s);
        return s;
    }
};
