package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sternway/sternway/core/internal/ops/elementwise"
)

// elementTuning are the types that are only stored, and the numbers that the functors of element
// operations inherit: how many operands they have, and the vectors that a thread loads before it
// uses the first.
func elementTuning() string {
	var b strings.Builder
	b.WriteString(cudaStoredDTypes())
	byName := slices.SortedFunc(slices.Values(elementwise.Ops), func(a, b *elementwise.Op) int {
		return strings.Compare(a.Kernels[0].Name, b.Kernels[0].Name)
	})
	for _, op := range byName {
		for _, set := range op.Kernels {
			numbers := []string{fmt.Sprintf("IN = %d", len(set.In)), fmt.Sprintf("OUT = %d", len(set.Out)), fmt.Sprintf("MAX_VECTOR = %d", op.MaxVector())}
			for _, unroll := range []struct {
				kernel  string
				vectors int64
			}{{"MAP", set.Unroll.Mapped}, {"ROWS", set.Unroll.Rows}, {"COLUMNS", set.Unroll.Columns}, {"SHORT", set.Unroll.Short}} {
				if unroll.vectors > 0 {
					numbers = append(numbers, fmt.Sprintf("%s_UNROLL = %d", unroll.kernel, unroll.vectors))
				}
			}
			fmt.Fprintf(&b, "\nstruct %sTuning {\n    static constexpr int %s;\n    static constexpr bool BY_COLUMN = %t;\n};\n", camel(set.Name), strings.Join(numbers, ", "), op.IsByColumn())
		}
	}
	return b.String()
}

// camel is lerp_backward as LerpBackward.
func camel(name string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}
