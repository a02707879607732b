package gpu

// The launches of a run, in order: clear, upsweeps, downsweep, fallback pass or repair.

import (
	"slices"

	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Scan is the program of a scan on a GPU.
type Scan struct {
	Plain       Problem   // without indices
	WithIndices Problem   // with indices; of kinds that may have them
	Special     []Problem // of linear recurrences: the same with other kinds, the first of which that suits a run is taken
	Sums        []Sum     // of linear recurrences: gradients of operands that were broadcast
	Shape       []int64
	Dim         int
	IsForward   bool    // operands are those of a forward scan, numbered from operand.ForwardX on
	IsReversed  bool    // kernels read rows from the end, so that their suffix runs from the first position to the last
	IsMinimum   bool    // cummin
	FirstWins   bool    // of equal values
	Identity    float64 // of the operator: the scan of no positions
}

// run is one run of a scan.
type run struct {
	*Scan
	problem     Problem
	operands    stridedOperands
	firstKernel int // number of the first kernel of the problem's kind in the queue
	args        []tensor.Tensor
	workspace   uintptr
	queue       *launch.Queue
	// Of an exclusive scan: rows of the problem have one position less, and the output has Identity
	// at the position that is left out, the first or, of a gradient, the last.
	leavesOneOut bool
	rows         int64 // adjacent columns that are divided into panels, or all rows
	linearRun
}

// Run launches the scan: one kernel, or an upsweep for the prefixes, an upsweep for the suffixes
// and a downsweep where segments are split; then the fallback pass of a kind with a fast path, or
// the repair of rows by indices.
func (s *Scan) Run(args []tensor.Tensor, workspace uintptr, queue *launch.Queue) error {
	r := run{Scan: s, problem: s.Plain, args: args, workspace: workspace, queue: queue}
	r.storeTerms()
	numbers, onlyCarry := r.prepare()
	if err := r.scan(&numbers, onlyCarry); err != nil {
		return err
	}
	if err := r.finish(&numbers); err != nil {
		return err
	}
	return r.addTerms()
}

// scan launches the scan itself.
func (r *run) scan(numbers *[numRoles]int, onlyCarry bool) error {
	p := &r.problem
	byIndices := p.Kind.readsIndices
	if p.Rows == 0 || p.Length == 0 && (numbers[suffixOut] < 0 || p.Kind.isLinear) {
		return nil
	}
	c := r.configure(numbers)
	if err := r.checkSequences(numbers); err != nil {
		return err
	}
	if p.Length == 0 && r.leavesOneOut {
		return nil
	}
	if c.ThreadsAcross > 0 && r.operands.dims == 0 { // a panel of one column
		r.operands.dims, r.operands.extent[0] = 1, 1
	}
	if r.IsReversed {
		r.operands.reverse(p, &c)
	}
	r.sumGroups(&c)
	if byIndices || c.Cooperative {
		if err := r.clear((c.FlagBytes + statusTotalBytes(p, &c)) / 16); err != nil {
			return err
		}
	}
	if p.Kind.isPacked {
		if err := r.storeHeads(); err != nil {
			return err
		}
	}
	if onlyCarry {
		return r.runOnlyCarry(&c)
	}
	if err := r.phases(&c, 0); err != nil {
		return err
	}
	switch {
	case byIndices:
		r.pack(&c, 0, 0)
		return r.queue.Submit(r.numberOf(Repair), min(p.Rows, repairCTAsPerSM*p.Device.NumSMs), launch.BlockThreads)
	case c.NeedsFallback:
		fallback := Fallback(p, &c)
		return r.phases(&fallback, FlagFallback)
	}
	return nil
}

// prepare chooses the problem by the operands that are given. It returns the numbers of the
// operands by role, and whether the only output is a carry.
func (r *run) prepare() (numbers [numRoles]int, onlyCarry bool) {
	numbers, hasIndices := r.roles(r.args)
	if onlyCarry = numbers[result] < 0; onlyCarry {
		numbers[result] = numbers[scanned] // for its layout
	}
	if r.problem.Kind.isLinear {
		r.noResult = onlyCarry
		r.chooseSpecial(&numbers)
		return numbers, false
	}
	if hasIndices && !r.problem.Carries {
		r.problem, r.firstKernel = r.WithIndices, len(r.Plain.Kind.Kernels())
	}
	return numbers, onlyCarry
}

// configure selects the kernel for the layout of the operands and the limits of the device.
func (r *run) configure(numbers *[numRoles]int) Config {
	p := &r.problem
	p.Device.Limits = &DeviceLimits{int64(r.queue.Device.SharedMemory()), func(c *Config) int64 {
		return r.queue.Clusters(r.numberOf(c.Kernel), c.Splits, uint32(c.Block), c.SmemBytes)
	}}
	r.operands = stridedOf(r.Shape, r.Dim, *numbers, r.args, p.Kind.isLinear)
	r.placeTerms()
	if r.IsForward && !p.Kind.isLinear {
		r.operands.reverseChunks(suffixIn)
	}
	layout := layoutOf(p, &r.operands)
	c := Select(p, &layout)
	if r.isUnsuited(&c) {
		r.usePlain(numbers)
		return r.configure(numbers)
	}
	if r.leavesOneOut = p.IsExclusive && strategyOf(c.Kernel).takesColumns; r.leavesOneOut {
		r.problem = p.withoutLast()
		r.operands.leaveOneOut(map[bool]int{true: result, false: scanned}[r.IsForward], r.scansFromEnd())
		layout = layoutOf(p, &r.operands)
		c = Select(p, &layout)
	}
	r.rows = p.Rows
	if strategyOf(c.Kernel).takesColumns {
		r.rows = layout.Columns
	}
	return c
}

// numberOf is the number of a kernel of the problem's kind in the queue.
func (r *run) numberOf(kernel string) int {
	kernels := r.problem.Kind.Kernels()
	if r.problem.Carries {
		kernels = CarryKernels
	}
	return r.firstKernel + slices.Index(kernels, kernel)
}

// recordPassOf is the number of the record pass of a kernel in the queue.
func (r *run) recordPassOf(kernel string) int {
	return len(r.Plain.Kind.Kernels()) + len(indexKernels) + slices.Index(RecordKernels, kernel)
}

// phases launches the upsweeps and the downsweep of a configuration. Resident segments and fallback
// passes need the downsweep only: a fallback pass runs its phases in one launch with a grid
// barrier. CTAs of a cooperative launch exchange prefixes and suffixes within one launch. For kinds
// with record flags, the record pass computes the prefixes.
func (r *run) phases(c *Config, flags int64) error {
	p := &r.problem
	hasGridBarrier, records := flags&FlagFallback != 0 && c.Splits > 1, hasRecordPass(p, c)
	isSplit := c.Splits > 1 && !c.Resident && !hasGridBarrier
	kernel := r.numberOf(c.Kernel)
	prefixKernel := kernel
	if records {
		prefixKernel = r.recordPassOf(c.Kernel)
	}
	downsweepStatus := int64(0) // the status words of the suffixes follow those of the prefixes
	if records && c.Cooperative {
		downsweepStatus = statusPrefixBytes(p, c)
	}
	for _, step := range [...]struct {
		isNeeded      bool
		kernel        int
		phase, status int64
	}{
		{isSplit && p.Kind.hasPrefix, prefixKernel, FlagUpsweepPrefix, 0},
		{records && !c.Cooperative, prefixKernel, 0, 0},
		{isSplit && !c.Cooperative, kernel, FlagUpsweepSuffix, 0},
		{true, kernel, 0, downsweepStatus},
	} {
		if !step.isNeeded {
			continue
		}
		r.pack(c, step.phase|flags, step.status)
		r.queue.Launch.Cooperative = c.Cooperative || hasGridBarrier
		if c.InCluster() {
			r.queue.Launch.Cluster = uint32(c.Splits)
		}
		if err := r.queue.Submit(step.kernel, c.Grid, uint32(c.Block)); err != nil {
			return err
		}
	}
	return nil
}

// runOnlyCarry launches the upsweeps of a configuration, and combines the suffixes of splits to the
// carry that leaves each row.
func (r *run) runOnlyCarry(c *Config) error {
	isSplit := c.Splits > 1
	for _, step := range [...]struct {
		isNeeded bool
		flags    int64
	}{
		{r.problem.Kind.hasPrefix && c.Splits*c.TilesPerSplit > 1, FlagUpsweepPrefix},
		{true, FlagUpsweepSuffix},
		{isSplit, FlagSummary},
	} {
		if !step.isNeeded {
			continue
		}
		r.pack(c, step.flags, 0)
		if err := r.queue.Submit(r.numberOf(c.Kernel), c.Grid, uint32(c.Block)); err != nil {
			return err
		}
	}
	return nil
}

// clear zeroes the flags and status words at the start of the workspace. A word has 16 bytes.
func (r *run) clear(words int64) error {
	r.queue.Begin()
	args := launch.Append[ClearArgs](r.queue)
	r.queue.SetAddress(&args.data, launch.WorkspaceOperand, r.workspace)
	args.words = words
	return r.queue.Submit(len(r.queue.Kernels)-1, num.CeilDiv(words, launch.BlockThreads), launch.BlockThreads)
}
