package core

import (
	"math"

	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/tensor"
)

// launchCache holds the kernel launches of the last run of a plan that was recorded. A later run
// whose operands differ only in their addresses, with the same alignment, replays the launches with
// its own addresses. Of the checks, those of addresses, overlaps and the workspace are repeated.
type launchCache struct {
	args     []tensor.Tensor         // cacheKey of each operand of the recorded run
	spans    [][2]int64              // byte range of each operand, relative to its address
	outputs  []int                   // indices of the outputs among the operands
	launches []launch.RecordedLaunch // in the order of submission
}

// alignmentMask selects the low bits of an address, which decide how kernels may access memory.
const alignmentMask = launch.WorkspaceAlignment - 1

// cacheKey is a tensor reduced to the properties that launches depend on: of its address, only the
// alignment.
func cacheKey(t tensor.Tensor) tensor.Tensor {
	t.Data &= alignmentMask
	t.Pin = nil
	return t
}

// newLaunchCache returns an empty cache for a run whose operands passed every check. It returns nil
// if an output may share memory with another operand, as an in-place run does: such runs are not
// cached.
func newLaunchCache(p *Plan, args []tensor.Tensor) *launchCache {
	c := &launchCache{}
	for i := range args {
		low, high, _ := args[i].Span() // checkOperand found it in the address space
		if !args[i].Given() {
			low, high = 0, 0
		}
		c.args = append(c.args, cacheKey(args[i]))
		c.spans = append(c.spans, [2]int64{low, high})
		if p.problem.Operands[i].Out && args[i].Given() {
			c.outputs = append(c.outputs, i)
		}
	}
	if !c.disjointOutputs(args) {
		return nil
	}
	return c
}

// matches reports whether the recorded launches are valid for these operands once addresses are
// patched.
func (c *launchCache) matches(args []tensor.Tensor) bool {
	if len(args) != len(c.args) {
		return false
	}
	for i := range args {
		if args[i].Present|c.args[i].Present == 0 { // absent in both runs
			continue
		}
		low, high, address := c.spans[i][0], c.spans[i][1], int64(args[i].Data)
		if cacheKey(args[i]) != c.args[i] || address == 0 && high > 0 || address < -low || address > math.MaxInt64-high {
			return false
		}
	}
	return c.disjointOutputs(args)
}

// disjointOutputs reports whether no output span intersects the span of another operand.
// Interleaved views are disjoint too, but only the full check can tell; here they count as
// overlapping.
func (c *launchCache) disjointOutputs(args []tensor.Tensor) bool {
	for _, o := range c.outputs {
		low, high := int64(args[o].Data)+c.spans[o][0], int64(args[o].Data)+c.spans[o][1]
		for i := range args {
			if i != o && int64(args[i].Data)+c.spans[i][0] < high && low < int64(args[i].Data)+c.spans[i][1] {
				return false
			}
		}
	}
	return true
}

// replay submits the recorded launches with the addresses of this run.
func (c *launchCache) replay(q *launch.Queue, args []tensor.Tensor, workspace uintptr) error {
	for i := range c.launches {
		recorded := &c.launches[i]
		q.Launch.CopyFrom(&recorded.Launch)
		for _, slot := range recorded.Slots {
			address := workspace
			if slot.Operand != launch.WorkspaceOperand {
				address = args[slot.Operand].Data
			}
			q.Launch.Words()[slot.Word] = uint64(address)
		}
		if err := q.Device.Launch(q.Kernels[recorded.Kernel], &q.Launch); err != nil {
			return err
		}
	}
	return nil
}
