// Package core is the public Go API of sternway, a library of backward operations. It checks their
// operands, runs them on the CPU and launches their CUDA kernels; it does not depend on Python.
//
// Every operation is used in the same way: describe the problem, select a plan, run it any number
// of times.
//
//	plan, err := core.Select(descriptor, core.CUDA(0), core.Preference{})
//	err = plan.Run(stream, workspace, core.Args{"dy": dy, "dx": dx})
//
// Select may be slow: it checks the descriptor, selects a kernel and loads it. Run checks the
// operands, launches and returns; it allocates no device memory, never synchronizes with the
// device, and can be captured in a CUDA graph. Outputs are written completely, and the same call
// gives the same bits on the same hardware.
//
// A family is a group of operations that share a descriptor, a kind is one operation of a family,
// and a kernel is one of the variants that compute a kind. A plan's SKU names the kernel for
// contiguous operands; a scan on a GPU selects again in each run, by the layout of the operands.
// Errors are of type *[Error] and work with errors.As and errors.Is.
//
// The package holds plans, operand checks, the two backends and the JSON interface for Python. The
// rest is in packages below it, and imports go down only:
//
//   - internal/ops/elementwise, embedding, rope and scan are the operations, one package for each
//     engine.
//   - internal/ops is the table of families, with descriptors, problems and programs.
//   - internal/cpu holds what the CPU code of all operations shares, and internal/launch what their
//     CUDA launches share.
//   - internal/tensor describes operands; internal/errs, internal/num and internal/threads depend
//     on no other package.
//   - driver opens libcuda.
package core
