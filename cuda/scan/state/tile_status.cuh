// What blocks that share a row tell each other through memory. A state goes in packets of three words and a flag, which are zero before the
// first launch; each is seen whole or not at all.
#pragma once

#include "scan/state/prefix_suffix.cuh"

template <typename K>
struct Told {
    using Head = typename K::Head;
    using Far = typename K::Far;
    template <typename S>
    static constexpr int PACKETS = (sizeof(S) + 11) / 12;

    uint4* heads;  // [row, part, packet]
    uint4* tails;  // [row, tile, packet], of a team the last tile of a row first

    __device__ explicit Told(const ScanArgs& args)
    {
        heads = reinterpret_cast<uint4*>(args.states + args.height);
        tails = heads + (K::HEAD ? args.strips * args.parts * PACKETS<Head> : 0);
    }

    template <typename S>
    static __device__ void tell(uint4* packets, const S& s)
    {
        unsigned word[PACKETS<S> * 3] = {};
        memcpy(word, &s, sizeof s);
#pragma unroll
        for (int i = 0; i < PACKETS<S>; ++i)
            asm volatile("{ .reg .b64 a, b; .reg .b128 packet; mov.b64 a, {%1, %2}; mov.b64 b, {%3, 1}; mov.b128 packet, {a, b};"
                         " st.relaxed.gpu.global.b128 [%0], packet; }" ::"l"(packets + i),
                         "r"(word[i * 3]), "r"(word[i * 3 + 1]), "r"(word[i * 3 + 2])
                         : "memory");
    }

    // Waits for it.
    template <typename S>
    static __device__ S hear(const uint4* packets)
    {
        unsigned word[PACKETS<S> * 3], flag, all;
        do {
            all = 1;
#pragma unroll
            for (int i = 0; i < PACKETS<S>; ++i) {
                asm volatile("{ .reg .b64 a, b; .reg .b128 packet; ld.relaxed.gpu.global.b128 packet, [%4];"
                             " mov.b128 {a, b}, packet; mov.b64 {%0, %1}, a; mov.b64 {%2, %3}, b; }"
                             : "=r"(word[i * 3]), "=r"(word[i * 3 + 1]), "=r"(word[i * 3 + 2]), "=r"(flag)
                             : "l"(packets + i)
                             : "memory");
                all &= flag;
            }
        } while (all == 0);
        S s;
        memcpy(&s, word, sizeof s);
        return s;
    }
};
