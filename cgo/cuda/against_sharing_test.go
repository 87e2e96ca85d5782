//go:build cgo && linux

package cuda_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// sharing is the same memory attached twice: a published range by a View, and
// as many chunks of C's by their descriptors.
type sharing struct {
	*rivals
	server  *shareable.Server
	view    *shareable.View
	size    uint64
	sizes   []uint64
	shared  []uint64 // C's handles
	fds     []int    // of them; none: exported anew each time
	p       uint64
	handles []uint64
}

// attaching attaches to 16 GiB, or a sixth of what is free, in chunks of 64 MiB
// or more. With keep, the descriptors are there on both sides.
func (v *rivals) attaching(keep bool, least uint64) job {
	v.Helper()
	size := min(16*gib, v.free()/6)
	g, err := v.dev.NewRange(vmm.RangeOptions{Max: size, Share: vmm.ShareFD, Chunk: max(least, v.gran)})
	require.NoError(v, err)
	v.Cleanup(func() { require.NoError(v, g.Close()) })
	size = g.Max() / max(least, v.gran) * max(least, v.gran)
	require.NoError(v, g.Grow(size))
	require.NoError(v, g.SetLen(size))

	w := &sharing{rivals: v, size: size}
	o, name := shareable.Options{KeepFDs: -1}, "attach with export to "
	if keep {
		o.KeepFDs, name = math.MaxInt32, "attach with kept descriptors to "
	}
	w.server, err = shareable.Listen(v.dev, filepath.Join(v.TempDir(), "s"), o)
	require.NoError(v, err)
	v.Cleanup(func() { require.NoError(v, w.server.Close()) })
	_, err = w.server.Publish("x", g, shareable.PublishOptions{})
	require.NoError(v, err)
	for _, s := range g.Segments() {
		w.sizes = append(w.sizes, s.Size)
		w.share(s.Size, keep)
	}
	if keep {
		require.Eventually(v, func() bool { return w.server.Stats().KeptFDs == len(w.sizes) }, time.Minute, time.Millisecond)
	}
	return job{
		name:    fmt.Sprintf("%s%s in %d chunks", name, mibs(size), len(w.sizes)),
		against: []string{"C"},
		ways:    []func() time.Duration{w.ours, w.c},
		prepare: func() {
			var err error
			w.p, err = v.loop.Reserve(w.size, v.gran)
			require.NoError(v, err)
		},
		undo: w.undo,
		most: 1.2,
	}
}

// share makes a chunk of C's.
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
		if w.view, err = shareable.Attach(ctx, w.server.Path(), "x", w.dev, shareable.AttachOptions{Write: false}); err != nil {
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
		require.NoError(w, w.loop.Unmap(w.p, w.size))
		for _, h := range w.handles {
			require.NoError(w, w.loop.Release(h))
		}
		w.handles = nil
	}
	require.NoError(w, w.loop.Free(w.p, w.size))
}

// TestAgainstCSharing measures what attaching to a published range costs over the
// same driver calls in C. As in TestAgainstC, what misses a target is said and
// fails nothing.
func TestAgainstCSharing(t *testing.T) {
	v := newRivals(t, device(t), "libcuda.so.1")
	t.Log("\n" + table(v.compete(20, v.attaching(true, 64*mib)), v.compete(20, v.attaching(false, 64*mib))))
}

func TestAgainstCSharingOnFake(t *testing.T) {
	v, _ := rivalsOnFake(t)
	t.Log("\n" + table(v.compete(6, v.attaching(true, 2*mib)), v.compete(6, v.attaching(false, 2*mib))))
}
