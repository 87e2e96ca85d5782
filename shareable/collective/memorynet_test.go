package collective

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// bubble runs a test on a network in memory and a clock that goes on when all wait. So a member
// that waits for a time costs none.
func bubble(t *testing.T, test func(t *testing.T, n *network)) {
	synctest.Test(t, func(t *testing.T) {
		n := &memoryNet{last: 1000, listeners: map[int]*memoryListener{}}
		test(t, &network{listen: n.listen, dial: n.dial})
	})
}

// memoryAddress is where members may meet there.
const memoryAddress = "127.0.0.1:1"

// memoryNet is the network of one host, by the numbers of its ports.
type memoryNet struct {
	mu        sync.Mutex
	last      int
	listeners map[int]*memoryListener
}

func (n *memoryNet) next() *net.TCPAddr {
	n.last++
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: n.last}
}

func (n *memoryNet) listen(_ context.Context, address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, p, _ := net.SplitHostPort(address)
	number, err := strconv.Atoi(p)
	if err != nil || n.listeners[number] != nil {
		return nil, fmt.Errorf("listen at %q: %w", address, os.ErrInvalid)
	}
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: number}
	if number == 0 {
		at = n.next()
	}
	l := &memoryListener{net: n, at: at, conns: make(chan *memoryConn, 64), closed: make(chan struct{})}
	n.listeners[l.at.Port] = l
	return l, nil
}

func (n *memoryNet) dial(ctx context.Context, address string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	_, p, _ := net.SplitHostPort(address)
	number, _ := strconv.Atoi(p)
	l := n.listeners[number]
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	a, b := newFlow(), newFlow()
	own := n.next()
	l.conns <- &memoryConn{local: l.at, remote: own, in: a, out: b}
	return &memoryConn{local: own, remote: l.at, in: b, out: a}, nil
}

type memoryListener struct {
	net    *memoryNet
	at     *net.TCPAddr
	conns  chan *memoryConn
	closed chan struct{}
	once   sync.Once
}

func (l *memoryListener) Addr() net.Addr { return l.at }

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close resets those that were not accepted.
func (l *memoryListener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		defer l.net.mu.Unlock()
		delete(l.net.listeners, l.at.Port)
		close(l.closed)
		for len(l.conns) > 0 {
			_ = (<-l.conns).Close()
		}
	})
	return nil
}

// flow is what one side has written and the other has not read.
type flow struct {
	mu       sync.Mutex
	change   *sync.Cond
	b        bytes.Buffer
	over     bool // the writer has closed
	closed   bool // the reader has
	deadline time.Time
	timer    *time.Timer
}

func newFlow() *flow {
	f := &flow{}
	f.change = sync.NewCond(&f.mu)
	return f
}

// end notes that a side has closed.
func (f *flow) end(side *bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*side = true
	if f.timer != nil {
		f.timer.Stop()
	}
	f.change.Broadcast()
}

// memoryConn is a connection that takes all that is written at once.
type memoryConn struct {
	local, remote *net.TCPAddr
	in, out       *flow
}

func (c *memoryConn) Read(b []byte) (int, error) {
	f := c.in
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.closed:
			return 0, net.ErrClosed
		case f.b.Len() > 0:
			return f.b.Read(b)
		case f.over:
			return 0, io.EOF
		case !f.deadline.IsZero() && !time.Now().Before(f.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		f.change.Wait()
	}
}

func (c *memoryConn) Write(b []byte) (int, error) {
	f := c.out
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.over:
		return 0, net.ErrClosed
	case f.closed:
		return 0, syscall.ECONNRESET
	}
	f.change.Broadcast()
	return f.b.Write(b)
}

func (c *memoryConn) Close() error {
	c.in.end(&c.in.closed)
	c.out.end(&c.out.over)
	return nil
}

func (c *memoryConn) LocalAddr() net.Addr  { return c.local }
func (c *memoryConn) RemoteAddr() net.Addr { return c.remote }

func (c *memoryConn) SetDeadline(t time.Time) error {
	return c.SetReadDeadline(t) // a write does not wait
}

func (c *memoryConn) SetReadDeadline(t time.Time) error {
	f := c.in
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
	}
	if f.deadline = t; !t.IsZero() {
		f.timer = time.AfterFunc(time.Until(t), f.change.Broadcast)
	}
	f.change.Broadcast()
	return nil
}

func (c *memoryConn) SetWriteDeadline(time.Time) error { return nil }

// TestMemoryNet: what tests rely on is as with TCP.
func TestMemoryNet(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, n *network) {
		l, err := n.listen(t.Context(), ":0")
		require.NoError(t, err)
		c, err := n.dial(t.Context(), l.Addr().String())
		require.NoError(t, err)
		s, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Hour)))
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, c.SetDeadline(time.Time{}))
		_, err = s.Write([]byte("ab"))
		require.NoError(t, err)
		require.NoError(t, s.Close())
		b := make([]byte, 2)
		_, err = io.ReadFull(c, b)
		require.NoError(t, err)
		require.Equal(t, "ab", string(b))
		_, err = c.Read(b)
		require.ErrorIs(t, err, io.EOF)
		_, err = c.Write(b)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		late, err := n.dial(t.Context(), l.Addr().String())
		require.NoError(t, err)
		require.NoError(t, l.Close())
		_, err = late.Read(b)
		require.ErrorIs(t, err, io.EOF)
		_, err = n.dial(t.Context(), l.Addr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}
