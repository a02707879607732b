package ops

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Scalar is a float64 whose JSON form also carries NaN and infinities, as the strings "nan", "inf"
// and "-inf".
type Scalar float64

// MarshalJSON writes a number, or one of the three strings.
func (s Scalar) MarshalJSON() ([]byte, error) {
	if v := float64(s); math.IsNaN(v) || math.IsInf(v, 0) {
		text := strconv.FormatFloat(v, 'g', -1, 64)
		return json.Marshal(map[string]string{"NaN": "nan", "+Inf": "inf", "-Inf": "-inf"}[text])
	}
	return json.Marshal(float64(s))
}

// UnmarshalJSON reads a number, or one of the three strings.
func (s *Scalar) UnmarshalJSON(text []byte) error {
	var word string
	if json.Unmarshal(text, &word) == nil {
		v, known := map[string]float64{"nan": math.NaN(), "inf": math.Inf(1), "-inf": math.Inf(-1)}[word]
		if !known {
			return fmt.Errorf("%q is not a number", errs.Clip(word))
		}
		*s = Scalar(v)
		return nil
	}
	return json.Unmarshal(text, (*float64)(s))
}

// CheckShape refuses a shape of too high a rank, with a negative extent or with too many elements.
func CheckShape(op, field string, shape []int64) error {
	if len(shape) > tensor.MaxRank {
		return errs.New(errs.Unsupported, op, field, fmt.Sprintf("of rank 0 to %d", tensor.MaxRank), fmt.Sprint("rank ", len(shape)), "")
	}
	for _, n := range shape {
		if n < 0 {
			return errs.New(errs.InvalidProblem, op, field, "made of extents that are not negative", tensor.ShapeText(shape), "")
		}
	}
	if n, ok := tensor.Product(shape); !ok || n > math.MaxInt64/64 { // so that no number of bytes overflows
		return errs.New(errs.InvalidProblem, op, field, "of at most 2^57 elements", tensor.ShapeText(shape), "")
	}
	return nil
}

// Choice is a field of a descriptor that takes one of some names.
type Choice struct {
	Field string
	Names []string
}

// Words is the choice of a word.
func Words(field string, names ...string) Choice { return Choice{field, names} }

// DTypes is the choice of a dtype.
func DTypes(field string, dtypes []tensor.DType) Choice {
	names := make([]string, len(dtypes))
	for i, d := range dtypes {
		names[i] = d.String()
	}
	return Choice{field, names}
}

// CheckElement refuses a dtype that is not in the allowed list.
func CheckElement(op, field string, d tensor.DType, allowed []tensor.DType) error {
	if !slices.Contains(allowed, d) {
		return errs.New(errs.Unsupported, op, field, tensor.OneOf(allowed), d.String(), "")
	}
	return nil
}

// CheckBroadcast refuses a shape that does not broadcast to another.
func CheckBroadcast(op, field string, shape, to []int64) error {
	if err := CheckShape(op, field, shape); err != nil {
		return err
	}
	lead := len(to) - len(shape)
	for d := range shape {
		if lead < 0 || shape[d] != 1 && shape[d] != to[lead+d] {
			return errs.New(errs.InvalidProblem, op, field, "a shape that broadcasts to "+tensor.ShapeText(to), tensor.ShapeText(shape), "")
		}
	}
	if lead < 0 {
		return errs.New(errs.InvalidProblem, op, field, "a shape that broadcasts to "+tensor.ShapeText(to), tensor.ShapeText(shape), "")
	}
	return nil
}

// FirstError is the first error that is not nil, or nil.
func FirstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// CheckCounts refuses counts of 2^31 - 1 and more: kernels index rows, bags and positions with
// 32-bit integers.
func CheckCounts(op string, fields []string, counts ...int64) error {
	for i, n := range counts {
		if n >= math.MaxInt32 {
			return errs.New(errs.Unsupported, op, fields[i], fmt.Sprintf("less than %d on a GPU", math.MaxInt32), fmt.Sprint(n), "the CPU has no such limit")
		}
	}
	return nil
}

// CheckPadding refuses a padding_idx outside of [-rows, rows).
func CheckPadding(op string, p *int64, rows int64) error {
	if p != nil && (*p < -rows || *p >= rows) {
		return errs.New(errs.InvalidProblem, op, "padding_idx", fmt.Sprintf("in [%d, %d)", -rows, rows), fmt.Sprint(*p), "")
	}
	return nil
}

// PaddingRow is padding_idx as a row number that is not negative; -1 if there is no padding_idx.
func PaddingRow(p *int64, rows int64) int64 {
	switch {
	case p == nil:
		return -1
	case *p < 0:
		return *p + rows
	}
	return *p
}

// IndexOutOfRange is the error for an index outside of [0, rows), found at a place of an operand.
func IndexOutOfRange(op, operand, place string, value, rows int64) *errs.Error {
	return errs.New(errs.InvalidProblem, op, operand, fmt.Sprintf("in [0, %d), the rows of the table", rows), fmt.Sprintf("%d at %s", value, place), "")
}

// Preference steers Select. The zero value accepts any workspace and any kernel.
type Preference struct {
	Nondeterministic bool   // for compatibility, without effect: every kernel is deterministic
	MaxWorkspace     *int64 // bytes; nil: no limit
	Kernel           string // one variant by name, for tests and tuning; empty: Select chooses
}

// AnyExtent in Operand.Shapes accepts any extent.
const AnyExtent = -1
