package collective

import (
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

// hello is what a member sends. Numbers are little-endian.
type hello struct {
	Magic      [8]byte
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
)

var meetMagic = [8]byte{'c', 'u', 'v', 'm', 'm', 'g', 'r', '1'}

const (
	meetTimeout = 10 * time.Second // for one hello or one reply on a connection
	meetRetry   = 50 * time.Millisecond
)

// arrival is a member that has said hello.
type arrival struct {
	conn net.Conn
	says hello
}

// giveID listens at address's port on all interfaces until all members have come, and sends them
// the identity. Connections that send no hello are closed.
func giveID(ctx context.Context, address string, size int, id ID) error {
	_, tcpPort, err := net.SplitHostPort(address)
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
	members := make([]net.Conn, size)
	defer func() {
		cancel()
		_ = l.Close()
		for _, c := range members {
			if c != nil {
				_ = c.Close()
			}
		}
		tasks.Wait()
	}()
	for missing := size - 1; missing > 0; missing-- {
		select {
		case a := <-arrivals:
			if err := admit(members, a); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("%d of %d members are missing: %w", missing, size, ctx.Err())
		}
	}
	for rank, m := range members {
		if m == nil {
			continue
		}
		if err := send(m, reply{Magic: meetMagic, ID: id}); err != nil {
			return fmt.Errorf("%w: rank %d: %w", ErrPeerGone, rank, err)
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
			a := arrival{conn: c}
			err := exchange(c, func() error {
				// The end of ctx replaces the deadline that exchange has set before.
				stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
				defer stop()
				return binary.Read(c, binary.LittleEndian, &a.says)
			})
			if err == nil && a.says.Magic == meetMagic {
				select {
				case arrivals <- a:
					return
				case <-ctx.Done():
				}
			}
			_ = c.Close()
		})
	}
}

// admit makes the arrival a member. If it cannot be one, there is no group, and admit sends that
// to all that have come.
func admit(members []net.Conn, a arrival) error {
	code := meetGood
	switch h := a.says; {
	case h.Size != uint32(len(members)):
		code = meetOtherSize
	case h.Rank == 0 || h.Rank >= h.Size || members[h.Rank] != nil:
		code = meetTwice
	}
	if code == meetGood {
		members[a.says.Rank] = a.conn
		return nil
	}
	for _, m := range append(slices.Clone(members), a.conn) {
		if m != nil {
			_ = send(m, reply{Magic: meetMagic, Code: code, Rank: a.says.Rank})
		}
	}
	_ = a.conn.Close()
	return meetError(code, int(a.says.Rank))
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
func takeID(ctx context.Context, address string, rank, size int) (ID, error) {
	for {
		r, err := ask(ctx, address, hello{Magic: meetMagic, Rank: uint32(rank), Size: uint32(size)})
		switch {
		case err == nil && r.Magic == meetMagic && r.Code != meetGood:
			return ID{}, meetError(r.Code, int(r.Rank))
		case err == nil && r.Magic == meetMagic:
			return r.ID, nil
		case ctx.Err() != nil:
			return ID{}, fmt.Errorf("rank 0 at %s: %w", address, errors.Join(ctx.Err(), err))
		}
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
	return r, err
}

// meetError is the error for a reply's code other than meetGood.
func meetError(code uint32, rank int) error {
	switch code {
	case meetOtherSize:
		return fmt.Errorf("%w: rank %d says another number of members", ErrMismatch, rank)
	case meetTwice:
		return fmt.Errorf("%w: rank %d is there twice", ErrMismatch, rank)
	}
	return fmt.Errorf("%w: code %d of rank 0", ErrFailed, code)
}
