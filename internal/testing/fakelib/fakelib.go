// Package fakelib builds and controls the fake libraries with which the bindings are tested:
// fakecuda, fakenvrtc and fakenccl. Each is C that exports the symbols of NVIDIA's library,
// and beside them control functions named fake_..., of which all have reset, fail, calls and
// violations. A test opens it as the binding does, and controls it through [Library].
package fakelib

import (
	"debug/elf"
	"errors"
	"strings"
	"testing"
)

// Exports is what the library at path exports, without its control functions.
func Exports(tb testing.TB, path string) (library, control []string) {
	tb.Helper()
	file, err := elf.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		tb.Fatal(err)
	}
	for _, s := range symbols {
		switch {
		case s.Section == elf.SHN_UNDEF:
		case strings.HasPrefix(s.Name, "fake_"):
			control = append(control, s.Name)
		default:
			library = append(library, s.Name)
		}
	}
	return library, control
}

// Library is a loaded fake library.
type Library struct {
	control
	tb testing.TB
}

// Open loads the library at path until the test ends. The binding, opening the same path,
// gets the same library. In a build that can load none the test is skipped.
func Open(tb testing.TB, path string) *Library {
	tb.Helper()
	c, err := openControl(path)
	if errors.Is(err, errors.ErrUnsupported) {
		tb.Skipf("cannot open %s: %v", path, err)
	} else if err != nil {
		tb.Fatalf("open %s: %v", path, err)
	}
	tb.Cleanup(func() {
		if err := c.close(); err != nil {
			tb.Errorf("close %s: %v", path, err)
		}
	})
	return &Library{control: c, tb: tb}
}

// TB is the test that has opened the library.
func (l *Library) TB() testing.TB { return l.tb }

// Fail makes the k-th call from now of symbol return code and do nothing else. In fakecuda an
// empty symbol is any.
func (l *Library) Fail(symbol string, k, code int) {
	l.tb.Helper()
	if err := l.TryFail(symbol, k, code); err != nil {
		l.tb.Fatal(err)
	}
}

// NoViolations fails the test if there are Violations.
func (l *Library) NoViolations() {
	l.tb.Helper()
	if v := l.Violations(); v != "" {
		l.tb.Errorf("violations:\n%s", v)
	}
}
