package shareable

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// boundedContext is a context for what must not hang.
func boundedContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), inTime)
	t.Cleanup(cancel)
	return ctx
}

// chatter sends something again and again until the connection ends.
func (e *hostileClient) chatter(every time.Duration, of wire.Type, body []byte) (ended <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for e.send(of, body) == nil {
			<-tick.C
		}
	}()
	return done
}

// TestSlowClients: who does not do in time what it has to is cut off, in a
// bounded time, and keeps no other client waiting.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	const short = 100 * time.Millisecond
	stat := wire.Stat{Name: "none"}.Append(nil)
	// Only the limit that is exceeded is short.
	hello, request, ack := Options{HandshakeTimeout: short}, Options{RequestTimeout: short}, Options{AckTimeout: 3 * short}
	for _, c := range []struct {
		name string
		o    Options
		do   func(*testing.T, *hostileClient, *Publication)
	}{
		{"says nothing", hello, func(*testing.T, *hostileClient, *Publication) {}},
		{"says HELLO and nothing more", request, func(_ *testing.T, e *hostileClient, _ *Publication) { e.hello() }},
		{"skipped frames before HELLO", hello, func(t *testing.T, e *hostileClient, _ *Publication) {
			tick := time.NewTicker(short / 50)
			defer tick.Stop()
			for {
				h := e.header(999, nil)
				h.Flags = wire.FlagOptional
				if e.packet(h.Append(nil)) != nil {
					return
				}
				<-tick.C
			}
		}},
		{"never acknowledges", ack, func(_ *testing.T, e *hostileClient, _ *Publication) { e.hello(); e.attach("x") }},
		{"reads all and never acknowledges", ack, func(_ *testing.T, e *hostileClient, _ *Publication) {
			e.hello()
			e.attach("x")
			e.last()
		}},
		{"acknowledges nothing, often", ack, func(_ *testing.T, e *hostileClient, _ *Publication) {
			e.hello()
			o := e.attach("x")
			<-e.chatter(short/5, wire.TypeAck, wire.Ack{Object: o.ID}.Append(nil))
		}},
		{"asks again and again for the same", ack, func(_ *testing.T, e *hostileClient, _ *Publication) {
			e.hello()
			o := e.attach("x")
			ended := e.chatter(short/5, wire.TypeResync, wire.Resync{Object: o.ID, Batch: 1}.Append(nil))
			e.last()
			<-ended
		}},
		{"never unmaps", ack, func(t *testing.T, e *hostileClient, p *Publication) {
			e.hello()
			o := e.attach("x")
			p.mu.Lock()
			last := p.chunks[len(p.chunks)-1].ID
			p.mu.Unlock()
			require.Eventually(t, func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				for a := range p.attachments {
					return a.sentID == last
				}
				return false
			}, inTime, time.Millisecond)
			ended := e.chatter(short/5, wire.TypeAck, wire.Ack{Object: o.ID, Chunk: last}.Append(nil))
			require.NoError(t, p.Retire(boundedContext(t), 1<<20))
			e.last()
			<-ended
		}},
		{"never reads what it asks for", request, func(_ *testing.T, e *hostileClient, _ *Publication) {
			e.hello()
			for e.send(wire.TypeList, wire.List{}.Append(nil)) == nil {
			}
		}},
		{"never reads that there is no such thing", request, func(_ *testing.T, e *hostileClient, _ *Publication) {
			e.hello()
			for e.send(wire.TypeStat, stat) == nil {
			}
		}},
		{"never reads that it is attached already", ack, func(_ *testing.T, e *hostileClient, _ *Publication) {
			e.hello()
			e.attach("x")
			for e.send(wire.TypeAttach, wire.Attach{Access: 1, Name: "x"}.Append(nil)) == nil {
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := c.o
			o.Rate = 1 << 30
			for _, limit := range []*time.Duration{&o.HandshakeTimeout, &o.RequestTimeout, &o.AckTimeout} {
				*limit = cmp.Or(*limit, time.Hour)
			}
			s, p, g := stage(t, o, PublishOptions{})
			require.NoError(t, g.Append(pattern(0, 5<<20)))
			require.NoError(t, p.Flush(t.Context()))
			e := rawConn(t, s.Path())
			c.do(t, e, p)
			require.Eventually(t, func() bool {
				now := s.Stats()
				return now.TimedOut == 1 && now.Conns == 0 && p.Readers() == 0
			}, inTime, time.Millisecond)
			require.Zero(t, s.Stats().Violations)
			e.close()
			require.NoError(t, s.Close())
		})
	}
}

// TestAbruptEnds: a client that vanishes at any stage leaves nothing behind.
func TestAbruptEnds(t *testing.T) {
	s, p, g := stage(t, Options{}, PublishOptions{})
	want := pattern(0, 5<<20)
	require.NoError(t, g.Append(want))
	dev := vmmtest.Device(t)
	honest(t, s.Path(), dev, want, AttachOptions{})
	waitExported(t, s, p)
	before := countResources(t, g.Device())
	ask := wire.Attach{Access: 1, Flags: wire.AttachPublish, Name: "x"}.Append(nil)
	stages := []func(*hostileClient){
		func(*hostileClient) {},
		func(e *hostileClient) { _ = e.send(wire.TypeHello, wire.Hello{Backend: 1}.Append(nil)) },
		func(e *hostileClient) { e.hello() },
		func(e *hostileClient) { e.hello(); _ = e.send(wire.TypeAttach, ask) },
		func(e *hostileClient) { e.hello(); _ = e.send(wire.TypeAttach, ask); e.next() },
		func(e *hostileClient) { e.hello(); e.attach("x"); e.read() },
		func(e *hostileClient) {
			e.hello()
			o := e.attach("x")
			e.read()
			_ = e.send(wire.TypeAck, wire.Ack{Object: o.ID, Chunk: 1}.Append(nil))
		},
		func(e *hostileClient) {
			e.hello()
			e.attach("x")
			require.NoError(e.t, unix.Shutdown(e.fd, unix.SHUT_WR))
		},
		func(e *hostileClient) {
			e.hello()
			e.attach("x")
			require.NoError(e.t, unix.Shutdown(e.fd, unix.SHUT_RD))
		},
	}
	for i := range 60 * len(stages) {
		was := s.Stats().Accepted
		e := rawConn(t, s.Path())
		stages[i%len(stages)](e)
		e.close()
		if i%7 == 0 {
			require.Eventually(t, func() bool { return s.Stats().Conns == 0 && s.Stats().Accepted > was }, inTime, time.Millisecond)
		}
	}
	require.Eventually(t, func() bool { return s.Stats().Conns == 0 && p.Readers() == 0 }, inTime, time.Millisecond)
	require.Zero(t, s.Stats().Violations+s.Stats().TimedOut)

	// One that vanishes owes no acknowledgement.
	e := rawConn(t, s.Path())
	e.hello()
	e.attach("x")
	done := make(chan error, 1)
	go func() { done <- p.Retire(boundedContext(t), uint64(len(want))) }()
	for f, ok := e.read(); ok && f.Type != wire.TypeRetire; f, ok = e.read() {
	}
	e.close()
	require.NoError(t, <-done)
	honest(t, s.Path(), dev, want, AttachOptions{})
	waitExported(t, s, p)
	waitReleased(t, g.Device(), before)
}

// TestAdmission: who may not come in is turned away before it is heard, and
// told why.
func TestAdmission(t *testing.T) {
	t.Parallel()
	t.Run("another user", func(t *testing.T) {
		s, _, _ := stage(t, Options{UIDs: []uint32{uint32(os.Getuid()) + 1}}, PublishOptions{})
		e := rawConn(t, s.Path())
		require.Equal(t, wire.CodePermission, e.last())
		require.Equal(t, uint64(1), s.Stats().Refused)
		require.Zero(t, s.Stats().Accepted)
		_, err := Attach(t.Context(), s.Path(), "x", vmmtest.Device(t), AttachOptions{})
		require.ErrorIs(t, err, vmm.ErrPermission)
		require.Zero(t, s.Stats().Accepted)

		// Where the list has this user, the same client comes in.
		other, _, _ := stage(t, Options{UIDs: []uint32{uint32(os.Getuid()) + 1, uint32(os.Getuid())}}, PublishOptions{})
		rawConn(t, other.Path()).hello()
	})
	t.Run("connections", func(t *testing.T) {
		s, _, g := stage(t, Options{MaxConns: 5, HandshakeTimeout: time.Minute}, PublishOptions{})
		full(t, s, g, 5)
	})
	t.Run("connections of a user", func(t *testing.T) {
		s, _, g := stage(t, Options{MaxConnsPerUID: 4, HandshakeTimeout: time.Minute}, PublishOptions{})
		full(t, s, g, 4)
	})
	t.Run("token", func(t *testing.T) {
		token := []byte("0123456789abcdef0123456789abcdef")
		var log strings.Builder
		s, _, g := stage(t, Options{Token: token, Logger: slog.New(slog.NewTextHandler(&log, nil))}, PublishOptions{})
		require.NoError(t, g.Append(pattern(0, 100)))
		dev := vmmtest.Device(t)
		wrong := append([]byte(nil), token...)
		wrong[31]++
		for _, other := range [][]byte{nil, wrong, make([]byte, 32)} {
			_, err := Attach(t.Context(), s.Path(), "x", dev, AttachOptions{Token: other})
			require.ErrorIs(t, err, vmm.ErrPermission)
		}
		e := rawConn(t, s.Path())
		h := wire.Hello{Backend: 1}
		h.SetToken(token[:31])
		require.NoError(t, e.send(wire.TypeHello, h.Append(nil)))
		require.Equal(t, wire.CodePermission, e.last())
		honest(t, s.Path(), dev, pattern(0, 100), AttachOptions{Token: token})
		require.NoError(t, s.Close()) // after that nothing is logged
		require.Equal(t, 4, strings.Count(log.String(), `msg="connection refused"`), log.String())
		require.NotContains(t, log.String(), "connection ended")
	})
}

func full(t *testing.T, s *Server, g *vmm.Range, n int) {
	t.Helper()
	require.NoError(t, g.Append(pattern(0, 100)))
	dev := vmmtest.Device(t)
	var silent []*hostileClient
	for range n {
		silent = append(silent, rawConn(t, s.Path()))
	}
	require.Eventually(t, func() bool { return s.Stats().Conns == n }, inTime, time.Millisecond)
	_, err := Attach(t.Context(), s.Path(), "x", dev, AttachOptions{})
	require.ErrorIs(t, err, vmm.ErrLimit)
	require.Equal(t, wire.CodeLimit, rawConn(t, s.Path()).last())
	silent[0].close()
	require.Eventually(t, func() bool { return s.Stats().Conns == n-1 }, inTime, time.Millisecond)
	honest(t, s.Path(), dev, pattern(0, 100), AttachOptions{})
}

// TestBytesPerUID: memory that a user has handles of is bounded, over all its
// connections, and given back when they end.
func TestBytesPerUID(t *testing.T) {
	t.Parallel()
	s, _, g := stage(t, Options{MaxBytesPerUID: 10 << 20}, PublishOptions{})
	want := pattern(0, 8<<20)
	require.NoError(t, g.Append(want))
	e := rawConn(t, s.Path())
	e.hello()
	o := e.attach("x")
	f, ok := e.read()
	require.True(t, ok)
	require.Equal(t, wire.TypeChunks, f.Type)
	e.works()
	other := rawConn(t, s.Path())
	other.hello()
	other.attach("x")
	require.Equal(t, wire.CodeLimit, other.last())
	require.NoError(t, e.send(wire.TypeResync, wire.Resync{Object: o.ID, Batch: 1}.Append(nil)))
	e.works()
	e.close()
	other.close()
	require.Eventually(t, func() bool { return s.Stats().Conns == 0 }, inTime, time.Millisecond)
	honest(t, s.Path(), vmmtest.Device(t), want, AttachOptions{})
}

// TestSendAfterClose: chunks that were about to be sent as their object was
// closed leave no descriptor behind, which would keep their memory.
func TestSendAfterClose(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 5<<20)))
	require.NoError(t, p.Flush(t.Context()))
	near, _ := pair(t)
	c, err := wire.NewConn(near)
	require.NoError(t, err)
	a := &attachment{obj: &p.object, ses: newSession(s, c, wire.Cred{}), batch: wire.MaxFDs}
	_, fd, err := a.register(wire.Attach{Access: wire.AccessRead, Name: p.name}, false)
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	a.start()
	chunks := a.nextChunks()
	require.NotEmpty(t, chunks)
	require.NoError(t, p.Close())
	require.Zero(t, s.Stats().KeptFDs)
	acquired, _, err := a.exportChunks(chunks)
	require.NoError(t, err)
	for i, d := range acquired {
		p.releaseFD(chunks[i], d)
	}
	require.Zero(t, s.Stats().KeptFDs)
	a.detach()
}

// TestReadersCannotWrite: a descriptor of memory that is shared for reading
// gives no way to write, whatever is done with it; one of other memory does.
func TestReadersCannotWrite(t *testing.T) {
	t.Parallel()
	for name, share := range map[string]vmm.Share{"safe": vmm.ShareFD | vmm.ShareReadOnly, "control": vmm.ShareFD} {
		t.Run(name, func(t *testing.T) {
			dev := vmmtest.Device(t)
			g, err := dev.NewRange(vmm.RangeOptions{Share: share, Max: 8 << 20})
			require.NoError(t, err)
			s, err := Listen(dev, t.TempDir()+"/s", Options{})
			require.NoError(t, err)
			p, err := s.Publish("x", g, PublishOptions{})
			require.NoError(t, err)
			t.Cleanup(func() {
				require.NoError(t, s.Close())
				require.NoError(t, p.Close())
				require.NoError(t, g.Close())
			})
			require.NoError(t, g.Append(pattern(0, 100)))
			c := greeted(t, s.Path())
			require.NoError(t, c.Write(wire.TypeAttach, 1, 0, wire.Attach{Access: 1, Name: "x"}.Append(nil)))
			for _, of := range []wire.Type{wire.TypeObject, wire.TypeChunks} {
				f, err := c.Read()
				require.NoError(t, err)
				require.Equal(t, of, f.Type)
				require.NotEmpty(t, f.FDs)
				for _, fd := range f.FDs {
					require.Equal(t, name == "control" && of == wire.TypeChunks, writable(t, fd.Int()))
					require.Error(t, unix.Ftruncate(fd.Int(), 0))
				}
				require.NoError(t, f.Close())
			}
		})
	}
}

// writable reports whether there is any way to write through fd, or through what it
// can be opened as once more.
func writable(t *testing.T, fd int) (can bool) {
	t.Helper()
	again, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(again) //nolint:errcheck // in a test
	}
	for _, fd := range []int{fd, again} {
		if b, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			require.NoError(t, unix.Munmap(b))
			can = true
		}
		if b, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED); err == nil {
			can = unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE) == nil || can
			require.NoError(t, unix.Munmap(b))
		}
		_, err := unix.Pwrite(fd, []byte{1}, 0)
		can = err == nil || can
		can = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096) == nil || can
	}
	return can
}
