package collective

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// The members meet over TCP. Each sends a hello to rank 0. When all have, rank 0 replies with
// the group's identity, or with why there is no group.

// meeting is where the members of a group meet.
type meeting struct {
	address string // host:port of rank 0
	size    int
	job     uint64 // members of another job are sent away
}

// hello is what a member sends. Numbers are little-endian.
type hello struct {
	Magic      [8]byte
	Job        uint64
	Rank, Size uint32
}

// reply is rank 0's. A Code other than 0 says why there is no group.
type reply struct {
	Magic [8]byte
	Code  uint32
	Rank  uint32 // of the member that Code is about
	ID    ID
}

// Codes of a reply.
const (
	meetGood uint32 = iota
	meetOtherSize
	meetTwice
	meetOtherJob
)

var meetMagic = [8]byte{'c', 'u', 'v', 'm', 'm', 'g', 'r', '2'}

const (
	meetTimeout = 10 * time.Second // for one hello or one reply on a connection
	meetRetry   = 50 * time.Millisecond
	meetGone    = 500 * time.Millisecond // until the end of a member is seen that was started anew
)

// arrival is a member that has said hello.
type arrival struct {
	conn net.Conn
	says hello
	gone chan struct{} // closed when the member has closed conn, or has ended
}

// isThere reports whether a member has said hello, and has not ended since.
func (a *arrival) isThere() bool {
	if a.conn == nil {
		return false
	}
	select {
	case <-a.gone:
		return false
	default:
		return true
	}
}

// forget closes the connection, if there is one.
func (a *arrival) forget() {
	if a.conn != nil {
		_ = a.conn.Close()
	}
	*a = arrival{}
}

// giveID listens at the address's port on all interfaces until all members have come, and sends
// them the identity. Connections that send no hello are closed.
func (m meeting) giveID(ctx context.Context, id ID) error {
	_, tcpPort, err := net.SplitHostPort(m.address)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("", tcpPort))
	if err != nil {
		return err
	}
	sub, cancel := context.WithCancel(ctx)
	arrivals := make(chan arrival)
	var tasks sync.WaitGroup
	tasks.Go(func() { receive(sub, l, arrivals, &tasks) })
	members := make([]arrival, m.size)
	defer func() {
		cancel()
		_ = l.Close()
		for i := range members {
			members[i].forget()
		}
		tasks.Wait()
	}()
	for {
		missing := 0
		for i := range members[1:] {
			if x := &members[1+i]; !x.isThere() { // one that has ended may come again
				x.forget()
				missing++
			}
		}
		if missing == 0 {
			break
		}
		select {
		case a := <-arrivals:
			if a.says.Job != m.job {
				_ = send(a.conn, reply{Magic: meetMagic, Code: meetOtherJob, Rank: a.says.Rank})
				a.forget()
			} else if err := admit(members, a); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("%d of %d members are missing: %w", missing, m.size, ctx.Err())
		}
	}
	for rank, x := range members[1:] {
		if err := send(x.conn, reply{Magic: meetMagic, ID: id}); err != nil {
			return fmt.Errorf("%w: rank %d: %w", ErrPeerGone, 1+rank, err)
		}
	}
	return nil
}

// receive accepts connections and sends those with a hello to arrivals, until l is closed or
// ctx ends.
func receive(ctx context.Context, l net.Listener, arrivals chan<- arrival, tasks *sync.WaitGroup) {
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // accepting fails for a while, for lack of descriptors, say
			case <-time.After(meetRetry):
			case <-ctx.Done():
			}
			continue
		}
		tasks.Go(func() {
			a := arrival{conn: c, gone: make(chan struct{})}
			err := exchange(c, func() error {
				// The end of ctx replaces the deadline that exchange has set before.
				stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
				defer stop()
				return binary.Read(c, binary.LittleEndian, &a.says)
			})
			if err == nil && a.says.Magic == meetMagic && c.SetDeadline(time.Time{}) == nil {
				select {
				case arrivals <- a:
					_, _ = io.Copy(io.Discard, c) // a member says no more, and waits
					close(a.gone)
				case <-ctx.Done():
				}
			}
			_ = c.Close()
		})
	}
}

// admit makes the arrival a member, in place of one that has ended. If it cannot be one, there is
// no group, and admit sends that to all that have come.
func admit(members []arrival, a arrival) error {
	code := meetGood
	switch h := a.says; {
	case h.Size != uint32(len(members)):
		code = meetOtherSize
	case h.Rank == 0 || h.Rank >= h.Size || !oneEnds(&members[h.Rank], &a):
		code = meetTwice
	}
	if code == meetGood {
		if a.isThere() {
			members[a.says.Rank], a = a, members[a.says.Rank]
		}
		a.forget()
		return nil
	}
	for _, m := range append(slices.Clone(members), a) {
		if m.conn != nil {
			_ = send(m.conn, reply{Magic: meetMagic, Code: code, Rank: a.says.Rank})
		}
	}
	a.forget()
	return meetError(code, int(a.says.Rank))
}

// oneEnds reports whether one of two of the same rank is not there. It waits a little for that:
// who comes in place of another may be seen before the other's end.
func oneEnds(a, b *arrival) bool {
	if !a.isThere() || !b.isThere() {
		return true
	}
	t := time.NewTimer(meetGone)
	defer t.Stop()
	select {
	case <-a.gone:
	case <-b.gone:
	case <-t.C:
		return false
	}
	return true
}

func send(c net.Conn, r reply) error {
	return exchange(c, func() error { return binary.Write(c, binary.LittleEndian, r) })
}

// exchange calls f, which sends or receives on c, with a deadline.
func exchange(c net.Conn, f func() error) error {
	if err := c.SetDeadline(time.Now().Add(meetTimeout)); err != nil {
		return err
	}
	return f()
}

// takeID asks rank 0 for the identity until it replies: it may start later than this member.
func (m meeting) takeID(ctx context.Context, rank int) (ID, error) {
	var last error // of asking
	for {
		r, err := ask(ctx, m.address, hello{Magic: meetMagic, Job: m.job, Rank: uint32(rank), Size: uint32(m.size)})
		switch {
		case err == nil && r.Code != meetGood:
			return ID{}, meetError(r.Code, int(r.Rank))
		case err == nil:
			return r.ID, nil
		case ctx.Err() != nil: // of which err may come
			return ID{}, fmt.Errorf("rank 0 at %s: %w: %w", m.address, ctx.Err(), cmp.Or(last, err))
		}
		last = err
		select {
		case <-time.After(meetRetry):
		case <-ctx.Done():
		}
	}
}

// ask connects to rank 0 and waits for its reply, which comes when all members have connected.
func ask(ctx context.Context, address string, h hello) (r reply, err error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return r, err
	}
	defer c.Close() //nolint:errcheck // everything was read
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := binary.Write(c, binary.LittleEndian, h); err != nil {
		return r, err
	}
	err = binary.Read(c, binary.LittleEndian, &r)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("no reply: %w", err)
	}
	if err == nil && r.Magic != meetMagic {
		err = fmt.Errorf("%w: another program replies", ErrMismatch)
	}
	return r, err
}

// meetError is the error for a reply's code other than meetGood.
func meetError(code uint32, rank int) error {
	switch code {
	case meetOtherSize:
		return fmt.Errorf("%w: rank %d says another number of members", ErrMismatch, rank)
	case meetTwice:
		return fmt.Errorf("%w: rank %d is there twice", ErrMismatch, rank)
	case meetOtherJob:
		return fmt.Errorf("%w: another job meets at the address of this one's rank 0", ErrMismatch)
	}
	return fmt.Errorf("%w: code %d of rank 0", ErrFailed, code)
}
