// Package fakenvrtc builds a libnvrtc that compiles nothing, for tests of the binding:
// which calls it makes, what each error leads to, and what it frees. A source "fails" at
// a line that begins with #error, or that includes a header which was not given. The
// image of any other has a sum of all that a compiler would look at.
//
// The library is C, in lib. A test opens it as the binding opens NVIDIA's, and controls
// it through [Library].
//
//	path := fakenvrtc.Build(t)
//	fake := fakenvrtc.Open(t, path)
//	c, err := nvrtc.Open(path)
//	fake.Fail("nvrtcGetPTX", 1, 11)
package fakenvrtc

import (
	"testing"

	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
)

var source = fakelib.Source{Name: "fakenvrtc", Binding: "nvrtc", File: "libnvrtc.so.13"}

// Library is a loaded fake compiler.
type Library struct{ *fakelib.Library }

// Missing leaves symbols out, like "nvrtcGetCUBIN".
func Missing(symbols ...string) fakelib.Change { return fakelib.Missing(symbols...) }

// Version sets the version, which is 12.4 otherwise.
func Version(major, minor int) []fakelib.Change {
	return []fakelib.Change{fakelib.Set("major", major), fakelib.Set("minor", minor)}
}

// Build returns the path of a fake compiler with these changes. Each call makes a new file, which
// is a library of its own when it is loaded. Without a C compiler the test is skipped.
func Build(tb testing.TB, changes ...fakelib.Change) string {
	tb.Helper()
	return source.Build(tb, changes...)
}

// Open loads the library at path until the test ends. The binding, opening the same
// path, gets the same library. In a build that can load none the test is skipped.
func Open(tb testing.TB, path string) *Library {
	tb.Helper()
	return &Library{fakelib.Open(tb, path)}
}

// Clean fails the test if a rule was violated or a program was not destroyed.
func (l *Library) Clean() {
	l.TB().Helper()
	l.NoViolations()
	if n := l.Live(); n != 0 {
		l.TB().Errorf("%d programs are not destroyed", n)
	}
}
