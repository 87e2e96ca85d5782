package shareable

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// sessionOf is the only session of a server.
func sessionOf(t *testing.T, s *Server) (ses *session) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Len(t, s.sessions, 1)
	for ses = range s.sessions {
	}
	return ses
}

// anotherPage is a descriptor of a page that shows n bytes.
func (s *scriptedOwner) anotherPage(n uint64) int {
	s.t.Helper()
	p, err := newOwnerPage(s.obj.Instance, s.obj.ID)
	require.NoError(s.t, err)
	s.t.Cleanup(p.close)
	p.generation.Store(1)
	p.published.Store(n)
	return p.fd
}

func (s *scriptedOwner) sendPage(object uint64, fds ...int) {
	s.t.Helper()
	s.write(wire.TypePage, 0, wire.Page{Object: object}.Append(nil), fds...)
}

// A reader that has no room for a page asks for it again.
func TestViewLosesAPage(t *testing.T) {
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{Unsealed: true, Timeout: time.Minute})
	s.grow(1)
	s.chunks(0, 1)
	s.ack()
	s.done(10)
	fd, asked := s.anotherPage(20), make(chan wire.Resync, 100)
	go func() {
		defer close(asked)
		for f, err := s.c.Read(); err == nil; f, err = s.c.Read() {
			if r, err := wire.DecodeResync(f.Payload); f.Type == wire.TypeResync && err == nil {
				asked <- r
			}
		}
	}()
	restore := sync.OnceFunc(leaveFDs(t, 0))
	defer restore()
	for range 3 { // a descriptor of an earlier test may be closed meanwhile: then the page fits
		of := pageOf(v)
		s.sendPage(s.obj.ID, fd)
		soon(t, "a RESYNC", func() bool { return len(asked) > 0 || pageOf(v) != of })
		if len(asked) > 0 {
			require.Equal(t, wire.Resync{Object: s.obj.ID, Next: 2, Batch: wire.MaxFDs}, <-asked)
		}
	}
	restore()
	of := pageOf(v)
	s.sendPage(s.obj.ID, fd)
	pageAfter(t, v, of)
	require.Equal(t, uint64(20), v.Len())
	s.write(wire.TypeSealed, 0, wire.Sealed{Object: s.obj.ID, Length: 20}.Append(nil))
	soon(t, "sealed", v.Sealed)
	require.Equal(t, uint64(1), v.Stats().Frames)
}

func TestViewRefusesPages(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(*testing.T, *scriptedOwner){
		"of another object": func(_ *testing.T, s *scriptedOwner) { s.sendPage(8, s.anotherPage(0)) },
		"without seals":     func(t *testing.T, s *scriptedOwner) { s.sendPage(7, memory(t, pageBytes, 0)) },
		"that can be written": func(t *testing.T, s *scriptedOwner) {
			s.sendPage(7, memory(t, pageBytes, leaseSeals))
		},
		"of two pages": func(t *testing.T, s *scriptedOwner) { s.sendPage(7, memory(t, 2*pageBytes, allSeals)) },
		"no file in memory": func(t *testing.T, s *scriptedOwner) {
			s.sendPage(7, special(t, "/dev/null", unix.O_RDWR))
		},
		"without a descriptor": func(_ *testing.T, s *scriptedOwner) { s.sendPage(7) },
		"two":                  func(_ *testing.T, s *scriptedOwner) { s.sendPage(7, s.anotherPage(0), s.anotherPage(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			s, far := newScriptedOwner(t, 4)
			v := viewed(t, s, far, AttachOptions{})
			s.grow(1)
			s.chunks(0, 1)
			s.ack()
			s.done(10)
			do(t, s)
			s.gone()
			require.ErrorIs(t, ended(t, v), ErrProtocol)
			require.Equal(t, uint64(10), v.Len())
		})
	}
}

// What another page shows counts. What the page before showed beyond it was stored by a writer whose
// lease had ended: a view that has not seen it goes on, and one that has says so. As a negative control
// it keeps what it has seen.
func TestViewTakesTheLengthOfAnotherPage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		seen, control bool
	}{{"not seen", false, false}, {"seen", true, false}, {"control", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			s, far := newScriptedOwner(t, 4)
			v := viewed(t, s, far, AttachOptions{Unsealed: true, keepLen: c.control})
			s.grow(1)
			s.chunks(0, 1)
			s.ack()
			storeWord(s.page, atDone, 100)
			if c.seen {
				require.Equal(t, uint64(100), v.Len())
			}
			of := pageOf(v)
			s.sendPage(s.obj.ID, s.anotherPage(20))
			pageAfter(t, v, of)
			switch {
			case c.control:
				require.Equal(t, uint64(100), v.Len())
				require.NoError(t, v.Err())
			case c.seen:
				ctx, cancel := contextIn(t, patience)
				defer cancel()
				err := v.Wait(ctx, v.Max())
				require.ErrorIs(t, err, ErrRetired)
				require.ErrorContains(t, err, "20 of the 100 bytes that it showed count")
				require.Equal(t, err, v.Err())
				require.Equal(t, uint64(20), v.Len())
				require.Equal(t, uint64(20), v.Published())
				s.gone()
			default:
				require.Equal(t, uint64(20), v.Len())
				of = pageOf(v)
				s.sendPage(s.obj.ID, s.anotherPage(1<<40))
				pageAfter(t, v, of)
				require.Equal(t, s.gran, v.Len())
				require.NoError(t, v.Err())
			}
		})
	}
}

// The owner sends the page again after a RESYNC.
func TestResyncBringsThePage(t *testing.T) {
	s := newSmallStore(t, Options{})
	x := s.object(4)
	c := greeted(t, s.srv.Path())
	next := func(of wire.Type) wire.Frame {
		f, err := c.Read()
		require.NoError(t, err)
		require.Equal(t, of, f.Type)
		return f
	}
	require.NoError(t, c.Write(wire.TypeAttach, 1, 0, wire.Attach{Access: wire.AccessRead, Flags: wire.AttachUnsealed, Name: "x"}.Append(nil)))
	next(wire.TypeObject)
	w := x.lease()
	w.Publish(10)
	for range 3 {
		f := next(wire.TypePage)
		p, err := wire.DecodePage(f.Payload)
		require.NoError(t, err)
		require.Equal(t, x.ID(), p.Object)
		page, err := openReaderPage(f.FDs[0].Int(), s.srv.Instance(), x.ID())
		require.NoError(t, err)
		require.Equal(t, uint64(10), page.published())
		require.NoError(t, page.close())
		require.NoError(t, c.Write(wire.TypeResync, 2, 0, wire.Resync{Object: x.ID(), Batch: 1}.Append(nil)))
	}
	next(wire.TypePage)
	require.NoError(t, x.Seal(serve.Seal{Length: 0}))
	next(wire.TypeSealed)
}

// At the limit on open files the owner sends a page later.
func TestPageWaitsForADescriptor(t *testing.T) {
	s := newSmallStore(t, Options{})
	x := s.object(4)
	x.grow(1)
	v := s.attach(AttachOptions{Unsealed: true})
	soon(t, "memory", func() bool { return v.Cap() == smallChunk })
	ses, of := sessionOf(t, s.srv), pageOf(v)
	a := ses.find(x.ID())
	ses.sending.Lock()
	unlock := sync.OnceFunc(ses.sending.Unlock)
	defer unlock()
	w := x.lease()
	w.Publish(10)
	restore := sync.OnceFunc(leaveFDs(t, 0))
	defer restore()
	unlock()
	soon(t, "it has tried", func() bool {
		x.own().mu.Lock()
		defer x.own().mu.Unlock()
		return a.blockedClock.runs() || a.detached || a.sentPage == x.own().page
	})
	restore()
	pageAfter(t, v, of)
	wait(t, v, 10)
	x.own().mu.Lock()
	defer x.own().mu.Unlock()
	require.False(t, a.blockedClock.runs())
}

// What a store has given up counts for no user: the store counts its memory itself, and the
// driver knows it by no segment.
func TestStoreObjectCountsOnce(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{MaxBytesPerUID: 8 * smallChunk})
	for range 5 {
		x := s.object(4)
		x.grow(4)
		require.NoError(t, x.Seal(serve.Seal{Length: 10}))
		v := s.attach(AttachOptions{})
		wait(t, v, 10)
		ctx, cancel := contextIn(t, 20*time.Second)
		x.Retire(ctx)
		cancel()
		require.NoError(t, x.Close())
		require.NoError(t, v.Close())
	}
	soon(t, "nothing counts", func() bool {
		s.srv.mu.Lock()
		defer s.srv.mu.Unlock()
		return len(s.srv.bytesByUID) == 0 && len(s.srv.takenByUID) == 0 && len(s.srv.taken) == 0
	})
}

// The limit on bytes of a user counts for a store's objects as for ranges.
func TestStoreObjectLimitsBytes(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{MaxBytesPerUID: smallChunk})
	x := s.object(4)
	x.grow(2)
	require.NoError(t, x.Seal(serve.Seal{Length: 10}))
	wait(t, s.attach(AttachOptions{}), 10)
	v := s.attach(AttachOptions{})
	soon(t, "refused", func() bool { return errors.Is(v.Err(), vmm.ErrLimit) })
}
