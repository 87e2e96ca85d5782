package store

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// renew makes the Writer of an object that is a copy of one that is no longer written to, of which
// w has the lease. Nothing is left of w.
func (w *Writer) renew(ctx context.Context) (next *Writer, err error) {
	defer func() {
		what := "copy the object, because the process that had its lease may still write to it"
		if errors.Is(err, vmm.ErrLimit) || errors.Is(err, vmm.ErrOutOfMemory) {
			what += " (end that process, or make room)"
		}
		errtext.Wrapf(&err, "%s", what)
	}()
	alive, stop := context.WithCancel(ctx)
	defer stop()
	go w.showLife(alive)
	abort, times := true, w.conn.Times()
	defer func() {
		if err != nil && !errors.Is(err, errLeaseLost) { // else the next Append may find the lease taken
			_ = w.sendRelease(false)
		}
		w.cancel()
		w.conn.Close()
		if err != nil && next != nil {
			err = errors.Join(err, next.end(context.WithoutCancel(ctx), abort))
			next = nil
		}
	}()
	id := w.id.String()
	info, err := w.c.stat(ctx, id)
	if err != nil {
		return nil, err
	}
	b, err := w.c.get(ctx, id, GetOptions{Unsafe: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = b.Close() }() // twice is fine
	o := CreateOptions{Size: info.Max, Growable: info.Growable, Layout: b.Layout(), Meta: b.Meta(), Labels: info.Labels}
	if info.Host {
		o.Host = &info.Node
	}
	if next, err = w.c.create(ctx, "", o); err != nil {
		return nil, err
	}
	if err := errors.Join(next.holdFor(w.name), next.copyOf(ctx, b, w.obj.Length), b.Close()); err != nil {
		return next, err
	}
	q := wire.Replace{Old: w.id.Number, New: next.id.Number}
	err = w.call(context.WithoutCancel(ctx), wire.TypeReplace, q.Append(nil), wire.TypeDone, ignore)
	if err == nil {
		next.durable = info.Durable
		return next, nil
	}
	// Without a reply the copy may have the names: then it is all that there is.
	abort = !errors.Is(err, shareable.ErrOwnerGone) && !errors.Is(err, os.ErrDeadlineExceeded)
	if abort && w.conn.Times() > times { // the lease has ended with a server
		err = errors.Join(errLeaseLost, err)
	}
	return next, err
}

// errLeaseLost is that the object is to be appended to anew.
var errLeaseLost = errors.New("the lease has ended with a server")

// showLife tells the server once a second that the process runs, which has no page to say so.
func (w *Writer) showLife(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for ctx.Err() == nil {
		_ = w.conn.Send(wire.TypeWrote, wire.Wrote{Object: w.id.Number}.Append(nil)) // an error is the connection's
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
}

// copyOf makes the first n bytes of b those of the Writer, which has none. The server says how many
// count, and not the page that b has.
func (w *Writer) copyOf(ctx context.Context, b *shareable.View, n uint64) error {
	if n == 0 {
		return nil
	}
	for b.Cap() < n {
		changed := b.Changed()
		if b.Cap() >= n {
			break
		}
		if err := b.Err(); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := w.r.Grow(n); err != nil {
		return err
	}
	s, err := w.r.Device().NewStream()
	if err != nil {
		return err
	}
	if err = s.Copy(w.r.Ptr(), b.Ptr(), n); err == nil {
		err = s.Sync()
	}
	if err = errors.Join(err, s.Close()); err == nil {
		err = w.r.SetLen(n)
	}
	if err != nil {
		return err
	}
	return w.Flush(ctx)
}
