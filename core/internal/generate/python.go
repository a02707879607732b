package main

import (
	"fmt"
	"strings"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/ops/scan"
)

const choicesHead = `"""The names that fields of descriptors take: as types, and by family and field.

core/internal/generate writes this file from the tables of the Go core: run ` + "``make generate``" + `.
"""

from __future__ import annotations

from typing import Literal, get_args

from ._kinds import ScanKind

`

// typeOfField is the type in Python of the names that a field takes.
var typeOfField = map[string]string{
	"kind": "ScanKind", "tie": "Tie", "mode": "BagMode",
	"pairing": "Pairing", "angle": "Angle", "layout": "Layout",
	"dtype": "FloatName", "scale_dtype": "FloatName", "qdtype": "QuantizedName",
	"index_dtype": "IndexName", "offset_dtype": "IndexName",
}

// choicesModule is the content of _choices.py. Python refuses any other name where a descriptor is
// made, without loading the native library.
func choicesModule() string {
	var types, table strings.Builder
	written := map[string]string{"ScanKind": tuple(scan.BackwardFamily.KindNames())}
	for _, family := range core.Families() {
		fmt.Fprintf(&table, "    %q: {\n", family.Name)
		choices := family.Choices
		if kinds := family.KindNames(); kinds != nil {
			choices = append([]core.Choice{{Field: "kind", Names: kinds}}, choices...)
		}
		for _, choice := range choices {
			name, names := typeOfField[choice.Field], tuple(choice.Names)
			if _, exists := written[name]; !exists {
				written[name] = names
				fmt.Fprintf(&types, "%s = Literal[%s]\n", name, strings.Trim(names, "()"))
			}
			if name == "" || written[name] != names {
				panic(fmt.Sprintf("field %s of %s takes %s, and its type %q %s", choice.Field, family.Name, names, name, written[name]))
			}
			fmt.Fprintf(&table, "        %q: get_args(%s),\n", choice.Field, name)
		}
		table.WriteString("    },\n")
	}
	return choicesHead + types.String() + "\nCHOICES: dict[str, dict[str, tuple[str, ...]]] = {\n" + table.String() + "}\n"
}

const kindsHead = `"""The scans: their operands and the sizes of their carries.

core/internal/generate writes this file from the tables of the Go core: run ` + "``make generate``" + `.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

ScanKind = Literal[%s]


class Kind(NamedTuple):
    """A scan with its gradient."""

    name: ScanKind
    operands: tuple[str, ...]
    """Of the gradient, beside dy. Of several, a call has exactly one."""
    carry_size: int
    """Numbers of the carry of a row."""
    gradient_carry_size: int
    """Numbers of the carry of a row in the gradient."""
    gradient_carry_size_float64: int

    @property
    def has_indices(self) -> bool:
        """Whether the scan returns indices, by which its gradient can be computed."""
        return "indices" in self.operands


KINDS = {
    kind.name: kind
    for kind in (
`

// kindsModule is the content of _kinds.py.
func kindsModule() string {
	var text strings.Builder
	fmt.Fprintf(&text, kindsHead, strings.Trim(tuple(scan.BackwardFamily.KindNames()), "()"))
	var withKernels []string
	for _, kind := range scan.Kinds {
		if !kind.IsMinimum {
			withKernels = append(withKernels, kind.Name)
		}
		var operands []string
		if kind.ReadsX {
			operands = append(operands, "x")
		}
		if kind.ReadsIndices {
			operands = append(operands, "indices")
		}
		fmt.Fprintf(&text, "        Kind(%q, %s, %d, %d, %d),\n", kind.Name, tuple(operands), kind.CarrySize, kind.GradientCarrySize, kind.GradientCarrySizeFloat64)
	}
	text.WriteString("    )\n}\n\"\"\"By name, in the order of the documents.\"\"\"\n\nEXTREMA = tuple(name for name, kind in KINDS.items() if kind.has_indices)\n\"\"\"The scans that return indices beside values.\"\"\"\n")
	fmt.Fprintf(&text, "\nWITH_KERNELS: tuple[ScanKind, ...] = %s\n\"\"\"The scans that have CUDA kernels of their own.\"\"\"\n", tuple(withKernels))
	return text.String()
}

// tuple is a tuple of Python.
func tuple(names []string) string {
	switch len(names) {
	case 0:
		return "()"
	case 1:
		return fmt.Sprintf("(%q,)", names[0])
	}
	return `("` + strings.Join(names, `", "`) + `")`
}
