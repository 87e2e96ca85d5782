package shareable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Send gives the process at the other end of conn, which calls Receive, all
// chunks of a range and its length of now. It returns when they are mapped
// there. The range need not stay: what was sent keeps its memory until the
// receiver lets go of it. Bytes that the owner writes later show there too, growth
// does not; for that there is Publish.
//
// conn is a unixpacket connection or half of such a socket pair, and stays the
// caller's; after an error, and when ctx has ended, it is of no more use. The
// range is as for Publish.
func Send(ctx context.Context, conn *net.UnixConn, r *vmm.Range) error {
	if err := send(ctx, conn, r); err != nil {
		return fmt.Errorf("send %v: %w", r, err)
	}
	return nil
}

func send(ctx context.Context, conn *net.UnixConn, r *vmm.Range) error {
	if conn == nil || r == nil {
		return fmt.Errorf("%w: no connection or no range", vmm.ErrInvalid)
	}
	s, err := newServer(r.Device(), Options{})
	if err != nil {
		return err
	}
	p, err := s.newPublication("range", r, PublishOptions{Write: r.Options().Share&vmm.ShareReadOnly == 0})
	if err != nil {
		return err
	}
	defer p.teardown()
	if err := p.runExclusive(ctx, p.sealForSendExclusive); err != nil {
		return err
	}
	c, err := wire.NewConn(conn)
	if err != nil {
		return err
	}
	cred, err := c.Cred()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = newSession(s, c, cred).sendOne(ctx, p)
	if !stop() && err == nil {
		err = ctx.Err() // the deadline may stand
	}
	if err != nil {
		return errors.Join(ctx.Err(), err)
	}
	return conn.SetDeadline(time.Time{})
}

// finish makes a publication of what the range shows now, and no more. It needs
// p.step.
func (p *Publication) sealForSendExclusive(ctx context.Context) error {
	if err := p.publishRangeExclusive(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.chunksBelowLocked(p.done); i < len(p.chunks) {
		p.dropChunksLocked(i)
	}
	p.state, p.sealed = wire.StateSealed, true
	p.page.state.Store(uint64(wire.StateSealed))
	return nil
}

// sendOne sends one object to a reader that takes what comes.
func (ses *session) sendOne(ctx context.Context, p *Publication) error {
	if err := ses.exchangeHello(); err != nil {
		return err
	}
	access := wire.AccessRead
	if p.opts.Write {
		access = wire.AccessReadWrite
	}
	if err := ses.startAttachment(p, 0, access, false); err != nil {
		return err
	}
	a := ses.find(p.id)
	if a == nil {
		return fmt.Errorf("%w: publication", vmm.ErrClosed)
	}
	defer a.detach()
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
		if err := ses.readAck(ctx, a.deadline()); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// hear waits for what the reader acknowledges, or asks again. What it says in
// between gives it no more time.
func (ses *session) readAck(ctx context.Context, due time.Time) error {
	if due.IsZero() {
		due = time.Now().Add(ses.srv.opts.AckTimeout)
	}
	if err := ses.conn.SetReadDeadline(due); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil { // what its end did to the deadline is undone
		return err
	}
	f, err := ses.conn.Read()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w to map what it was sent", errTooSlow)
	}
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // descriptors that nobody asked for
	if f.Type == wire.TypeError {
		e, err := wire.DecodeError(f.Payload)
		if err != nil {
			return err
		}
		return peerError(e)
	}
	return ses.handle(f)
}

// complete says whether the reader has everything.
func (a *attachment) complete() bool {
	a.pub.mu.Lock()
	defer a.pub.mu.Unlock()
	return a.sentSealed && a.nextChunk == len(a.pub.chunks) && len(a.unacked) == 0
}
