package shareable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// View is another process's memory, mapped here: a prefix that grows as its
// owner publishes more, at an address that never moves. All addresses are
// reserved when it is made, and a goroutine maps what the owner announces.
//
// When the owner goes, the view keeps what it has: the mapping stays, Len stands
// still, and Err says so. Nothing that an owner does makes a call here wait
// without bound, but work that uses the memory can: Close waits for it.
//
// A reader that asked for no more than reading cannot write by mistake. On the
// host it cannot at all, unless the owner lets it. On CUDA any process that has
// the memory can write to it if it wants to: trust it, or copy.
//
// Safe for concurrent use. The caller must Close it.
type View struct {
	dev *vmm.Device
	res *vmm.Reservation
	obj wire.Object
	opts   AttachOptions

	// Of the goroutine that reads the socket, alone.
	conn      *wire.Conn // nil where none is kept
	track     *wire.Tracker
	batch     uint32 // most fds in a frame, as the owner was told
	resyncing bool   // it was told so and may not have heard yet
	staleFrames     int    // frames from before it heard

	lastLen  atomic.Uint64 // the last length found in this generation
	stop  chan struct{} // closed by shut
	tasks sync.WaitGroup

	mu         sync.RWMutex // never held across a wait
	page       *readerPage    // nil where there is none any more
	mapped     uint64       // bytes mapped from the front
	generation uint64       // the one applied
	sealed     bool
	sealedLen       uint64 // the length it was sealed with
	digest     *[32]byte
	detached      bool   // the owner counts no more
	finalLen      uint64 // what Len is since then
	err        error
	closed     bool
	hostLen       uint64 // bytes that Host has handed out
	notifiedLen       uint64 // the length that those who wait know of
	lenChanged    chan struct{}
	waiters    int // calls of Wait
	watching   bool
	pageChecks      atomic.Uint64 // at the page, by whoever watches it
	pendingWaits    []*streamWait       // streams that wait

	waits streamWaits

	closeMu sync.Mutex // guards what follows
	attempt    *closeAttempt  // the close under way, or done
}

// Ptr is the first address. It stays the same until Close.
func (v *View) Ptr() vmm.Ptr {
	if v == nil {
		return 0
	}
	return v.res.Ptr()
}

// Len is how many bytes can be read: what the owner has published, as far as it
// is mapped here. It makes no system call. It grows, but for what the owner
// takes back, which Generation counts. After Close it is 0.
func (v *View) Len() uint64 {
	if v == nil {
		return 0
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.lenLocked()
}

// visible is Len. It needs v.mu, shared at least. The page's words are bounded
// by the mapping and nothing more is made of them. A length counts only if the
// generation, loaded after it, is the one that is mapped here.
func (v *View) lenLocked() uint64 {
	switch {
	case v.closed:
		return 0
	case v.detached:
		return v.finalLen
	case v.sealed:
		return min(v.sealedLen, v.mapped)
	case v.page == nil:
		return 0
	}
	n := min(v.page.done(), v.mapped)
	if v.page.generation() != v.generation {
		return min(v.lastLen.Load(), v.mapped)
	}
	for {
		old := v.lastLen.Load()
		if n <= old { // a length that goes back in one generation is a lie
			return old
		}
		if v.lastLen.CompareAndSwap(old, n) {
			return n
		}
	}
}

// Cap is how many bytes are mapped. What lies beyond Len has no meaning yet.
func (v *View) Cap() uint64 {
	if v == nil {
		return 0
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.closed {
		return 0
	}
	return v.mapped
}

// Queued is how many bytes the owner has begun to write, by its own word: Len
// will reach it if the owner lives.
func (v *View) Queued() uint64 {
	if v == nil {
		return 0
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	n := v.lenLocked()
	if v.closed || v.detached || v.sealed || v.page == nil {
		return n
	}
	return max(n, min(v.page.queued(), v.obj.Max))
}

// Heartbeat is when the owner last showed that it runs, by its own clock: once a
// second while it does. One that stands still shows so here, and nowhere else. Zero
// where there is no word of it.
func (v *View) Heartbeat() time.Time {
	if v == nil {
		return time.Time{}
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.page == nil || v.page.heartbeat() == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(v.page.heartbeat()))
}

// Max is how many bytes the view can grow to.
func (v *View) Max() uint64 {
	if v == nil {
		return 0
	}
	return v.obj.Max
}

// Device is the device that the memory is mapped for.
func (v *View) Device() *vmm.Device {
	if v == nil {
		return nil
	}
	return v.dev
}

// Name is the object's name.
func (v *View) Name() string {
	if v == nil {
		return ""
	}
	return v.obj.Name
}

// Instance names the owner's run: another one after each start.
func (v *View) Instance() [16]byte {
	if v == nil {
		return [16]byte{}
	}
	return v.obj.Instance
}

// Meta is a copy of what the owner gave with the object.
func (v *View) Meta() []byte {
	if v == nil {
		return nil
	}
	return slices.Clone(v.obj.Meta)
}

// Layout is what the owner says that the bytes are: opaque ones where it says
// nothing.
func (v *View) Layout() vmm.Layout {
	if v == nil {
		return vmm.Layout{}
	}
	l := vmm.Layout{
		Kind: vmm.ElemKind(v.obj.Elem.Kind), Bits: int(v.obj.Elem.Bits), Size: v.obj.Elem.Size,
		Pitch: v.obj.Pitch, Hash: v.obj.Elem.Hash,
	}
	for _, n := range v.obj.Shape {
		l.Shape = append(l.Shape, int(n))
	}
	return l
}

// Tensor describes the whole rows that can be read now, for libraries that take
// a pointer, a shape and strides. Where the owner says nothing of its bytes the
// answer is vmm.ErrInvalid.
func (v *View) Tensor() (vmm.Tensor, error) {
	if v == nil {
		return vmm.Tensor{}, errNoView
	}
	l, s := v.Layout(), v.Snapshot()
	if l.Pitch == 0 {
		return vmm.Tensor{}, fmt.Errorf("describe %q: %w: its owner does not say what the bytes are", v.obj.Name, vmm.ErrInvalid)
	}
	return l.Tensor(v.dev, v.res.Ptr(), s.Len-s.Len%l.Pitch)
}

// Generation goes up whenever the owner has taken bytes back, or replaced them.
func (v *View) Generation() uint64 {
	if v == nil {
		return 0
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.generation
}

// Sealed says whether the owner has promised that nothing changes any more.
func (v *View) Sealed() bool {
	if v == nil {
		return false
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.sealed
}

// Digest is the SHA-256 of the sealed bytes, by the owner's word; false if it
// gave none.
func (v *View) Digest() ([32]byte, bool) {
	if v == nil {
		return [32]byte{}, false
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.digest == nil {
		return [32]byte{}, false
	}
	return *v.digest, true
}

// Err is nil while more can come, and also once all there will be has come: the
// object is sealed and all of it is mapped. Else it is why no more comes:
// ErrOwnerGone, ErrProtocol, ErrRetired, an error of mapping, or after Close
// vmm.ErrClosed.
func (v *View) Err() error {
	if v == nil {
		return errNoView
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.err == nil && v.closed {
		return errViewClosed
	}
	return v.err
}

var (
	errNoView     = fmt.Errorf("%w: no view", vmm.ErrInvalid)
	errViewClosed = fmt.Errorf("%w: view", vmm.ErrClosed)
)

// live is nil until Close. It needs v.mu.
func (v *View) checkOpenLocked() error {
	if v.closed {
		return errViewClosed
	}
	return nil
}

// reached says whether Len is n, or why it never will be. It needs v.mu.
func (v *View) reachedLocked(n uint64) (bool, error) {
	switch {
	case v.closed:
		return false, errViewClosed
	case v.lenLocked() >= n:
		return true, nil
	case n > v.obj.Max:
		return false, fmt.Errorf("%w: %d bytes of a maximum of %d", vmm.ErrBounds, n, v.obj.Max)
	case v.detached && v.err != nil:
		return false, v.err
	case v.sealed && n > v.sealedLen:
		return false, fmt.Errorf("%w: %d bytes, and %d were asked for", ErrSealed, v.sealedLen, n)
	}
	return false, nil
}

// Wait waits until Len is n at least. It answers vmm.ErrClosed after Close,
// ErrSealed where the object has ended before n, vmm.ErrBounds where n is beyond
// Max, Err where no more comes, and the error of ctx.
func (v *View) Wait(ctx context.Context, n uint64) error {
	if v == nil || ctx == nil {
		return fmt.Errorf("%w: no view, or no context", vmm.ErrInvalid)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for {
		if ok, err := v.reachedLocked(n); ok || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if v.lenChanged == nil {
			v.lenChanged = make(chan struct{})
		}
		changed := v.lenChanged
		v.waiters++
		v.watchLocked()
		v.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		v.mu.Lock()
		v.waiters--
	}
}

// look tells those who wait if Len has moved. It needs v.mu whole.
func (v *View) updateLenLocked() (moved bool) {
	n := v.lenLocked()
	if n == v.notifiedLen {
		return false
	}
	v.notifiedLen = n
	v.notifyLocked()
	return true
}

// tell has all who wait look again. It needs v.mu whole.
func (v *View) notifyLocked() {
	if v.lenChanged != nil {
		close(v.lenChanged)
		v.lenChanged = nil
	}
	v.pendingWaits = slices.DeleteFunc(v.pendingWaits, func(s *streamWait) bool {
		ok, err := v.reachedLocked(s.n)
		if ok || err != nil {
			s.release()
			return true
		}
		return false
	})
}

// end lets go of the owner: what is mapped stays, and Len with it.
func (v *View) detach(why error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.detached || v.closed {
		return
	}
	v.finalLen = v.lenLocked()
	v.notifiedLen, v.detached = v.finalLen, true
	if whole := v.sealed && v.mapped >= v.sealedLen; !whole || !errors.Is(why, ErrOwnerGone) {
		v.err = why
	}
	v.notifyLocked()
	if v.page != nil {
		v.page.wakeWaiters()
	}
}

// Segments lists what is mapped, by address, as Range.Segments does.
func (v *View) Segments() []vmm.Segment {
	if v == nil {
		return nil
	}
	return v.res.Segments()
}

// UsedBy names the streams that work on this memory, as Reservation.UsedBy does: what
// the owner takes back is unmapped once they have done what they were told, and
// so is everything at Close.
func (v *View) UsedBy(streams ...*vmm.Stream) error {
	if v == nil {
		return errNoView
	}
	return v.res.UsedBy(streams...)
}

// Host is the first Len bytes as a slice, where the CPU can address the memory;
// vmm.ErrNotSupported on CUDA. It stays valid until Close: should the owner take
// any of it back, the view lets go of the owner instead (ErrRetired). Touching
// it after Close ends the process.
func (v *View) Host() ([]byte, error) {
	if v == nil {
		return nil, errNoView
	}
	h, ok := v.dev.Driver().(driver.HostViewer)
	if !ok {
		return nil, fmt.Errorf("%w: the CPU cannot address this memory", vmm.ErrNotSupported)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.checkOpenLocked(); err != nil {
		return nil, err
	}
	n := v.lenLocked()
	if n == 0 {
		return []byte{}, nil
	}
	b, err := h.HostBytes(v.res.Ptr(), n)
	if err != nil {
		return nil, err
	}
	v.hostLen = max(v.hostLen, n)
	return b[:n:n], nil
}

// ReadAt copies bytes from off on to p, without waiting for anything that is
// queued. Past Len it answers io.EOF, as Range.ReadAt does.
func (v *View) ReadAt(p []byte, off int64) (int, error) {
	if v == nil {
		return 0, errNoView
	}
	v.mu.RLock()
	have, err := v.lenLocked(), v.checkOpenLocked()
	v.mu.RUnlock()
	if err == nil && off < 0 {
		err = fmt.Errorf("%w: offset %d", vmm.ErrBounds, off)
	}
	if err != nil {
		return 0, err
	}
	if uint64(off) >= have {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	n := min(uint64(len(p)), have-uint64(off))
	if err := v.dev.CopyOut(p[:n], v.res.Ptr()+vmm.Ptr(off)); err != nil {
		return 0, err
	}
	if n < uint64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

var _ io.ReaderAt = (*View)(nil)

// closeRun is one try to close.
type closeAttempt struct {
	done chan struct{}
	err  error // once done is closed
}

// Close lets go of the owner, waits for work that uses the memory, unmaps it and
// frees the addresses; what WaitOn let wait runs on, and once WaitOn was used it
// waits for all work of the device. It answers what Reservation.Close does; after
// an error only Close works, and can be called again. Twice is fine, and so is a
// nil View.
func (v *View) Close() error { return v.CloseContext(context.Background()) }

// CloseContext is Close that stops waiting when ctx is done and answers its
// error. The close goes on by itself; another Close waits for it.
func (v *View) CloseContext(ctx context.Context) error {
	if v == nil {
		return nil
	}
	if ctx == nil {
		return fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	v.markClosed()
	run := v.startClose()
	select {
	case <-run.done:
		return run.err
	case <-ctx.Done():
	}
	select {
	case <-run.done:
		return run.err
	default:
		return ctx.Err()
	}
}

// begin joins the close that is under way or done, or begins one.
func (v *View) startClose() *closeAttempt {
	v.closeMu.Lock()
	defer v.closeMu.Unlock()
	if v.attempt != nil {
		return v.attempt
	}
	run := &closeAttempt{done: make(chan struct{})}
	v.attempt = run
	go func() {
		run.err = v.releaseAll()
		if run.err != nil {
			v.closeMu.Lock()
			v.attempt = nil
			v.closeMu.Unlock()
		}
		close(run.done)
	}()
	return run
}

// shut lets nobody in any more and lets go of the owner and of all who wait.
func (v *View) markClosed() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	v.closed = true
	close(v.stop)
	v.notifyLocked()
	if v.conn != nil {
		_ = v.conn.Close() // the owner sees the end, however it goes
	}
}

// finish gives everything back. Each step can be taken again.
func (v *View) releaseAll() error {
	v.waitTasks()
	v.mu.Lock()
	page := v.page
	v.page = nil
	v.mu.Unlock()
	err := page.close()
	pinned := v.waits.close(v.dev)
	if pinned != nil && !errors.Is(pinned, vmm.ErrDeviceLost) {
		return cmp.Or(err, pinned)
	}
	return cmp.Or(v.res.Close(), pinned, err)
}
