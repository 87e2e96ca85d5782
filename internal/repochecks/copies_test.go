package repochecks

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// copies is a package that copies what must not be copied, one type a function, and a
// Layout, which may be.
const copies = `package copies

import (
	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

func Range(x *vmm.Range) any                       { y := *x; return &y }
func Reservation(x *vmm.Reservation) any           { y := *x; return &y }
func Device(x *vmm.Device) any                     { y := *x; return &y }
func Vector(x *growable.Vector[float32]) any       { y := *x; return &y }
func Rows(x *growable.Rows[float32]) any           { y := *x; return &y }
func Reader(x *growable.Reader[float32]) any       { y := *x; return &y }
func RowsReader(x *growable.RowsReader[float32]) any { y := *x; return &y }
func Writer(x *growable.Writer[float32]) any       { y := *x; return &y }
func View(x *shareable.View) any                   { y := *x; return &y }
func Publication(x *shareable.Publication) any     { y := *x; return &y }
func Server(x *shareable.Server) any               { y := *x; return &y }
func Layout(x *vmm.Layout) any                     { y := *x; return &y }
`

// TestVetFindsCopies: in a module of a user's, go vet finds each of these copies. A copy
// would share memory with the original, and close it.
func TestVetFindsCopies(t *testing.T) {
	testgate.Long(t)
	out := readersModule(t).vetOfWrong
	var want, got []string
	for _, name := range regexp.MustCompile(`(?m)^func (\w+)\(x `).FindAllStringSubmatch(copies, -1) {
		if name[1] != "Layout" {
			want = append(want, name[1])
		}
	}
	for _, found := range regexp.MustCompile(`copies lock value to y: [\w./]+/\w+\.(\w+)`).FindAllStringSubmatch(out, -1) {
		got = append(got, found[1])
	}
	require.Equal(t, want, got, out)
}
