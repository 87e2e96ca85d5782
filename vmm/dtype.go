package vmm

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxDtype is how many bytes a Layout.Dtype has at most.
const MaxDtype = 4 << 10

// Field is one field of a struct element, as Layout.Dtype describes it.
type Field struct {
	Name   string // of a struct in a struct "Outer.Inner", in an array of structs "Outer[0].Inner"
	Kind   ElemKind
	Bits   int    // of one number
	Shape  []int  // of an array; empty: one number
	Offset uint64 // bytes from the start of the element
}

// dtype is the text of a Layout.Dtype: what NumPy's dtype takes.
type dtype struct {
	Names    []string `json:"names"`
	Formats  []string `json:"formats"`
	Offsets  []uint64 `json:"offsets"`
	Itemsize uint64   `json:"itemsize"`
}

// dtypeLetters are NumPy's codes of the kinds.
var dtypeLetters = map[ElemKind]string{ElemInt: "i", ElemUint: "u", ElemFloat: "f", ElemComplex: "c", ElemBool: "b"}

// DtypeOf is the Layout.Dtype of elements of size bytes with these fields. It returns ErrInvalid for
// impossible fields, and ErrLimit if the text is longer than MaxDtype.
func DtypeOf(size uint64, fields []Field) (string, error) {
	d := dtype{Itemsize: size}
	for _, f := range fields {
		d.Names, d.Offsets = append(d.Names, f.Name), append(d.Offsets, f.Offset)
		d.Formats = append(d.Formats, f.format())
	}
	var b strings.Builder
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false) // it would make six bytes of each <
	if err := to.Encode(d); err != nil {
		return "", fmt.Errorf("describe fields: %w: %w", ErrInvalid, err)
	}
	text := strings.TrimSuffix(b.String(), "\n")
	if len(text) > MaxDtype {
		return "", fmt.Errorf("describe fields: %w: a text of %d bytes, over %d", ErrLimit, len(text), MaxDtype)
	}
	if _, err := parseDtype(text, size); err != nil {
		return "", fmt.Errorf("describe fields: %w", err)
	}
	return text, nil
}

// format is the field as NumPy spells it: "<f4", "|u1", "(2,3)<i8".
func (f Field) format() string {
	var dims []string
	for _, n := range f.Shape {
		dims = append(dims, strconv.Itoa(n))
	}
	shape := ""
	switch len(dims) {
	case 0:
	case 1:
		shape = "(" + dims[0] + ",)"
	default:
		shape = "(" + strings.Join(dims, ",") + ")"
	}
	order := "<"
	if f.Bits == 8 {
		order = "|"
	}
	return shape + order + dtypeLetters[f.Kind] + strconv.Itoa(f.Bits/8)
}

// Fields returns the fields that Dtype describes, in its order; none if it is empty. It
// returns ErrInvalid if Dtype is not what growable.LayoutOf makes for elements of Size bytes.
func (l Layout) Fields() ([]Field, error) {
	if l.Dtype == "" {
		return nil, nil
	}
	if l.Kind != ElemOpaque {
		return nil, fmt.Errorf("%w: a dtype of elements of kind %v", ErrInvalid, l.Kind)
	}
	return parseDtype(l.Dtype, l.Size)
}

// parseDtype checks a text for elements of size bytes: it may come from another process.
func parseDtype(text string, size uint64) ([]Field, error) {
	bad := func(format string, args ...any) ([]Field, error) {
		return nil, fmt.Errorf("%w: dtype: "+format, append([]any{ErrInvalid}, args...)...)
	}
	var d dtype
	if len(text) > MaxDtype || !utf8.ValidString(text) {
		return bad("%d bytes, over %d or no UTF-8", len(text), MaxDtype)
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return bad("%w", err)
	}
	n := len(d.Names)
	if n == 0 || len(d.Formats) != n || len(d.Offsets) != n || d.Itemsize != size {
		return bad("%d names, %d formats and %d offsets, of %d bytes, for an element of %d", n, len(d.Formats), len(d.Offsets), d.Itemsize, size)
	}
	fields := make([]Field, n)
	for i, name := range d.Names {
		f, bytes, ok := parseFormat(d.Formats[i])
		f.Name, f.Offset = name, d.Offsets[i]
		switch {
		case !ok:
			return bad("field %q has the format %q", name, d.Formats[i])
		case name == "" || slices.Contains(d.Names[:i], name):
			return bad("field %d has the name %q", i, name)
		case bytes > size || f.Offset > size-bytes:
			return bad("field %q has %d bytes at %d, of %d", name, bytes, f.Offset, size)
		}
		fields[i] = f
	}
	return fields, nil
}

// parseFormat is the reverse of Field.format, with the size of the whole field.
func parseFormat(text string) (f Field, bytes uint64, ok bool) {
	number := text
	if i := strings.IndexByte(text, ')'); i >= 0 {
		number = text[i+1:]
		for dim := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(text[:i], "("), ","), ",") {
			n, err := strconv.Atoi(dim)
			if err != nil {
				return f, 0, false
			}
			f.Shape = append(f.Shape, n)
		}
	}
	if len(number) < 3 {
		return f, 0, false
	}
	for kind, letter := range dtypeLetters {
		if number[1:2] == letter {
			f.Kind = kind
		}
	}
	size, err := strconv.Atoi(number[2:])
	f.Bits = 8 * size
	if err != nil || f.Kind == ElemOpaque || !slices.Contains(elemBits[f.Kind], f.Bits) {
		return f, 0, false
	}
	bytes = uint64(size)
	for _, n := range f.Shape {
		over, product := bits.Mul64(bytes, uint64(n))
		if n < 1 || over != 0 {
			return f, 0, false
		}
		bytes = product
	}
	// There is one text for each field, so that texts can be compared.
	return f, bytes, f.format() == text
}

// dtypeDifference is the first field in which l is not want; both have no other difference.
func (l Layout) dtypeDifference(want Layout) string {
	is, _ := l.Fields()
	others, _ := want.Fields()
	for i := range max(len(is), len(others)) {
		if one, other := fieldText(is, i), fieldText(others, i); one != other {
			return fmt.Sprintf("%s, not %s", one, other)
		}
	}
	return fmt.Sprintf("a dtype of %q, not %q", l.Dtype, want.Dtype)
}

func fieldText(fields []Field, i int) string {
	if i >= len(fields) {
		return fmt.Sprintf("%d fields", len(fields))
	}
	return fmt.Sprintf("field %q as %s at %d", fields[i].Name, fields[i].format(), fields[i].Offset)
}
