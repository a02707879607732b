//go:build sternway_ext

// Command library is linked into the Python extension module sternway._native.
//
// It has no C of its own, so that go takes the C of all other packages from its build cache: a
// c-shared build of a main package with cgo compiles the C of every package again each time.
package main

import _ "github.com/sternway/sternway/pybind/native" // the functions of the module

func main() {}
