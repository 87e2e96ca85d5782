package store

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// tap stands between clients and a server and counts their frames. At one of them it
// acts.
type tap struct {
	s    *Server
	edit func(frame []byte) // called with each frame, if not nil

	mu     sync.Mutex
	left   int    // frames until act
	act    func() // called once, without mu
	stall  bool   // from then on no frame gets through
	ended  bool
	conns  []*net.UnixConn
	passed sync.WaitGroup
}

// dial connects a client through the tap.
func (p *tap) dial(ctx context.Context) (*net.UnixConn, error) {
	server, err := p.s.pair(ctx)
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "tap")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			return nil, err
		}
		ends[i] = c.(*net.UnixConn)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, server, ends[1])
	if p.ended {
		return ends[0], errors.Join(server.Close(), ends[1].Close())
	}
	p.passed.Go(func() { p.pass(server, ends[1]) })
	p.passed.Go(func() { p.pass(ends[1], server) })
	return ends[0], nil
}

// pass forwards frames with their descriptors until one side ends.
func (p *tap) pass(from, to *net.UnixConn) {
	buf, oob := make([]byte, 1<<17), make([]byte, 4096)
	for {
		n, oobn, _, _, err := from.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			_, _ = to.CloseWrite(), from.CloseRead()
			return
		}
		if p.edit != nil {
			p.edit(buf[:n])
		}
		if !p.count() {
			closeRights(oob[:oobn])
			continue
		}
		_, _, err = to.WriteMsgUnix(buf[:n], oob[:oobn], nil)
		closeRights(oob[:oobn])
		if err != nil {
			_, _ = to.CloseWrite(), from.CloseRead()
			return
		}
	}
}

func closeRights(oob []byte) {
	all, _ := unix.ParseSocketControlMessage(oob)
	for _, m := range all {
		fds, _ := unix.ParseUnixRights(&m)
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
}

// count counts a frame and reports whether it goes on.
func (p *tap) count() bool {
	p.mu.Lock()
	p.left--
	act := p.act
	if p.left == 0 {
		p.mu.Unlock()
		act()
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	return p.left > 0 || !p.stall && !p.ended
}

// cut ends all connections, and each that comes.
func (p *tap) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for _, c := range p.conns {
		_, _ = c.CloseWrite(), c.CloseRead()
	}
}

// close ends the tap. It returns how many connections to the server there were.
func (p *tap) close() uint64 {
	p.cut()
	p.passed.Wait()
	for _, c := range p.conns {
		_ = c.Close()
	}
	return uint64(len(p.conns) / 2)
}

// processFDs counts this process's descriptors, so a test that calls it is not parallel.
func processFDs(t *testing.T) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(l)
}

var everythingsBytes = sync.OnceValue(func() []byte { return bytesOf(2<<20 + 1000) })

// everything makes each request of a client, and closes all that it has made. It returns the
// first error.
func everything(ctx context.Context, c *Client) (err error) {
	note := func(e error) bool {
		if err == nil {
			err = e
		}
		return e == nil
	}
	data := everythingsBytes()
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	events, e := c.Watch(watching, "")
	if note(e) {
		defer func() {
			if errors.Is(err, os.ErrDeadlineExceeded) { // of a request that was to make the first event
				unwatch()
			}
			for _, e := range events {
				note(e)
				break
			}
		}()
	}
	waited := make(chan struct{})
	var gotErr error // once waited is closed
	waiting, stop := context.WithCancel(ctx)
	go func() {
		defer close(waited)
		var b *shareable.View
		if b, gotErr = c.Get(waiting, "x", GetOptions{Wait: true}); gotErr == nil {
			gotErr = b.Close()
		}
	}()
	defer func() { stop(); <-waited }()
	w, e := c.Create(ctx, "x", CreateOptions{Size: 16 << 20, Growable: true, Durable: true})
	if !note(e) {
		return err
	}
	note(w.Append(data[:1<<20]))
	note(w.Flush(ctx))
	note(w.Close())
	w, e = c.Append(ctx, "x", AppendOptions{Wait: true})
	if !note(e) {
		return err
	}
	defer func() { note(w.Close()) }()
	note(w.Append(data[1<<20:]))
	if note(w.Seal(ctx, shareable.SealOptions{Digest: true})) {
		<-waited
		note(gotErr)
	}
	b, e := c.Get(ctx, w.ID().String(), GetOptions{})
	if note(e) {
		note(b.Close())
	}
	_, e = c.List(ctx, ListOptions{})
	note(e)
	_, e = c.Stat(ctx, "x")
	note(e)
	note(c.Link(ctx, "x", "y"))
	note(c.Unlink(ctx, "x"))
	note(c.Delete(ctx, "y", DeleteOptions{Force: true}))
	v, e := c.Create(ctx, "v", CreateOptions{Size: 100})
	if note(e) {
		note(v.Abort(ctx))
	}
	return err
}

// everyStep does everything once for each frame, with what act makes at that frame, and
// checks that each error is one of want and that nothing is left. The quick suite takes every
// seventh frame.
func everyStep(t *testing.T, stall bool, want []error, act func(*tap, context.CancelFunc) func()) {
	t.Helper()
	dev := vmmtest.Device(t)
	s, err := NewServer(dev, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	direct, err := s.Connect(t.Context(), dev, ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, direct.Close()) })
	before := processFDs(t)
	limit := testgate.Effort[time.Duration](20, 50, 100) * time.Millisecond // of what no context ends
	for step := 1; ; {
		ctx, cancel := context.WithCancel(t.Context())
		accepted := s.Stats().Conns.Accepted
		p := &tap{s: s, left: step, stall: stall}
		p.act = act(p, cancel)
		o := ClientOptions{}
		if stall {
			o.Timeout = limit
		}
		c, err := newClient(ctx, "", p.dial, dev, o)
		if err == nil {
			err = everything(ctx, c)
			require.NoError(t, c.Close())
		}
		p.mu.Lock()
		reached := p.left <= 0
		p.mu.Unlock()
		cancel()
		accepted += p.close()
		require.Eventually(t, func() bool { return s.Stats().Conns.Accepted == accepted }, inTime, time.Millisecond)
		if err != nil {
			known := false
			for _, w := range want {
				known = known || errors.Is(err, w)
			}
			require.True(t, known, "at frame %d: %v", step, err)
		}
		nothingLeft(t, s, direct)
		if !reached {
			if stall && errors.Is(err, os.ErrDeadlineExceeded) { // the machine is busy: once more
				limit *= 2
				continue
			}
			require.NoError(t, err)
			t.Logf("fewer than %d frames", step)
			break
		}
		step += testgate.Effort(7, 1, 1)
	}
	require.Eventually(t, func() bool { return processFDs(t) <= before }, inTime, step)
}

// nothingLeft deletes what a client has left on purpose, and waits until the server has
// nothing any more.
func nothingLeft(t *testing.T, s *Server, c *Client) {
	t.Helper()
	var x Stats
	require.Eventually(t, func() bool {
		all, err := c.List(t.Context(), ListOptions{})
		require.NoError(t, err)
		for _, i := range all { // one that is leased is a client's that the server has yet to end
			if !i.Leased {
				if err := c.Delete(t.Context(), i.ID.String(), DeleteOptions{}); !errors.Is(err, shareable.ErrNotFound) {
					require.NoError(t, err)
				}
			}
		}
		x = s.Stats()
		return x.Clients == 1 && x.Objects == 0 && x.Bytes == 0 && x.Leases == 0 && x.Waits == 0
	}, inTime, step, "%+v", &x)
}

// TestServerEndsAtEveryStep: whenever the connections end, each call returns that the owner
// has gone, and nothing is left.
func TestServerEndsAtEveryStep(t *testing.T) {
	everyStep(t, false, []error{shareable.ErrOwnerGone}, func(p *tap, _ context.CancelFunc) func() { return p.cut })
}

// TestContextEndsAtEveryStep: whenever the server stops replying and the context ends, each
// call returns that, or that its time is over, and nothing is left.
func TestContextEndsAtEveryStep(t *testing.T) {
	want := []error{context.Canceled, os.ErrDeadlineExceeded}
	everyStep(t, true, want, func(_ *tap, cancel context.CancelFunc) func() { return cancel })
}
