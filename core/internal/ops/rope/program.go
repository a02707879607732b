package rope

import (
	"fmt"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Program is a compiled problem.
type Program struct {
	*problem
	numSMs      int         // multiprocessors
	pairs       int64       // RotaryDim / 2
	Frequency   []float64   // radians per position, by pair
	fastest     float64     // largest frequency
	Frequencies Frequencies // of CUDA kernels
}

func (d *problem) compile(numSMs int, preference ops.Preference) (*Program, error) {
	if k := preference.Kernel; k != "" && k != d.Pairing {
		return nil, errs.New(errs.Unsupported, d.family.Name, "preference.kernel", fmt.Sprintf("%q for this problem", d.Pairing), fmt.Sprintf("%q", k), "")
	}
	p := &Program{problem: d, numSMs: numSMs, pairs: *d.RotaryDim / 2}
	list := Powers(float64(*d.Base), p.pairs)
	p.Frequency = make([]float64, len(list))
	for i, f := range list {
		p.Frequency[i] = f.High
		p.fastest = max(p.fastest, f.High)
	}
	p.Frequencies = frequenciesOf(list)
	return p, nil
}

// Kernel implements ops.Program.
func (p *Program) Kernel() string { return p.Pairing }

// Workspace implements ops.Program.
func (p *Program) Workspace() int64 { return 0 }

// Symbols implements ops.Program.
func (p *Program) Symbols() (list []launch.Symbol) {
	for _, kernel := range []string{"", "_tables", "_tokens"} {
		list = append(list, launch.Symbol{Image: p.family.Image, Name: backward.Name + "_" + p.Pairing + kernel + "_" + p.DType.Suffix()})
	}
	return list
}

// InPlace allows an output to be its input: each pair is read by the thread that writes it.
func (p *Program) InPlace(args []tensor.Tensor, o int) bool {
	own, other := X, xK
	if o == len(args)-1 && p.NumKeyHeads != nil {
		own, other = other, own
	}
	return args[o].Same(&args[own]) && !(p.NumKeyHeads != nil && args[o].Same(&args[other]))
}

// hasTables reports whether angles come from the operands cos and sin.
func (p *Program) hasTables(args []tensor.Tensor) bool { return args[Cos].Given() }
