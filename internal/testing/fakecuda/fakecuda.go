package fakecuda

import (
	"os"
	"testing"

	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
)

var source = fakelib.Source{Name: "fakecuda", Binding: "cuda", File: "libcuda.so.1"}

// Live counts what exists in a Library. Its zero value is what a test sees that
// freed everything.
type Live struct {
	Handles, Reservations, Mappings int
	Contexts                        int // references to primary contexts
	Peers                           int // contexts whose plain memory another context may access
	Streams, Events                 int
	Graphs, GraphExecs, Modules     int
	Plain, Pinned                   int // pieces of memory
	Pools                           int // but the devices' default ones
	Pushed                          int // contexts on the stacks of all threads
}

// Link is what connects two devices of a Library.
type Link int

// Links, as the library numbers them. All are NVLink until set otherwise.
const (
	NVLink Link = iota
	PCIe
	NoPath
)

// Library is a loaded fake driver.
type Library struct{ *fakelib.Library }

// Init makes cuInit return a code.
func Init(code int) fakelib.Change { return fakelib.Set("init", code) }

// Fabric lets memory be shared by fabric handles.
func Fabric() fakelib.Change { return fakelib.Set("fabric", 1) }

// Version is for an older driver, as cuDriverGetVersion numbers it. What that one did not have
// must not be asked of it.
func Version(n int) fakelib.Change { return fakelib.Set("version", n) }

// Node makes n the only NUMA node with memory.
func Node(n int) fakelib.Change { return fakelib.Set("node", n) }

// NUMA makes n the devices' own node. If it is less than -1, the driver does not know of such.
func NUMA(n int) fakelib.Change { return fakelib.Set("numa_id", n) }

// Missing leaves symbols out, like "cuMemMap".
func Missing(symbols ...string) fakelib.Change { return fakelib.Missing(symbols...) }

// Build returns the path of a fake driver with these changes. Each call makes a new file, which
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

// Foreign is another process, with a piece of memory, an event, and a pool with a piece of
// the same size.
type Foreign struct {
	Memory, Event [64]byte // their handles
	Pool          *os.File
	Token         [64]byte // of the pool's piece
}

// Foreign makes another process with pieces of n bytes on a device. The end of the test
// closes the pool's descriptor.
func (l *Library) Foreign(dev int, n uint64) *Foreign {
	l.TB().Helper()
	f := &Foreign{}
	fd := l.foreign(dev, n, f)
	if fd < 0 {
		l.TB().Fatal("no memory or terminal for another process")
	}
	f.Pool = os.NewFile(uintptr(fd), "pool")
	l.TB().Cleanup(func() { _ = f.Pool.Close() })
	return f
}

// Clean fails the test if a rule was violated or something was not freed.
func (l *Library) Clean() {
	l.TB().Helper()
	l.NoViolations()
	if live := l.Live(); live != (Live{}) {
		l.TB().Errorf("not freed: %+v", live)
	}
}
