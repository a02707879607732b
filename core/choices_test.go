package core_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
)

// TestChoices compares the names that a family lists for a field with the names in the error for
// another name. It alone finds a list beside the check that it describes.
func TestChoices(t *testing.T) {
	sampled := map[string]bool{}
	for _, sample := range coretest.Samples() {
		family := ops.ByName[sample.Family()]
		sampled[family.Name] = true
		d := coretest.WithDType(sample, coretest.ElementsOf(sample)[0])
		choices := family.Choices
		if kinds := family.KindNames(); kinds != nil {
			choices = append([]ops.Choice{ops.Words("kind", kinds...)}, choices...)
		}
		for _, choice := range choices {
			text, err := json.Marshal(d)
			require.NoError(t, err)
			fields := map[string]any{}
			require.NoError(t, json.Unmarshal(text, &fields))
			fields["family"], fields[choice.Field] = family.Name, "bool" // a dtype that no field takes
			text, err = json.Marshal(fields)
			require.NoError(t, err)
			wrong, err := core.ParseDescriptor(string(text))
			require.NoError(t, err)
			_, err = wrong.Problem()
			var refusal *errs.Error
			require.True(t, errors.As(err, &refusal), "%s: %s", family.Name, choice.Field)
			require.Equal(t, errs.Unsupported, refusal.Kind)
			require.Equal(t, choice.Field, refusal.Operand)
			if choice.Field != "scale_dtype" { // whose names depend on dtype
				require.Equal(t, errs.OrList(choice.Names), refusal.Wanted)
			}
		}
	}
	require.Len(t, sampled, len(core.Families()))
}
