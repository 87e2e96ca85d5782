package shareable

import (
	"context"
	"crypto/sha256"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

func TestStoreObjectGrows(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{})
	x := s.object(80)
	v := s.attach(AttachOptions{Unsealed: true})
	require.Equal(t, []byte("rows"), v.Meta())
	require.Equal(t, uint64(80*smallChunk), v.Max())
	x.grow(2)
	soon(t, "memory", func() bool { return v.Cap() == 2*smallChunk })
	require.Zero(t, v.Len())

	w := x.lease()
	w.Queued(300)
	w.Publish(200)
	x.Wrote()
	wait(t, v, 200)
	require.Equal(t, uint64(200), v.Len())
	require.Equal(t, uint64(300), v.Queued())
	require.Equal(t, x.mem[:200], read(t, v, 200))
	x.grow(70) // more than one frame
	w.Publish(71 * smallChunk)
	x.Wrote()
	wait(t, v, 71*smallChunk)
	require.Equal(t, x.mem[:71*smallChunk], read(t, v, 71*smallChunk))
	state, length, capacity, readers := x.State()
	require.Equal(t, []any{wire.StateLive, uint64(71 * smallChunk), uint64(72 * smallChunk), 1}, []any{state, length, capacity, readers})

	before := v.Heartbeat()
	w.Beat()
	require.True(t, v.Heartbeat().After(before))
	w.Publish(100) // it never goes back
	w.Queued(100)
	require.Equal(t, uint64(71*smallChunk), v.Len())
}

func TestStoreObjectAddChunkRefuses(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{})
	x := s.object(2)
	add := func(size uint64) error {
		ends, fds := pipes(t, 1)
		err := x.AddChunk(size, fds[0])
		areClosed(t, ends)
		return err
	}
	require.ErrorIs(t, add(3*smallChunk), vmm.ErrBounds)
	require.ErrorIs(t, add(math.MaxUint64-smallChunk+1), vmm.ErrBounds)
	require.ErrorIs(t, add(0), vmm.ErrInvalid)
	require.ErrorIs(t, add(smallChunk/2), vmm.ErrInvalid)
	x.grow(1)
	require.ErrorIs(t, add(2*smallChunk), vmm.ErrBounds)
	require.NoError(t, x.Seal(serve.Seal{Length: 0}))
	require.ErrorIs(t, add(smallChunk), ErrSealed)
	require.NoError(t, x.Close())
	require.ErrorIs(t, add(smallChunk), vmm.ErrClosed)

	x = s.object(2)
	x.grow(1)
	x.Retire(t.Context())
	require.ErrorIs(t, add(smallChunk), vmm.ErrClosed, "readers would see it below the length that was")
}

// What a writer stores after its lease counts for nothing, and the next one continues where it
// was.
func TestStoreObjectNextWriter(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{})
	x := s.object(4)
	x.grow(2)
	v := s.attach(AttachOptions{Unsealed: true})
	soon(t, "memory", func() bool { return v.Cap() == 2*smallChunk })
	none := pageOf(v)
	first := x.lease()
	pageAfter(t, v, none)
	first.Publish(100)
	of := pageOf(v)
	x.EndLease() // without a WROTE
	require.Equal(t, uint64(100), x.length())
	pageAfter(t, v, of)
	first.Publish(2 * smallChunk)
	x.Wrote()
	require.Equal(t, uint64(100), x.length())
	require.Equal(t, uint64(100), v.Len())
	x.EndLease() // there is none

	of = pageOf(v)
	second := x.lease()
	pageAfter(t, v, of)
	require.Equal(t, uint64(100), v.Len())
	late := s.attach(AttachOptions{Unsealed: true})
	wait(t, late, 100)
	second.Publish(50)
	require.Equal(t, uint64(100), x.length())
	second.Publish(300)
	x.Wrote()
	for _, v := range []*View{v, late} {
		wait(t, v, 300)
		require.Equal(t, uint64(300), v.Len())
		require.Equal(t, x.mem[:300], read(t, v, 300))
	}
	// A page that was not started is nothing.
	fd, err := x.LeasePage()
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	x.EndLease()
	require.ErrorAs(t, x.StartLease(), new(*wire.ProtocolError))
	require.Equal(t, uint64(300), x.length())
}

// At the limit on open files a lease ends as well: the length is what it was.
func TestStoreObjectEndsLeaseWithoutDescriptors(t *testing.T) {
	s := newSmallStore(t, Options{})
	x := s.object(4)
	x.grow(1)
	v := s.attach(AttachOptions{Unsealed: true})
	first := x.lease()
	first.Publish(100)
	restore := sync.OnceFunc(leaveFDs(t, 0))
	defer restore()
	x.EndLease()
	restore()
	of := pageOf(v)
	second := x.lease()
	pageAfter(t, v, of) // before that the View could see what does not count, and end
	first.Publish(200)
	require.Equal(t, uint64(100), x.length())
	second.Publish(300)
	x.Wrote()
	wait(t, v, 300)
}

func TestStoreObjectSealed(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{})
	x := s.object(4)
	x.grow(4)
	for _, o := range []AttachOptions{{}, {Write: true}} {
		_, err := Attach(t.Context(), s.srv.Path(), "x", pageDevice(t), o)
		require.ErrorIs(t, err, ErrNotSealed)
	}
	early := s.attach(AttachOptions{Unsealed: true})
	writing := s.attach(AttachOptions{Unsealed: true, Write: true})
	w := x.lease()
	w.Publish(smallChunk)
	x.Wrote()
	wait(t, early, smallChunk)
	require.ErrorIs(t, x.Seal(serve.Seal{Length: smallChunk - 1}), vmm.ErrBounds)
	require.ErrorIs(t, x.Seal(serve.Seal{Length: 4*smallChunk + 1}), vmm.ErrBounds)
	sum := sha256.Sum256(x.mem[:smallChunk+10])
	require.NoError(t, x.Seal(serve.Seal{Length: smallChunk + 10, Digest: &sum}))
	require.ErrorIs(t, x.Seal(serve.Seal{Length: smallChunk + 10, Digest: &sum}), ErrSealed)
	require.Error(t, x.StartLease())
	_, err := x.LeasePage()
	require.ErrorIs(t, err, vmm.ErrClosed)

	w.Publish(2 * smallChunk) // it has its page still
	state, length, capacity, _ := x.State()
	require.Equal(t, []any{wire.StateSealed, uint64(smallChunk + 10), uint64(2 * smallChunk)}, []any{state, length, capacity})
	// A page is made for who comes now: two do not share one.
	late, later := s.attach(AttachOptions{}), s.attach(AttachOptions{Unsealed: true})
	for _, v := range []*View{early, writing, late, later} {
		soon(t, "sealed", v.Sealed)
		wait(t, v, smallChunk+10)
		require.ErrorIs(t, v.Wait(t.Context(), smallChunk+11), ErrSealed)
		soon(t, "the digest", func() bool { _, ok := v.Digest(); return ok }) // which comes after the chunks
		got, _ := v.Digest()
		require.Equal(t, sum, got)
		require.Equal(t, x.mem[:smallChunk+10], read(t, v, smallChunk+10))
		require.Equal(t, uint64(2*smallChunk), v.Cap())
		require.True(t, v.Valid(v.Snapshot()))
	}
	require.Nil(t, x.own().page)
	_, err = Attach(t.Context(), s.srv.Path(), "x", pageDevice(t), AttachOptions{Write: true, Unsealed: true})
	require.ErrorIs(t, err, vmm.ErrPermission)
	require.Equal(t, 4, x.readers())
	x.EndLease()
	x.Wrote()
}

// TestStoreObjectReplyChunks: a writer gets all memory, MaxFDs at a time.
func TestStoreObjectReplyChunks(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{})
	x := s.object(80)
	x.grow(70)
	s.on(func(c serve.Conn, f wire.Frame) error {
		q, err := wire.DecodeGrow(f.Payload)
		if err != nil {
			return err
		}
		return x.ReplyChunks(c, f.Request, q.After)
	})
	c := greeted(t, s.srv.Path())
	ask := func(after uint64) wire.Frame {
		require.NoError(t, c.Write(wire.TypeGrow, 5, 0, wire.Grow{After: after}.Append(nil)))
		f, err := c.Read()
		require.NoError(t, err)
		require.Equal(t, uint32(5), f.Request)
		return f
	}
	for _, want := range []struct {
		after uint64
		n     int
	}{{0, 64}, {64, 6}, {69, 1}} {
		f := ask(want.after)
		require.Equal(t, wire.TypeChunks, f.Type)
		m, err := wire.DecodeChunks(f.Payload)
		require.NoError(t, err)
		require.Len(t, f.FDs, want.n)
		require.Equal(t, want.after+1, m.Records[0].ID)
		require.Equal(t, x.ID(), m.Object)
	}
	for _, after := range []uint64{70, 71, math.MaxUint64} {
		f := ask(after)
		require.Equal(t, wire.TypeError, f.Type)
		e, err := wire.DecodeError(f.Payload)
		require.NoError(t, err)
		require.Equal(t, wire.CodeBounds, e.Code)
	}
}

// pipes are descriptors in place of memory: the other end of each tells when it is closed.
func pipes(t *testing.T, n int) (ends, fds []int) {
	t.Helper()
	for range n {
		var p [2]int
		require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
		ends, fds = append(ends, p[0]), append(fds, p[1])
	}
	return ends, fds
}

// areClosed checks that the other ends are closed, and closes the pipes.
func areClosed(t *testing.T, ends []int) {
	t.Helper()
	for i, end := range ends {
		n, err := unix.Read(end, make([]byte, 1))
		require.NoError(t, err)
		require.Zero(t, n, "descriptor %d", i)
		require.NoError(t, unix.Close(end))
	}
}

// Each chunk's descriptor is closed once, whether or not it is being sent: a number that is
// closed twice may be another file's by then.
func TestStoreObjectClosesDescriptorsOnce(t *testing.T) {
	s := newSmallStore(t, Options{})
	before := openFDs(t)
	for range 50 {
		x := s.objects.NewObject(serve.Spec{Max: 8 * smallChunk})
		ends, fds := pipes(t, 8)
		for _, fd := range fds {
			require.NoError(t, x.AddChunk(smallChunk, fd))
			_, last := x.Chunks()
			x.Show(last)
		}
		var all sync.WaitGroup
		sent := &sink{}
		for range 4 {
			all.Go(func() { _ = x.ReplyChunks(sent, 1, 0) })
		}
		all.Go(func() { _ = x.Seal(serve.Seal{Length: 2 * smallChunk}) })
		all.Go(func() { require.NoError(t, x.Close()) })
		all.Wait()
		require.NoError(t, x.Close())
		areClosed(t, ends)
		require.NoError(t, sent.failed())
	}
	staysOpen(t, before)
}

// sink is a connection that checks that what is sent is open.
type sink struct {
	mu  sync.Mutex
	err error
}

func (s *sink) PeerPIDFD() (int, error) { return -1, unix.ENOPROTOOPT }

func (s *sink) Reply(_ wire.Type, _ uint32, _ []byte, fds ...int) error {
	for range 20 {
		for _, fd := range fds {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
				s.mu.Lock()
				s.err = err
				s.mu.Unlock()
			}
		}
	}
	return nil
}

func (s *sink) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *sink) Cred() wire.Cred            { return wire.Cred{} }
func (s *sink) Refuse(uint32, error) error { return nil }
func (s *sink) Close(error)                {}

func TestStoreObjectRetire(t *testing.T) {
	t.Parallel()
	for name, sealed := range map[string]bool{"live": false, "sealed": true} {
		t.Run(name, func(t *testing.T) {
			s := newSmallStore(t, Options{})
			x := s.object(4)
			x.grow(2)
			w := x.lease()
			w.Publish(100)
			if sealed {
				require.NoError(t, x.Seal(serve.Seal{Length: 100}))
			}
			v := s.attach(AttachOptions{Unsealed: !sealed})
			wait(t, v, 100)
			old := v.Snapshot()
			ctx, cancel := contextIn(t, 20*time.Second)
			defer cancel()
			x.Retire(ctx)
			require.NoError(t, ctx.Err())
			require.Zero(t, v.Len())
			require.Zero(t, v.Cap())
			require.Empty(t, v.Segments())
			require.False(t, v.Valid(old))
			require.NoError(t, v.Err())
			require.NoError(t, x.Close())
			soon(t, "deleted", func() bool { return errors.Is(v.Err(), ErrOwnerGone) })
		})
	}
}

// A reader that attaches to a sealed object, and hears of its end before it has all of it.
func TestStoreObjectRetireBesideAttach(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{})
	x := s.object(2)
	x.grow(2)
	require.NoError(t, x.Seal(serve.Seal{Length: 100}))
	ses, far := served(t, s.srv)
	require.NoError(t, ses.startAttachment(&x.own().object, 1, wire.Attach{Access: wire.AccessRead, Name: "x"}))
	a := ses.find(x.ID())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x.Retire(ctx) // its session is stopped
	f, err := far.Read()
	require.NoError(t, err)
	desc, err := wire.DecodeObject(f.Payload)
	require.NoError(t, err)
	require.Equal(t, uint64(100), desc.Length)
	x.own().mu.Lock()
	length := x.own().lenLocked()
	x.own().mu.Unlock()
	require.Equal(t, desc.Length, length) // SEALED says what OBJECT has said
	soon(t, "detached", func() bool { return ses.find(x.ID()) == nil })
	require.True(t, a.detached)
}

// A reader that does not acknowledge is disconnected when the time is over, and no other.
func TestStoreObjectRetireDisconnects(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{})
	x := s.object(4)
	x.grow(2)
	require.NoError(t, x.Seal(serve.Seal{Length: 100}))
	slow := attachPlain(t, s.srv.Path(), "x")
	require.Equal(t, wire.TypeChunks, slow.step())
	slow.lazy = true
	good := s.attach(AttachOptions{})
	wait(t, good, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); x.Retire(ctx) }()
	soon(t, "the good one has acknowledged", func() bool {
		x.own().mu.Lock()
		defer x.own().mu.Unlock()
		if x.own().endLocked() > 0 {
			return false // nothing is retired yet
		}
		for a := range x.own().attachments {
			if a.ackedGeneration == x.own().generation {
				return true
			}
		}
		return false
	})
	require.Zero(t, good.Cap())
	require.False(t, isClosed(done))
	cancel()
	<-done
	soon(t, "the slow one has gone", func() bool { return x.readers() == 1 })
	for {
		if _, err := slow.c.Read(); err != nil {
			require.True(t, disconnected(err), "%v", err)
			break
		}
	}
	require.NoError(t, good.Err())
}

func TestStoreObjectCloseWithReaders(t *testing.T) {
	s := newSmallStore(t, Options{})
	before := openFDs(t)
	x := s.object(4)
	x.grow(2)
	w := x.lease()
	w.Publish(100)
	live := s.attach(AttachOptions{Unsealed: true})
	wait(t, live, 100)
	require.NoError(t, x.Close())
	require.NoError(t, x.Close())
	soon(t, "deleted", func() bool { return errors.Is(live.Err(), ErrOwnerGone) })
	require.Equal(t, x.mem[:100], read(t, live, 100))
	soon(t, "no reader", func() bool { return x.readers() == 0 })
	_, err := Attach(t.Context(), s.srv.Path(), "x", pageDevice(t), AttachOptions{Unsealed: true})
	require.ErrorIs(t, err, ErrNotFound)
	x.EndLease()
	x.Wrote()
	x.Retire(t.Context())
	require.ErrorIs(t, x.Seal(serve.Seal{Length: 100}), vmm.ErrClosed)
	require.Error(t, x.StartLease())
	require.NoError(t, live.Close())
	require.NoError(t, w.Close())
	staysOpen(t, before)
}

func TestStoreObjectListed(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{})
	list := func() []Listing {
		all, err := List(t.Context(), s.srv.Path(), s.dev, AttachOptions{})
		require.NoError(t, err)
		return all
	}
	x, other := s.object(4), s.objects.NewObject(serve.Spec{Max: smallChunk})
	s.objects.Listed(x.Object, "y") // another name
	require.Len(t, list(), 1)
	require.Equal(t, "y", list()[0].Name)
	s.objects.Listed(other, "other")
	require.Len(t, list(), 2)
	require.NoError(t, x.Close())
	require.Len(t, list(), 1)
	require.NoError(t, other.Close())
	s.objects.Listed(other, "again")
	late := s.objects.NewObject(serve.Spec{Max: smallChunk})
	require.NoError(t, late.Close())
	s.objects.Listed(late, "late")
	require.Empty(t, list())
}

func TestStoreObjectCallsReaders(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{})
	x := s.object(4)
	v := s.attach(AttachOptions{Unsealed: true})
	require.Equal(t, 1, x.readers())
	require.NoError(t, v.Close())
	soon(t, "gone", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return x.readers() == 0 && s.seen == 2
	})
}

func TestIDName(t *testing.T) {
	t.Parallel()
	for _, id := range []uint64{0, 7, math.MaxUint64} {
		got, ok := wire.ParseIDName(wire.IDName(id))
		require.True(t, ok)
		require.Equal(t, id, got)
	}
	for _, name := range []string{"", "@", "7", "@07", "@+7", "@-1", "@7 ", "@18446744073709551616", "@x"} {
		_, ok := wire.ParseIDName(name)
		require.False(t, ok, name)
	}
}
