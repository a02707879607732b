package core_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// shown is one run whose tasks are compared with their picture.
type shown struct {
	t       *testing.T
	plan    *core.Plan
	args    []tensor.Tensor
	memory  []*coretest.Memory // of each operand
	rows    int64              // of the work as the problem states it
	columns int64
	// place is the row and column of an element of output o; row -1: not of the work.
	place func(o string, i int64) (row, column int64)
}

// newShown allocates the operands. Inputs are ones, and indices count up.
func newShown(t *testing.T, descriptor string) *shown {
	plan, err := core.SelectJSON(descriptor, "cpu", "{}")
	require.NoError(t, err)
	s := &shown{t: t, plan: plan}
	var problem struct {
		Rows  int64   `json:"num_embeddings"`
		Table int64   `json:"num_rows"`
		Total int64   `json:"total_indices"`
		Bags  int64   `json:"num_bags"`
		Shape []int64 `json:"shape"`
		Dim   int64   `json:"dim"`
	}
	require.NoError(t, json.Unmarshal([]byte(descriptor), &problem))
	table := max(problem.Rows, problem.Table, 1)
	for _, o := range coretest.ProblemOf(plan).Operands {
		m := coretest.NewMemory(o.DTypes[0], tensor.CPU, coretest.Concrete(o.Shapes[0]), coretest.Contiguous)
		switch {
		case o.Out:
			m.Poison()
		case o.Name == "offsets":
			m.Fill(func(k int64) float64 { return float64(k * problem.Total / problem.Bags) })
		case o.Name == "indices" || o.Name == "max_indices":
			m.Fill(func(k int64) float64 { return float64(k * 7 % table) })
		case o.Name == "positions":
			m.Fill(func(k int64) float64 { return float64(k) })
		default:
			m.Fill(func(int64) float64 { return 1 })
		}
		s.memory = append(s.memory, m)
	}
	s.args = operandsOf(t, plan, tensor.Tensor{}, func(i int, _ *ops.Operand) tensor.Tensor { return s.memory[i].Tensor })
	s.locate(plan.Descriptor().Family(), problem.Shape, problem.Dim)
	return s
}

// locate sets the matrix of the work and the places of outputs in it.
func (s *shown) locate(family string, shape []int64, dim int64) {
	byName := func(name string) *coretest.Memory {
		i := slices.IndexFunc(coretest.ProblemOf(s.plan).Operands, func(o ops.Operand) bool { return o.Name == name })
		if i < 0 {
			return nil
		}
		return s.memory[i]
	}
	dense := func(output string, rows, columns int64) {
		s.rows, s.columns = rows, columns
		s.place = func(o string, i int64) (int64, int64) {
			if o != output {
				return -1, 0
			}
			return i / columns, i % columns
		}
	}
	switch {
	case strings.HasPrefix(family, "scan"):
		n, inner := shape[dim], int64(1)
		for _, extent := range shape[dim+1:] {
			inner *= extent
		}
		output := map[bool]string{true: "y", false: "dx"}[family == "scan"]
		total, _ := tensor.Product(shape)
		s.rows, s.columns = total/n, n
		s.place = func(o string, i int64) (int64, int64) {
			if o != output {
				return -1, 0
			}
			return i/(n*inner)*inner + i%inner, i / inner % n
		}
	case strings.HasPrefix(family, "rope"):
		first, second := "y", "y_k"
		if family == "rope_backward" {
			first, second = "dx", "dx_k"
		}
		m := byName(first)
		heads, width := m.Shape[0]*m.Shape[1], m.Shape[3]
		s.rows, s.columns = heads, m.Shape[2]*width
		if k := byName(second); k != nil {
			s.rows += k.Shape[0] * k.Shape[1]
		}
		s.place = func(o string, i int64) (int64, int64) {
			row := i / s.columns
			if o == second {
				row += heads
			}
			return row, i % s.columns
		}
	case strings.HasPrefix(family, "embedding"):
		m := byName("dweight")
		dense("dweight", m.Shape[0], m.Shape[1])
	case family == "unique_rows":
		dense("inverse", 1, byName("inverse").Shape[0])
	default:
		last := shape[len(shape)-1]
		total, _ := tensor.Product(shape)
		output := "dx"
		switch {
		case family == "lerp_backward":
			output = "da"
		case !strings.HasSuffix(family, "backward"):
			output = "y"
		}
		dense(output, total/last, last)
	}
}

// tasksOfElements numbers the task that wrote each element of the work first, from 1 on.
func (s *shown) tasksOfElements() (owner []int, wrote int) {
	owner = make([]int, s.rows*s.columns)
	operands := coretest.ProblemOf(s.plan).Operands
	before := make([][]byte, len(operands))
	for o := range operands {
		if operands[o].Out && s.args[o].Given() {
			before[o] = slices.Clone(s.bytesOf(o))
		}
	}
	var lock sync.Mutex
	s.observe(func(_, _ int64, run func()) {
		lock.Lock()
		defer lock.Unlock()
		run()
		isNew := true
		for o := range before {
			if before[o] == nil {
				continue
			}
			for _, i := range changed(before[o], s.bytesOf(o), int(s.memory[o].DType.Size())) {
				row, column := s.place(operands[o].Name, i)
				if row < 0 || owner[row*s.columns+column] != 0 {
					continue
				}
				if isNew {
					wrote++
					isNew = false
				}
				owner[row*s.columns+column] = wrote
			}
		}
	})
	return owner, wrote
}

// bytesOf is the memory of the elements of operand o.
func (s *shown) bytesOf(o int) []byte {
	m := s.memory[o]
	n, _ := tensor.Product(m.Extents())
	return unsafe.Slice((*byte)(m.Pin), n*m.DType.Size())
}

// changed are the elements of a size in bytes that differ. Afterwards the bytes are the same.
func changed(before, after []byte, size int) (elements []int64) {
	const stretch = 512
	for first := 0; first < len(after); first += stretch {
		end := min(first+stretch, len(after))
		if bytes.Equal(before[first:end], after[first:end]) {
			continue
		}
		for at := first; at < end; at += size {
			if !bytes.Equal(before[at:at+size], after[at:at+size]) {
				elements = append(elements, int64(at/size))
			}
		}
		copy(before[first:end], after[first:end])
	}
	return elements
}

func (s *shown) observe(observer func(tasks, task int64, run func())) {
	threads.Observer.Store(&observer)
	defer threads.Observer.Store(nil)
	require.NoError(s.t, s.plan.RunOrdered(0, tensor.Tensor{}, s.args))
}

// blocksOfElements numbers the block of the picture that each element of the work lies in.
func (s *shown) blocksOfElements(divisions []launch.Division) (owner []int, blocks int) {
	owner = make([]int, s.rows*s.columns)
	first := int64(0) // column of the division
	for _, d := range divisions {
		size := d.Groups * d.Rows * d.Columns
		each := int64(1) // elements of a column: those of a token
		if s.rows*s.columns%size == 0 && len(divisions) == 1 {
			each = s.rows * s.columns / size
		}
		across, down := ceil(d.Columns, d.BlockColumns), ceil(d.Rows, d.BlockRows)
		for k := range size * each {
			column := k / each % d.Columns
			row := k / each / d.Columns % d.Rows
			group := k / each / d.Columns / d.Rows
			block := blocks + 1 + int((group*down+row/d.BlockRows)*across+column/d.BlockColumns)
			at := k
			switch {
			case d.GroupUnit == "tokens": // columns are pairs of adjacent elements
				at = row*s.columns + 2*(group*d.Columns+column) + k%2
			case strings.HasPrefix(d.RowUnit, "splits of"):
				at = row%s.rows*s.columns + first + row/s.rows*d.Columns + column
			case len(divisions) > 1:
				at = row*s.columns + first + column
			}
			owner[at] = block
		}
		first += d.Rows * d.Columns / s.rows
		blocks += int(d.Blocks)
	}
	return owner, blocks
}

func ceil(n, d int64) int64 { return (n + d - 1) / d }

// mirrored turns the columns around: gradients of scans run from the end of a row.
func (s *shown) mirrored(owner []int) []int {
	turned := slices.Clone(owner)
	for row := range s.rows {
		slices.Reverse(turned[row*s.columns : (row+1)*s.columns])
	}
	return turned
}

// difference says where two numberings of the elements do not divide them alike; "" if they do.
func (s *shown) difference(tasks, blocks []int) string {
	of, back := map[int]int{}, map[int]int{}
	for i, task := range tasks {
		block := blocks[i]
		if of[task] == 0 && back[block] == 0 {
			of[task], back[block] = block, task
		}
		if task == 0 || of[task] != block || back[block] != task {
			return fmt.Sprintf("row %d, column %d: written by task %d, shown in block %d", int64(i)/s.columns, int64(i)%s.columns, task, block)
		}
	}
	return ""
}

// The tasks of a run write what the blocks of the picture hold, for any number of threads.
func TestDivisionsAreThoseOfARunOnTheCPU(t *testing.T) {
	before := threads.Number()
	defer threads.Set(before)
	for _, descriptor := range ranOnTheCPU {
		t.Run(descriptor, func(t *testing.T) {
			numbers := []int{1, 2}
			if coretest.RaceDetector { // which looks for threads at all
				numbers = numbers[1:]
			}
			for _, n := range numbers {
				threads.Set(n)
				s := newShown(t, descriptor)
				f := factsOf(t, s.plan)
				require.NotEmpty(t, f.Tasks)
				tasks, wrote := s.tasksOfElements()
				owner, blocks := s.blocksOfElements(f.Tasks)
				require.Equal(t, blocks, wrote, "tasks")
				difference := s.difference(tasks, owner)
				if difference != "" && s.difference(s.mirrored(tasks), owner) == "" && strings.HasPrefix(descriptor, `{"family": "scan`) {
					difference = ""
				}
				require.Empty(t, difference)
			}
		})
	}
}
