package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// AppendOptions configures Client.Append; its zero value is the default.
type AppendOptions struct {
	// Wait waits until no other Writer has the object, as long as the context allows. Without
	// it Append returns vmm.ErrBusy then.
	Wait bool
}

// Create makes an object, and the Writer that may write to it. An empty name makes an object
// that only its ID finds. Create returns vmm.ErrBusy if the name is taken, vmm.ErrLimit if
// the object would exceed a limit of the server's or MaxBytes, vmm.ErrOutOfMemory if the
// server has no memory left, and shareable.ErrNotFound if another client deletes the object
// before there is a Writer. If it returns an error there is no object, except that one that
// is Durable may be left if the server does not reply. The caller must Close the Writer.
func (c *Client) Create(ctx context.Context, name string, o CreateOptions) (_ *Writer, err error) {
	defer errtext.Wrapf(&err, "create %q", name)
	return opened(c.create(ctx, name, o))
}

// opened is a Writer that is open, or the error without one.
func opened(w *Writer, err error) (*Writer, error) {
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (c *Client) create(ctx context.Context, name string, o CreateOptions) (*Writer, error) {
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	// All arguments are checked first, so that an error has nothing to undo.
	if name != "" {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	q, err := o.request()
	switch {
	case err != nil:
		return nil, err
	case strings.HasPrefix(name, "@"):
		return nil, fmt.Errorf("%w: %q is the form of an ID", vmm.ErrInvalid, name)
	case o.Size > c.opts.MaxBytes:
		return nil, fmt.Errorf("%w: %d bytes, over ClientOptions.MaxBytes of %d", vmm.ErrLimit, o.Size, c.opts.MaxBytes)
	}
	q.Name = name
	if q.Flags&wire.StoreHost == 0 {
		q.Device = uint32(c.dev.Info().Ordinal)
	}
	w := c.newWriter(name)
	w.durable, w.created = o.Durable, true
	return w, w.open(ctx, target{}, func(gran uint64) (wire.Type, []byte) {
		if q.Size == 0 {
			q.Size = max(c.opts.MaxBytes/gran, 1) * gran
		}
		w.size = (q.Size + gran - 1) / gran * gran
		return wire.TypeCreate, q.Append(nil)
	})
}

// request checks the options, and is what CREATE has of them.
func (o CreateOptions) request() (wire.Create, error) {
	bad := func(format string, args ...any) (wire.Create, error) {
		return wire.Create{}, fmt.Errorf("%w: "+format, append([]any{vmm.ErrInvalid}, args...)...)
	}
	q := wire.Create{Size: o.Size, Meta: o.Meta, Elem: elemOf(o.Layout), Pitch: o.Layout.Pitch}
	switch {
	case o.Size == 0 && !o.Growable:
		return bad("an object of 0 bytes that does not grow")
	case len(o.Meta) > wire.MaxMeta:
		return bad("%d bytes of metadata, over %d", len(o.Meta), wire.MaxMeta)
	case len(o.Labels) > wire.MaxLabels:
		return bad("%d labels, over %d", len(o.Labels), wire.MaxLabels)
	case o.Host != nil && (*o.Host < 0 || *o.Host > math.MaxInt32):
		return bad("NUMA node %d", *o.Host)
	}
	if !o.Layout.Equal(vmm.Layout{}) {
		if err := o.Layout.Validate(); err != nil {
			return q, err
		}
	}
	for _, n := range o.Layout.Shape {
		q.Shape = append(q.Shape, uint64(n))
	}
	var err error
	if q.Labels, err = sortedLabels(o.Labels); err != nil {
		return q, err
	}
	if o.Growable {
		q.Flags |= wire.StoreGrowable
	}
	if o.Durable {
		q.Flags |= wire.StoreDurable
	}
	if o.Host != nil {
		q.Flags |= wire.StoreHost
		q.Device = uint32(*o.Host)
	}
	return q, nil
}

// sortedLabels checks labels, and sorts them by their keys.
func sortedLabels(labels map[string]string) ([]wire.Label, error) {
	var all []wire.Label
	for k, v := range labels {
		if k == "" || len(k) > wire.MaxLabelKey || len(v) > wire.MaxLabelValue {
			return nil, fmt.Errorf("%w: a label of %d bytes with a value of %d: from 1 to %d, and %d at most",
				vmm.ErrInvalid, len(k), len(v), wire.MaxLabelKey, wire.MaxLabelValue)
		}
		all = append(all, wire.Label{Key: k, Value: v})
	}
	slices.SortFunc(all, func(a, b wire.Label) int { return cmp.Compare(a.Key, b.Key) })
	return all, nil
}

func elemOf(l vmm.Layout) wire.Elem {
	return wire.Elem{Kind: uint32(l.Kind), Bits: uint32(l.Bits), Size: l.Size, Hash: l.Hash, Dtype: l.Dtype}
}

// Append makes a Writer of an object that is there and not sealed: one that is Durable, whose
// last Writer was closed or has died. All that was published is there at the Writer's Len,
// and more can be appended. Append returns vmm.ErrBusy while another Writer has the object,
// unless it is to wait, shareable.ErrSealed if the object is sealed, and vmm.ErrPermission if
// another user has made it. The caller must Close the Writer.
func (c *Client) Append(ctx context.Context, name string, o AppendOptions) (_ *Writer, err error) {
	defer errtext.Wrapf(&err, "append to %q", name)
	return opened(c.append(ctx, name, o))
}

func (c *Client) append(ctx context.Context, name string, o AppendOptions) (*Writer, error) {
	t, err := c.target(ctx, name)
	if err != nil {
		return nil, err
	}
	for {
		w := c.newWriter(name)
		w.durable, w.waits = true, o.Wait
		err := w.open(ctx, t, func(uint64) (wire.Type, []byte) {
			return wire.TypeLease, wire.Lease{Wait: o.Wait, Name: t.name}.Append(nil)
		})
		if err != nil || !w.fenced {
			return w, err
		}
		if w, err = w.renew(ctx); !errors.Is(err, errLeaseLost) {
			return w, err
		}
	}
}

// OpenAppend makes a Writer of the object of that name, as Append does, or creates one that is
// Durable if there is none. Other clients may create and delete the object meanwhile: OpenAppend
// tries both in turn until one of them works or ctx ends. An object that is there keeps what it was
// created with, so all of the options but Wait are for a new one. If they have a Layout, that of
// the object must equal it; else OpenAppend returns vmm.ErrInvalid with what differs. It returns
// vmm.ErrBusy while another Writer has the object, unless it is to wait, and vmm.ErrInvalid for an ID
// or an empty name. The other errors are those of Append and Create. Safe for concurrent use. The
// caller must Close the Writer.
func (c *Client) OpenAppend(ctx context.Context, name string, o CreateOptions) (_ *Writer, err error) {
	defer errtext.Wrapf(&err, "append to or create %q", name)
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	// Options that cannot be are an error also if the object is there.
	if _, err := o.request(); err != nil {
		return nil, err
	}
	if strings.HasPrefix(name, "@") {
		return nil, fmt.Errorf("%w: %q is the form of an ID", vmm.ErrInvalid, name)
	}
	o.Durable = true
	for {
		w, err := c.append(ctx, name, AppendOptions{Wait: o.Wait})
		if err == nil {
			return checkOpened(w, o.Layout)
		}
		if !c.isDeleted(ctx, w, err) {
			return nil, err
		}
		// Create returns ErrBusy if the name is taken by now, and for no other reason.
		w, err = c.create(ctx, name, o)
		if err == nil {
			return w, nil
		}
		if !errors.Is(err, vmm.ErrBusy) && !c.isDeleted(ctx, w, err) {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// isDeleted reports whether a Writer could not be opened, for the reason err, because another
// client has deleted the object, maybe while it was opened or waited for. The lease goes a moment
// before the object: then the reason is ErrPermission, and only the server knows more.
func (c *Client) isDeleted(ctx context.Context, w *Writer, err error) bool {
	if errors.Is(err, vmm.ErrPermission) && w != nil && w.id != (ID{}) {
		_, err = c.Stat(ctx, w.id.String())
	}
	return errors.Is(err, shareable.ErrNotFound) || errors.Is(err, shareable.ErrAborted)
}

// checkOpened closes a Writer whose object has another layout than the one that is wanted.
func checkOpened(w *Writer, want vmm.Layout) (*Writer, error) {
	if want.Equal(vmm.Layout{}) {
		return w, nil
	}
	if err := w.Layout().Check(want); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// open gets the lease of an object over a connection of its own, and maps all memory that it
// has. After an error nothing is left of it.
//
//	CREATE, LEASE -> OBJECT   the lease, with a control page
//	MAPPED        -> DONE     the page is mapped: readers get it
//	GROW          -> CHUNKS   the memory, as the range asks for it
func (w *Writer) open(ctx context.Context, about target, ask func(gran uint64) (wire.Type, []byte)) (err error) {
	sub, cancel := w.c.both(ctx)
	defer cancel()
	defer func() { err = w.c.why(ctx, err) }()
	if w.conn, err = w.c.connect(sub, serve.Notified{Event: w.event, Again: w.again}); err != nil {
		w.cancel()
		return err
	}
	defer func() {
		if err != nil {
			w.giveBack()
		}
	}()
	if err := about.check(w.conn.Hello().Instance); err != nil {
		return err
	}
	gran := w.conn.Hello().Granularity
	if own, err := granularity(w.c.dev); err != nil {
		return err
	} else if gran == 0 {
		return fmt.Errorf("%w: a granularity of 0", shareable.ErrProtocol)
	} else if gran%own != 0 {
		return fmt.Errorf("%w: the store's chunks are multiples of %d bytes, and this device's of %d", vmm.ErrNotSupported, gran, own)
	}
	t, payload := ask(gran)
	for {
		times := w.conn.Times()
		if w.waits {
			err = w.conn.Call(sub, t, payload, wire.TypeObject, w.takeObject)
		} else {
			err = w.call(sub, t, payload, wire.TypeObject, w.takeObject)
		}
		if err != nil {
			return err
		}
		if w.fenced {
			return nil
		}
		if err = w.mapped(sub); err == nil {
			return w.mapMemory(sub)
		}
		// A lease that was not mapped ends with its server: then it is asked for anew.
		if w.conn.Times() == times || !errors.Is(err, vmm.ErrPermission) && !errors.Is(err, shareable.ErrNotFound) {
			return err
		}
		if err := w.page.Close(); err != nil {
			return err
		}
		w.page = nil
	}
}

// mapped tells the server that the page is mapped, or that this Writer still has it.
func (w *Writer) mapped(ctx context.Context) error {
	return w.call(ctx, wire.TypeMapped, wire.Mapped{Object: w.id.Number}.Append(nil), wire.TypeDone, ignore)
}

// takeObject handles OBJECT, which comes with the control page.
func (w *Writer) takeObject(f wire.Frame) error {
	hello := w.conn.Hello()
	o, err := wire.DecodeObject(f.Payload)
	switch {
	case err != nil:
		return protocolError(err)
	case o.State == wire.StateClosed: // another client was as fast
		return fmt.Errorf("%w: it was deleted", shareable.ErrNotFound)
	case o.Instance != hello.Instance || len(f.FDs) != 1 || o.State != wire.StateLive:
		return fmt.Errorf("%w: an object of instance %x in state %d with %d descriptors", shareable.ErrProtocol, o.Instance, o.State, len(f.FDs))
	case o.Length > o.Capacity || o.Capacity > o.Max:
		return fmt.Errorf("%w: %d of %d bytes, over %d", shareable.ErrProtocol, o.Length, o.Capacity, o.Max)
	case w.created && (o.Max != w.size || o.Length != 0):
		return fmt.Errorf("%w: %d bytes of at most %d in a new object of %d", shareable.ErrProtocol, o.Length, o.Max, w.size)
	case o.Max > w.c.opts.MaxBytes && !w.created: // else Create has seen to it, but for rounding
		return fmt.Errorf("%w: an object of at most %d bytes, over ClientOptions.MaxBytes of %d", vmm.ErrLimit, o.Max, w.c.opts.MaxBytes)
	}
	if w.id, w.obj = (ID{Instance: o.Instance, Number: o.ID}), o; o.Access == wire.AccessRead {
		w.fenced = true
		return nil
	}
	w.memory.tracker, err = wire.NewTracker(o, wire.Limits{Granularity: hello.Granularity})
	if err != nil {
		return protocolError(err)
	}
	w.page, err = sharing.OpenWriterPage(f.FDs[0].Int(), o.Instance, o.ID)
	if err != nil {
		return err
	}
	_ = f.FDs[0].Close() // it is memory, whose close does not wait
	return nil
}

// mapMemory makes the range, with all memory and the length that the object has, and starts
// the goroutines.
func (w *Writer) mapMemory(ctx context.Context) error {
	r, err := w.c.dev.NewRange(vmm.RangeOptions{Max: w.obj.Max, Supplier: w.memory})
	if err != nil {
		return err
	}
	w.r = r
	// Nothing else ends a growth.
	stop := context.AfterFunc(ctx, func() { _ = r.Close() })
	err = r.Grow(w.obj.Capacity)
	if !stop() {
		return ctx.Err()
	}
	if err == nil {
		err = r.SetLen(w.obj.Length)
	}
	if err != nil {
		return err
	}
	// The hold keeps the range from being closed, and what readers have from being cut off.
	if err := w.holdFor(w.name); err != nil {
		return err
	}
	w.counted.Store(w.obj.Length)
	close(w.opened)
	w.tasks.Go(w.follow)
	w.tasks.Go(w.beat)
	w.tasks.Go(w.sendWrote)
	return nil
}

// holdFor holds what is published under a name, in place of another hold.
func (w *Writer) holdFor(name string) error {
	h, err := inside.VMM.HoldLen(w.r, fmt.Sprintf("writing object %q", name), w.lenRaised, w.wakeFollow)
	if err != nil {
		return err
	}
	w.releaseHold()
	w.name, w.hold = name, h
	return nil
}

// releaseHold ends the hold, if there is one.
func (w *Writer) releaseHold() {
	if w.hold != nil {
		w.hold.Release()
	}
}

// giveBack undoes open: an object that was made goes again.
func (w *Writer) giveBack() {
	if w.r != nil {
		_ = w.r.Close()
	}
	if w.page != nil {
		_ = w.sendRelease(w.created) // else it would stay, if it is durable
		_ = w.page.Close()
	}
	w.cancel()
	w.conn.Close()
}
