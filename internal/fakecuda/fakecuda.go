// Package fakecuda builds a libcuda that needs no GPU, for tests of the binding:
// what it is called with, in which version, with which context current, and
// what becomes of every error. Streams have done their work when a call
// returns, so what it says of ordering is nothing; that is for the host driver
// and the card.
//
// The library is C, in lib. A test opens it as the binding opens NVIDIA's, and
// asks and commands it through [Library]:
//
//	path := fakecuda.Build(t)
//	fake := fakecuda.Open(t, path)
//	d, err := cuda.Open(path)
//	fake.Fail("cuMemMap", 2, 2)
package fakecuda

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cuvmm/cuvmm/cgo/fakectl"
)

// Live counts what is alive in a Library.
type Live = fakectl.Live

// Links between two devices of a Library.
const (
	NVLink = fakectl.NVLink
	PCIe   = fakectl.PCIe
	NoPath = fakectl.NoPath
)

// Library is a loaded fake driver.
type Library struct {
	*fakectl.Control
	tb testing.TB
}

// Flags of Build.
const (
	Stub      = "-DFAKE_INIT=34"   // cuInit says that this is a stub library
	Broken    = "-DFAKE_INIT=999"  // cuInit fails
	NoDevices = "-DFAKE_DEVICES=0" // cuInit finds nothing
	Fabric    = "-DFAKE_FABRIC=1"  // memory can be shared by fabric handles
)

// Missing is the flag of Build that leaves a symbol out. The symbol goes by its
// field in cgo/cuda/symbols.h: "mem_map".
func Missing(field string) string { return "-DFAKE_MISSING_" + field }

// Build compiles the fake driver and gives the library's path. Each call gives
// a file of its own, so a library of its own when it is loaded; what is
// compiled is kept for the process. It skips the test where there is no compiler.
func Build(tb testing.TB, flags ...string) string {
	tb.Helper()
	if runtime.GOOS != "linux" {
		tb.Skip("the fake driver is for Linux")
	}
	cc := compiler(tb)
	dir := root(tb)
	object := func() ([]byte, error) { return compile(cc, dir, flags) }
	cached, _ := built.LoadOrStore(strings.Join(flags, "\x00"), sync.OnceValues(object))
	library, err := cached.(func() ([]byte, error))() //nolint:forcetypeassert // nothing else is stored
	if err != nil {
		tb.Fatalf("compile the fake driver: %v", err)
	}
	path := filepath.Join(tb.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(path, library, 0o700); err != nil {
		tb.Fatal(err)
	}
	return path
}

// built holds a func() ([]byte, error) for each set of flags.
var built sync.Map

// Open loads the library at path until the test ends. It is the same library as
// the one that the binding opens at this path. It skips the test where nothing
// can be loaded.
func Open(tb testing.TB, path string) *Library {
	tb.Helper()
	c, err := fakectl.Open(path)
	if errors.Is(err, errors.ErrUnsupported) {
		tb.Skipf("cannot open the fake driver: %v", err)
	} else if err != nil {
		tb.Fatalf("open the fake driver: %v", err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("close the fake driver: %v", err)
		}
	})
	return &Library{Control: c, tb: tb}
}

// Fail makes the k-th call from now of symbol, or of any if it is empty, answer
// code and do nothing else.
func (l *Library) Fail(symbol string, k, code int) {
	l.tb.Helper()
	if err := l.Control.Fail(symbol, k, code); err != nil {
		l.tb.Fatal(err)
	}
}

// Clean fails the test if a rule was violated or something is still alive.
func (l *Library) Clean() {
	l.tb.Helper()
	if v := l.Violations(); v != "" {
		l.tb.Errorf("violations:\n%s", v)
	}
	if live := l.Live(); live != (Live{}) {
		l.tb.Errorf("still alive: %+v", live)
	}
}
