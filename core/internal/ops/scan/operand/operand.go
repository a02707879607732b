// Package operand numbers the operands of a scan in the order of its descriptor.
package operand

// Positions of the operands in the arguments of a run.
const (
	Dy = iota
	X
	Indices
	Dx
)
