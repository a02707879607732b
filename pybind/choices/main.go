//go:generate go run . ../../python/sternway/_choices.py

// Choices writes python/sternway/_choices.py: the names that fields of descriptors take. Python
// refuses any other name where a descriptor is made, without loading the native library.
package main

import (
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/sternway/sternway/core"
)

const head = `"""The names that fields of descriptors take, by family and field.

pybind/choices writes this file from the tables of the Go core: run ` + "``make generate``" + `.
"""

CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
`

func main() {
	if err := os.WriteFile(os.Args[1], []byte(module()), 0o644); err != nil {
		log.Fatal(err)
	}
}

// module is the content of _choices.py.
func module() string {
	var text strings.Builder
	text.WriteString(head)
	for _, family := range core.Families() {
		fmt.Fprintf(&text, "    %q: {\n", family.Name)
		choices := family.Choices
		if kinds := family.KindNames(); kinds != nil {
			choices = append([]core.Choice{{Field: "kind", Names: kinds}}, choices...)
		}
		for _, choice := range choices {
			fmt.Fprintf(&text, "        %q: (\"%s\"),\n", choice.Field, strings.Join(choice.Names, `", "`))
		}
		text.WriteString("    },\n")
	}
	text.WriteString("}\n")
	return text.String()
}
