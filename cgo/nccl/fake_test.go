//go:build cgo && linux

package nccl_test

import (
	"errors"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
	"github.com/cuvmm/cuvmm/internal/testing/fakenccl"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// onFake is the binding on a fake NCCL of its own. The test must violate no rule of it and
// end all that it begins.
func onFake(tb testing.TB, changes ...fakelib.Change) (*nccl.Library, *fakenccl.Library) {
	tb.Helper()
	path := fakenccl.Build(tb, changes...)
	fake := fakenccl.Open(tb, path)
	l, err := nccl.Open(path)
	require.NoError(tb, err)
	tb.Cleanup(fake.Clean)
	return l, fake
}

// done asks until nothing is in progress.
func done(c *nccl.Comm, err error) error {
	for errors.Is(err, nccl.ErrInProgress) {
		runtime.Gosched()
		err = c.Progress()
	}
	return err
}

// join begins a group and waits until it stands.
func join(tb testing.TB, l *nccl.Library, size int) []*nccl.Comm {
	tb.Helper()
	id, err := l.NewID()
	require.NoError(tb, err)
	comms := make([]*nccl.Comm, size)
	for rank := range comms {
		comms[rank], err = l.Join(id, rank, size, nil)
		require.NoError(tb, err)
	}
	each(tb, comms, func(_ int, c *nccl.Comm) error { return done(c, nccl.ErrInProgress) })
	return comms
}

// all runs f for each member in a goroutine of its own.
func all(comms []*nccl.Comm, f func(rank int, c *nccl.Comm) error) []error {
	errs := make([]error, len(comms))
	var wg sync.WaitGroup
	for rank, c := range comms {
		wg.Go(func() { errs[rank] = f(rank, c) })
	}
	wg.Wait()
	return errs
}

func each(tb testing.TB, comms []*nccl.Comm, f func(rank int, c *nccl.Comm) error) {
	tb.Helper()
	for _, err := range all(comms, f) {
		require.NoError(tb, err)
	}
}

func leave(tb testing.TB, comms []*nccl.Comm) {
	tb.Helper()
	each(tb, comms, func(_ int, c *nccl.Comm) error { return c.Finalize() })
	each(tb, comms, func(_ int, c *nccl.Comm) error { return c.Destroy() })
}

// memory is n elements in Go's memory, which the fake takes for the device's.
//
// Safety: Go does not move what is on its heap, and it is in use until the test ends.
func memory[T any](tb testing.TB, values ...T) ([]T, uint64) {
	tb.Helper()
	tb.Cleanup(func() { runtime.KeepAlive(values) })
	return values, uint64(uintptr(unsafe.Pointer(&values[0])))
}

// isOnly checks that err is of that kind and of no other.
func isOnly(t *testing.T, err, kind error, what ...any) {
	t.Helper()
	require.Error(t, err, what...)
	for _, s := range []error{
		driver.ErrOutOfMemory, driver.ErrNotSupported, driver.ErrInvalid, driver.ErrClosed,
		nccl.ErrPeerGone, nccl.ErrFailed, nccl.ErrInProgress,
	} {
		require.Equal(t, errors.Is(kind, s), errors.Is(err, s), "%v: is it %q? %v", err, s, what)
	}
}
