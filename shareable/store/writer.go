package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/internal/prefix"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Writer writes to an object: no other process may, until Seal, Abort or Close, or until
// the process ends. Its memory is the store's, mapped here as a vmm.Range. What the range
// shows up to its Len is published as soon as it is written: the bytes of Append at once,
// those of AppendOn when their copy has finished, and those that a kernel has written when SetLen
// counts them.
//
// Published bytes stay: of an object that is Durable also when this process is killed or
// loses its device. They are held, as bytes about to be published are, so SetLen and Clip below them,
// and the range's Close, return vmm.ErrBusy.
//
// If the server ends and no other one continues with the object, if the lease was taken away, or if
// another client deletes the object, Err says so. The memory stays mapped, but nothing more is
// published.
//
// Safe for concurrent use. The caller must Close it.
type Writer struct {
	// Immutable once it is open.
	c       *Client
	conn    serve.Client
	name    string
	durable bool
	created bool   // by this Writer
	waits   bool   // for the lease, as long as its context allows
	fenced  bool   // the object's memory is no longer written to
	size    uint64 // bytes of a created object
	id      ID
	obj     wire.Object
	memory  *writerMemory
	r       *vmm.Range
	hold    door.LenHold
	page    serve.WriterPage
	ctx     context.Context // ends what the goroutines wait for
	cancel  context.CancelFunc

	// Safe for concurrent use.
	tasks     sync.WaitGroup
	opened    chan struct{} // closed by start
	changes   chan struct{} // wakes follow: the range and the page may differ
	wrote     chan struct{} // wakes sendWrote: the page has changed
	lastBeat  atomic.Int64  // since started, in ns
	doubts    atomic.Uint64 // how often the lease may have ended: a beat was late, a Seal had no reply
	confirmed atomic.Uint64 // after how many of these the server has said that it is there
	published atomic.Uint64 // what readers have of the range; stored with exclusive
	counted   atomic.Uint64 // bytes that the server has said count, whatever becomes of the lease

	// A lock: who has it alone publishes, or ends that. A context can stop the wait for it.
	exclusive chan struct{}

	// Guarded by mu.
	mu     sync.Mutex
	err    error // why nothing more is published
	cutOff error // what ends publishing, or is about to: errSealed, errWriterClosed
	sealed bool
	closed bool

	// Guarded by closing.
	closing  sync.Mutex
	aborting bool   // the object goes
	ended    bool   // nothing is left to be closed
	length   uint64 // that the range had
}

// newWriter makes a Writer that is not open.
func (c *Client) newWriter(name string) *Writer {
	w := &Writer{
		c: c, name: name, opened: make(chan struct{}), changes: make(chan struct{}, 1), wrote: make(chan struct{}, 1),
		exclusive: make(chan struct{}, 1),
	}
	w.memory = &writerMemory{w: w}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

var (
	errNoWriter     = fmt.Errorf("%w: no writer", vmm.ErrInvalid)
	errWriterClosed = fmt.Errorf("%w: writer", vmm.ErrClosed)
	errSealed       = fmt.Errorf("%w: by this writer", shareable.ErrSealed)
)

// call sends a request on the Writer's connection, within the time limit.
func (w *Writer) call(ctx context.Context, t wire.Type, payload []byte, reply wire.Type, done func(wire.Frame) error) error {
	return call(ctx, w.c.opts.Timeout, w.conn, t, payload, reply, done)
}

// event handles a frame that nothing asked for.
func (w *Writer) event(f wire.Frame) error {
	if f.Type != wire.TypeDeleted {
		return unasked(f)
	}
	w.fail(fmt.Errorf("%w: it was deleted", shareable.ErrNotFound))
	return nil
}

// fail records why nothing more is published, unless something else has been.
func (w *Writer) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = cmp.Or(w.err, err)
}

// ID is the object's.
func (w *Writer) ID() ID { return nonnil.Of(w).id }

// Name is the name that Create or Append was called with.
func (w *Writer) Name() string { return nonnil.Of(w).name }

// Range is the memory. It is the Writer's: it can be grown, written and read, but not
// closed.
func (w *Writer) Range() *vmm.Range { return nonnil.Of(w).r }

// Ptr is the first address. It stays the same until Close.
func (w *Writer) Ptr() vmm.Ptr { return w.Range().Ptr() }

// Len is how many bytes were written or are being written.
func (w *Writer) Len() uint64 { return w.Range().Len() }

// Cap is how many bytes of memory are mapped.
func (w *Writer) Cap() uint64 { return w.Range().Cap() }

// Max is how many bytes the object can have: CreateOptions.Size, rounded up to whole pages
// of the device.
func (w *Writer) Max() uint64 { return w.Range().Max() }

// Layout is that of CreateOptions, also in a Writer that Append has made.
func (w *Writer) Layout() vmm.Layout {
	if w == nil {
		return vmm.Layout{}
	}
	return layoutOf(wire.Create{Elem: w.obj.Elem, Shape: w.obj.Shape, Pitch: w.obj.Pitch})
}

// Meta returns a copy of CreateOptions.Meta.
func (w *Writer) Meta() []byte { return slices.Clone(nonnil.Of(w).obj.Meta) }

// Err returns nil while what is written is published. Else it returns why it is not any more:
// shareable.ErrSealed, vmm.ErrClosed, shareable.ErrOwnerGone if the server has ended or the lease
// was taken away, shareable.ErrNotFound if another client has deleted the object, or an error of
// the range: vmm.ErrDeviceLost.
func (w *Writer) Err() error {
	if w == nil || w.c == nil {
		return errNoWriter
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return errWriterClosed
	case w.sealed:
		return errSealed
	}
	return w.err
}

// Append adds bytes at the end, and returns when they are copied. Memory is added as they
// need it, up to Max (vmm.ErrFull). If the server refuses it, Append returns vmm.ErrLimit or
// vmm.ErrOutOfMemory, and if nothing is published any more what Err returns, also if a Seal or a
// Close beside it came first; that error can be of bytes that are in the object. Without an error they
// are published, or will be as long as Err returns nil.
func (w *Writer) Append(p []byte) error {
	if err := w.Err(); err != nil {
		return err
	}
	err := w.r.Append(p)
	return w.outcome(w.r.Len(), err)
}

// Grow has at least n bytes of memory mapped. The errors are those of Append.
func (w *Writer) Grow(n uint64) error {
	if err := w.Err(); err != nil {
		return err
	}
	err := w.r.Grow(n)
	return w.outcome(w.r.Len(), err)
}

// SetLen makes n the length, within Cap. It must not be below Len (vmm.ErrBusy). What a kernel has
// written is published by it, so that must have finished.
func (w *Writer) SetLen(n uint64) error {
	if err := w.Err(); err != nil {
		return err
	}
	err := w.r.SetLen(n)
	return w.outcome(n, err)
}

// Flush returns when the length that the range had at the call is published and the server has
// confirmed it: from then on these bytes count, whatever becomes of this Writer. A Writer publishes by
// itself, without a request; but bytes that no Flush, Seal or Close has returned for are lost if its
// lease is taken away meanwhile. Call Flush before you tell anyone that they are there.
func (w *Writer) Flush(ctx context.Context) error {
	n, err := w.publish(ctx)
	if err != nil || w.c.opts.unasked {
		return err
	}
	return w.confirm(ctx, n)
}

// runExclusive runs f while no other call changes what is published. Both the wait for
// that and the context that f gets end with ctx, and with Close.
func (w *Writer) runExclusive(ctx context.Context, f func(context.Context) error) error {
	switch {
	case w == nil || w.c == nil:
		return errNoWriter
	case ctx == nil:
		return errNoContext
	case ctx.Err() != nil: // select would choose
		return ctx.Err()
	}
	select {
	case w.exclusive <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-w.ctx.Done():
		return errWriterClosed
	}
	defer func() { <-w.exclusive }()
	sub, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(w.ctx, cancel)
	defer stop()
	err := f(sub)
	if errors.Is(err, context.Canceled) && ctx.Err() == nil { // Close's
		return errWriterClosed
	}
	return err
}

// Seal publishes Len as the final length: neither it nor the bytes change any more, and
// clients get the object without GetOptions.Unsafe. The range stays mapped for reading until
// Close. ctx ends the wait for work that writes to the range, and the computation of the
// digest. A second Seal returns shareable.ErrSealed. If Seal returns another error, nothing
// is sealed; but after os.ErrDeadlineExceeded the server may have done it.
func (w *Writer) Seal(ctx context.Context, o shareable.SealOptions) (err error) {
	defer errtext.Wrapf(&err, "seal %q", w.Name())
	return w.runExclusive(ctx, func(ctx context.Context) error { return w.sealExclusive(ctx, o) })
}

// sealExclusive is Seal, inside runExclusive.
func (w *Writer) sealExclusive(ctx context.Context, o shareable.SealOptions) (err error) {
	if err := w.settleExclusive(ctx, errSealed); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			w.unsettle(errSealed)
		}
	}()
	// Write access goes before the digest is computed, so that the digest is that of the
	// bytes that stay.
	if !o.KeepWriting {
		if err := w.r.Grant(vmm.AccessRead, w.r.Device()); err != nil {
			return err
		}
		defer func() {
			if err != nil { // nothing was sealed
				err = errors.Join(err, w.r.Grant(vmm.AccessReadWrite, w.r.Device()))
			}
		}()
	}
	q := wire.Seal{Object: w.id.Number, Length: w.published.Load(), HasDigest: o.Digest}
	if o.Digest {
		if q.Digest, err = prefix.Digest(ctx, w.r, q.Length); err != nil {
			return err
		}
	}
	// The context does not end the request: then it would be unknown whether it is sealed.
	if err := w.call(context.WithoutCancel(ctx), wire.TypeSeal, q.Append(nil), wire.TypeDone, ignore); err != nil {
		w.doubts.Add(1)
		return err
	}
	w.counted.Store(q.Length)
	w.hold.Fix(q.Length) // nothing more is published
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sealed = true
	return nil
}

// Abort removes the object, and closes the Writer. Clients that wait for the object get
// shareable.ErrAborted; those that have it keep what they have mapped. If it is sealed,
// Abort returns shareable.ErrSealed and does nothing; Client.Delete removes it. After Close it
// returns vmm.ErrClosed. ctx ends the wait for work that uses the memory: Abort or Close can be
// called again then.
func (w *Writer) Abort(ctx context.Context) (err error) {
	if w == nil || w.c == nil {
		return errNoWriter
	}
	if ctx == nil {
		return errNoContext
	}
	defer errtext.Wrapf(&err, "abort %q", w.name)
	return w.end(ctx, true)
}

// Close waits for work that uses the memory, unmaps it, and lets the next Writer have the
// object. An object that is Durable or sealed stays, with all that was written; any other
// goes. If Close returns an error, call it again: what is left is done then. It also returns one, which
// is Err's if there was one, if bytes of a Durable object may not count: those since the last Flush, if the
// lease was taken away or the server has ended. Twice is fine, and so is a nil Writer.
func (w *Writer) Close() (err error) {
	if w == nil || w.c == nil {
		return nil
	}
	defer errtext.Wrapf(&err, "close writer of %q", w.name)
	return w.end(context.Background(), false)
}

// end is Close and Abort.
func (w *Writer) end(ctx context.Context, abort bool) error {
	w.closing.Lock()
	defer w.closing.Unlock()
	w.mu.Lock()
	sealed := w.sealed
	w.mu.Unlock()
	switch {
	case abort && sealed:
		return errSealed
	case abort && w.ended:
		return errWriterClosed
	case w.ended:
		return nil
	}
	w.aborting = w.aborting || abort
	// What was written counts, so it is published while that is possible. A failure that
	// passes, of a capture say, ends the Close here, where nothing has changed.
	if w.durable && !w.aborting && w.Err() == nil {
		err := w.runExclusive(ctx, func(ctx context.Context) error { return w.settleExclusive(ctx, errWriterClosed) })
		if err != nil && w.Err() == nil && !errors.Is(err, vmm.ErrDeviceLost) {
			return err
		}
	}
	w.mu.Lock()
	first := !w.closed
	w.closed, w.cutOff = true, errWriterClosed
	w.mu.Unlock()
	if first {
		w.cancel()
		w.tasks.Wait()
		w.exclusive <- struct{}{} // for good: nothing uses the page any more
		w.releaseHold()
	}
	w.length = max(w.length, w.r.Len())
	// The next Writer gets the object once nothing here can write to it.
	if err := w.r.CloseContext(ctx); err != nil && !errors.Is(err, vmm.ErrDeviceLost) {
		return err
	}
	err := w.sendRelease(w.aborting)
	w.conn.Close()
	w.ended = true
	return errors.Join(err, w.page.Close())
}

// sendRelease ends the lease, as the end of the connection does, too. It returns an error if the object
// should go, or if it may not have all that was written.
func (w *Writer) sendRelease(abort bool) error {
	w.mu.Lock()
	sealed, failed := w.sealed, w.err
	w.mu.Unlock()
	if sealed || errors.Is(failed, shareable.ErrNotFound) {
		return nil
	}
	q := wire.Release{Object: w.id.Number, Abort: abort}
	err := w.call(context.Background(), wire.TypeRelease, q.Append(nil), wire.TypeDone, ignore)
	counted := w.counted.Load()
	if err == nil {
		counted = max(counted, w.published.Load())
	}
	switch {
	case abort:
		return err
	case !w.durable || w.length <= counted || errors.Is(failed, vmm.ErrDeviceLost): // the last loses what it has not written
		return nil
	}
	return cmp.Or(failed, err)
}
