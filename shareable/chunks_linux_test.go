package shareable

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// TestFewHandles: a range of 8,192 granules, which on a GPU are 16 GiB, is 64 handles at most,
// however it has grown. They are exported before a reader comes, which then waits for no export,
// and are closed with the publication.
func TestFewHandles(t *testing.T) {
	t.Parallel()
	gran := uint64(os.Getpagesize())
	for _, step := range []uint64{gran / 8, gran - 1, gran, 3 * gran, 127 * gran, 1025 * gran, 8192 * gran} {
		t.Run(fmt.Sprint(step), func(t *testing.T) {
			t.Parallel()
			var exports atomic.Int64
			dev := pageDevice(t, func(c drivertest.Call) error {
				if c.Name == "Export" {
					exports.Add(1)
				}
				return nil
			})
			g, err := dev.NewRange(vmm.RangeOptions{Max: 16384 * gran, Share: vmm.ShareFD})
			require.NoError(t, err)
			defer func() { require.NoError(t, g.Close()) }()
			s, err := Listen(dev, socketAt(t), Options{KeepFDs: 64})
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			p, err := s.Publish("x", g, PublishOptions{})
			require.NoError(t, err)
			for g.Len() < 8192*gran {
				n := min(step, 8192*gran-g.Len())
				require.NoError(t, g.Grow(n))
				require.NoError(t, g.SetLen(g.Len()+n))
				require.LessOrEqual(t, g.Cap()-g.Len(), max(gran-1, g.Len()/100*15+100))
			}
			chunks := len(g.Segments())
			require.LessOrEqual(t, chunks, 64)
			require.NoError(t, p.Flush(t.Context()))
			soon(t, "all are exported", func() bool { return exports.Load() == int64(chunks) })
			require.Equal(t, chunks, s.Stats().KeptFDs)

			v, err := Attach(t.Context(), s.Path(), "x", pageDevice(t), AttachOptions{})
			require.NoError(t, err)
			require.NoError(t, v.Wait(t.Context(), g.Len()))
			require.Equal(t, chunks, v.Stats().Chunks)
			require.Equal(t, int64(chunks), exports.Load())
			require.NoError(t, v.Close())
			require.NoError(t, p.Close())
			require.Zero(t, s.Stats().KeptFDs)
		})
	}
}

// TestExportsAheadAreBounded: no more descriptors stay open than Options.KeepFDs says, also with
// more chunks.
func TestExportsAheadAreBounded(t *testing.T) {
	t.Parallel()
	const chunks, keep = 12, 3
	var exports, most atomic.Int64
	var s *Server
	ready := make(chan struct{})
	dev := pageDevice(t, func(c drivertest.Call) error {
		if c.Name == "Export" {
			<-ready
			exports.Add(1)
			most.Store(max(most.Load(), int64(s.Stats().KeptFDs)))
		}
		return nil
	})
	gran := uint64(os.Getpagesize())
	g, err := dev.NewRange(vmm.RangeOptions{Max: chunks * gran, Chunk: gran, Share: vmm.ShareFD})
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	require.NoError(t, g.Grow(chunks*gran))
	s, err = Listen(dev, socketAt(t), Options{KeepFDs: keep})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	p, err := s.Publish("x", g, PublishOptions{})
	require.NoError(t, err)
	close(ready)
	soon(t, "all were exported", func() bool { return exports.Load() == chunks })
	soon(t, "the last is in", func() bool { return s.Stats().KeptFDs <= keep })
	require.LessOrEqual(t, most.Load(), int64(keep+1), "with the one that is being exported")
	require.NoError(t, p.Close())
	require.Zero(t, s.Stats().KeptFDs)
}

// TestReleaseAfterRepublish: a chunk above the length of a Retire stays in the range and is published
// again under a new id. The end of a send under the old id leaves its descriptor in the cache.
func TestReleaseAfterRepublish(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 2<<20+1000)))
	require.NoError(t, p.Flush(t.Context()))
	waitExported(t, s, p)
	p.mu.Lock()
	old := p.chunks[1]
	p.mu.Unlock()
	d, err := s.fds.acquireChunk(old)
	require.NoError(t, err)
	require.NoError(t, p.Retire(t.Context(), 1<<20))
	waitExported(t, s, p)
	p.releaseFD(old, d)
	require.Equal(t, 2, s.Stats().KeptFDs)
}
