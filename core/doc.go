// Package core knows what the backward operations of sternway mean. It checks them, runs them on the CPU and drives their CUDA
// kernels; it knows nothing of Python.
//
// Every operation is used in the same way: describe the problem, select a plan, run it as often as you like.
//
//	plan, err := core.Select(descriptor, core.CUDA(0), core.Preference{})
//	err = plan.Run(stream, workspace, core.Args{"dy": dy, "dx": dx})
//
// Select may be slow: it checks the descriptor, chooses a kernel and loads it. Run checks the operands, launches and returns; it
// allocates nothing on the device, never waits for it, and can be captured in a CUDA graph. Outputs are written completely, and
// the same call gives the same bits on the same hardware.
//
// A family is the operations that share a descriptor, a kind is one of them, a kernel is a variant that Select chooses from.
// Errors are of type *[Error] and work with errors.As and errors.Is.
package core
