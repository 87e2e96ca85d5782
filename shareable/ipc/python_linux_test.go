package ipc_test

import (
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// python runs testdata/pool.py.
func python(t *testing.T, files []*os.File, args ...any) *child {
	t.Helper()
	words := []string{"-B", "testdata/pool.py"}
	for _, a := range args {
		words = append(words, fmt.Sprint(a))
	}
	return run(t, exec.CommandContext(t.Context(), "python3", words...), files...)
}

// TestPythonDecodesAHandle: a program that takes the first line has the 64 bytes. One that takes
// the whole file for base64 has them first, and by Python's version nothing or garbage after them.
func TestPythonDecodesAHandle(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "python3", "-V").CombinedOutput(); err != nil {
		t.Skipf("needs python3: %v\n%s", err, out)
	}
	h := ipc.Handle{Kind: ipc.KindMemory, Size: mib, UUID: [16]byte{7}, PID: 12, Start: 3, Boot: "4981e164-9750", PIDNamespace: 5}
	for i := range h.Raw {
		h.Raw[i] = byte(251 * i)
	}
	path := filepath.Join(t.TempDir(), "handle")
	require.NoError(t, ipc.WriteFile(path, h))
	const decode = `
import base64, sys
for text in open(sys.argv[1]).readline(), open(sys.argv[1]).read():
    print(base64.b64decode(text).hex())
`
	c := run(t, exec.CommandContext(t.Context(), "python3", "-c", decode, path))
	require.Equal(t, hex.EncodeToString(h.Raw[:]), c.says())
	whole := c.says()
	t.Logf("the whole file is %d bytes", len(whole)/2)
	require.True(t, strings.HasPrefix(whole, hex.EncodeToString(h.Raw[:])), whole)
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
