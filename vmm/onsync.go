package vmm

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/frames"
)

// OnSync registers f, which is called when a Sync of a Stream, an Event, a Fence or a Device has
// succeeded, on any device of the same driver. The goroutine that called Sync calls f before Sync
// returns. So in f, Stream.Finished includes what the Sync has shown. stop removes f, and returns when no
// call of f is running, so f must not call stop.
//
// Waits that other calls of this package make do not call f. f is called by several goroutines at
// once, and with no lock of this package held. It must not panic. It may call this package: a Sync
// that f makes in its own goroutine calls no function of OnSync. On a nil or closed device f is
// never called.
func (d *Device) OnSync(f func()) (stop func()) {
	if d.checkOpen() != nil || f == nil {
		return func() {}
	}
	h := &syncHook{dev: d, f: f}
	all := &d.state.parent.onSync
	all.mu.Lock()
	all.all = append(all.all, h)
	all.count.Store(int32(len(all.all))) //nolint:gosec // one for each call of OnSync
	all.mu.Unlock()
	return func() {
		all.remove(func(e *syncHook) bool { return e == h })
		h.running.Wait()
	}
}

// syncHook is one function of OnSync.
type syncHook struct {
	dev     *Device
	f       func()
	running sync.WaitGroup
}

// syncHooks is the functions of OnSync of a driver's Devices.
type syncHooks struct {
	count   atomic.Int32 // of all: without any, a Sync takes no lock
	running atomic.Int32 // calls

	mu  sync.Mutex // nothing else is locked while it is held
	all []*syncHook
}

func (a *syncHooks) remove(which func(*syncHook) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = slices.DeleteFunc(a.all, which)
	a.count.Store(int32(len(a.all))) //nolint:gosec // one for each call of OnSync
}

// begin counts a call of h, unless a function that was called before has removed it.
func (a *syncHooks) begin(h *syncHook) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.all, h) {
		return false
	}
	h.running.Add(1)
	return true
}

// runSyncHooks calls the functions of OnSync. The caller holds no lock.
func (s *driverState) runSyncHooks() {
	a := &s.onSync
	if a.count.Load() == 0 || a.running.Load() > 0 && inSyncHook() {
		return
	}
	a.mu.Lock()
	all := slices.Clone(a.all)
	a.mu.Unlock()
	a.running.Add(1)
	defer a.running.Add(-1)
	for _, h := range all {
		if a.begin(h) {
			callSyncHook(h)
		}
	}
}

// callSyncHook is a frame that inSyncHook finds.
//
//go:noinline
func callSyncHook(h *syncHook) {
	defer h.running.Done()
	h.f()
}

// inSyncHook reports whether a function of OnSync has called this one.
func inSyncHook() bool { return frames.CalledBy(callSyncHook) }
