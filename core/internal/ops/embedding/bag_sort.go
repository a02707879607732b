package embedding

import (
	"math"
	"math/bits"
	"unsafe"

	"github.com/sternway/sternway/core/internal/num"
)

// This file is the parallel bucket sort of row occurrences on the CPU.

// number is the integer type of rows, bags and positions on the CPU: 32 bits, or 64 if counts need
// them.
type number interface{ uint32 | uint64 }

// BagWide is the smallest count that needs 64 bits; the largest uint32 is noRow. Tests lower it.
var BagWide int64 = math.MaxUint32

// bitsOf is the number of bits of N.
func bitsOf[N number]() int { return 8 * int(unsafe.Sizeof(N(0))) }

// noRow is the row of a position that does not count.
func noRow[N number]() N { return ^N(0) }

// bagBuckets is a parallel stable bucket sort. A bucket is 2^shift adjacent rows; a range is
// adjacent occurrences that one task counts and places. Buckets are then summed in parallel. The
// sort keeps the order of occurrences, so sums do not depend on the choice of ranges and buckets.
type bagBuckets[N number] struct {
	shift           int
	buckets, ranges int64
	n, rangeSize    int64 // occurrences in all, and per range
	cost            int64 // elements to add and write per bucket
	pitch           int64 // elements of next per range, whole cache lines to avoid false sharing
	next            []N   // next free place, by range and bucket
}

const (
	bagBucketBytes = 1 << 17 // bytes of dweight per bucket
	maxBagBuckets  = 4096
	minBagPart     = 1 << 13 // occurrences
	maxBagParts    = 64
)

// divide chooses buckets and ranges for n occurrences of `columns` elements. size is the size in
// bytes of an element of a bucket.
func (b *bagBuckets[N]) divide(rows, n, columns, size int64) {
	least := num.CeilDiv(rows, maxBagBuckets)
	wanted := max(bagBucketBytes/max(1, columns*size), least, 1)
	if n*columns > 1<<16 { // enough work for several threads
		wanted = min(wanted, max(num.CeilDiv(rows, 64), least))
	}
	b.shift = bits.Len64(uint64(wanted) - 1)
	b.buckets = num.CeilDiv(rows, 1<<b.shift)
	b.n, b.rangeSize = n, max(minBagPart, num.CeilDiv(n, maxBagParts))
	b.ranges = num.CeilDiv(n, b.rangeSize)
	b.cost = (rows + n) * columns / max(b.buckets, 1)
	b.pitch = num.CeilDiv(b.buckets, 16) * 16
}

// count calls body for each range to count its occurrences by bucket, turns the counts into places
// (prefix sum), and returns the total.
func (b *bagBuckets[N]) count(body func(w *bagWorker[N], counts []N, first, end int64)) int64 {
	b.next = grow(b.next, b.ranges*b.pitch)
	clear(b.next)
	b.place(body)
	sum := N(0)
	for bucket := range b.buckets {
		for k := range b.ranges {
			at := &b.next[k*b.pitch+bucket]
			sum, *at = sum+*at, sum
		}
	}
	return int64(sum)
}

// place calls body for each range to store its occurrences at the places in next.
func (b *bagBuckets[N]) place(body func(w *bagWorker[N], next []N, first, end int64)) {
	parallelForWorkers(b.n, b.rangeSize, 1<<14, func(w *bagWorker[N], first, end int64) {
		body(w, b.next[first/b.rangeSize*b.pitch:][:b.buckets], first, end)
	})
}

// each calls body for each bucket with the range of its occurrences and of its rows.
func (b *bagBuckets[N]) each(rows int64, body func(w *bagWorker[N], first, end N, row, rows int64)) {
	grain := max(1, (1<<17)/max(b.cost, 1))
	parallelForWorkers(b.buckets, 1, grain, func(w *bagWorker[N], bucket, _ int64) {
		first, end := N(0), N(0)
		if b.ranges > 0 { // the places of the last range have advanced to the ends of buckets
			last := b.next[(b.ranges-1)*b.pitch:]
			end = last[bucket]
			if bucket > 0 {
				first = last[bucket-1]
			}
		}
		row := bucket << b.shift
		body(w, first, end, row, min(1<<b.shift, rows-row))
	})
}
