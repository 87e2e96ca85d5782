//go:build cgo && linux

package cuda_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// sharing attaches the same amount of memory twice: a published range by a View, and
// chunks of C's by their descriptors.
type sharing struct {
	*rivals
	path    string // of the owner
	view    *shareable.View
	size    uint64 // of the contents
	mapped  uint64 // all chunks
	sizes   []uint64
	shared  []uint64 // C's handles
	fds     []int    // of shared; nil: exported anew each time
	p       uint64
	handles []uint64
}

// shareableRange makes a Range of size bytes in chunks of each; 0 has the Range choose while it grows by
// 64 MiB.
func shareableRange(tb testing.TB, dev *vmm.Device, size, each uint64) *vmm.Range {
	tb.Helper()
	g, err := dev.NewRange(vmm.RangeOptions{Max: size, Share: vmm.ShareFD, Chunk: each})
	require.NoError(tb, err)
	for n := uint64(0); n < size; {
		n = min(size, n+max(each, 64*mib))
		require.NoError(tb, g.Grow(n))
	}
	require.NoError(tb, g.SetLen(size))
	return g
}

// published publishes size bytes in chunks of each as "x", and returns the path.
// With keep, all descriptors exist when it returns.
func published(tb testing.TB, dev *vmm.Device, size, each uint64, keep bool) string {
	tb.Helper()
	g := shareableRange(tb, dev, size, each)
	tb.Cleanup(func() { require.NoError(tb, g.Close()) })
	o := shareable.Options{KeepFDs: -1}
	if keep {
		o.KeepFDs = math.MaxInt32
	}
	server, err := shareable.Listen(dev, filepath.Join(tb.TempDir(), "s"), o)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, server.Close()) })
	_, err = server.Publish("x", g, shareable.PublishOptions{})
	require.NoError(tb, err)
	if keep {
		require.Eventually(tb, func() bool { return server.Stats().KeptFDs == len(g.Segments()) }, time.Minute, time.Millisecond)
	}
	return server.Path()
}

// ownerEnv tells a child process what to publish.
const ownerEnv = "CUVMM_SHARING_OWNER"

// TestSharingOwner is the owner's process of TestAgainstCSharing. In any other process
// it does nothing.
func TestSharingOwner(t *testing.T) {
	var size, each uint64
	var keep bool
	if _, err := fmt.Sscan(os.Getenv(ownerEnv), &size, &each, &keep); err != nil {
		t.Skip("is run by another test")
	}
	dev, err := vmm.Open("cuda:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	t.Run("publish", func(t *testing.T) {
		fmt.Fprintln(os.Stdout, "path:", published(t, dev, size, each, keep))
		_, err := io.Copy(io.Discard, os.Stdin) // until the other process closes it
		require.NoError(t, err)
	})
}

// elsewhere is published, but by another process.
func (v *rivals) elsewhere(size, each uint64, keep bool) string {
	v.Helper()
	self, err := os.Executable()
	require.NoError(v, err)
	cmd := exec.CommandContext(context.Background(), self, "-test.run=^TestSharingOwner$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %t", ownerEnv, size, each, keep))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(v, err)
	out, err := cmd.StdoutPipe()
	require.NoError(v, err)
	require.NoError(v, cmd.Start())
	v.Cleanup(func() {
		_ = in.Close()
		require.NoError(v, cmd.Wait())
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if path, ok := strings.CutPrefix(lines.Text(), "path: "); ok {
			return path
		}
	}
	v.Fatal("the owner's process did not publish")
	return ""
}

// attaching attaches to 16 GiB, or a sixth of what is free, in chunks of each
// bytes, or of what a Range chooses. With keep, the descriptors exist on both sides. Without elsewhere
// the owner is this process.
func (v *rivals) attaching(keep, elsewhere bool, each uint64) job {
	v.Helper()
	size := min(16*gib, v.free()/6) / max(each, v.gran) * max(each, v.gran)
	w := &sharing{rivals: v, size: size}
	name := "attach with export to "
	if keep {
		name = "attach with kept descriptors to "
	}
	if elsewhere {
		w.path = v.elsewhere(size, each, keep)
		name += "another process's "
	} else {
		w.path = published(v, v.dev, size, each, keep)
	}
	like := shareableRange(v, v.dev, size, each)
	for _, s := range like.Segments() {
		w.sizes = append(w.sizes, s.Size)
	}
	require.NoError(v, like.Close())
	for _, n := range w.sizes {
		w.share(n, keep)
		w.mapped += n
	}
	return job{
		name:    fmt.Sprintf("%s%s in %d chunks", name, mibs(size), len(w.sizes)),
		against: []string{"C"},
		ways:    []func() time.Duration{w.ours, w.c},
		prepare: func() {
			var err error
			w.p, err = v.loop.Reserve(w.mapped, v.gran)
			require.NoError(v, err)
		},
		undo: w.undo,
		most: 1.2,
	}
}

// share creates a shareable chunk of C's.
func (w *sharing) share(size uint64, keep bool) {
	w.Helper()
	h, err := w.loop.CreateShared(size)
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, w.loop.Release(h)) })
	w.shared = append(w.shared, h)
	if !keep {
		return
	}
	fd, err := w.loop.Export(h)
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, syscall.Close(fd)) })
	w.fds = append(w.fds, fd)
}

func (w *sharing) ours() time.Duration {
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	return w.timed(func() (err error) {
		if w.view, err = shareable.Attach(ctx, w.path, "x", w.dev, shareable.AttachOptions{}); err != nil {
			return err
		}
		return w.view.Wait(ctx, w.size)
	})
}

func (w *sharing) c() (took time.Duration) {
	w.Helper()
	var err error
	if w.fds == nil {
		w.handles, took, err = w.loop.ExportAndAttach(w.p, w.sizes, w.shared)
	} else {
		w.handles, took, err = w.loop.Attach(w.p, w.sizes, w.fds)
	}
	require.NoError(w, err)
	return took
}

func (w *sharing) undo() {
	w.Helper()
	require.NoError(w, w.view.Close())
	w.view = nil
	if w.handles != nil {
		require.NoError(w, w.loop.Unmap(w.p, w.mapped))
		for _, h := range w.handles {
			require.NoError(w, w.loop.Release(h))
		}
		w.handles = nil
	}
	require.NoError(w, w.loop.Free(w.p, w.mapped))
}

// TestAgainstCSharing measures what attaching to a published range costs over the
// same driver calls in C. As in TestAgainstC, a missed target is reported and fails
// no test.
func TestAgainstCSharing(t *testing.T) {
	v := newRivals(t, device(t), "libcuda.so.1")
	t.Log("\n" + table(v.compete(60, v.attaching(true, true, 0)), v.compete(60, v.attaching(false, true, 0)), v.compete(100, v.attaching(true, true, 64*mib)), v.compete(100, v.attaching(false, true, 64*mib)),
		v.compete(40, v.attaching(true, false, 64*mib))))
}

func TestAgainstCSharingOnFake(t *testing.T) {
	v, _ := rivalsOnFake(t)
	t.Log("\n" + table(v.compete(6, v.attaching(true, false, 0)), v.compete(6, v.attaching(true, false, 2*mib)), v.compete(6, v.attaching(false, false, 2*mib))))
}
