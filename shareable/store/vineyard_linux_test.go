package store

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// vineyardBytes is the size of the buffers in these tests, more than a page.
const vineyardBytes = 100_000

// vineyardVar is the socket of a process that a test starts as a client.
const vineyardVar = "STORE_TEST_VINEYARD"

// vineyardRows are the first cells of the table below a heading of docs/coming-from/vineyard.md.
func vineyardRows(t *testing.T, heading string) (rows []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "coming-from", "vineyard.md"))
	require.NoError(t, err)
	_, text, found := bytes.Cut(text, []byte("\n## "+heading+"\n"))
	require.True(t, found)
	text, _, _ = bytes.Cut(text, []byte("\n## "))
	for _, m := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllSubmatch(text, -1) {
		rows = append(rows, strings.ReplaceAll(string(m[1]), "`", ""))
	}
	require.Greater(t, len(rows), 2)
	return rows[2:] // without the head and the line below it
}

// vineyardClient plays a client in a process that inOtherProcess has started, and reports
// whether this is one.
func vineyardClient(t *testing.T) bool {
	t.Helper()
	path := os.Getenv(vineyardVar)
	if path == "" {
		return false
	}
	c, err := Connect(t.Context(), path, testDevice(t), ClientOptions{})
	require.NoError(t, err)
	defer c.Close() //nolint:errcheck // the process ends
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		verb, name, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "create":
			w := writer(t, c, name, CreateOptions{Size: vineyardBytes})
			require.NoError(t, w.Append(bytesOf(vineyardBytes/2)))
			require.NoError(t, w.Flush(t.Context()))
		case "get":
			b := got(t, c, name, GetOptions{Unsafe: true})
			require.Equal(t, bytesOf(int(b.Len())), contents(t, b))
			verb = fmt.Sprint(verb, " on ", b.Location())
		}
		fmt.Println(verb)
	}
	return true
}

// otherProcess is a client in a process of its own.
type otherProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	lines *bufio.Scanner
}

// inOtherProcess starts a client of the store in another process, which runs this test and
// comes to vineyardClient.
func inOtherProcess(t *testing.T, s *Server) otherProcess {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	name, _, _ := strings.Cut(t.Name(), "/")
	p := otherProcess{t: t, cmd: exec.Command(self, "-test.run=^"+name+"$")}
	p.cmd.Env = append(os.Environ(), vineyardVar+"="+s.Path())
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = os.Stderr
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.lines = bufio.NewScanner(out)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	return p
}

// does has the process do something, and returns what it says then.
func (p otherProcess) does(verb, name string) string {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, verb, name)
	require.NoError(p.t, err)
	require.True(p.t, p.lines.Scan(), "the process has ended: %v", p.lines.Err())
	require.Contains(p.t, p.lines.Text(), verb)
	return p.lines.Text()
}

// kill kills the process, unless it was killed before.
func (p otherProcess) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// mirrorOf is a mirror of memory in a client.
func mirrorOf(t *testing.T, c *Client, p vmm.Ptr, o vmm.MirrorOptions) *vmm.Mirror {
	t.Helper()
	m, err := c.Device().NewMirror(p, vineyardBytes, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Discard()) })
	return m
}

// copying is a kernel that copies memory to other memory.
var copying = kernel.Code{
	CUDA: `
typedef unsigned long long u64;

extern "C" __global__ void copy(const unsigned char *from, u64 n, unsigned char *to, u64)
{
	u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		to[i] = from[i];
}
`,
	Host: kernel.Host{"copy": func(from, to []byte) { copy(to, from) }},
}

// copyByKernel has a kernel copy a buffer's bytes from memory to memory.
func copyByKernel(t *testing.T, dev *vmm.Device, from, to kernel.Memory) {
	t.Helper()
	mod, err := kernel.Load(dev, copying)
	if errors.Is(err, vmm.ErrNotSupported) {
		testgate.Require(t, "nvrtc", err)
	}
	require.NoError(t, err)
	fn, err := mod.Func("copy")
	require.NoError(t, err)
	stream, err := dev.NewStream()
	require.NoError(t, err)
	require.NoError(t, fn.Launch(stream, kernel.Over(vineyardBytes, 256), kernel.Read(from), to))
	require.NoError(t, stream.Sync())
	require.NoError(t, stream.Close())
	require.NoError(t, mod.Close())
}

// ownMemory is memory of this process alone, all bytes of which are b.
func ownMemory(t *testing.T, dev *vmm.Device, b byte) *vmm.Range {
	t.Helper()
	r, err := dev.Alloc(vineyardBytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	_, err = r.WriteAt(bytes.Repeat([]byte{b}, vineyardBytes), 0)
	require.NoError(t, err)
	return r
}

// filled makes an object that has all its bytes and is not sealed.
func filled(t *testing.T, c *Client, name string) *Writer {
	t.Helper()
	w := writer(t, c, name, CreateOptions{Size: vineyardBytes})
	require.NoError(t, w.Append(bytesOf(vineyardBytes)))
	require.NoError(t, w.Flush(t.Context()))
	return w
}

// vineyardCalls are the rows of "Call by call".
var vineyardCalls = map[string]func(t *testing.T, s *Server, c *Client){
	"client.Connect(socket)": func(t *testing.T, s *Server, _ *Client) {
		c, err := Connect(t.Context(), s.Path(), testDevice(t), ClientOptions{})
		require.NoError(t, err)
		require.Equal(t, s.Instance(), c.Instance())
		require.NoError(t, c.Close())
		_, err = Connect(t.Context(), s.Path()+"x", testDevice(t), ClientOptions{})
		require.ErrorIs(t, err, shareable.ErrOwnerGone)
	},
	"client.CreateGPUBuffer(size, id, object, buffer)": func(t *testing.T, s *Server, c *Client) {
		w := writer(t, c, "", CreateOptions{Size: vineyardBytes})
		require.Equal(t, s.Instance(), w.ID().Instance)
		require.GreaterOrEqual(t, w.Cap(), uint64(vineyardBytes))
		require.GreaterOrEqual(t, s.Stats().Bytes, uint64(vineyardBytes)) // the server's, not the client's
	},
	"buffer->mutable_data()": func(t *testing.T, _ *Server, c *Client) {
		w := filled(t, c, "m")
		require.NotZero(t, w.Ptr())
		copyByKernel(t, c.Device(), ownMemory(t, c.Device(), 'k'), w.Range())
		require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
		require.Equal(t, bytes.Repeat([]byte{'k'}, vineyardBytes), contents(t, got(t, c, "m", GetOptions{})))
	},
	"buffer->is_cpu()": func(t *testing.T, s *Server, c *Client) {
		node := 0
		p := inOtherProcess(t, s)
		for name, host := range map[string]*int{"device": nil, "host": &node} {
			w, err := c.Create(t.Context(), name, CreateOptions{Size: vineyardBytes, Host: host})
			if host != nil && !withCUDA { // there the device's memory is the host's
				require.ErrorIs(t, err, vmm.ErrNotSupported)
				continue
			}
			require.NoError(t, err)
			require.NoError(t, w.Append(bytesOf(vineyardBytes)))
			require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
			require.NoError(t, w.Close())
			b := got(t, c, name, GetOptions{})
			require.Equal(t, bytesOf(vineyardBytes), contents(t, b))
			want := vmm.Location{Kind: vmm.LocationDevice}
			if host != nil {
				want.Kind = vmm.LocationHostNUMA
			}
			require.Equal(t, want, b.Location())
			require.Equal(t, "get on "+want.String(), p.does("get", name))
			require.Equal(t, c.Device(), b.Device())
			info, err := c.Stat(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, host != nil, info.Host)
		}
	},
	"buffer->is_mutable()": func(t *testing.T, _ *Server, c *Client) {
		filled(t, c, "m")
		require.False(t, got(t, c, "m", GetOptions{Unsafe: true}).Writable())
		require.True(t, got(t, c, "m", GetOptions{Unsafe: true, Write: true}).Writable())
	},
	"buffer->size()": func(t *testing.T, _ *Server, c *Client) {
		filled(t, c, "m")
		require.EqualValues(t, vineyardBytes, got(t, c, "m", GetOptions{Unsafe: true}).Len())
	},
	"CUDABufferMirror mirror(*buffer, false), mutable": func(t *testing.T, _ *Server, c *Client) {
		w := writer(t, c, "m", CreateOptions{Size: vineyardBytes})
		m := mirrorOf(t, c, w.Ptr(), vmm.MirrorOptions{Write: true})
		require.Equal(t, make([]byte, vineyardBytes), m.Bytes())
		copy(m.Bytes(), "hello world")
		require.NoError(t, m.Close())
		require.NoError(t, w.SetLen(vineyardBytes))
		require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
		require.Equal(t, "hello world\x00", string(contents(t, got(t, c, "m", GetOptions{}))[:12]))
	},
	"CUDABufferMirror mirror(*buffer, true), mutable": func(t *testing.T, _ *Server, c *Client) {
		w := filled(t, c, "m")
		m := mirrorOf(t, c, w.Ptr(), vmm.MirrorOptions{Init: true, Write: true})
		require.Equal(t, bytesOf(vineyardBytes), m.Bytes())
		copy(m.Bytes(), "hello")
		require.NoError(t, m.Close())
		b := contents(t, got(t, c, "m", GetOptions{Unsafe: true}))
		require.Equal(t, append([]byte("hello"), bytesOf(vineyardBytes)[5:]...), b)
	},
	"~CUDABufferMirror()": func(t *testing.T, _ *Server, c *Client) {
		w := filled(t, c, "m")
		m := mirrorOf(t, c, w.Ptr(), vmm.MirrorOptions{Init: true, Write: true})
		m.Bytes()[0], m.Bytes()[1] = 'a', 'b'
		require.NoError(t, m.MarkDirty(1, 1)) // the rest is not written back
		require.ErrorIs(t, w.Range().SetLen(0), vmm.ErrBusy)
		require.NoError(t, m.Close())
		require.Nil(t, m.Bytes())
		require.Equal(t, []byte{0, 'b'}, contents(t, got(t, c, "m", GetOptions{Unsafe: true}))[:2])
	},
	"client.GetGPUBuffer(id, true, buffer)": func(t *testing.T, _ *Server, c *Client) {
		w := filled(t, c, "")
		require.Equal(t, bytesOf(vineyardBytes), contents(t, got(t, c, w.ID().String(), GetOptions{Unsafe: true})))
	},
	"client.GetGPUBuffer(id, false, buffer)": func(t *testing.T, _ *Server, c *Client) {
		w := filled(t, c, "")
		_, err := c.Get(t.Context(), w.ID().String(), GetOptions{})
		require.ErrorIs(t, err, shareable.ErrNotSealed)
		require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
		require.Equal(t, bytesOf(vineyardBytes), contents(t, got(t, c, w.ID().String(), GetOptions{})))
	},
	"client.GetGPUBuffers(ids, unsafe, buffers)": func(t *testing.T, s *Server, c *Client) {
		var ids []string
		for range 10 {
			ids = append(ids, filled(t, c, "").ID().String())
		}
		all, err := c.GetAll(t.Context(), ids, GetOptions{Unsafe: true})
		require.NoError(t, err)
		for i, b := range all {
			require.Equal(t, ids[i], IDOf(b).String())
			require.Equal(t, bytesOf(vineyardBytes), contents(t, b))
			require.NoError(t, b.Close())
		}
		_, err = c.GetAll(t.Context(), append(ids, "none"), GetOptions{Unsafe: true})
		require.ErrorIs(t, err, shareable.ErrNotFound)
	},
	"get it in another process": func(t *testing.T, s *Server, c *Client) {
		w := filled(t, c, "m")
		p := inOtherProcess(t, s)
		p.does("get", w.ID().String())
		require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
		require.NoError(t, w.Close())
		p.does("get", "m")
	},
	"buffer->data()": func(t *testing.T, _ *Server, c *Client) {
		w := filled(t, c, "m")
		require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
		b := got(t, c, "m", GetOptions{})
		require.NotZero(t, b.Ptr())
		require.NotEqual(t, w.Ptr(), b.Ptr()) // a mapping of its own
		to := ownMemory(t, c.Device(), 0)
		copyByKernel(t, c.Device(), b, to)
		seen := make([]byte, vineyardBytes)
		_, err := to.ReadAt(seen, 0)
		require.NoError(t, err)
		require.Equal(t, bytesOf(vineyardBytes), seen)
	},
	"CUDABufferMirror mirror(*buffer, true), immutable": func(t *testing.T, _ *Server, c *Client) {
		filled(t, c, "m")
		b := got(t, c, "m", GetOptions{Unsafe: true})
		m := mirrorOf(t, c, b.Ptr(), vmm.MirrorOptions{Init: true})
		require.Equal(t, bytesOf(vineyardBytes), m.Bytes())
		m.Bytes()[0] = 'x' // stays here
		require.ErrorIs(t, m.Flush(), vmm.ErrPermission)
		require.NoError(t, m.Close())
		require.Equal(t, bytesOf(vineyardBytes), contents(t, b))
	},
	"CUDABufferMirror mirror(*buffer, false), immutable": func(t *testing.T, _ *Server, c *Client) {
		filled(t, c, "m")
		b := got(t, c, "m", GetOptions{Unsafe: true})
		_, err := c.Device().NewMirror(b.Ptr(), b.Len(), vmm.MirrorOptions{})
		require.ErrorIs(t, err, vmm.ErrInvalid)
		_, err = c.Device().NewMirror(b.Ptr(), b.Len(), vmm.MirrorOptions{Write: true})
		require.ErrorIs(t, err, vmm.ErrPermission)
	},
	"client.DelData(id)": func(t *testing.T, s *Server, c *Client) {
		id := sealed(t, c, "m", bytesOf(vineyardBytes)).String()
		require.NoError(t, c.Delete(t.Context(), id, DeleteOptions{}))
		_, err := c.Get(t.Context(), id, GetOptions{})
		require.ErrorIs(t, err, shareable.ErrNotFound)
		require.ErrorIs(t, c.Delete(t.Context(), id, DeleteOptions{}), shareable.ErrNotFound)
		require.Zero(t, s.Stats().Bytes)
	},
	"client.Disconnect()": func(t *testing.T, s *Server, c *Client) {
		sealed(t, c, "m", bytesOf(vineyardBytes))
		b := got(t, c, "m", GetOptions{})
		require.NoError(t, c.Close())
		require.Equal(t, bytesOf(vineyardBytes), contents(t, b)) // it has a connection of its own
		require.NoError(t, b.Close())
		require.Eventually(t, func() bool { return s.Stats().Clients == 0 }, inTime, step)
		require.Equal(t, 1, s.Stats().Objects)
	},
	"gua->GPUData(&p)": func(t *testing.T, _ *Server, c *Client) {
		w := filled(t, c, "m")
		require.NoError(t, c.Device().CopyIn(w.Ptr(), []byte("hello")))
		b := got(t, c, "m", GetOptions{Unsafe: true})
		p := make([]byte, 5)
		require.NoError(t, c.Device().CopyOut(p, b.Ptr()))
		require.Equal(t, "hello", string(p))
	},
	"gua->CPUData(&p)": func(t *testing.T, _ *Server, c *Client) {
		filled(t, c, "m")
		p, before := got(t, c, "m", GetOptions{Unsafe: true}).Ptr(), c.Device().Stats().Pinned
		m := mirrorOf(t, c, p, vmm.MirrorOptions{Init: true, MaxPinned: vineyardBytes - 1})
		require.Equal(t, bytesOf(vineyardBytes), m.Bytes())
		require.Equal(t, before, c.Device().Stats().Pinned) // pageable
		m = mirrorOf(t, c, p, vmm.MirrorOptions{Init: true, MaxPinned: vineyardBytes})
		require.Equal(t, bytesOf(vineyardBytes), m.Bytes())
		require.GreaterOrEqual(t, c.Device().Stats().Pinned, before+vineyardBytes)
		require.NoError(t, m.Close())
		require.Equal(t, before, c.Device().Stats().Pinned)
	},
	"gua->syncFromCPU()": func(t *testing.T, _ *Server, c *Client) {
		w := filled(t, c, "m")
		b := got(t, c, "m", GetOptions{Unsafe: true})
		m := mirrorOf(t, c, w.Ptr(), vmm.MirrorOptions{Init: true, Write: true})
		copy(m.Bytes(), "hello")
		require.Equal(t, bytesOf(vineyardBytes), contents(t, b)) // not yet
		require.NoError(t, m.Flush())
		require.Equal(t, "hello", string(contents(t, b)[:5]))
	},
	"gua->syncFromGPU()": func(t *testing.T, _ *Server, c *Client) {
		w := filled(t, c, "m")
		m := mirrorOf(t, c, got(t, c, "m", GetOptions{Unsafe: true}).Ptr(), vmm.MirrorOptions{Init: true})
		require.NoError(t, c.Device().CopyIn(w.Ptr(), []byte("hello")))
		require.Equal(t, bytesOf(vineyardBytes), m.Bytes()) // not yet
		require.NoError(t, m.Refresh())
		require.Equal(t, "hello", string(m.Bytes()[:5]))
	},
}

// TestVineyardCalls: each row of the table in docs/coming-from/vineyard.md works by the names that it has
// for it here. VMM_TEST_DRIVER=cuda runs it on a GPU.
func TestVineyardCalls(t *testing.T) {
	if vineyardClient(t) {
		return
	}
	rows := vineyardRows(t, "Call by call")
	require.Len(t, vineyardCalls, len(rows))
	for _, row := range rows {
		require.Contains(t, vineyardCalls, row)
		t.Run(row, func(t *testing.T) {
			s := listeningOn(t, testDevice(t), Options{})
			vineyardCalls[row](t, s, clientOn(t, testDevice(t), s))
		})
	}
}

// memoryLeft is what the device has free, also of memory that other processes had. The
// driver asks the kernel.
func memoryLeft(t *testing.T, s *Server) uint64 {
	t.Helper()
	free, _, err := s.dev.MemInfo()
	require.NoError(t, err)
	return free
}

// isMapped reports whether the client's process has memory mapped at the address: the driver of a
// GPU says so, on the host the kernel does.
func isMapped(t *testing.T, c *Client, p vmm.Ptr) bool {
	t.Helper()
	if withCUDA {
		_, err := c.Device().Driver().Access(p, vmm.Location{Kind: vmm.LocationDevice})
		return err == nil
	}
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		_, err := fmt.Sscanf(line, "%x-%x ", &from, &to)
		require.NoError(t, err)
		if uint64(p) >= from && uint64(p) < to {
			return strings.Contains(line, "/memfd:")
		}
	}
	return false
}

// faultStore is a store, a client of it, and what the device has free. On a GPU all of it was used
// once, so that no later call is the first one, for which the driver takes memory.
func faultStore(t *testing.T) (*Server, *Client, uint64) {
	t.Helper()
	s := listeningOn(t, testDevice(t), Options{})
	c := clientOn(t, testDevice(t), s)
	if !withCUDA {
		return s, c, memoryLeft(t, s)
	}
	id := sealed(t, c, "", bytesOf(vineyardBytes)).String()
	b := got(t, c, id, GetOptions{})
	require.Equal(t, bytesOf(vineyardBytes), contents(t, b))
	require.NoError(t, b.Close())
	require.NoError(t, c.Delete(t.Context(), id, DeleteOptions{}))
	require.Eventually(t, func() bool { return s.Stats().Objects == 0 }, inTime, step)
	return s, c, memoryLeft(t, s)
}

// vineyardFaults are the rows of "Five faults": what Vineyard does, and here a test that this
// does not.
var vineyardFaults = map[string]func(t *testing.T){
	"the socket is open to every user": func(t *testing.T) {
		t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
		s, err := Listen(testDevice(t), "", Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		for path, mode := range map[string]os.FileMode{s.Path(): 0o600 | os.ModeSocket, filepath.Dir(s.Path()): 0o700 | os.ModeDir} {
			info, err := os.Lstat(path)
			require.NoError(t, err)
			require.Equal(t, mode, info.Mode(), path)
		}
		other := uint32(os.Getuid() + 1)
		_, err = Connect(t.Context(), s.Path(), testDevice(t), ClientOptions{UIDs: []uint32{other}})
		require.ErrorIs(t, err, vmm.ErrPermission)
	},
	"readers of GPU buffers are not counted": func(t *testing.T) {
		s, c, before := faultStore(t)
		id := sealed(t, c, "m", bytesOf(vineyardBytes)).String()
		readers := func() int {
			info, err := c.Stat(t.Context(), id)
			require.NoError(t, err)
			return info.Readers
		}
		require.Zero(t, readers())
		b, p := got(t, c, id, GetOptions{}), inOtherProcess(t, s)
		p.does("get", id)
		require.Equal(t, 2, readers())
		require.NoError(t, c.Delete(t.Context(), id, DeleteOptions{}))
		require.Equal(t, 1, s.Stats().Objects) // without a name, for its readers
		require.NoError(t, b.Close())
		require.NotZero(t, s.Stats().Bytes)
		require.Less(t, memoryLeft(t, s), before)
		p.kill() // the last reader
		require.Eventually(t, func() bool { return s.Stats().Objects == 0 && memoryLeft(t, s) == before }, inTime, step)
	},
	"clients never unmap a buffer": func(t *testing.T) {
		s, c, before := faultStore(t)
		had := c.Device().Stats().Imported
		w := filled(t, c, "m")
		b := got(t, c, "m", GetOptions{Unsafe: true})
		require.True(t, isMapped(t, c, w.Ptr()))
		require.True(t, isMapped(t, c, b.Ptr()))
		p, q := w.Ptr(), b.Ptr()
		require.NoError(t, b.Close())
		require.False(t, isMapped(t, c, q))
		require.NoError(t, w.Close()) // the object goes: it is neither sealed nor durable
		require.False(t, isMapped(t, c, p))
		require.Equal(t, had, c.Device().Stats().Imported)
		require.Eventually(t, func() bool { return memoryLeft(t, s) == before }, inTime, step)
	},
	"deleting a GPU buffer frees nothing": func(t *testing.T) {
		s, c, before := faultStore(t)
		for range 3 {
			sealed(t, c, "m", bytesOf(vineyardBytes))
			require.LessOrEqual(t, memoryLeft(t, s), before-vineyardBytes)
			require.NoError(t, c.Delete(t.Context(), "m", DeleteOptions{}))
			require.Zero(t, s.Stats().Bytes)
			require.Equal(t, before, memoryLeft(t, s)) // at once: it has no reader
		}
	},
	"unsealed buffers of a dead client stay": func(t *testing.T) {
		s, c, before := faultStore(t)
		p := inOtherProcess(t, s)
		for i := range 3 {
			p.does("create", fmt.Sprint("m", i))
		}
		b := got(t, c, "m0", GetOptions{Unsafe: true})
		waits := make(chan error, 1)
		go func() { _, err := c.Get(within(t), "m1", GetOptions{Wait: true}); waits <- err }()
		require.Eventually(t, func() bool { return s.Stats().Waits == 1 }, inTime, step)
		require.NoError(t, p.cmd.Process.Signal(unix.SIGKILL))
		require.ErrorIs(t, <-waits, shareable.ErrAborted)
		require.Eventually(t, func() bool { return s.Stats().Objects == 0 }, inTime, step)
		require.Zero(t, s.Stats().Bytes)
		// Who had mapped it keeps what was written, and knows.
		require.Eventually(t, func() bool { return b.Err() != nil }, inTime, step)
		require.Equal(t, bytesOf(vineyardBytes/2), contents(t, b))
		require.NoError(t, b.Close())
		require.Eventually(t, func() bool { return memoryLeft(t, s) == before }, inTime, step)
		_, err := c.Stat(t.Context(), "m2")
		require.True(t, errors.Is(err, shareable.ErrNotFound))
	},
}

// TestVineyardFaults: what docs/coming-from/vineyard.md says of each of Vineyard's faults holds.
// VMM_TEST_DRIVER=cuda runs it on a GPU that nothing else uses: it counts free memory.
func TestVineyardFaults(t *testing.T) {
	if vineyardClient(t) {
		return
	}
	rows := vineyardRows(t, "Five faults")
	require.Len(t, rows, 5)
	require.Len(t, vineyardFaults, len(rows))
	for _, row := range rows {
		require.Contains(t, vineyardFaults, row)
		t.Run(row, vineyardFaults[row])
	}
}
