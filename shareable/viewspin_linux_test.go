package shareable

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// spinning is a View with two chunks of which the first byte is published, and its owner. What the
// test stores on the page comes without a wake.
func spinning(t *testing.T, spin time.Duration) (*View, *scriptedOwner) {
	t.Helper()
	s, far := newScriptedOwner(t, 4)
	storeWord(s.page, atState, uint64(wire.StateLive))
	v := viewed(t, s, far, AttachOptions{Spin: spin})
	s.grow(2)
	s.chunks(0, 2)
	s.ack()
	storeWord(s.page, atDone, 1)
	require.NoError(t, v.Wait(t.Context(), 1))
	return v, s
}

// waits starts a Wait that cannot end yet.
func waits(ctx context.Context, v *View) chan error {
	got := make(chan error, 1)
	go func() { got <- v.Wait(ctx, v.Max()) }()
	return got
}

func spins(t *testing.T, v *View) {
	t.Helper()
	if runtime.NumCPU() < 2 {
		t.Skip("needs two processors")
	}
	soon(t, "it spins", func() bool { return v.counts.spins.Load() > 0 })
}

// parks waits until a call waits for a wake from its owner.
func parks(t *testing.T, v *View) {
	t.Helper()
	soon(t, "it waits to be woken", func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.changed != nil && v.watching
	})
}

// TestSpin: a call that spins sees a growth of which nothing tells, and so do calls beside it
// and a stream. Together they spin as one.
func TestSpin(t *testing.T) {
	t.Parallel()
	v, s := spinning(t, time.Hour)
	got := waits(t.Context(), v)
	spins(t, v)
	second := make(chan error, 1)
	go func() { second <- v.Wait(t.Context(), 2) }()
	soon(t, "the second waits", func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.changed != nil
	})
	require.Equal(t, uint64(1), v.counts.spins.Load())
	storeWord(s.page, atDone, 2)
	require.NoError(t, <-second)
	stream, out := copyBehind(t, v, 3, 0)
	storeWord(s.page, atDone, 3)
	require.NoError(t, stream.Sync())
	require.Equal(t, byte(1), first(t, out))
	require.Zero(t, v.Stats().Wakes)
	require.NoError(t, v.Close())
	require.ErrorIs(t, <-got, vmm.ErrClosed)
}

// TestStreamSpins: a stream that waits has watch spin, with no call beside it.
func TestStreamSpins(t *testing.T) {
	t.Parallel()
	v, s := spinning(t, time.Hour)
	if runtime.NumCPU() < 2 {
		t.Skip("needs two processors")
	}
	for n := uint64(2); n < 10; n++ {
		stream, _ := copyBehind(t, v, n, 0)
		storeWord(s.page, atDone, n)
		require.NoError(t, stream.Sync())
	}
	require.Zero(t, v.Stats().Wakes)
	soon(t, "watch is over, and spins no more", func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return !v.watching
	})
}

// TestSpinEnds: at its bound, at the end of the context, at Close, and once the page says that
// nothing more comes.
func TestSpinEnds(t *testing.T) {
	t.Parallel()
	t.Run("bound", func(t *testing.T) {
		t.Parallel()
		v, s := spinning(t, 20*time.Millisecond)
		waits(t.Context(), v)
		parks(t, v)
		before := v.counts.spins.Load()
		s.notify() // a wake without growth
		soon(t, "it is woken", func() bool { return v.Stats().Wakes > 0 })
		parks(t, v)
		require.Equal(t, before, v.counts.spins.Load())
	})
	t.Run("context", func(t *testing.T) {
		t.Parallel()
		v, _ := spinning(t, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		got := waits(ctx, v)
		spins(t, v)
		cancel()
		require.ErrorIs(t, <-got, context.Canceled)
	})
	t.Run("contexts of all calls", func(t *testing.T) {
		t.Parallel()
		v, _ := spinning(t, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		got := waits(ctx, v)
		spins(t, v)
		other, cancelOther := context.WithCancel(t.Context())
		second := waits(other, v) // by the channel of changes, which it leaves behind
		soon(t, "the second waits", func() bool {
			v.mu.Lock()
			defer v.mu.Unlock()
			return v.changed != nil
		})
		cancel()
		require.ErrorIs(t, <-got, context.Canceled)
		soon(t, "watch spins for the second", func() bool { return v.counts.spins.Load() == 2 })
		cancelOther()
		require.ErrorIs(t, <-second, context.Canceled)
		soon(t, "no goroutine spins", func() bool { return v.counts.spun.Load() == 2 })
	})
	t.Run("close", func(t *testing.T) {
		t.Parallel()
		v, _ := spinning(t, time.Hour)
		got := waits(t.Context(), v)
		spins(t, v)
		require.NoError(t, v.Close())
		require.ErrorIs(t, <-got, vmm.ErrClosed)
	})
	t.Run("owner gone", func(t *testing.T) {
		t.Parallel()
		v, s := spinning(t, time.Hour)
		got := waits(t.Context(), v)
		spins(t, v)
		require.NoError(t, s.c.Close())
		require.ErrorIs(t, <-got, ErrOwnerGone)
	})
	for name, state := range map[string]uint32{"sealed": wire.StateSealed, "closed": wire.StateClosed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, s := spinning(t, time.Hour)
			waits(t.Context(), v)
			spins(t, v)
			storeWord(s.page, atState, uint64(state))
			parks(t, v)
			require.Equal(t, uint64(1), v.counts.spins.Load())
		})
	}
}

// TestNoSpin: a View never spins without the option, before it has seen a growth, on one processor,
// and beside a page that says that nothing comes.
func TestNoSpin(t *testing.T) {
	grows := func(t *testing.T, v *View, s *scriptedOwner) {
		t.Helper()
		for n := uint64(2); n < 6; n++ {
			got := make(chan error, 1)
			go func() { got <- v.Wait(t.Context(), n) }()
			parks(t, v)
			s.done(n)
			require.NoError(t, <-got)
		}
		require.Zero(t, v.counts.spins.Load())
	}
	t.Run("option", func(t *testing.T) {
		v, s := spinning(t, 0)
		grows(t, v, s)
	})
	t.Run("one processor", func(t *testing.T) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		v, s := spinning(t, time.Hour)
		grows(t, v, s)
	})
	t.Run("page", func(t *testing.T) {
		v, s := spinning(t, time.Hour)
		storeWord(s.page, atState, uint64(wire.StateClosed))
		grows(t, v, s)
	})
	t.Run("no growth", func(t *testing.T) {
		s, far := newScriptedOwner(t, 4)
		storeWord(s.page, atState, uint64(wire.StateLive))
		v := viewed(t, s, far, AttachOptions{Spin: time.Hour})
		waits(t.Context(), v)
		parks(t, v)
		require.Zero(t, v.counts.spins.Load())
	})
	_, err := AttachOptions{Spin: -1}.resolve(pageDevice(t))
	require.ErrorIs(t, err, vmm.ErrInvalid)
}
