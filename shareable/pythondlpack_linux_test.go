package shareable

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// numbered is rows of 2 by 3 float32 with padding. Row n begins with 8n, and each number is one more than
// that before it.
type numbered struct {
	*table
}

func newNumbered(t *testing.T, dev *vmm.Device) numbered {
	t.Helper()
	b := numbered{newTable(t, dev, vmm.Layout{Kind: vmm.ElemFloat, Bits: 32, Size: 4, Shape: []int{2, 3}, Pitch: 32})}
	b.growTo(5)
	return b
}

func (b numbered) growTo(n int) {
	b.t.Helper()
	var data []byte
	for v := b.n * 8; v < n*8; v++ {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
	}
	b.n = n
	require.NoError(b.t, b.r.Append(data))
}

// consumer is a run of a part of testdata/dlpack.py.
type consumer struct {
	program
	in io.WriteCloser
}

func (b numbered) consumer(options, part string, args ...string) *consumer {
	b.t.Helper()
	args = append([]string{options, "testdata/dlpack.py", part, b.s.Path(), "rows"}, args...)
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	f := &consumer{program: program{t: b.t, cmd: exec.CommandContext(ctx, "python3", args...)}}
	out, err := f.cmd.StdoutPipe()
	require.NoError(b.t, err)
	f.in, err = f.cmd.StdinPipe()
	require.NoError(b.t, err)
	f.cmd.Stderr = b.t.Output()
	f.lines = bufio.NewScanner(out)
	require.NoError(b.t, f.cmd.Start())
	b.t.Cleanup(func() {
		cancel()
		_ = f.cmd.Wait() // again, where it has ended
	})
	return f
}

// goesOn lets the program go on that waits for a line.
func (f *consumer) goesOn() {
	f.t.Helper()
	_, err := io.WriteString(f.in, "\n")
	require.NoError(f.t, err)
}

// ends reads the last line.
func (f *consumer) ends() {
	f.t.Helper()
	f.says("done")
	f.exits(0)
}

// TestPythonDLPack: structs, capsules and refusals, as a consumer that reads the structs sees them.
func TestPythonDLPack(t *testing.T) {
	t.Parallel()
	python(t, "")
	newNumbered(t, vmmtest.Device(t)).consumer("-BS", "protocol").ends()
}

// TestPythonDLPackOutlivesClose: exported memory is unmapped after its deleter was called.
func TestPythonDLPackOutlivesClose(t *testing.T) {
	t.Parallel()
	python(t, "")
	b := newNumbered(t, vmmtest.Device(t))
	f := b.consumer("-BS", "closed")
	f.says("read 37.0")
	f.ends()

	f = b.consumer("-BS", "unheld")
	f.exits(-1)
	require.Equal(t, syscall.SIGSEGV, f.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), "read without the hold")
}

// TestPythonDLPackDelaysARetirement until the deleter was called.
func TestPythonDLPackDelaysARetirement(t *testing.T) {
	t.Parallel()
	python(t, "")
	b := newNumbered(t, vmmtest.Device(t))
	f := b.consumer("-BS", "retire")
	f.says("taken")
	b.growTo(3 * 65536) // 3 chunks
	f.says("ready")
	retired := make(chan error, 1)
	go func() { retired <- b.p.Retire(context.WithoutCancel(t.Context()), 65536*32) }()
	last := fmt.Sprintf("read %d.0", (3*65536-1)*8+5)
	f.says(last)
	require.Empty(t, retired, "acknowledged below an export")
	f.goesOn()
	f.says(last)
	f.says("read 37.0 1")
	require.NoError(t, <-retired)
	f.ends()
	require.Zero(t, b.s.Stats().Violations)
}

// TestPythonDLPackDetaches: an export that is kept for too long ends the connection, and not the memory.
func TestPythonDLPackDetaches(t *testing.T) {
	t.Parallel()
	python(t, "")
	b := newNumbered(t, vmmtest.Device(t))
	f := b.consumer("-BS", "kept")
	b.growTo(3 * 65536)
	f.says("ready")
	require.NoError(t, b.p.Retire(t.Context(), 65536*32))
	f.says("an export keeps bytes after 2097152, which the owner took back")
	f.says(fmt.Sprintf("read %d.0 65536 65536", (3*65536-1)*8+5))
	f.ends()
}

// TestPythonDLPackLibraries: from_dlpack of a library makes no copy.
func TestPythonDLPackLibraries(t *testing.T) {
	testgate.Long(t)
	t.Parallel()
	for _, d := range vmmtest.Drivers() {
		libraries := []string{"numpy", "torch", "jax"}
		if d.Name == "cuda" {
			libraries = []string{"torch", "cupy", "jax"}
		}
		for _, library := range libraries {
			t.Run(d.Name+library, func(t *testing.T) {
				dev := d.Device(t)
				modules := "import " + library
				if d.Name == "cuda" {
					modules += ", cuda.bindings.driver"
				}
				python(t, modules)
				pythonLibrary(t, newNumbered(t, dev), library)
			})
		}
	}
}

func pythonLibrary(t *testing.T, b numbered, library string) {
	t.Helper()
	f := b.consumer("-B", "library", library)
	require.True(t, f.lines.Scan())
	if line := f.lines.Text(); strings.HasPrefix(line, "before DLPack 1") {
		f.ends()
		t.Skip(line)
	}
	require.Equal(t, "taken 5", f.lines.Text())
	b.growTo(70_000)
	f.goesOn()
	f.says("taken 70000")
	f.goesOn()
	f.ends()
}

// TestPythonDLPackCopies: NumPy takes a copy also if it has no DLPack 1.
func TestPythonDLPackCopies(t *testing.T) {
	testgate.Long(t)
	t.Parallel()
	python(t, "import numpy; numpy.from_dlpack")
	newNumbered(t, vmmtest.Device(t)).consumer("-B", "numpy_copy").ends()
}
