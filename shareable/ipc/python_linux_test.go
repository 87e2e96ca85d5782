package ipc_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// cudaWithPython is CUDA's first device, and skips the test where there is no python3 that has
// NVIDIA's bindings.
func cudaWithPython(t *testing.T) *vmm.Device {
	t.Helper()
	dev := vmmtest.Drivers()[1].Device(t)
	const least = "import sys; import cuda.bindings.driver; sys.exit(sys.version_info < (3, 9))"
	if out, err := exec.CommandContext(t.Context(), "python3", "-c", least).CombinedOutput(); err != nil {
		t.Skipf("needs python3, 3.9 at least, that imports cuda.bindings.driver: %v\n%s", err, out)
	}
	return dev
}

// python runs testdata/interop.py.
func python(t *testing.T, files []*os.File, args ...any) *child {
	t.Helper()
	words := []string{"-B", "testdata/interop.py"}
	for _, a := range args {
		words = append(words, fmt.Sprint(a))
	}
	return run(t, exec.CommandContext(t.Context(), "python3", words...), files...)
}

func TestPythonOpensOurMemory(t *testing.T) {
	dev := cudaWithPython(t)
	m := alloc(t, dev, mib)
	_, err := m.WriteAt([]byte{7}, 0)
	require.NoError(t, err)
	h, err := m.Handle()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "handle")
	require.NoError(t, ipc.WriteFile(path, h))
	c := python(t, nil, "open-memory", path, mib)
	require.Equal(t, "7", c.says())
	c.ends()
	require.Equal(t, byte(8), byteAt(t, m, mib-1))
}

func TestWeOpenPythonsMemory(t *testing.T) {
	dev := cudaWithPython(t)
	path := filepath.Join(t.TempDir(), "handle")
	c := python(t, nil, "make-memory", path, mib)
	require.Equal(t, "ready", c.says())
	h, err := ipc.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, ipc.Handle{Raw: h.Raw}, h)
	h.Size = mib
	m := open(t, dev, h)
	require.Equal(t, byte(5), byteAt(t, m, mib-1))
	_, err = m.WriteAt([]byte{9}, 0)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.Equal(t, "9", c.does("look"))
	c.ends()
}

func TestPythonImportsOurBlock(t *testing.T) {
	dev := cudaWithPython(t)
	own, err := pool.NewDriver(dev, pool.Options{Share: vmm.ShareFD})
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	b, err := own.Alloc(s, mib)
	require.NoError(t, err)
	require.NoError(t, s.Fill(b.Ptr(), 7, 1, mib))
	require.NoError(t, s.Sync())
	token, err := ipc.ExportPointer(own, b)
	require.NoError(t, err)
	fd, err := ipc.ExportPool(own)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "pool")
	c := python(t, []*os.File{f}, "open-block", line(token.Raw), mib)
	require.Equal(t, "7", c.says())
	c.ends()
	require.NoError(t, f.Close())
	require.Equal(t, byte(8), first(t, dev, b.Ptr()))
	require.NoError(t, own.FreeNow(b))
	require.NoError(t, s.Close())
	require.NoError(t, own.Close())
}

func TestWeImportPythonsBlock(t *testing.T) {
	dev := cudaWithPython(t)
	c, in := receivePool(t, dev, func(there *os.File) *child {
		return python(t, []*os.File{there}, "make-pool", mib)
	})
	var token ipc.Token
	require.NoError(t, token.UnmarshalText([]byte(c.says())))
	token.Size = mib
	b, err := in.Import(token)
	require.NoError(t, err)
	again, err := in.Import(token)
	require.NoError(t, err)
	require.Equal(t, byte(5), first(t, dev, b.Ptr()))
	require.NoError(t, b.FreeNow())
	require.NoError(t, dev.CopyIn(again.Ptr(), []byte{9}))
	require.NoError(t, again.FreeNow())
	require.Equal(t, "9", c.does("look"))
	c.ends()
}
