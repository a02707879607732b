//go:build sternway_ext

// Command library is the main package of the Python extension module sternway._native.
//
// It does not use cgo itself, so that go takes the C of the other packages from its build cache: a
// c-shared build of a main package with cgo compiles the C of every package again each time.
package main

import _ "github.com/sternway/sternway/pybind/native" // the functions of the module

func main() {}
