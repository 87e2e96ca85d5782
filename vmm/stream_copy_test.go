package vmm_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// TestFailedAppendOnLeavesNothingQueued: a piece that was queued before the
// failure must not run over what is appended there next.
func TestFailedAppendOnLeavesNothingQueued(t *testing.T) {
	w := newWorld(t, 1)
	vmm.SetStaging(w.devs[0], &vmm.Staging{Block: edge, Lanes: 1})
	g, _ := noisy(t, w, 10)
	s := stream(t, w.devs[0])
	open := gate(t, w.devs[0], s.Raw())
	copies := 0
	waits := make(chan struct{})
	failed := make(chan error, 1)
	w.before = func(c drivertest.Call) error {
		switch c.Name {
		case "Copy":
			if copies++; copies == 2 {
				return errInjected
			}
		case "SyncEvent":
			close(waits)
		}
		return nil
	}
	go func() { failed <- g.AppendOn(s, noise(2*edge, 5)) }()
	select {
	case <-waits:
	case err := <-failed:
		t.Fatal("it did not wait for the gate", err)
	}
	open()
	require.ErrorIs(t, <-failed, errInjected)
	w.before = nil
	want := noise(3*edge, 6)
	require.NoError(t, g.Append(want))
	require.NoError(t, s.Sync())
	got := make([]byte, len(want))
	_, err := g.ReadAt(got, 10)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestStreamCopyInFreesItsSource: src is overwritten as soon as CopyIn returns, while the
// stream waits at a gate. If blocks were used again before they are free, the wrong bytes
// would be copied.
func TestStreamCopyInFreesItsSource(t *testing.T) {
	for _, careless := range []bool{false, true} {
		w := newWorld(t, 1)
		vmm.SetStaging(w.devs[0], &vmm.Staging{Block: edge, Lanes: 1, Careless: careless})
		g, _ := noisy(t, w, 10*edge)
		s := stream(t, w.devs[0])
		open := gate(t, w.devs[0], s.Raw())
		want := noise(5*edge, 3)
		src := make([]byte, edge/2)
		copied := make(chan error, 1)
		go func() {
			for i := 0; i < len(want); i += len(src) {
				copy(src, want[i:])
				if err := s.CopyIn(g.Ptr()+vmm.Ptr(i), src); err != nil {
					copied <- err
					return
				}
				clear(src)
			}
			copied <- nil
		}()
		if careless {
			require.NoError(t, <-copied, "it waits for nothing, not even the gate")
		}
		open()
		if !careless {
			require.NoError(t, <-copied)
		}
		got := make([]byte, len(want))
		_, err := g.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, !careless, bytes.Equal(want, got))
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
		w.end()
	}
}

func TestSmallStreamCopiesShareABlock(t *testing.T) {
	w := staged(t, 1)
	g, _ := noisy(t, w, edge)
	s := stream(t, w.devs[0])
	open := gate(t, w.devs[0], s.Raw())
	want := noise(edge, 4)
	for i := range 30 { // none of them waits for the gate
		require.NoError(t, s.CopyIn(g.Ptr()+vmm.Ptr(10*i), want[10*i:10*i+10]))
	}
	open()
	got := make([]byte, 300)
	require.NoError(t, s.CopyOut(got, g.Ptr()))
	require.Equal(t, want[:300], got)
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestStreamCopiesKeepTheStreamsOrder puts them between fills of the stream.
func TestStreamCopiesKeepTheStreamsOrder(t *testing.T) {
	w := staged(t, 2)
	g, _ := noisy(t, w, 8*edge)
	s := stream(t, w.devs[0])
	open := gate(t, w.devs[0], s.Raw())
	want := noise(edge, 4)
	require.NoError(t, s.Fill(g.Ptr(), 7, 1, 2*edge))
	require.NoError(t, s.CopyIn(g.Ptr()+edge/2, want))
	require.NoError(t, s.Fill(g.Ptr()+edge, 9, 1, 10))
	copy(want[edge/2:], bytes.Repeat([]byte{9}, 10))
	want = append(append(bytes.Repeat([]byte{7}, edge/2), want...), bytes.Repeat([]byte{7}, edge/2)...)
	got := make([]byte, 2*edge)
	out := make(chan error, 1)
	go func() { out <- s.CopyOut(got, g.Ptr()) }()
	open()
	require.NoError(t, <-out)
	require.Equal(t, want, got)
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

func TestAppendOnNeedsANamedStream(t *testing.T) {
	w := staged(t, 2)
	g, want := noisy(t, w, edge)
	s, other := stream(t, w.devs[0]), stream(t, w.devs[0])
	open := gate(t, w.devs[0], s.Raw())
	require.NoError(t, g.AppendOn(s, want))
	require.EqualValues(t, 2*edge, g.Len(), "at once")
	read := make(chan []byte, 1)
	go func() {
		got := make([]byte, 2*edge)
		_, err := g.ReadAt(got, 0)
		if err != nil {
			t.Error(err)
		}
		read <- got
	}()
	open()
	require.Equal(t, append(want[:edge:edge], want...), <-read, "ReadAt waits for it")

	require.NoError(t, g.UsedBy(other))
	require.ErrorIs(t, g.AppendOn(s, want), vmm.ErrInvalid)
	require.NoError(t, g.AppendOn(other, want))
	require.ErrorIs(t, g.AppendOn(nil, want), vmm.ErrInvalid)
	require.ErrorIs(t, g.AppendOn(other, make([]byte, g.Max())), vmm.ErrFull)
	require.NoError(t, other.Close())
	require.ErrorIs(t, g.AppendOn(other, want), vmm.ErrClosed)
	require.EqualValues(t, 3*edge, g.Len())
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	require.ErrorIs(t, g.AppendOn(s, want), vmm.ErrClosed)
	var none *vmm.Range
	require.ErrorIs(t, none.AppendOn(s, want), vmm.ErrInvalid)
	var no *vmm.Stream
	require.ErrorIs(t, no.CopyIn(1, want), vmm.ErrInvalid)
	require.ErrorIs(t, no.CopyOut(want, 1), vmm.ErrInvalid)
	w.end()
}

// TestStreamOfAnotherContext cannot have our events: it is waited for.
func TestStreamOfAnotherContext(t *testing.T) {
	w := newWorld(t, 1)
	foreign, err := raw(t, w.devs[0]).NewStream()
	require.NoError(t, err)
	w.before = func(c drivertest.Call) error {
		if c.Name == "Record" {
			return vmm.ErrInvalid
		}
		return nil
	}
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 16 * page})
	require.NoError(t, err)
	require.NoError(t, g.Grow(8*edge))
	vmm.SetStaging(w.devs[0], &vmm.Staging{Block: edge, Lanes: 1})
	s := w.devs[0].WrapStream(uintptr(foreign))
	want := noise(7*edge, 2)
	for range 2 {
		require.NoError(t, s.CopyIn(g.Ptr(), want))
		got := make([]byte, len(want))
		require.NoError(t, s.CopyOut(got, g.Ptr()))
		require.True(t, bytes.Equal(want, got))
	}
	own := stream(t, w.devs[0])
	require.ErrorIs(t, own.CopyIn(g.Ptr(), want), vmm.ErrInvalid, "its own streams take events")
	w.before = nil
	require.NoError(t, own.Close())
	require.NoError(t, s.Close())
	require.NoError(t, raw(t, w.devs[0]).FreeStream(foreign))
	require.NoError(t, g.Close())
	w.end()
}

// TestCopyInBehindAFailedCopyOut: bytes that a copy out has still to write into a block
// must not overwrite those of the stream's next copy in.
func TestCopyInBehindAFailedCopyOut(t *testing.T) {
	w := staged(t, 1)
	g, _ := noisy(t, w, edge)
	s := stream(t, w.devs[0])
	open := gate(t, w.devs[0], s.Raw())
	copies := 0
	w.before = func(c drivertest.Call) error {
		if c.Name == "Copy" {
			if copies++; copies == 2 {
				return errInjected
			}
		}
		return nil
	}
	require.ErrorIs(t, s.CopyOut(make([]byte, edge+1), g.Ptr()), errInjected)
	want := noise(edge/2, 5)
	require.NoError(t, s.CopyIn(g.Ptr(), want))
	open()
	got := make([]byte, len(want))
	_, err := g.ReadAt(got, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestFencesCoverAppendsUnderWay: an AppendOn from before UsedBy named other streams is
// waited for as well.
func TestFencesCoverAppendsUnderWay(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g := ranged(t, w, page)
	a, b := stream(t, d), stream(t, d)
	open := gate(t, d, a.Raw())
	want := pattern(page, 42)
	require.NoError(t, g.AppendOn(a, want))
	require.NoError(t, g.UsedBy(b))
	got := make([]byte, page)
	read := begun(func() error { _, err := g.ReadAt(got, page); return err })
	select {
	case err := <-read:
		t.Fatal("ReadAt did not wait for an append under way", err)
	default:
	}
	open()
	require.NoError(t, <-read)
	require.Equal(t, want, got)

	again := gate(t, d, b.Raw())
	closed := begun(g.Close)
	again()
	require.NoError(t, <-closed)
	require.NoError(t, d.Sync(), "the device is well")
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	w.end()
}

// TestAFailedAppendOnHasWaited, also if there is no event: else its copy would overwrite
// what is appended later.
func TestAFailedAppendOnHasWaited(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g := ranged(t, w, page)
	s := stream(t, d)
	require.NoError(t, g.AppendOn(s, pattern(page, 1))) // the lane is there
	require.NoError(t, s.Sync())
	open := gate(t, d, s.Raw())
	waits := make(chan struct{})
	once := sync.OnceFunc(func() { close(waits) })
	w.before = func(c drivertest.Call) error {
		switch c.Name {
		case "Record":
			return errInjected
		case "SyncStream":
			once()
		}
		return nil
	}
	failed := begun(func() error { return g.AppendOn(s, bytes.Repeat([]byte{0xaa}, 100)) })
	select {
	case err := <-failed:
		t.Fatal("a failed AppendOn did not wait for its copy", err)
	case <-waits:
	}
	open()
	require.ErrorIs(t, <-failed, errInjected)
	w.before = nil
	want, at := bytes.Repeat([]byte{0x55}, 100), g.Len()
	require.NoError(t, g.Append(want))
	require.NoError(t, s.Sync())
	got := make([]byte, 100)
	_, err := g.ReadAt(got, int64(at))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestUnnamedStreamsAreRefused by all calls that would queue work which no fence waits for.
func TestUnnamedStreamsAreRefused(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, other := ranged(t, w, page), ranged(t, w, page)
	a, b := stream(t, d), stream(t, d)
	require.NoError(t, g.UsedBy(a))
	for name, do := range map[string]func(s *vmm.Stream) error{
		"AppendOn":  func(s *vmm.Stream) error { return g.AppendOn(s, []byte{1}) },
		"CopyIn":    func(s *vmm.Stream) error { return s.CopyIn(g.Ptr(), []byte{1}) },
		"CopyOut":   func(s *vmm.Stream) error { return s.CopyOut([]byte{1}, g.Ptr()) },
		"Fill":      func(s *vmm.Stream) error { return s.Fill(g.Ptr(), 1, 1, 1) },
		"Copy to":   func(s *vmm.Stream) error { return s.Copy(g.Ptr(), other.Ptr(), 1) },
		"Copy from": func(s *vmm.Stream) error { return s.Copy(other.Ptr(), g.Ptr(), 1) },
	} {
		require.ErrorIs(t, do(b), vmm.ErrInvalid, name)
		require.NoError(t, do(a), name)
	}
	require.NoError(t, b.Fill(other.Ptr(), 1, 1, 1), "it has named none")
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.NoError(t, g.Close())
	require.NoError(t, other.Close())
	w.end()
}
