//go:build cgo && linux

package cuda_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// pause holds calls of symbol back until resume. held waits until n are.
func pause(t *testing.T, fake *fakecuda.Library, symbol string) (held func(n int), resume func()) {
	t.Helper()
	require.NoError(t, fake.Pause(symbol))
	resume = func() { require.NoError(t, fake.Pause("")) }
	t.Cleanup(resume)
	return func(n int) {
		for fake.Paused() < n {
			runtime.Gosched()
		}
	}, resume
}

// While libcuda destroys one handle, which may take long, calls with other handles go
// on, and others can be freed.
func TestFreeHoldsUpNoOther(t *testing.T) {
	for _, symbol := range []string{"cuEventDestroy_v2", "cuStreamDestroy_v2"} {
		t.Run(symbol, func(t *testing.T) {
			_, v, fake := opened(t)
			e, err := v.NewEvent(0)
			require.NoError(t, err)
			s, err := v.NewStream()
			require.NoError(t, err)
			other, err := v.NewEvent(0)
			require.NoError(t, err)
			first, last := func() error { return v.FreeEvent(e) }, func() error { return v.FreeStream(s) }
			if symbol == "cuStreamDestroy_v2" {
				first, last = last, first
			}
			held, resume := pause(t, fake, symbol)
			freed := make(chan error, 1)
			go func() { freed <- first() }()
			held(1)
			require.NoError(t, within(t, "record", func() error { return v.Record(other, v.CopyStream()) }))
			var another driver.Stream
			require.NoError(t, within(t, "make a stream", func() (err error) { another, err = v.NewStream(); return err }))
			isOnly(t, within(t, "free it again", first), driver.ErrInvalid)
			if symbol == "cuEventDestroy_v2" {
				isOnly(t, within(t, "record what is being freed", func() error { return v.Record(e, v.CopyStream()) }), driver.ErrInvalid)
			}
			require.NoError(t, within(t, "free the other kind", last))
			resume()
			require.NoError(t, soon(t, "free", freed))
			require.NoError(t, v.FreeStream(another))
			require.NoError(t, v.FreeEvent(other))
		})
	}
}

// A handle that is freed during a call that uses it is destroyed once, when that call
// is done: libcuda crashes on a handle that is destroyed under it.
func TestFreeInUse(t *testing.T) {
	_, v, fake := opened(t)
	e, err := v.NewEvent(0)
	require.NoError(t, err)
	s, err := v.NewStream()
	require.NoError(t, err)
	for _, c := range []struct {
		symbol, destroy string
		use, free       func() error
	}{
		{"cuEventSynchronize", "cuEventDestroy_v2", func() error { return v.SyncEvent(e) }, func() error { return v.FreeEvent(e) }},
		{"cuStreamSynchronize", "cuStreamDestroy_v2", func() error { return v.SyncStream(s) }, func() error { return v.FreeStream(s) }},
	} {
		held, resume := pause(t, fake, c.symbol)
		used := make(chan error, 2)
		for range 2 {
			go func() { used <- c.use() }()
		}
		held(2)
		require.NoError(t, within(t, "free", c.free), "it does not wait")
		require.Zero(t, fake.Calls(c.destroy), "freed under a call")
		isOnly(t, c.free(), driver.ErrInvalid, "twice")
		resume()
		require.NoError(t, soon(t, "the first call", used))
		require.NoError(t, soon(t, "the second call", used))
		require.Equal(t, 1, fake.Calls(c.destroy))
	}
}

// The number of a freed stream may be another library's next. Then it is no stream of
// ours, whatever was found without the lock before.
func TestFreedNumber(t *testing.T) {
	d, v, fake := opened(t)
	passedOn := func(s driver.Stream) {
		t.Helper()
		fake.Fail("cuStreamSynchronize", 1, 2)
		isOnly(t, v.SyncStream(s), driver.ErrOutOfMemory, "it did not reach libcuda")
	}
	s, err := v.NewStream()
	require.NoError(t, err)
	require.NoError(t, v.SyncStream(s))
	require.NoError(t, v.FreeStream(s))
	passedOn(s)
	other := openOn(t, d, 0)
	s, err = other.NewStream()
	require.NoError(t, err)
	require.NoError(t, v.SyncStream(s))
	require.NoError(t, other.FreeStream(s))
	own := other.CopyStream()
	require.NoError(t, v.SyncStream(own))
	require.NoError(t, other.Close())
	passedOn(own)
}

// After a failed free the handle still works.
func TestFreeFails(t *testing.T) {
	_, v, fake := opened(t)
	e, err := v.NewEvent(0)
	require.NoError(t, err)
	fake.Fail("cuEventDestroy_v2", 1, 2)
	isOnly(t, v.FreeEvent(e), driver.ErrOutOfMemory)
	require.NoError(t, v.Record(e, v.CopyStream()))
	require.NoError(t, v.FreeEvent(e))
	isOnly(t, v.FreeEvent(e), driver.ErrInvalid)
}
