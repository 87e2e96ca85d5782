package shareable

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// hookedOwner publishes "x" on a device whose exports a function sees, and may refuse.
func hookedOwner(t *testing.T, o Options, share vmm.Share, onExport func(g *vmm.Range) error) (*Server, *Publication, *vmm.Range) {
	t.Helper()
	var range_ atomic.Pointer[vmm.Range]
	dev := vmmtest.Device(t, func(c drivertest.Call) error {
		if g := range_.Load(); g != nil && c.Name == "Export" {
			return onExport(g)
		}
		return nil
	})
	g, err := dev.NewRange(vmm.RangeOptions{Share: share, Max: 64 << 20, Chunk: 2 << 20})
	require.NoError(t, err)
	s, err := Listen(dev, t.TempDir()+"/s", o)
	require.NoError(t, err)
	p, err := s.Publish("x", g, PublishOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, p.Close())
		require.NoError(t, g.Close())
	})
	range_.Store(g)
	return s, p, g
}

// TestClipDuringExport: the range gives a chunk up just before it is exported for a
// reader. The reader stays, and follows.
func TestClipDuringExport(t *testing.T) {
	t.Parallel()
	for name, share := range map[string]vmm.Share{"writable": vmm.ShareFD, "read only": vmm.ShareFD | vmm.ShareReadOnly} {
		for when, keep := range map[string]int{"ahead": 0, "for the reader": -1} {
			t.Run(name+" "+when, func(t *testing.T) {
				// A Grow beside a Clip takes back what that retires, with its descriptor: the next
				// Grow begins once the Clip has returned.
				var clips, clipped atomic.Int64
				s, p, g := hookedOwner(t, Options{KeepFDs: keep}, share, func(g *vmm.Range) error {
					if clips.Add(-1) >= 0 {
						for g.Cap() == 2<<20 { // the chunks are seen before Grow counts them
							runtime.Gosched()
						}
						defer clipped.Add(1)
						return g.Clip()
					}
					return nil
				})
				require.NoError(t, g.Append(pattern(0, 1<<20)))
				v := attached(t, s, AttachOptions{})
				wait(t, v, 1<<20)
				for i := range int64(5) {
					clips.Store(1)
					require.NoError(t, g.Grow(8<<20))
					soon(t, "it is clipped", func() bool { return clipped.Load() == i+1 })
					require.Equal(t, uint64(2<<20), g.Cap())
					require.NoError(t, p.Flush(t.Context()))
				}
				require.NoError(t, g.Append(pattern(1<<20, 9<<20)))
				wait(t, v, 10<<20)
				require.Equal(t, pattern(0, 10<<20), read(t, v, 10<<20))
			})
		}
	}
}

// TestClipStorm is the same without a hook, as fast as it goes.
func TestClipStorm(t *testing.T) {
	t.Parallel()
	cycles := testgate.Effort(100, 400, 400)
	for name, share := range map[string]vmm.Share{"writable": vmm.ShareFD, "read only": vmm.ShareFD | vmm.ShareReadOnly} {
		t.Run(name, func(t *testing.T) {
			dev := vmmtest.Device(t)
			g, err := dev.NewRange(vmm.RangeOptions{Share: share, Max: 128 << 20})
			require.NoError(t, err)
			s, err := Listen(dev, t.TempDir()+"/s", Options{})
			require.NoError(t, err)
			p, err := s.Publish("x", g, PublishOptions{})
			require.NoError(t, err)
			t.Cleanup(func() {
				require.NoError(t, s.Close())
				require.NoError(t, p.Close())
				require.NoError(t, g.Close())
			})
			require.NoError(t, g.Append(pattern(0, 1<<20)))
			v := attached(t, s, AttachOptions{})
			wait(t, v, 1<<20)
			for i := range cycles {
				require.NoError(t, g.Grow(64<<20))
				// The publication, and the reader, are somewhere else in each cycle.
				for end := time.Now().Add(time.Duration(i%50) * 20 * time.Microsecond); time.Now().Before(end); {
					runtime.Gosched()
				}
				require.NoError(t, g.Clip())
			}
			require.NoError(t, g.Append(pattern(1<<20, 9<<20)))
			wait(t, v, 10<<20)
			require.Equal(t, pattern(0, 10<<20), read(t, v, 10<<20))
			require.Equal(t, uint64(1), s.Stats().Accepted)
		})
	}
}

// TestExportFails: an export that fails for a while costs the reader nothing. One that
// fails for good ends the connection, and says so.
func TestExportFails(t *testing.T) {
	t.Parallel()
	refusals := errors.New("no descriptors")
	t.Run("for a while", func(t *testing.T) {
		var fails atomic.Int64
		fails.Store(3)
		s, _, g := hookedOwner(t, Options{KeepFDs: -1}, vmm.ShareFD, func(*vmm.Range) error {
			if fails.Add(-1) >= 0 {
				return driver.ErrLimit
			}
			return nil
		})
		require.NoError(t, g.Append(pattern(0, 1<<20)))
		v := attached(t, s, AttachOptions{})
		wait(t, v, 1<<20)
	})
	t.Run("for good", func(t *testing.T) {
		s, p, g := hookedOwner(t, Options{AckTimeout: 200 * time.Millisecond}, vmm.ShareFD, func(*vmm.Range) error { return refusals })
		require.NoError(t, g.Append(pattern(0, 1<<20)))
		require.NoError(t, p.Flush(t.Context()))
		e := rawConn(t, s.Path())
		e.hello()
		e.attach("x")
		require.Equal(t, wire.CodeInternal, e.last())
		soon(t, "it is gone", func() bool { return s.Stats().Conns == 0 })
	})
}
