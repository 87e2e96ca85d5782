package shareable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Send sends all chunks of a range and its present length to the process at the other end of conn,
// which calls Receive. It returns once they are mapped there. The range may then be closed: the
// receiver keeps the memory. The receiver sees bytes that are written later, but no growth; use
// Publish for that. The range is as for Publish.
//
// conn is of the kind "unixpacket" or half of a socket pair. Send does not close conn, which cannot
// be used any more after an error, or when ctx has ended. Send returns an error if the receiver
// makes no progress for 10 s, or sends anything but what Receive sends. Descriptors from the
// receiver, which Send does not accept, are closed with conn, and that can take as long as the
// receiver likes.
func Send(ctx context.Context, conn *net.UnixConn, r *vmm.Range) (err error) {
	defer errtext.Wrapf(&err, "send %v", r)
	return send(ctx, conn, r, Options{})
}

func send(ctx context.Context, conn *net.UnixConn, r *vmm.Range, o Options) error {
	if conn == nil || r == nil {
		return fmt.Errorf("%w: no connection or no range", vmm.ErrInvalid)
	}
	// A server without a socket, and a publication that no reader can find by
	// name, carry one reader through the same code as Publish.
	s, err := newServer(r.Device(), o)
	if err != nil {
		return err
	}
	s.tasks.Go(s.countLooks)
	defer s.tasks.Wait()
	defer close(s.stop)
	p, err := s.newPublication("range", r, PublishOptions{Write: r.Options().Share&vmm.ShareReadOnly == 0})
	if err != nil {
		return err
	}
	defer p.teardown()
	if err := p.runExclusive(ctx, p.sealForSendExclusive); err != nil {
		return err
	}
	c, err := wire.NewOwnerConn(conn)
	if err != nil {
		return err
	}
	defer c.Release()
	cred, err := c.Cred()
	if err != nil {
		return err
	}
	// A deadline in the past ends whatever read or write waits when ctx ends.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(longAgo) })
	err = newSession(s, c, cred).sendOne(ctx, p)
	if !stop() && err == nil {
		err = ctx.Err() // the deadline in the past may be set
	}
	if err != nil {
		return errors.Join(ctx.Err(), err)
	}
	return conn.SetDeadline(time.Time{})
}

// sealForSendExclusive publishes the range as it is now and seals it, inside
// runExclusive. Unlike Seal it leaves the owner's write access as it is.
func (p *Publication) sealForSendExclusive(ctx context.Context) error {
	if err := p.publishRangeExclusive(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.chunksBelowLocked(p.published); i < len(p.chunks) {
		p.dropChunksLocked(i)
	}
	p.state, p.sealed = wire.StateSealed, true
	p.page.state.Store(uint64(wire.StateSealed))
	return nil
}

// sendOne sends one object, without a request, and returns once all of it is
// acknowledged. It reads and writes in one goroutine.
func (ses *session) sendOne(ctx context.Context, p *Publication) error {
	if err := ses.exchangeHello(); err != nil {
		return err
	}
	access := wire.AccessRead
	if p.write {
		access = wire.AccessReadWrite
	}
	if err := ses.startAttachment(&p.object, 0, wire.Attach{Access: access, Name: p.name}); err != nil {
		return err
	}
	// A publication that was closed meanwhile has refused the attachment.
	a := ses.find(p.id)
	if a == nil {
		return fmt.Errorf("%w: publication", vmm.ErrClosed)
	}
	defer a.detach()
	// Send what can be sent, then wait for an ACK, until all is mapped.
	for ctx.Err() == nil {
		sent, err := a.sendNext()
		if err != nil {
			return err
		}
		if sent {
			continue
		}
		if a.complete() {
			return ses.write(wire.TypeDone, 0, nil)
		}
		if err := ses.readAck(ctx, a); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// readAck reads one frame from the reader, or waits until chunks are to be tried again.
// The deadline is that of the attachment, so that no other frame wins the reader time.
func (ses *session) readAck(ctx context.Context, a *attachment) error {
	at, err := a.due()
	if err != nil {
		return err
	}
	if err := ses.conn.SetReadDeadline(at); err != nil {
		return err
	}
	// ctx is checked after the deadline is set: had ctx ended before, its own
	// deadline in the past would be overwritten now.
	if err := ctx.Err(); err != nil {
		return err
	}
	f, err := ses.conn.Read()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		return err
	}
	switch f.Type {
	case wire.TypeAck, wire.TypeResync:
		return ses.handle(f)
	case wire.TypeError:
		e, err := wire.DecodeError(f.Payload)
		if err != nil {
			return err
		}
		return peerError(e)
	}
	return &wire.ProtocolError{What: fmt.Sprintf("%v to a sender", f.Type)}
}

// complete reports whether the reader has acknowledged everything once, whatever it has
// asked for again.
func (a *attachment) complete() bool {
	a.obj.mu.Lock()
	defer a.obj.mu.Unlock()
	return a.sentSealed && (len(a.obj.chunks) == 0 || a.ackedID >= a.obj.chunks[len(a.obj.chunks)-1].ID)
}
