package main

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
)

// scanTuning are the tuned numbers that the kernels of scans are compiled with.
func scanTuning() string {
	var b strings.Builder
	b.WriteString("\n// Tuned numbers of the kernels of each kind. Tables have entries for elements of 2, 4\n// and 8 bytes: the index is sizeof(T) / 4.\n")
	for i, kind := range gpu.Kinds {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "struct %sTuning {\n", kind.Name)
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
			fmt.Fprintf(&b, "    static constexpr %s %s[] = {%v, %v, %v};\n", cType, strings.ToUpper(snake(field.Name)), n.Index(0), n.Index(1), n.Index(2))
		}
		if packed := gpu.Packed[kind]; packed != nil {
			bytes := packed.StateBytes()
			fmt.Fprintf(&b, "    // of packed sequences: a prefix and a suffix, with accumulators of 4 and of 8 bytes [bytes]\n"+
				"    static constexpr int PACKED_STATE_BYTES[2][2] = {{%d, %d}, {%d, %d}};\n", bytes[0][0], bytes[0][1], bytes[1][0], bytes[1][1])
		}
		b.WriteString("};\n")
	}
	return b.String()
}
