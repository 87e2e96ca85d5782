//go:build cgo && linux

package cuda_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/internal/second"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

const (
	libcuda   = "libcuda.so.1"
	chunkSize = 2 * mib
)

// within is what f returns. If f does not return within a minute the test ends, and its
// cleanup opens the gate.
func within(t *testing.T, doing string, f func() error) error {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- f() }()
	return soon(t, doing, result)
}

func soon[T any](t *testing.T, doing string, result <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-result:
	case <-time.After(time.Minute):
		t.Fatalf("%s: nothing returned in a minute", doing)
	}
	return v
}

// guest is a second context on device 0, with work on the last chunk of a range
// of ours behind a closed gate.
type guest struct {
	*second.Context
	dev  *vmm.Device
	raw  driver.Device
	r    *vmm.Range
	word []byte // pinned; the gate opens when it is 1
}

// open opens the gate.
//
// Safety: pinned memory is aligned for any word and four bytes long, and is
// freed when the second context has been waited for.
func (g *guest) open() { atomic.StoreUint32((*uint32)(unsafe.Pointer(&g.word[0])), 1) }

// newGuest makes a guest. finish is run at the end of the test: a process that loses
// its device frees nothing and ends.
func newGuest(t *testing.T, drv driver.Driver, open func(string, int) (*second.Context, error), finish func(doing string, f func() error)) *guest {
	t.Helper()
	if err := drv.Supports(0, driver.FeatureStreamMemOps); err != nil {
		t.Skipf("needs streams that wait for a word: %v", err)
	}
	g := &guest{}
	var err error
	g.dev, err = vmm.OpenDriver(drv, 0)
	require.NoError(t, err)
	finish("close the device", g.dev.Close)
	g.raw, err = g.dev.Raw()
	require.NoError(t, err)
	pinner := g.raw.(driver.HostAllocator)
	p, word, err := pinner.AllocHost(4)
	require.NoError(t, err)
	finish("free the word", func() error { return pinner.FreeHost(p) })
	g.word = word
	clear(g.word)
	g.Context, err = open(libcuda, 0)
	var missing *second.Error
	if errors.As(err, &missing) && missing.Result == -1 {
		t.Skipf("needs a driver that has %s", missing.Call)
	}
	require.NoError(t, err)
	finish("destroy the second context", g.Context.Close)
	g.r, err = g.dev.NewRange(vmm.RangeOptions{Max: 4 * chunkSize, Chunk: chunkSize})
	require.NoError(t, err)
	finish("close the range", g.r.Close)
	require.NoError(t, g.r.Grow(2*chunkSize))
	require.NoError(t, g.r.SetLen(chunkSize))
	require.EqualValues(t, 2*chunkSize, g.r.Cap())

	require.NoError(t, g.Wait(uint64(p), 1))
	t.Cleanup(g.open)
	require.NoError(t, within(t, "queue a fill", func() error {
		return g.Fill(uint64(g.r.Ptr())+chunkSize, 0xab, chunkSize)
	}))
	return g
}

// passedOver checks that the default wait does not cover the second context.
func (g *guest) passedOver(t *testing.T, drv driver.Driver) {
	t.Helper()
	require.NoError(t, within(t, "wait for the primary context", func() error { return drv.SyncIfActive(0) }))
	done, err := g.Done()
	require.NoError(t, err)
	require.False(t, done, "the work ran although its gate is closed")
}

// One synchronise covers one context, so a wait for the device does not wait for work
// of another context. A wrapped stream that UsedBy names is waited for.
func TestSecondContextNamed(t *testing.T) {
	waiting := make(chan string, 1)
	var clipping atomic.Bool
	var g *guest
	drv := drivertest.Inject(device(t), func(c drivertest.Call) error {
		if !clipping.Load() {
			return nil
		}
		switch c.Name {
		case "SyncStream", "SyncEvent":
			select {
			case waiting <- c.Name:
			default: // the first one is enough
			}
		case "Unmap":
			// The call is refused, so the device is not lost for later tests.
			if done, err := g.Done(); err != nil || !done {
				return errors.Join(errors.New("unmapped under the second context's work"), err)
			}
		}
		return nil
	})
	g = newGuest(t, drv, second.Open, func(doing string, f func() error) {
		t.Cleanup(func() { require.NoError(t, f(), doing) })
	})
	// After the gate is open, and before the memory that the work uses is freed.
	t.Cleanup(func() { require.NoError(t, within(t, "wait for the second context", g.Sync)) })
	t.Cleanup(g.open)
	g.passedOver(t, drv)

	e, err := g.raw.NewEvent(0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.raw.FreeEvent(e)) })
	err = g.raw.Record(e, driver.Stream(g.Stream()))
	t.Logf("an event of the primary context, recorded on the second one's stream: %v", err)
	if err != nil {
		require.ErrorIs(t, err, driver.ErrInvalid)
	}

	s := g.dev.WrapStream(g.Stream())
	t.Cleanup(func() {
		g.open() // Close waits for the stream
		require.NoError(t, s.Close())
	})
	require.NoError(t, g.r.UsedBy(s))
	clipping.Store(true)
	clipped := make(chan error, 1)
	go func() { clipped <- g.r.Clip() }()
	select {
	case call := <-waiting:
		t.Logf("Clip waits in %s", call)
	case err := <-clipped:
		t.Fatalf("Clip did not wait: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("Clip neither waits nor returns")
	}
	require.Empty(t, clipped, "Clip returned while the gate was closed")
	g.open()
	require.NoError(t, soon(t, "clip", clipped))
	done, err := g.Done()
	require.NoError(t, err)
	require.True(t, done, "Clip returned before the work had run")
	require.EqualValues(t, chunkSize, g.r.Cap())
	require.NoError(t, g.Fill(uint64(g.r.Ptr()), 0xcd, chunkSize))
	require.NoError(t, within(t, "wait for the second context", g.Sync))
	got := make([]byte, 1)
	_, err = g.r.ReadAt(got, chunkSize-1)
	require.NoError(t, err)
	require.Equal(t, []byte{0xcd}, got, "both contexts are well, and see the same memory")
}

// This is why UsedBy is needed: without it the same Clip unmaps under the second
// context's work, and that context is lost.
func TestSecondContextNotNamed(t *testing.T) {
	drv := device(t)
	if !testgate.InChild(t) {
		return
	}
	g := newGuest(t, drv, second.Open, func(string, func() error) {})
	g.passedOver(t, drv)
	require.NoError(t, within(t, "clip", g.r.Clip))
	done, err := g.Done()
	require.NoError(t, err)
	require.False(t, done, "Clip waited for the second context")
	g.open()
	err = within(t, "wait for the second context", g.Sync)
	t.Logf("the second context says: %v", err)
	var lost *second.Error
	require.ErrorAs(t, err, &lost)
	const illegalAddress, launchFailed = 700, 719
	require.Contains(t, []int{illegalAddress, launchFailed}, lost.Result)
}

// A green context takes events of the primary one, and a wait for the primary one
// covers its work. So Clip waits for it although no UsedBy names its stream.
func TestGreenContext(t *testing.T) {
	drv := device(t)
	if !testgate.InChild(t) {
		return
	}
	g := newGuest(t, drv, second.OpenGreen, func(string, func() error) {})
	e, err := g.raw.NewEvent(0)
	require.NoError(t, err)
	require.NoError(t, g.raw.Record(e, driver.Stream(g.Stream())))
	own, err := g.raw.NewStream()
	require.NoError(t, err)
	require.NoError(t, g.raw.Wait(own, e))
	synced, clipped := make(chan error, 1), make(chan error, 1)
	go func() { synced <- drv.SyncIfActive(0) }()
	go func() { clipped <- g.r.Clip() }()
	select {
	case err := <-synced:
		t.Fatalf("a wait for the primary context passed over the green one's work: %v", err)
	case err := <-clipped:
		t.Fatalf("Clip passed over the green context's work: %v", err)
	case <-time.After(300 * time.Millisecond): // a wait cannot be observed
	}
	done, err := g.raw.Done(e)
	require.NoError(t, err)
	require.False(t, done)
	g.open()
	require.NoError(t, soon(t, "wait for the primary context", synced))
	require.NoError(t, soon(t, "clip", clipped))
	require.NoError(t, g.raw.SyncStream(own))
	done, err = g.raw.Done(e)
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, g.dev.Sync(), "the device is well")
}

// A reset of the primary context by another library takes no mapped memory.
func TestForeignReset(t *testing.T) {
	drv := device(t)
	if !testgate.InChild(t) {
		return
	}
	p, err := drv.Reserve(chunkSize, 0)
	require.NoError(t, err)
	h, err := drv.Create(chunkSize, driver.Prop{Location: onDevice(0)})
	require.NoError(t, err)
	require.NoError(t, drv.Map(p, chunkSize, h))
	require.NoError(t, drv.SetAccess(p, chunkSize, []driver.Grant{{To: onDevice(0), Access: driver.AccessReadWrite}}))
	before, err := drv.Open(0) // never closed: the reset frees what it has
	require.NoError(t, err)
	want := []byte("still here")
	require.NoError(t, before.CopyIn(p, want))

	require.NoError(t, within(t, "reset", func() error { return second.ResetPrimary(libcuda, 0) }))

	after, err := drv.Open(0)
	require.NoError(t, err)
	got := make([]byte, len(want))
	require.NoError(t, within(t, "read", func() error { return after.CopyOut(got, p) }))
	require.Equal(t, want, got)
	require.NoError(t, after.Close())
	require.NoError(t, drv.Unmap(p, chunkSize))
	require.NoError(t, drv.Release(h))
	require.NoError(t, drv.Free(p, chunkSize))
}
