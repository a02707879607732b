package selective

import (
	"fmt"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file runs selective scans on a GPU.

const (
	maxRoundBytes   = 18 << 10 // shared memory of the channels of a CTA, unless one round takes more
	maxRounds       = 4
	minRounds       = 2 // fewer leave more sums of B and C: only where there would be fewer CTAs than SMs
	busyCTAsPerSM   = 2
	warpThreads     = 32
	addressBytes    = 8
	sumNumbers      = 2  // numbers of a compensated sum
	sharedHeadBytes = 48 // bits of the positions at which sequences begin, after the rows of a tile
)

// Indices of the kernels in Symbols. A gradient has all, a scan the first.
const (
	kernelForward = iota
	kernelBackward
	kernelSum
	kernelSumWide
)

// layout is the division of a gradient on a GPU: rounds of Warps channels of a CTA, CTAs of a
// group, and where its numbers begin in the workspace [numbers of the dtype of sums].
type layout struct {
	rounds, ctasPerGroup                     int64
	chunks, a, b, c, d, bias, lanes, numbers int64
}

// compileCUDA compiles a problem for a GPU of a number of multiprocessors.
func compileCUDA(c *program, numSMs int) (ops.Program, error) {
	g := &cudaProgram{program: c}
	if c.isBackward {
		g.divide(int64(numSMs))
	}
	return g, nil
}

// cudaProgram is a program on a GPU.
type cudaProgram struct {
	*program
	layout layout
}

func (g *cudaProgram) divide(numSMs int64) {
	l, inGroup := &g.layout, g.Dim/g.groups
	l.rounds = maxRounds
	for l.rounds > 1 && g.roundBytes(l.rounds) > maxRoundBytes {
		l.rounds /= 2
	}
	for l.rounds > 1 {
		enough := numSMs
		if l.rounds > minRounds {
			enough *= busyCTAsPerSM
		}
		if g.Batch*g.groups*num.CeilDiv(inGroup, Warps*l.rounds) >= enough {
			break
		}
		l.rounds /= 2
	}
	l.ctasPerGroup = num.CeilDiv(inGroup, Warps*l.rounds)
	place := func(numbers int64) (first int64) {
		first = l.numbers
		l.numbers += num.CeilDiv(numbers, launch.WorkspaceAlignment) * launch.WorkspaceAlignment
		return first
	}
	factor := func(isConstant bool) int64 {
		if isConstant {
			return g.Batch * g.Dim * g.N
		}
		return l.ctasPerGroup * g.Batch * g.groups * g.N * g.Length
	}
	l.chunks, l.a = place(g.Batch*g.Dim*g.numChunks()*g.N), place(g.Batch*g.Dim*g.N)
	l.b, l.c = place(factor(g.ConstantB)), place(factor(g.ConstantC))
	l.d, l.bias = place(g.Batch*g.Dim), place(g.Batch*g.Dim)
	if g.N > g.statesAtOnce() {
		l.lanes = place(g.Batch * g.groups * l.ctasPerGroup * Warps * l.rounds * warpThreads * Positions * LaneSums)
	}
}

// statesAtOnce is the number of states whose B and C are in shared memory at once.
func (g *cudaProgram) statesAtOnce() int64 { return StateBytes / g.wide.Size() }

// roundBytes is the shared memory of the channels of a CTA of the gradient.
func (g *cudaProgram) roundBytes(rounds int64) int64 {
	sums := int64(1) // of A, and of B and C that are constant
	for _, isConstant := range []bool{g.ConstantB, g.ConstantC} {
		if isConstant {
			sums++
		}
	}
	numbers := (StateRows+sumNumbers*sums)*g.N + sumNumbers*ChannelSums
	return (g.channelBytes(BackwardRows) + numbers*g.wide.Size()) * Warps * rounds
}

// channelBytes is the shared memory of a channel without its states: addresses of rows, D and the
// bias.
func (g *cudaProgram) channelBytes(rows int64) int64 { return rows*addressBytes + 2*g.wide.Size() }

// sharedBytes is the shared memory of a CTA, which has so many rows of a tile's positions.
func (g *cudaProgram) sharedBytes(rows, others int64) uint32 {
	return uint32(rows*(ChunkLength*g.wide.Size()+16) + sharedHeadBytes + others)
}

// Workspace implements ops.Program.
func (g *cudaProgram) Workspace() int64 { return g.layout.numbers * g.wide.Size() }

// Symbols implements ops.Program.
func (g *cudaProgram) Symbols() (list []launch.Symbol) {
	packed := ""
	if g.NumSequences != nil {
		packed = "_packed"
	}
	names := []string{"selective_scan" + packed, "selective_scan_backward" + packed, "selective_sum", "selective_sum_wide"}
	if !g.isBackward {
		names = names[:1]
	}
	for _, name := range names {
		list = append(list, launch.Symbol{Image: forward.Image, Name: name + "_" + g.DType.Suffix()})
	}
	return list
}

// Device implements ops.Program.
func (g *cudaProgram) Device(args []tensor.Tensor, workspace uintptr, q *launch.Queue) error {
	r := &cudaRun{cudaProgram: g, args: args, workspace: workspace, queue: q}
	if !g.isBackward {
		return r.forward(inputNumbers(0), opSeqlens, func(a *SelectiveArgs) {
			r.set(&a.y, opY, "bct")
			r.set(&a.last, opLast, r.stateDims())
			r.set(&a.chunks, opChunks, "bctn")
		})
	}
	if !args[backChunks].Given() {
		if err := r.forward(inputNumbers(backU), backSeqlens, func(a *SelectiveArgs) { r.setChunks(a) }); err != nil {
			return err
		}
	}
	if err := r.backward(); err != nil {
		return err
	}
	return r.sum()
}

// cudaRun is one run on a GPU.
type cudaRun struct {
	*cudaProgram
	args      []tensor.Tensor
	workspace uintptr
	queue     *launch.Queue
}

// inputNumbers are the numbers of the inputs of a scan in the order of opU to opInitial.
func inputNumbers(first int) (numbers [opInitial + 1]int) {
	for i := range numbers {
		numbers[i] = first + i
	}
	return numbers
}

func (r *cudaRun) stateDims() string {
	if r.NumSequences != nil {
		return "btcn"
	}
	return "bcn"
}

// set describes an operand whose dimensions are named by letters, if it is given.
func (r *cudaRun) set(o *SelectiveOperand, number int, dims string) {
	t := &r.args[number]
	if !t.Given() {
		return
	}
	r.queue.SetAddress(&o.data, number, t.Data)
	o.setStrides(dims, t.Strides[:t.NDim])
}

func (o *SelectiveOperand) setStrides(dims string, strides []int64) {
	for i, d := range dims {
		switch d {
		case 'b':
			o.batch = strides[i]
		case 'c':
			o.channel = strides[i]
		case 'n':
			o.state = strides[i]
		case 't':
			o.position = strides[i]
		}
	}
}

// factorDims are the dimensions of B or C, or of the gradient of one, by its rank.
var dimsOfFactor = [...]string{2: "cn", 3: "bnt", 4: "bcnt"}

func (r *cudaRun) factorDims(number int) string { return dimsOfFactor[r.args[number].NDim] }

// setChunks describes the chunk states in the workspace.
func (r *cudaRun) setChunks(a *SelectiveArgs) {
	r.queue.SetAddress(&a.chunks.data, launch.WorkspaceOperand, r.workspace)
	a.firstChunk = r.layout.chunks
	a.chunks.setStrides("bctn", []int64{r.Dim * r.numChunks() * r.N, r.numChunks() * r.N, r.N, 1})
}

func (r *cudaRun) setProblem(a *SelectiveArgs, inputs [opInitial + 1]int, seqlens int) {
	for i, o := range []*SelectiveOperand{&a.u, &a.delta, &a.a, &a.b, &a.c, &a.d, &a.z, &a.bias, &a.initial} {
		dims := []string{"bct", "bct", "cn", "", "", "c", "bct", "c", r.stateDims()}[i]
		if dims == "" {
			dims = r.factorDims(inputs[i])
		}
		r.set(o, inputs[i], dims)
	}
	a.channels, a.groups, a.length, a.states = r.Dim, r.groups, r.Length, r.N
	for i, is := range []bool{r.DeltaSoftplus, r.ConstantB, r.ConstantC} {
		if is {
			a.flags |= 1 << i
		}
	}
	if t := &r.args[seqlens]; t.Given() {
		r.queue.SetAddress(&a.bounds, seqlens, t.Data)
		a.boundCount, a.boundStep = t.Shape[0], t.Strides[0]
		if t.DType == tensor.Int64 {
			a.boundsAreWide = 1
		}
	}
}

// forward launches the scan, whose outputs are set by a function.
func (r *cudaRun) forward(inputs [opInitial + 1]int, seqlens int, setOutputs func(a *SelectiveArgs)) error {
	r.queue.Begin()
	a := launch.Append[SelectiveArgs](r.queue)
	r.setProblem(a, inputs, seqlens)
	setOutputs(a)
	shared := r.sharedBytes(2*r.statesAtOnce(), Warps*(r.channelBytes(ForwardRows)+2*r.N*r.wide.Size()))
	ctas := r.Batch * r.groups * num.CeilDiv(r.Dim/r.groups, Warps)
	return r.submit(kernelForward, ctas, Warps*warpThreads, shared)
}

// submit launches a kernel with dynamic shared memory.
func (r *cudaRun) submit(kernel int, ctas, threads int64, shared uint32) error {
	if most := r.queue.Device.SharedMemory(); int64(shared) > int64(most) {
		return errs.New(errs.Unsupported, r.op, "n", fmt.Sprintf("fewer on this device, whose CTAs have %d bytes of shared memory", most),
			fmt.Sprintf("%d, which takes %d bytes", r.N, shared), "")
	}
	r.queue.Launch.Shared = shared
	return r.queue.Submit(kernel, ctas, uint32(threads))
}

func (r *cudaRun) backward() error {
	r.queue.Begin()
	a, l := launch.Append[SelectiveBackwardArgs](r.queue), &r.layout
	r.setProblem(&a.SelectiveArgs, inputNumbers(backU), backSeqlens)
	if r.args[backChunks].Given() {
		r.set(&a.chunks, backChunks, "bctn")
	} else {
		r.setChunks(&a.SelectiveArgs)
	}
	r.set(&a.dy, backDY, "bct")
	r.set(&a.dlast, backDLast, r.stateDims())
	r.set(&a.du, backDU, "bct")
	r.set(&a.ddelta, backDDelta, "bct")
	r.set(&a.dz, backDZ, "bct")
	r.set(&a.dinitial, backDInitial, r.stateDims())
	for _, sums := range []struct {
		field  *int64
		number int64
		output int
	}{{&a.aSums, l.a, backDA}, {&a.bSums, l.b, backDB}, {&a.cSums, l.c, backDC}, {&a.dSums, l.d, backDD}, {&a.biasSums, l.bias, backDBias}} {
		if *sums.field = -1; r.args[sums.output].Given() {
			*sums.field = sums.number
		}
	}
	r.queue.SetAddress(&a.workspace, launch.WorkspaceOperand, r.workspace)
	a.lanes, a.batches, a.rounds = l.lanes, r.Batch, l.rounds
	return r.submit(kernelBackward, r.Batch*r.groups*l.ctasPerGroup, Warps*warpThreads, r.sharedBytes(4*r.statesAtOnce()+Warps, r.roundBytes(l.rounds)))
}

// sum launches the sums of the gradients that are given.
func (r *cudaRun) sum() error {
	l := &r.layout
	for _, s := range []struct {
		output     int
		number     int64
		isConstant bool
		dims       string
	}{
		{backDA, l.a, true, "cn"}, {backDB, l.b, r.ConstantB, ""}, {backDC, l.c, r.ConstantC, ""},
		{backDD, l.d, true, "c"}, {backDBias, l.bias, true, "c"},
	} {
		if !r.args[s.output].Given() {
			continue
		}
		r.queue.Begin()
		a := launch.Append[SumArgs](r.queue)
		r.queue.SetAddress(&a.workspace, launch.WorkspaceOperand, r.workspace)
		a.first = s.number
		kernel := kernelSumWide
		switch {
		case !s.isConstant:
			kernel = kernelSum
			a.count, a.extent = l.ctasPerGroup, [4]int64{r.Batch, r.groups, r.N, r.Length}
			s.dims = r.factorDims(s.output)
		case s.dims == "c":
			a.count, a.extent = r.Batch, [4]int64{1, r.Dim, 1, 1}
		default:
			a.count, a.extent = r.Batch, [4]int64{1, r.Dim, r.N, 1}
			s.dims = "cn"
		}
		r.set(&a.to, s.output, s.dims)
		size := a.extent[0] * a.extent[1] * a.extent[2] * a.extent[3]
		if err := r.queue.Submit(kernel, num.CeilDiv(size, launch.BlockThreads), launch.BlockThreads); err != nil {
			return err
		}
	}
	return nil
}
