package core

import "fmt"

// prepareCUDA chooses the kernel for a GPU.
func (s *scanProgram) prepareCUDA(Preference) (program, error) {
	return nil, refuse(Unsupported, scan.op(s.kind), "device", "cpu", "cuda", "")
}

// geometry is the shape of the work in words.
func (s *scanProgram) geometry() string {
	rows, _ := product(s.shape)
	return fmt.Sprintf("%s, %d rows of %d", s.variant, rows/max(1, s.length()), s.length())
}

func (s *scanProgram) workspace() int64                       { return 0 }
func (s *scanProgram) symbols() []symbol                      { return nil }
func (s *scanProgram) device([]Tensor, uintptr, *queue) error { return nil }
