// Package failcuda puts tools/failcuda, a libcuda that makes calls fail at random, in
// front of another libcuda, for tests:
//
//	fail := failcuda.New(t, failcuda.Options{Real: fakecuda.Build(t)})
//	d, err := cuda.Load(fail.Path)
//	fail.SetRate(100) // of 10,000
package failcuda

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Options is how a Library is made.
type Options struct {
	Real  string   // the path of the real library; empty: the machine's
	Seed  uint64   // of the random numbers
	Kinds []string // the calls that may fail; nil: the library's default
}

// Library is a libcuda in which nothing fails yet. It takes its options from
// the environment when it is loaded, so load it before the next is made.
type Library struct {
	Path    string
	tb      testing.TB
	control *os.File
}

// New makes a library for this test. It copies the one that VMM_FAIL_LIBRARY names,
// as tools/gpu-test does, or compiles one; without a compiler it skips the test.
func New(tb testing.TB, o Options) *Library {
	tb.Helper()
	if runtime.GOOS != "linux" {
		tb.Skip("the failing driver is for Linux")
	}
	dir := tb.TempDir()
	l := &Library{Path: filepath.Join(dir, "libcuda.so.1"), tb: tb}
	compiled, err := compiled()
	if err == nil {
		err = os.WriteFile(l.Path, compiled, 0o700)
	}
	if err == nil {
		// Written in full, so that the library finds a rate.
		l.control, err = os.OpenFile(filepath.Join(dir, "control"), os.O_RDWR|os.O_CREATE, 0o600)
	}
	if err == nil {
		_, err = l.control.Write(make([]byte, controlSize))
	}
	if err != nil {
		tb.Fatalf("make the failing driver: %v", err)
	}
	tb.Cleanup(func() { _ = l.control.Close() })
	for name, value := range map[string]string{
		"FAILCUDA_REAL":    o.Real,
		"FAILCUDA_SEED":    strconv.FormatUint(o.Seed, 10),
		"FAILCUDA_KINDS":   strings.Join(o.Kinds, ","),
		"FAILCUDA_CONTROL": l.control.Name(),
	} {
		tb.Setenv(name, value)
	}
	return l
}

// The layout of the control file; see struct control.
const (
	controlSize = 24
	callsAt     = 8
	failedAt    = 16
)

// SetRate makes n of 10,000 calls fail from now on.
func (l *Library) SetRate(n uint32) {
	l.tb.Helper()
	if _, err := l.control.WriteAt(binary.NativeEndian.AppendUint32(nil, n), 0); err != nil {
		l.tb.Fatalf("set the rate of failures: %v", err)
	}
}

// Calls is how many calls there were of the kinds that may fail, and how many
// failed.
func (l *Library) Calls() (all, failed uint64) {
	l.tb.Helper()
	var b [controlSize]byte
	if _, err := l.control.ReadAt(b[:], 0); err != nil {
		l.tb.Fatalf("read the counts of calls: %v", err)
	}
	return binary.NativeEndian.Uint64(b[callsAt:]), binary.NativeEndian.Uint64(b[failedAt:])
}

var compiled = sync.OnceValues(func() ([]byte, error) {
	if path := os.Getenv("VMM_FAIL_LIBRARY"); path != "" {
		return os.ReadFile(path)
	}
	dir, err := os.MkdirTemp("", "failcuda")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a leftover in the folder for leftovers
	root, err := root()
	if err != nil {
		return nil, err
	}
	// The test cache knows which files this process looks at, not which the script
	// and the compiler read.
	for _, file := range []string{"tools/failcuda/build", "tools/failcuda/failcuda.c", "cgo/cuda/abi.h", "cgo/cuda/symbols.h"} {
		if _, err := os.Stat(filepath.Join(root, file)); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(dir, "libcuda.so.1")
	if text, err := exec.Command(filepath.Join(root, "tools", "failcuda", "build"), path).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, text)
	}
	return os.ReadFile(path)
})

// root is the module's folder. A test runs in its package's folder.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "tools", "failcuda")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the module's sources: %w", os.ErrNotExist)
}
