package shareable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// View is memory of another process, the owner, mapped in this one: a prefix that grows as the
// owner publishes more, at an address that never moves. All addresses are reserved when the View is
// made. A goroutine maps the chunks that the owner sends.
//
// When the owner ends, the View keeps what it has mapped: Len no longer changes, and Err returns
// ErrOwnerGone. A View of a store goes on by itself if its server is started again. No owner can
// make a call of a View wait without limit, but local work can: Close waits for work that uses the
// memory.
//
// A View without AttachOptions.Write is mapped for reading, which prevents writes by mistake. On
// the host the owner can also enforce it. On CUDA every process that has the memory can give itself
// write access: trust it, or copy.
//
// Safe for concurrent use. The caller must Close it.
type View struct {
	// Immutable.
	dev   *vmm.Device
	res   *vmm.Reservation
	obj   wire.Object
	opts  AttachOptions
	asked string          // what a client of a store asked for, set before anyone else has the View; else empty
	path  string          // of the socket; empty after AttachConn and Receive
	owner wire.Hello      // the owner's
	max   uint64          // bytes that can be mapped here
	live  bool            // made by Attach: there is a control page
	ctx   context.Context // done once markClosed was called
	stop  context.CancelFunc

	// The goroutine that reads the socket.
	track       *wire.Tracker
	batch       uint32   // fds in one frame at most, as the owner was told
	resyncing   bool     // RESYNC was sent, and frames from before it may still come
	staleFrames int      // frames skipped since the RESYNC
	short       shortage // of descriptors

	// The goroutine of watch, of which there is one at a time.
	pace wakePace

	// Safe for concurrent use.
	lastLen atomic.Uint64 // the length last seen in this generation
	counts  struct{ frames, resyncs, wakes atomic.Uint64 }
	tasks   sync.WaitGroup // unmaps
	again   sync.WaitGroup // the goroutine that connects again
	waits   streamWaits

	// Guarded by mu.
	mu           sync.RWMutex  // never held across a wait
	conn         *readerConn   // nil after Receive; the goroutine that reads it replaces it
	wake         *wakeReceiver // nil after Receive
	page         *readerPage   // nil after Receive and after Close
	mapped       uint64        // bytes of the object mapped, from its first one on
	chunks       int           // chunks mapped
	generation   uint64        // the generation applied
	sealed       bool
	sealedLen    uint64 // the final length
	digest       *[32]byte
	finished     bool   // SEALED has come: digest is known
	detached     bool   // nothing more is taken from the owner
	finalLen     uint64 // Len since it detached
	err          error  // why it detached
	closed       bool
	hostLen      uint64        // bytes that Host has returned
	notifiedLen  uint64        // the length of the last notifyLenLocked
	changed      chan struct{} // closed by notifyLocked; nil while no call has it
	watching     bool          // watch runs: one goroutine at a time looks at the page
	pendingWaits []*streamWait // queued on streams and not released

	// Guarded by closeMu.
	closeMu sync.Mutex
	attempt *closeAttempt // the close that runs or has succeeded
}

// Ptr is the first address. It stays the same until Close.
func (v *View) Ptr() vmm.Ptr {
	if v == nil || v.dev == nil {
		return 0
	}
	return v.first()
}

// first is the address of the object's first byte.
func (v *View) first() vmm.Ptr { return v.res.Ptr() + vmm.Ptr(v.obj.Base) }

// beyond is how many bytes of the object there are if the chunks end at an offset.
func (v *View) beyond(end uint64) uint64 { return end - min(end, v.obj.Base) }

// Len is how many bytes can be read: those that the owner has published and that are mapped here.
// It makes no system call. It only grows, unless the owner takes bytes back, which changes
// Generation. A store's object that is not sealed can briefly show bytes that do not count, because
// their Writer has lost its lease. Len then falls to what counts, and Err is ErrRetired. After
// Close it is 0.
func (v *View) Len() uint64 {
	if v == nil || v.dev == nil {
		return 0
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.lenLocked()
}

// lenLocked is Len. Requires mu, for reading at least. The page is the owner's
// word, so a length from it is limited to what is mapped. It counts only if the
// generation, loaded after it, is the one that is mapped.
func (v *View) lenLocked() uint64 {
	n, _ := v.lengthsLocked()
	return n
}

// lengthsLocked is Len and Published, of one look at the page. Requires mu, for reading at least.
func (v *View) lengthsLocked() (n, published uint64) {
	invariants.Held(&v.mu)
	switch {
	case v.closed:
		return 0, 0
	case v.detached:
		return v.finalLen, v.finalLen
	case v.sealed:
		return min(v.sealedLen, v.mapped), v.sealedLen
	case v.page == nil:
		return 0, 0
	}
	published = min(v.page.published(), v.max)
	n = min(published, v.mapped)
	if v.page.generation() != v.generation { // a RETIRE is on its way
		n = min(v.lastLen.Load(), v.mapped)
		return n, max(n, published)
	}
	// On one page, within a generation, the length never goes back: a smaller one is ignored.
	for {
		old := v.lastLen.Load()
		if n <= old {
			return old, max(old, published)
		}
		if v.lastLen.CompareAndSwap(old, n) {
			return n, published
		}
	}
}

// Cap is how many bytes are mapped. Bytes beyond Len have no meaning yet. For a Span they are what
// else lies in its last chunk.
func (v *View) Cap() uint64 {
	if v == nil || v.dev == nil {
		return 0
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.closed {
		return 0
	}
	return v.mapped
}

// Published is how many bytes the owner has published. Len reaches it once they are mapped
// here.
func (v *View) Published() uint64 {
	if v == nil || v.dev == nil {
		return 0
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	_, n := v.lengthsLocked()
	return n
}

// Queued is how many bytes the owner says it has begun to write. Len will reach
// it unless the owner ends first.
func (v *View) Queued() uint64 {
	if v == nil || v.dev == nil {
		return 0
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	_, n := v.lengthsLocked()
	if v.closed || v.detached || v.sealed || v.page == nil {
		return n
	}
	return max(n, min(v.page.queued(), v.max))
}

// Heartbeat is the time, by the owner's clock, at which the owner last showed that
// it runs. A running owner updates it once a second; nothing else tells a stopped
// owner from an idle one. It is zero without a control page, and for a Span.
func (v *View) Heartbeat() time.Time {
	if v == nil || v.dev == nil {
		return time.Time{}
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.page == nil {
		return time.Time{}
	}
	at := v.page.heartbeat()
	if at == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(at))
}

// Max is the most bytes that can be mapped here: the owner's maximum, but no more than
// AttachOptions.MaxBytes.
func (v *View) Max() uint64 { return nonnil.Of(v).max }

// Device is the device that the memory is mapped for.
func (v *View) Device() *vmm.Device { return nonnil.Of(v).dev }

// Location is where the memory is: on a device or on the host. It is the zero Location if the object
// has no memory yet.
func (v *View) Location() vmm.Location {
	for _, s := range v.Segments() {
		return s.Location
	}
	return vmm.Location{}
}

// String is how Report and the errors of a device name the View's addresses, for people.
func (v *View) String() string { return fmt.Sprintf("view of %q", nonnil.Of(v).obj.Name) }

// Name is the object's name. For a View from store.Client.Get it is the name or ID passed to Get.
func (v *View) Name() string {
	v = nonnil.Of(v)
	return cmp.Or(v.asked, v.obj.Name)
}

// SetName is what Name returns.
func (forStore) SetName(v *View, name string) { v.asked = name }

// ID is the number of the object in its owner.
func (v *View) ID() uint64 { return nonnil.Of(v).obj.ID }

// Instance is a random number that the owner chooses at each start.
func (v *View) Instance() [16]byte { return nonnil.Of(v).obj.Instance }

// Meta returns a copy of PublishOptions.Meta.
func (v *View) Meta() []byte { return slices.Clone(nonnil.Of(v).obj.Meta) }

// Generation rises whenever the owner has taken bytes back or replaced them.
func (v *View) Generation() uint64 {
	v = nonnil.Of(v)
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.generation
}

// Sealed reports whether the owner has said that neither length nor bytes will change any more.
func (v *View) Sealed() bool {
	v = nonnil.Of(v)
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.sealed
}

// Digest is the SHA-256 of the sealed bytes as the owner computed it; false if it
// sent none.
func (v *View) Digest() ([32]byte, bool) {
	if v == nil || v.dev == nil {
		return [32]byte{}, false
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.digest == nil {
		return [32]byte{}, false
	}
	return *v.digest, true
}

// Err returns nil while more bytes can come, and also once the object is sealed and fully mapped.
// Otherwise it returns why nothing more comes: ErrOwnerGone (also after the owner has closed the
// Publication), ErrTooSlow, ErrProtocol, ErrRetired, vmm.ErrLimit, an error of mapping, or
// vmm.ErrClosed after Close.
func (v *View) Err() error {
	if v == nil || v.dev == nil {
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

// checkOpenLocked returns an error after Close. Requires mu.
func (v *View) checkOpenLocked() error {
	invariants.Held(&v.mu)
	if v.closed {
		return errViewClosed
	}
	return nil
}

// detach ends the dependence on the owner: what is mapped stays, and Len keeps its
// last value.
func (v *View) detach(cause error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.detached || v.closed {
		return
	}
	// The page is read once more: what it says now is final.
	v.finalLen = v.lenLocked()
	v.notifiedLen, v.detached = v.finalLen, true
	// A sealed object that is wholly mapped does not need its owner any more.
	if whole := v.sealed && v.mapped >= v.sealedLen; !whole || !errors.Is(cause, ErrOwnerGone) {
		v.err = cause
	}
	v.notifyLocked()
}

// Segments returns the mapped chunks by address, as Range.Segments does. The first may begin
// before Ptr, and the last end after the object: see PublishSpan.
func (v *View) Segments() []vmm.Segment { return nonnil.Of(v).res.Segments() }

// UsedBy adds streams that use this memory, as Reservation.UsedBy does. The View waits for the work
// queued on them before it unmaps memory that the owner takes back, and at Close.
func (v *View) UsedBy(streams ...*vmm.Stream) error {
	if v == nil || v.dev == nil {
		return errNoView
	}
	return v.res.UsedBy(streams...)
}

// closeAttempt is one run of releaseAll.
type closeAttempt struct {
	done chan struct{}
	err  error // set before done is closed
}

// Close disconnects from the owner, waits for work that uses the memory, unmaps it and frees the
// addresses. With AttachOptions.Write it disconnects only once nothing uses the memory any more,
// also if the View has failed before. Until then the owner counts this reader, and so does not use
// the memory of a Span for something else. Without Write, the caller must first end work that reads
// a Span's memory.
//
// Chunks taken from Segments keep the memory: close them first. Streams that wait by WaitOn are
// released. If WaitOn was used, Close waits for all work of the device. The errors are those of
// Reservation.Close. After an error only Close can be called, and it tries again. Twice is fine,
// and so is a nil View.
func (v *View) Close() error { return v.CloseContext(context.Background()) }

// CloseContext is Close, except that it stops waiting when ctx is done and then returns the error
// of ctx. The close continues; another Close waits for it.
func (v *View) CloseContext(ctx context.Context) error {
	if v == nil || v.dev == nil {
		return nil
	}
	if ctx == nil {
		return fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	// Calls that wait return before the close waits for anything itself.
	v.markClosed()
	run := v.startClose()
	select {
	case <-run.done:
		return run.err
	case <-ctx.Done():
	}
	// Both may be ready: a close that has ended counts.
	select {
	case <-run.done:
		return run.err
	default:
		return ctx.Err()
	}
}

// startClose returns the attempt that runs or has succeeded, else it starts one.
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

// markClosed makes every later call return vmm.ErrClosed, ends the calls and
// releases the streams that wait, and closes the connection, unless this View may write.
func (v *View) markClosed() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	v.closed = true
	v.stop()
	v.notifyLocked()
	if v.conn != nil && !v.opts.Write {
		v.conn.end() // the owner notices, whatever becomes of this close
	}
}

// releaseAll releases everything, the connection last: its goroutine closes it. Each step can be
// repeated after an error.
func (v *View) releaseAll() error {
	// It may have made conn, and waits for the work on that. So it ends before the last work begins.
	v.again.Wait()
	v.mu.RLock()
	conn := v.conn // takes no other's place any more
	v.mu.RUnlock()
	if conn != nil {
		return conn.endAfter(v.release) // frames use the page and the mappings
	}
	return v.release()
}

// release waits for work on the memory and unmaps it.
func (v *View) release() error {
	v.tasks.Wait() // of unmaps
	v.mu.Lock()
	page := v.page
	v.page = nil
	v.mu.Unlock()
	err := page.close()
	waits := v.waits.close(v.dev)
	if waits != nil && !errors.Is(waits, vmm.ErrDeviceLost) {
		return cmp.Or(err, waits)
	}
	return cmp.Or(v.res.Close(), waits, err)
}

// ViewStats counts what a View has and has done since it was made.
type ViewStats struct {
	Chunks  int    `json:"chunks"`  // mapped now
	Mapped  uint64 `json:"mapped"`  // bytes mapped now
	Frames  uint64 `json:"frames"`  // frames of chunks that were mapped
	Resyncs uint64 `json:"resyncs"` // requests to send chunks again, because of too few descriptors
	Wakes   uint64 `json:"wakes"`   // how often the owner woke a wait, which then looked at the length
}

// Stats returns the counts as of now. After Close nothing is mapped.
func (v *View) Stats() ViewStats {
	if v == nil || v.dev == nil {
		return ViewStats{}
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	s := ViewStats{Frames: v.counts.frames.Load(), Resyncs: v.counts.resyncs.Load(), Wakes: v.counts.wakes.Load()}
	if !v.closed {
		s.Chunks, s.Mapped = v.chunks, v.mapped
	}
	return s
}

// MemoryArg sets m to the bytes up to Len as an argument of a kernel, for package kernel. A kernel
// may read them, and may write them if the View was attached with AttachOptions.Write.
func (v *View) MemoryArg(m *vmm.MemoryArg) {
	if m == nil {
		return
	}
	if v == nil || v.dev == nil {
		*m = vmm.MemoryArg{}
		return
	}
	v.res.MemoryArg(m, v.obj.Base, v.Len())
}
