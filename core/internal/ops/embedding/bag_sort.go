package embedding

import (
	"math"
	"math/bits"
	"unsafe"

	"github.com/sternway/sternway/core/internal/num"
)

// number counts rows, bags and occurrences on the CPU: in 32 bits, or in 64 where there are too many for these.
type number interface{ uint32 | uint64 }

// BagWide is the least count that takes 64 bits: the largest number of 32 stands for no row. Tests lower it.
var BagWide int64 = math.MaxUint32

// bitsOf is how many bits a number has.
func bitsOf[N number]() int { return 8 * int(unsafe.Sizeof(N(0))) }

// noRow stands for the row of what does not count.
func noRow[N number]() N { return ^N(0) }

// bagBuckets cuts occurrences into buckets of 2^shift adjacent rows, by parts of the occurrences that work side by side; then each bucket
// can be summed by itself. Both steps keep the order of occurrences, so a sum does not depend on parts or buckets.
type bagBuckets[N number] struct {
	shift          int
	buckets, parts int64
	n, part        int64 // occurrences in all, and of a part
	cost           int64 // of a bucket, in elements
	pitch          int64 // of next from part to part: whole lines of the cache, as parts must not share one
	next           []N
}

const (
	bagBucketBytes = 1 << 17 // of dweight
	maxBagBuckets  = 4096
	minBagPart     = 1 << 13 // occurrences, at least
	maxBagParts    = 64      // at most
)

// cut chooses buckets and parts for n occurrences, each of which is worth some columns; size is that of an element in a bucket.
func (b *bagBuckets[N]) cut(rows, n, columns, size int64) {
	least := num.CeilDiv(rows, maxBagBuckets)
	wanted := max(bagBucketBytes/max(1, columns*size), least, 1)
	if n*columns > 1<<16 { // enough work for several processors
		wanted = min(wanted, max(num.CeilDiv(rows, 64), least))
	}
	b.shift = bits.Len64(uint64(wanted) - 1)
	b.buckets = num.CeilDiv(rows, 1<<b.shift)
	b.n, b.part = n, max(minBagPart, num.CeilDiv(n, maxBagParts))
	b.parts = num.CeilDiv(n, b.part)
	b.cost = (rows + n) * columns / max(b.buckets, 1)
	b.pitch = num.CeilDiv(b.buckets, 16) * 16
}

// count calls body for each part, to count its occurrences of each bucket, and returns how many there are.
func (b *bagBuckets[N]) count(body func(w *bagWorker[N], counts []N, first, end int64)) int64 {
	b.next = grow(b.next, b.parts*b.pitch)
	clear(b.next)
	b.place(body)
	sum := N(0)
	for bucket := range b.buckets {
		for part := range b.parts {
			at := &b.next[part*b.pitch+bucket]
			sum, *at = sum+*at, sum
		}
	}
	return int64(sum)
}

// place calls body for each part, to put its occurrences where next says.
func (b *bagBuckets[N]) place(body func(w *bagWorker[N], next []N, first, end int64)) {
	parallelForWorkers(b.n, b.part, 1<<14, func(w *bagWorker[N], first, end int64) {
		body(w, b.next[first/b.part*b.pitch:][:b.buckets], first, end)
	})
}

// each calls body for each bucket, with the place of its occurrences and its rows.
func (b *bagBuckets[N]) each(rows int64, body func(w *bagWorker[N], first, end N, row, rows int64)) {
	grain := max(1, (1<<17)/max(b.cost, 1))
	parallelForWorkers(b.buckets, 1, grain, func(w *bagWorker[N], bucket, _ int64) {
		first, end := N(0), N(0)
		if b.parts > 0 { // where the last part ends in this bucket and in the one before
			last := b.next[(b.parts-1)*b.pitch:]
			end = last[bucket]
			if bucket > 0 {
				first = last[bucket-1]
			}
		}
		row := bucket << b.shift
		body(w, first, end, row, min(1<<b.shift, rows-row))
	})
}
