package shareable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// readerConn is a reader's end of a connection, with the goroutine that reads it.
// No call waits for that goroutine inside the kernel, because the other side decides how
// long it stays there. It passes descriptors, and the close of one can wait: for a peer
// that takes no data from a TCP socket, for the daemon of a FUSE mount. Three calls close
// such files:
//
//   - close of the descriptor;
//   - recvmsg, if this process has no room for the descriptors of a packet;
//   - close of the socket, if packets with descriptors were not read.
//
// So the goroutine first reports what others wait for, and then calls these.
type readerConn struct {
	// Immutable.
	conn  *wire.Conn
	keep  bool          // the connection stays the caller's, unless start fails
	limit time.Duration // of each wait for the other side, until start returns
	late  *time.Timer   // fires when that has passed
	wake  *wakeReceiver // set by f of start; nil without one
	ended chan struct{} // closed by end

	// Held by the goroutine while it works on what it has read. After end it does not
	// begin to.
	working sync.Mutex

	// Guarded by mu until isEnded is set, then immutable.
	mu      sync.Mutex
	isEnded bool
	isShut  bool // the other side knows
}

// newReaderConn takes over conn, also if it returns an error.
func newReaderConn(conn *net.UnixConn, limit time.Duration) (*readerConn, error) {
	c, err := wire.NewConn(conn)
	if err == nil {
		err = conn.SetDeadline(time.Time{}) // the limit takes its place
	}
	if err != nil {
		closeLater(conn)
		return nil, fmt.Errorf("%w: %w", vmm.ErrInvalid, err)
	}
	late := time.NewTimer(limit)
	late.Stop()
	return &readerConn{conn: c, limit: limit, late: late, ended: make(chan struct{})}, nil
}

// start runs f in the goroutine that reads the connection and returns its error. If
// ctx, or a wait for the other side, ends before, it returns that: f may then still
// run, but begins no work. What f has made is the caller's in both cases. After
// success the goroutine continues with next, unless that is nil.
func (c *readerConn) start(ctx context.Context, f func() error, next func()) error {
	result := make(chan error, 1)
	go func() {
		err := f()
		result <- err
		if err == nil && next != nil {
			next()
		}
		c.finish(err)
	}()
	return c.await(ctx, result)
}

// await returns the result of what the goroutine runs, as start does.
func (c *readerConn) await(ctx context.Context, result <-chan error) error {
	var err error
	select {
	case err := <-result:
		if err != nil {
			c.end() // the other side knows before the caller does
		}
		return err
	case <-ctx.Done():
		err = ctx.Err()
	case <-c.late.C:
		err = os.ErrDeadlineExceeded
	}
	c.end()
	c.waitWork()
	return err
}

// finish is the end of the goroutine: nothing but its closes is left. err is that of
// start's f.
func (c *readerConn) finish(err error) {
	c.abandon(!c.keep || err != nil)
	defer leftBehind.remove()
	c.wake.close()
	c.conn.Release()
	if c.keep && c.isShut {
		// The caller has a descriptor of the socket, too. Its close must find no packets.
		c.conn.Drain()
	}
	c.conn.Recycle()
	_ = c.conn.Close()
}

// end disconnects, and abandons the goroutine. It never waits. Twice is fine.
func (c *readerConn) end() { c.abandon(true) }

// abandon has no call wait for the goroutine any more: from now on it counts in
// leftBehind, until its closes are done. With shut, it disconnects as well.
func (c *readerConn) abandon(shut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isEnded {
		return
	}
	c.isEnded, c.isShut = true, shut
	close(c.ended)
	leftBehind.add()
	if shut {
		// The goroutine closes the socket only after its own call of abandon. So the
		// socket is open here, and this call is not the one that closes it.
		_ = c.conn.Shutdown()
	}
}

// errEnded is for work that begins after end.
var errEnded = errors.New("the connection has ended")

// work runs f, unless the connection has ended. f calls nothing of which readerConn
// warns.
func (c *readerConn) work(f func() error) error {
	c.working.Lock()
	defer c.working.Unlock()
	select {
	case <-c.ended:
		return errEnded
	default:
		return f()
	}
}

// waitWork waits for the work that runs. After end there will be no other.
func (c *readerConn) waitWork() {
	c.working.Lock()
	defer c.working.Unlock()
}

// endAfter runs f as the last work, and disconnects unless f returns an error that may pass.
func (c *readerConn) endAfter(f func() error) error {
	c.working.Lock()
	defer c.working.Unlock()
	err := f()
	if err == nil || errors.Is(err, vmm.ErrDeviceLost) {
		c.end()
	}
	return err
}

// read is wire.Conn.Read within the limit: if the other side takes longer, start
// returns.
func (c *readerConn) read() (wire.Frame, error) {
	c.late.Reset(c.limit)
	defer c.late.Stop()
	return c.conn.Read()
}

// write is wire.Conn.Write within the limit.
func (c *readerConn) write(t wire.Type, request uint32, payload []byte) error {
	c.late.Reset(c.limit)
	defer c.late.Stop()
	return c.conn.Write(t, request, 0, payload)
}

// release is wire.Conn.Release within the limit.
func (c *readerConn) release() {
	c.late.Reset(c.limit)
	defer c.late.Stop()
	c.conn.Release()
}

// maxLeftBehind is how many goroutines may be left behind before no new connection is
// made. Each has a thread, of which Go allows 10,000, and the descriptors of a frame. An
// honest peer leaves none for longer than a close takes.
const maxLeftBehind = 64

// leftBehind counts the goroutines of this process that no call waits for any more, and
// that have not ended: the other side passed something whose close takes its time.
var leftBehind counter

// counter is a number that can be waited for.
type counter struct {
	mu   sync.Mutex
	n    int
	less chan struct{} // closed when n decreases; nil while no call waits
}

func (c *counter) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func (c *counter) remove() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	if c.less != nil {
		close(c.less)
		c.less = nil
	}
}

// admit returns nil if fewer than maxLeftBehind goroutines are left behind. It waits for
// that up to limit: the ends of many good connections at a time pass quickly.
func (c *counter) admit(ctx context.Context, limit time.Duration) error {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		c.mu.Lock()
		n := c.n
		if n < maxLeftBehind {
			c.mu.Unlock()
			return nil
		}
		if c.less == nil {
			c.less = make(chan struct{})
		}
		less := c.less
		c.mu.Unlock()
		select {
		case <-less:
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			return fmt.Errorf("%w: %d connections have ended and cannot be closed: their peers passed descriptors whose close waits", vmm.ErrLimit, n)
		}
	}
}

// closeLater closes a connection that was not read, where no call waits for that.
func closeLater(conn *net.UnixConn) {
	_, _ = conn.CloseWrite(), conn.CloseRead() // the other side knows at once
	leftBehind.add()
	go func() {
		defer leftBehind.remove()
		_ = conn.Close()
	}()
}
