package embedding

// #cgo CFLAGS: -O2
// #include "forward.h"
import "C"

import (
	"sync"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// This file reduces bags on the CPU.

const (
	forwardTask  = 1 << 14 // elements that a task gathers
	forwardGrain = 1 << 16 // elements below which one thread is enough
)

// forwardTable is a table of a run: its rows in weight, and its columns in y.
type forwardTable struct {
	rows, width     int64
	element, column int64
}

// hostForward is one run on the CPU. A pool keeps its memory for the next run.
type hostForward struct {
	*ForwardProgram
	args      [numForwardOperands]tensor.Tensor
	first     []uint64 // first position of each bag, table by table, and the end of the last bag
	eachTable []forwardTable
}

// forwardWorker is the scratch memory of one goroutine.
type forwardWorker struct {
	rows            []uint64
	scales, scratch []float64
	argmaxRows      []int64
	single, copied  []float32
	block           cpu.Block[float64]
	reduce          C.sw_bag_reduce
}

var forwardPools struct{ runs, workers sync.Pool }

// tasksOf divides the bags of a table: bags of a task, and tasks.
func (p *ForwardProgram) tasksOf() (bags, tasks int64) {
	all := max(p.tables*p.bags, 1)
	gathered := num.CeilDiv(p.total, all) * max(num.CeilDiv(p.columns, max(p.tables, 1)), 1) // by a bag, on average
	bags = max(1, min(p.bags, forwardTask/max(gathered, 1)))
	return bags, num.CeilDiv(p.bags, bags)
}

// Tasks implements ops.Program: ranges of bags of one table.
func (p *ForwardProgram) Tasks([]tensor.Tensor) int64 {
	_, tasks := p.tasksOf()
	return p.tables * tasks
}

// Host implements ops.Program.
func (p *ForwardProgram) Host(args []tensor.Tensor) {
	h := fromPool[hostForward](&forwardPools.runs)
	h.ForwardProgram, h.args = p, p.argsOf(args)
	h.readTables()
	h.readOffsets()
	bags, tasks := p.tasksOf()
	const grain = forwardGrain / forwardTask
	threads.Run(nil, p.tables*tasks, grain, func() (*forwardWorker, func()) {
		w := fromPool[forwardWorker](&forwardPools.workers)
		return w, func() { forwardPools.workers.Put(w) }
	}, func(w *forwardWorker, task int64) {
		first := task % tasks * bags
		h.reduceBags(w, task/tasks, first, min(bags, p.bags-first))
	})
	h.ForwardProgram, h.args = nil, [numForwardOperands]tensor.Tensor{}
	forwardPools.runs.Put(h)
}

func (h *hostForward) readTables() {
	h.eachTable = grow(h.eachTable, h.tables)
	if !h.args[forwardTables].Given() {
		h.eachTable[0] = forwardTable{rows: h.rows, width: h.widest}
		return
	}
	words := tableRowsOf(&h.args[forwardTables])
	for t := range h.eachTable {
		own, next := words[t], words[t+1]
		h.eachTable[t] = forwardTable{
			rows: next[tableRow] - own[tableRow], width: next[tableColumn] - own[tableColumn],
			element: own[tableElement], column: own[tableColumn],
		}
	}
}

func (h *hostForward) readOffsets() {
	offsets, bags := &h.args[forwardOffsets], h.tables*h.bags
	h.first = grow(h.first, bags+1)
	h.first[bags] = 0
	readIntegers(h.first[:offsets.Shape[0]], offsets, 0)
	if !h.hasLastOffset && bags > 0 {
		h.first[bags] = uint64(h.total)
	}
}

// reduceBags writes the rows of y of adjacent bags of a table, in its columns.
func (h *hostForward) reduceBags(w *forwardWorker, t, bag, bags int64) {
	table := &h.eachTable[t]
	if table.width == 0 {
		return
	}
	begin := h.first[t*h.bags+bag:][:bags+1]
	position, n := int64(begin[0]), int64(begin[bags]-begin[0])
	w.rows, w.scratch, w.argmaxRows = grow(w.rows, n), grow(w.scratch, 2*table.width), grow(w.argmaxRows, table.width)
	w.single, w.copied = grow(w.single, 2*table.width), grow(w.copied, 2*table.width)
	readIntegers(w.rows, &h.args[forwardIndices], position)
	for k, row := range w.rows {
		if int64(row) == h.padding {
			w.rows[k] = noRow[uint64]()
		}
	}
	weight, y, argmax := &h.args[forwardWeight], &h.args[forwardY], &h.args[forwardMaxIndices]
	c := &w.reduce
	*c = C.sw_bag_reduce{
		weight: C.uintptr_t(weight.Data), weight_row: C.long(weight.Strides[0]), weight_column: C.long(weight.Strides[1]),
		weight_dtype: C.long(weight.DType.Row()), rows: addressOf(w.rows), begin: addressOf(begin), scratch: addressOf(w.scratch),
		argmax_rows: addressOf(w.argmaxRows), copied: addressOf(w.copied),
		bags: C.long(bags), mean: C.long(flagWord(h.mode == "mean")), max: C.long(flagWord(h.mode == "max")),
		out: C.sw_bag_out{
			data: C.uintptr_t(elementAt(y, bag, table.column)), single: addressOf(w.single), row: C.long(y.Strides[0]),
			column: C.long(y.Strides[1]), rows: C.long(bags), columns: C.long(table.width), narrow: C.long(y.DType.Row()),
		},
	}
	if h.args[forwardTables].Given() {
		c.weight += C.uintptr_t(table.element * weight.DType.Size())
		c.weight_row, c.weight_column = C.long(table.width), 1
	}
	if table.width == 1 { // the stride of columns is irrelevant
		c.weight_column, c.out.column = 1, 1
	}
	if argmax.Given() {
		c.argmax, c.argmax_row, c.argmax_column = C.uintptr_t(elementAt(argmax, bag, table.column)), C.long(argmax.Strides[0]), C.long(argmax.Strides[1])
		c.argmax_wide = C.long(argmax.DType.Size() / 8)
	}
	if sample := &h.args[forwardSampleWeights]; sample.Given() {
		w.scales = grow(w.scales, n)
		readNumbers(&w.block, w.scales, sample, position)
		c.scales = addressOf(w.scales)
	}
	switch h.dtype {
	case tensor.Float32:
		C.sw_bag_reduce_f32(c)
	case tensor.Float64:
		C.sw_bag_reduce_f64(c)
	case tensor.Float16:
		C.sw_bag_reduce_f16(c)
	case tensor.BFloat16:
		C.sw_bag_reduce_bf16(c)
	}
}

// elementAt is the address of an element of a matrix.
func elementAt(t *tensor.Tensor, row, column int64) uintptr {
	return t.Data + uintptr((row*t.Strides[0]+column*t.Strides[1])*t.DType.Size())
}

// readNumbers reads the numbers of an operand of rank 1 from index first on, in float64.
func readNumbers(block *cpu.Block[float64], out []float64, t *tensor.Tensor, first int64) {
	v := cpu.View{N: 1, Regular: true, Step: t.Strides[0]}
	v.Extent[0], v.Stride[0] = t.Shape[0], t.Strides[0]
	for k := int64(0); k < int64(len(out)); k += cpu.BlockLen[float64]() {
		n := min(cpu.BlockLen[float64](), int64(len(out))-k)
		copy(out[k:], cpu.Storages64[t.DType.Row()].Load(block, t, &v, first+k, n))
	}
}
