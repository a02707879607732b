package main

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
)

// scanTuning are the tuned numbers that the kernels of scans are compiled with. Those of a kind of
// packed sequences are the member Packed of its general kind.
func scanTuning() string {
	var b strings.Builder
	b.WriteString("\n// Tuned numbers of the kernels of each kind. Tables have entries for elements of 2, 4\n// and 8 bytes: the index is sizeof(T) / 4.\n")
	for i, kind := range gpu.Kinds {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "struct %sTuning {\n", kind.Name)
		numbers := tunedNumbers(kind)
		for _, n := range numbers {
			fmt.Fprintf(&b, "    static constexpr %s;\n", n)
		}
		packed := gpu.Packed[kind]
		if packed == nil {
			b.WriteString("};\n")
			continue
		}
		fmt.Fprintf(&b, "\n    struct Packed;\n};\n\nstruct %sTuning::Packed : %sTuning {\n", kind.Name, kind.Name)
		for _, n := range tunedNumbers(packed) {
			if !slices.Contains(numbers, n) {
				fmt.Fprintf(&b, "    static constexpr %s;\n", n)
			}
		}
		bytes := packed.StateBytes()
		fmt.Fprintf(&b, "    // a prefix and a suffix, with accumulators of 4 and of 8 bytes [bytes]\n"+
			"    static constexpr int STATE_BYTES[2][2] = {{%d, %d}, {%d, %d}};\n", bytes[0][0], bytes[0][1], bytes[1][0], bytes[1][1])
		b.WriteString("};\n")
	}
	return b.String()
}

// tunedNumbers are C definitions of the numbers that the kernels of a kind are compiled with.
func tunedNumbers(kind *gpu.Kind) (list []string) {
	tuning := reflect.ValueOf(kind.Tuning)
	for i := range tuning.NumField() {
		field := tuning.Type().Field(i)
		if kernel := field.Tag.Get("kernel"); kernel == "" || !kind.HasKernel(kernel) {
			continue
		}
		cType := "int"
		if field.Type.Elem().Kind() == reflect.Bool {
			cType = "bool"
		}
		n := tuning.Field(i)
		list = append(list, fmt.Sprintf("%s %s[] = {%v, %v, %v}", cType, strings.ToUpper(snake(field.Name)), n.Index(0), n.Index(1), n.Index(2)))
	}
	return list
}
