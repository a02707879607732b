// Package operand numbers the operands of a scan in the order of its descriptor.
package operand

// Positions of the operands of a gradient in the arguments of a run.
const (
	Dy = iota
	X
	Indices
	Dx
)

// Positions of the operands of a forward scan.
const (
	Input = iota
	Y
	Winners // the indices of cummax and cummin
)
