// Package fakenccl builds a libnccl for members in one process, for tests of the binding and
// of what is made of it: which calls are made, what each error leads to, and what is ended.
// Memory is the process's own, and streams are only logged: an operation runs when all
// members have called it, and the calls return then, with the data there. NCCL's own streams run
// later. The binding's rules are held, too: all calls are those of a child that blocks, of a
// parent that does not.
//
// The library is C, in lib. A test opens it as the binding opens NVIDIA's, and controls
// it through [Library].
//
//	path := fakenccl.Build(t)
//	fake := fakenccl.Open(t, path)
//	l, err := nccl.Open(path)
//	fake.Fail("ncclAllReduce", 2, 3)
package fakenccl

import (
	"testing"

	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
)

var source = fakelib.Source{Name: "fakenccl", Binding: "nccl", File: "libnccl.so.2"}

// Live counts what exists in a Library: communicators, two for each member that has joined, what
// they have, and calls that wait for other members.
type Live struct{ Comms, Registrations, Windows, Waiting int }

// Library is a loaded fake NCCL.
type Library struct{ *fakelib.Library }

// Missing leaves symbols out, like "ncclCommRegister".
func Missing(symbols ...string) fakelib.Change { return fakelib.Missing(symbols...) }

// Version sets the version, which is 22809 otherwise, and leaves out what that version does not
// have.
func Version(code int) []fakelib.Change {
	changes := []fakelib.Change{fakelib.Set("version", code)}
	if code < 21900 {
		changes = append(changes, Missing("ncclCommRegister", "ncclCommDeregister"))
	}
	if code < 22700 {
		changes = append(changes, Missing("ncclCommWindowRegister", "ncclCommWindowDeregister"))
	}
	return changes
}

// Build returns the path of a fake NCCL with these changes. Each call makes a new file, which
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

// Clean fails the test if a rule was violated or something has not ended.
func (l *Library) Clean() {
	l.TB().Helper()
	l.NoViolations()
	if n := l.Live(); n != (Live{}) {
		l.TB().Errorf("not ended: %+v", n)
	}
}
