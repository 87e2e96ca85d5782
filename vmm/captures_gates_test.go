package vmm_test

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// beside calls f again and again in a goroutine until stop is called.
func beside(f func()) (stop func()) {
	var over atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !over.Load() {
			f()
		}
	}()
	return func() {
		over.Store(true)
		<-done
	}
}

// TestCaptureOverDevices: what begins, joins or ends a capture excludes what looks at the streams
// of all of its devices. The host driver panics where such calls meet, with -tags invariants.
func TestCaptureOverDevices(t *testing.T) {
	for name, unnamed := range map[string]bool{"named": false, "a join whose capture the driver does not name": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			origin, other := stream(t, w.devs[0]), stream(t, w.devs[0])
			far := stream(t, w.devs[1])
			for range testgate.Effort(20, 200, 2000) {
				require.NoError(t, origin.BeginCapture())
				fork, err := origin.Record()
				require.NoError(t, err)
				if unnamed {
					w.refuse("CaptureID", 1, errInjected)
				}
				require.NoError(t, far.Wait(fork))
				look := beside(func() { _, _ = far.Done() })
				lookHere := beside(func() { _, _ = other.Done() })
				require.ErrorIs(t, far.BeginCapture(), vmm.ErrInvalid)
				require.NoError(t, other.Wait(fork))
				for _, s := range []*vmm.Stream{far, other} {
					join, err := s.Record()
					require.NoError(t, err)
					require.NoError(t, origin.Wait(join))
					require.NoError(t, join.Close())
				}
				finishCapture(t, origin)
				look()
				lookHere()
				require.NoError(t, fork.Close())
			}
			require.NoError(t, errors.Join(origin.Close(), other.Close(), far.Close()))
			w.end()
		})
	}
}

// TestCaptureThatEndedElsewhere: what has ended a capture without EndCapture, or in an EndCapture
// after which the driver could not be asked, holds up no one.
func TestCaptureThatEndedElsewhere(t *testing.T) {
	ends := map[string]func(t *testing.T, w *world, s, joined *vmm.Stream){
		"EndCapture, and the driver does not say": func(t *testing.T, w *world, s, joined *vmm.Stream) {
			w.before = func(c drivertest.Call) error {
				if c.Name == "EndCapture" {
					w.refuse("Capturing", 1, errInjected)
				}
				return nil
			}
			_, err := s.EndCapture() // the stream that has joined was not waited for
			require.ErrorIs(t, err, vmm.ErrInvalid)
			w.before = nil
		},
		"another library": func(t *testing.T, w *world, s, _ *vmm.Stream) {
			_, err := raw(t, w.devs[0]).(driver.Grapher).EndCapture(s.Raw())
			require.ErrorIs(t, err, driver.ErrInvalid)
		},
	}
	for name, end := range ends {
		for _, again := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, 1)
				d := w.devs[0]
				s, joined := stream(t, d), stream(t, d)
				g := ranged(t, w, page)
				require.NoError(t, s.BeginCapture())
				fork, err := s.Record()
				require.NoError(t, err)
				require.NoError(t, joined.Wait(fork))
				require.NoError(t, joined.Fill(g.Ptr(), 1, 1, page))
				end(t, w, s, joined)
				if again {
					require.NoError(t, s.BeginCapture())
					finishCapture(t, s)
				}
				require.NoError(t, errors.Join(s.Close(), joined.Close(), fork.Close()))
				require.NoError(t, d.Sync())
				require.NoError(t, g.Close())
				w.end()
			})
		}
	}
}

// TestHoldOfAStreamThatJoined: the capture that it is in does not end before release.
func TestHoldOfAStreamThatJoined(t *testing.T) {
	w := newWorld(t, 1)
	origin, joined := stream(t, w.devs[0]), stream(t, w.devs[0])
	require.NoError(t, origin.BeginCapture())
	fork, err := origin.Record()
	require.NoError(t, err)
	require.NoError(t, joined.Wait(fork))
	join, err := joined.Record()
	require.NoError(t, err)
	require.NoError(t, origin.Wait(join))
	_, capturing, release, err := joined.Hold()
	require.NoError(t, err)
	require.True(t, capturing)
	_, err = origin.EndCapture()
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.ErrorIs(t, joined.Usable(), vmm.ErrCapturing)
	release()
	finishCapture(t, origin)
	require.NoError(t, errors.Join(fork.Close(), join.Close(), origin.Close(), joined.Close()))
	w.end()
}

// TestCloseOfACapturedStream: it is refused at once, also while the stream is held, and disturbs no
// other call.
func TestCloseOfACapturedStream(t *testing.T) {
	w := newWorld(t, 1)
	s := stream(t, w.devs[0])
	g := ranged(t, w, page)
	require.NoError(t, s.BeginCapture())
	_, _, release, err := s.Hold()
	require.NoError(t, err)
	stop := beside(func() { require.ErrorIs(t, s.Close(), vmm.ErrCapturing) })
	for range 1000 {
		require.NoError(t, s.Fill(g.Ptr(), 1, 1, 1))
	}
	stop()
	release()
	finishCapture(t, s)
	require.NoError(t, errors.Join(s.Close(), g.Close()))
	w.end()
}

// TestCopyWithoutRoomHoldsUpNoOne: a copy that waits until the stream moves has none of its locks.
func TestCopyWithoutRoomHoldsUpNoOne(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s, other := stream(t, d), stream(t, d)
	g, named := ranged(t, w, 2*page), ranged(t, w, page)
	require.NoError(t, errors.Join(g.SetLen(0), g.UsedBy(s), named.UsedBy(s)))
	fork, err := other.Record()
	require.NoError(t, err)
	open := gate(t, d, s.Raw())
	appended := parked(func() error {
		for g.Len() < 100 {
			if err := g.AppendOn(s, []byte{1}); err != nil && !errors.Is(err, vmm.ErrCapturing) {
				return err
			}
		}
		return nil
	})
	returns(t, func() {
		require.NoError(t, s.BeginCapture())
		finishCapture(t, s)
		_, err := s.Done()
		require.NoError(t, err)
		e, err := s.Record()
		require.NoError(t, err)
		_, _, release, err := s.Hold()
		require.NoError(t, err)
		release()
		require.NoError(t, s.Wait(fork))
		require.NoError(t, errors.Join(named.SetLen(0), named.Clip(), e.Close()))
	})
	open()
	require.NoError(t, appended())
	require.EqualValues(t, 100, g.Len())
	got := make([]byte, 100)
	_, err = g.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, bytes.Repeat([]byte{1}, 100), got)
	require.NoError(t, errors.Join(fork.Close(), g.Close(), named.Close(), s.Close(), other.Close()))
	w.end()
}

// TestReadWhileLenComesBack: while a read waits, some bytes are dropped and as many are queued. It
// reads none of these, and does not wait for them.
func TestReadWhileLenComesBack(t *testing.T) {
	reads := map[string]func(g *vmm.Range) ([]byte, error){
		"ReadAt": func(g *vmm.Range) ([]byte, error) {
			p := make([]byte, page)
			n, err := g.ReadAt(p, 0)
			return p[:n], err
		},
		"ReadRowsAt": func(g *vmm.Range) ([]byte, error) {
			p := make([]byte, page)
			n, err := g.ReadRowsAt(p, 0, 16, 16)
			return p[:n], err
		},
		"WriteTo": func(g *vmm.Range) ([]byte, error) {
			var b bytes.Buffer
			_, err := g.WriteTo(&b)
			return b.Bytes(), err
		},
	}
	for name, read := range reads {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			d := w.devs[0]
			s := stream(t, d)
			g := newRange(t, d, vmm.RangeOptions{Max: 16 * page, Zero: true})
			require.NoError(t, g.UsedBy(s))
			require.NoError(t, g.Append(bytes.Repeat([]byte{1}, page)))
			require.NoError(t, s.Sync())
			opens := make(chan func(), 1)
			w.before = once("SyncEvent", func() {
				require.NoError(t, g.SetLen(page/2))
				opens <- gate(t, d, s.Raw())
				require.NoError(t, g.AppendOn(s, bytes.Repeat([]byte{2}, page/2)))
			})
			got, err := read(g)
			if !errors.Is(err, io.EOF) {
				require.NoError(t, err)
			}
			(<-opens)()
			require.Equal(t, bytes.Repeat([]byte{1}, page/2), got)
			require.NoError(t, errors.Join(s.Close(), g.Close()))
			w.end()
		})
	}
}
