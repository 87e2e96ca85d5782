package shareable

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// python skips the test where there is no python3 that has the modules.
func python(t *testing.T, modules string) {
	t.Helper()
	err := plainPython()
	if modules != "" {
		err = runsPython(modules)
	}
	if err != nil {
		t.Skip(err)
	}
}

// plainPython asks once for all tests.
var plainPython = sync.OnceValue(func() error { return runsPython("") })

func runsPython(modules string) error {
	const least = "import sys; assert sys.version_info >= (3, 9);" // an exit would not get to the modules
	if out, err := exec.Command("python3", "-c", least+modules).CombinedOutput(); err != nil {
		return fmt.Errorf("needs python3, 3.9 at least, that runs %q: %w\n%s", modules, err, out)
	}
	return nil
}

// program is a run of examples/python/follow.py.
type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// startPython starts one by a line for the shell, in which "$@" are its arguments.
func startPython(t *testing.T, shell string, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	options := "-BS" // the standard library alone
	if slices.Contains(args, "--torch") || slices.Contains(args, "--cupy") {
		options = "-B"
	}
	args = append([]string{"-c", shell, "sh", "python3", options, "../examples/python/follow.py"}, args...)
	f := &program{t: t, cmd: exec.CommandContext(ctx, "sh", args...)}
	out, err := f.cmd.StdoutPipe()
	require.NoError(t, err)
	f.cmd.Stderr = t.Output()
	f.lines = bufio.NewScanner(out)
	require.NoError(t, f.cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = f.cmd.Wait() // again, where it has ended
	})
	return f
}

// says reads up to a line. Before it there may be lengths at which the memory
// that was mapped by then ended.
func (f *program) says(line string) {
	f.t.Helper()
	for {
		require.True(f.t, f.lines.Scan(), "the end instead of %q", line)
		if f.lines.Text() == line {
			return
		}
		require.True(f.t, strings.HasPrefix(f.lines.Text(), "length "), "%q instead of %q", f.lines.Text(), line)
	}
}

func (f *program) exits(code int) {
	f.t.Helper()
	require.False(f.t, f.lines.Scan(), "%q instead of the end", f.lines.Text())
	_ = f.cmd.Wait()
	require.Equal(f.t, code, f.cmd.ProcessState.ExitCode())
}

// table is rows of 8 float32 that a program in Python follows.
type table struct {
	t      *testing.T
	s      *Server
	p      *Publication
	r      *vmm.Range
	n, sum int
}

var tableRow = vmm.Layout{Kind: vmm.ElemFloat, Bits: 32, Size: 4, Shape: []int{8}, Pitch: 32}

func newTable(t *testing.T, dev *vmm.Device, layout vmm.Layout) *table {
	t.Helper()
	r, err := dev.NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: 128 << 20, Chunk: 2 << 20})
	require.NoError(t, err)
	s, err := Listen(dev, filepath.Join(t.TempDir(), "s"), Options{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	p, err := s.Publish("rows", r, PublishOptions{Layout: layout})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, p.Close())
		require.NoError(t, r.Close())
	})
	return &table{t: t, s: s, p: p, r: r}
}

// grow appends rows and says what the program should say of it.
func (b *table) grow(n int) string {
	b.t.Helper()
	data := make([]byte, 0, n*32)
	for range n * 8 {
		v := len(data) / 4 % 5
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
		b.sum += v
	}
	b.n += n
	require.NoError(b.t, b.r.Append(data))
	return fmt.Sprintf("length %d sum %d.0", b.n, b.sum)
}

func TestPythonFollows(t *testing.T) {
	t.Parallel()
	for _, d := range vmmtest.Drivers() {
		libraries := []string{""}
		if d.Name == "cuda" {
			libraries = []string{"torch", "cupy"}
		}
		for _, library := range libraries {
			t.Run(d.Name+library, func(t *testing.T) {
				dev := d.Device(t)
				args := []string{}
				if library == "" {
					python(t, "")
				} else {
					python(t, "import cuda.bindings.driver, "+library)
					args = append(args, "--"+library)
				}
				pythonFollows(t, newTable(t, dev, tableRow), args)
			})
		}
	}
}

func pythonFollows(t *testing.T, b *table, args []string) {
	first := b.grow(1000)
	f := startPython(t, `exec "$@"`, append(args, b.s.Path(), "rows")...)
	f.says(first)
	kept := b.sum
	f.says(b.grow(testgate.Effort(70_000, 200_000, 200_000))) // over chunks
	f.says(b.grow(testgate.Effort(70_000, 1_000_000, 1_000_000)))

	require.NoError(t, b.p.Retire(t.Context(), 1000*32))
	b.n, b.sum = 1000, kept
	f.says("retire to 65536") // one chunk
	f.says(first)
	f.says(b.grow(100_000))

	require.NoError(t, b.p.Seal(t.Context(), SealOptions{}))
	f.says("retire to 131072") // what is beyond the end goes
	f.says(fmt.Sprintf("sealed at %d", b.n))
	f.exits(0)
	require.Eventually(t, func() bool { return b.p.Readers() == 0 }, inTime, time.Millisecond)
	require.Zero(t, b.s.Stats().Violations)
}

// Every eighth byte of a row is data, the rest padding.
func TestPythonPaddedRows(t *testing.T) {
	testgate.Long(t)
	t.Parallel()
	python(t, "")
	b := newTable(t, vmmtest.Device(t), vmm.Layout{Kind: vmm.ElemFloat, Bits: 32, Size: 4, Pitch: 32})
	b.grow(4) // the first of each row: 0, 3, 1, 4
	f := startPython(t, `exec "$@"`, "--count", "1", b.s.Path(), "rows")
	f.says("length 4 sum 8.0")
	f.exits(0)
}

// TestPythonLayout: shape and strides, from which NumPy, PyTorch and CuPy make their arrays.
func TestPythonLayout(t *testing.T) {
	testgate.Long(t)
	t.Parallel()
	python(t, "")
	b := newTable(t, vmmtest.Device(t), vmm.Layout{Kind: vmm.ElemFloat, Bits: 32, Size: 4, Shape: []int{2, 3}, Pitch: 32})
	b.grow(5)
	const script = `import sys; sys.path.insert(0, "../examples/python")
from cuvmm_reader import Reader
with Reader(sys.argv[1], "rows") as r:
    while r.rows() < 5: r.step(1)
    print(*r.layout())`
	out, err := exec.CommandContext(t.Context(), "python3", "-BSc", script, b.s.Path()).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "(5, 2, 3) (32, 12, 4)\n", string(out))
}

func TestPythonTellsBytes(t *testing.T) {
	testgate.Long(t)
	t.Parallel()
	python(t, "")
	b := newTable(t, vmmtest.Device(t), vmm.Layout{})
	require.NoError(t, b.r.Append([]byte{1, 2, 250}))
	f := startPython(t, `exec "$@"`, b.s.Path(), "rows")
	f.says("length 3 sum 253")
	require.NoError(t, b.p.Close())
	f.says("deleted at 3")
	f.exits(0)
}

func TestPythonWithFewDescriptors(t *testing.T) {
	testgate.Long(t)
	t.Parallel()
	python(t, "")
	const pitch = 2 << 20 // one number in each chunk
	const rows = 50
	b := newTable(t, vmmtest.Device(t), vmm.Layout{Kind: vmm.ElemUint, Bits: 16, Size: 2, Pitch: pitch})
	data := make([]byte, rows*pitch)
	for i := range rows {
		data[i*pitch+1] = 1
	}
	require.NoError(t, b.r.Append(data))
	f := startPython(t, `ulimit -n 20; exec "$@"`, b.s.Path(), "rows")
	f.says(fmt.Sprintf("length %d sum %d", rows, rows*256))
	require.NoError(t, b.p.Close())
	f.says(fmt.Sprintf("deleted at %d", rows))
	f.exits(0)
	require.Positive(t, b.s.Stats().Resyncs)
	require.Zero(t, b.s.Stats().Violations)
}

// TestPythonOfAnotherUser: an owner that is neither this user nor root has to be named.
func TestPythonOfAnotherUser(t *testing.T) {
	python(t, "")
	if os.Getuid() != 0 {
		t.Skip("listens as another user, so it needs to be root")
	}
	const other = 65534
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd) //nolint:errcheck // in a test
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	runtime.LockOSThread() // the kernel has the user of the thread
	_, _, no := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), other, ^uintptr(0))
	err = unix.Listen(fd, 1)
	_, _, back := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0))
	require.Zero(t, back) // else the thread stays locked, and ends
	runtime.UnlockOSThread()
	require.Zero(t, no)
	require.NoError(t, err)
	type try struct {
		args []string
		code int
	}
	tries := []try{
		{[]string{"--owner", "0"}, 1},
		{[]string{"--owner", "0", "--owner", "65534"}, 3}, // it is gone
		{nil, 1},
		{[]string{"--owner", "no such user"}, 2},
	}
	for _, try := range testgate.Effort(tries[:2], tries, tries) {
		f := startPython(t, `exec "$@"`, append(try.args, path, "rows")...)
		if try.code != 2 {
			c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			require.NoError(t, err)
			if try.code == 3 {
				require.NoError(t, unix.Close(c))
				f.says("the owner is gone")
			} else {
				t.Cleanup(func() { _ = unix.Close(c) })
			}
		}
		f.exits(try.code)
	}
}

// TestPythonToken: the secret comes from a file, too.
func TestPythonToken(t *testing.T) {
	t.Parallel()
	python(t, "")
	s, p, g := stage(t, Options{Token: []byte("secret")}, PublishOptions{})
	require.NoError(t, g.Append([]byte{1, 2, 250}))
	require.NoError(t, p.Seal(t.Context(), SealOptions{}))
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	ways := [][]string{{"--token-file", file}, {"--token", "secret"}}
	for _, token := range testgate.Effort(ways[:1], ways, ways) {
		f := startPython(t, `exec "$@"`, append(token, s.Path(), "x")...)
		f.says("length 3 sum 253")
		f.says("sealed at 3")
		f.exits(0)
	}
	startPython(t, `exec "$@"`, "--token", "another", s.Path(), "x").exits(1)
	if testing.Short() {
		return
	}
	require.NoError(t, os.WriteFile(file, []byte("\n"), 0o600))
	startPython(t, `exec "$@"`, "--token-file", file, s.Path(), "x").exits(2)
}

// An owner that ends says nothing.
func TestPythonSeesTheOwnerGo(t *testing.T) {
	t.Parallel()
	python(t, "")
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	defer l.Close() //nolint:errcheck // in a test
	f := startPython(t, `exec "$@"`, path, "rows")
	raw, err := l.AcceptUnix()
	require.NoError(t, err)
	c, err := wire.NewConn(raw)
	require.NoError(t, err)
	defer c.Close() //nolint:errcheck // closed below

	id := [16]byte{1}
	require.NoError(t, c.Write(wire.TypeHello, 0, 0, wire.Hello{Instance: id, Backend: wire.BackendHost, Granularity: 4096}.Append(nil)))
	for _, want := range []wire.Type{wire.TypeHello, wire.TypeAttach} {
		m, err := c.Read()
		require.NoError(t, err)
		require.Equal(t, want, m.Type)
	}
	page, err := newOwnerPage(id, 9)
	require.NoError(t, err)
	defer page.close()
	wake, err := newWakeSender()
	require.NoError(t, err)
	defer wake.close()
	o := wire.Object{ID: 9, Max: 1 << 20, State: wire.StateLive, Access: wire.AccessRead, Instance: id, Name: "rows"}
	require.NoError(t, c.Write(wire.TypeObject, 1, 0, o.Append(nil), page.fd, wake.reader))
	fd, err := unix.MemfdCreate("rows", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer syscall.Close(fd) //nolint:errcheck // in a test
	require.NoError(t, unix.Ftruncate(fd, 4096))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	require.NoError(t, err)
	_, err = unix.Pwrite(fd, []byte{7, 7}, 0)
	require.NoError(t, err)
	page.published.Store(2)
	chunks := wire.Chunks{Object: 9, Records: []wire.Chunk{{ID: 4, Size: 4096}}}
	require.NoError(t, c.Write(wire.TypeChunks, 0, 0, chunks.Append(nil), fd))
	f.says("length 2 sum 14")
	m, err := c.Read()
	require.NoError(t, err)
	require.Equal(t, wire.TypeAck, m.Type)

	page.published.Store(5000) // more than is mapped
	require.NoError(t, c.Close())
	last := ""
	for f.lines.Scan() {
		last = f.lines.Text()
	}
	require.Equal(t, "the owner is gone; length 4096 stays", last)
	f.exits(3)
}

func TestPythonRefusesWhatIsNoMemory(t *testing.T) {
	testgate.Long(t)
	t.Parallel()
	python(t, "")
	var out strings.Builder
	const check = `
import os, sys
sys.path.insert(0, "../examples/python")
import cuvmm_reader as r
for fd, size in (os.memfd_create("m"), 4096), (os.open("/dev/zero", os.O_RDONLY), 0):
    try:
        r.check_memory_file(fd, size, r.SEAL_SHRINK)
        print("taken")
    except r.ProtocolError:
        pass
`
	cmd := exec.CommandContext(t.Context(), "python3", "-BS", "-c", check)
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Run(), out.String())
	require.Empty(t, out.String())
}
