package shareable

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// served is a session of s that nothing runs, and the reader's end of it.
func served(t *testing.T, s *Server) (*session, *wire.Conn) {
	t.Helper()
	near, far := pair(t)
	a, err := wire.NewConn(near)
	require.NoError(t, err)
	b, err := wire.NewConn(far)
	require.NoError(t, err)
	cred, err := a.Cred()
	require.NoError(t, err)
	ses := newSession(s, a, cred)
	t.Cleanup(func() {
		ses.stop(nil)
		ses.waker.close()
	})
	return ses, b
}

// TestDescribeAfterClose: a STAT has found the object, and then it is closed.
func TestDescribeAfterClose(t *testing.T) {
	_, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	require.NoError(t, p.Flush(t.Context()))
	require.NoError(t, p.Close())
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NotPanics(t, func() {
		o := p.describeLocked(p.name, wire.AccessRead)
		require.Equal(t, wire.StateClosed, o.State)
		require.Equal(t, uint64(100), o.Length)
	})
}

// TestSendsAfterClose: chunks are about to be sent, and then the object is closed.
func TestSendsAfterClose(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	require.NoError(t, p.Flush(t.Context()))
	ses, _ := served(t, s)
	require.NoError(t, ses.startAttachment(&p.object, 1, wire.Attach{Access: wire.AccessRead, Name: p.name}))
	a := ses.find(p.id)
	chunks := a.nextChunks()
	require.Len(t, chunks, 1)
	acquired, _, err := a.exportChunks(chunks)
	require.NoError(t, err)
	require.Len(t, acquired, 1)
	require.NoError(t, p.Close())
	f, ok, err := a.nextFrame(chunks)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, wire.TypeDeleted, f.kind)
	p.releaseFD(chunks[0], acquired[0])
	require.Zero(t, s.Stats().KeptFDs)
	a.detach()
}

// blockedStream is a stream that goes on when the function is called.
func blockedStream(t *testing.T, dev *vmm.Device) (*vmm.Stream, func()) {
	t.Helper()
	raw, err := dev.Raw()
	require.NoError(t, err)
	pin := raw.(driver.HostAllocator)
	at, b, err := pin.AllocHost(4096)
	require.NoError(t, err)
	clear(b)
	st, err := dev.NewStream()
	require.NoError(t, err)
	require.NoError(t, raw.(driver.StreamMemOps).WaitValue(st.Raw(), at, 1, 8))
	open := func() { storeWord(b, 0, 1) }
	t.Cleanup(func() {
		open()
		require.NoError(t, st.Sync())
		require.NoError(t, st.Close())
		require.NoError(t, pin.FreeHost(at))
	})
	return st, open
}

// TestBlockedStream: what waits for a stream gives up with its context, and with
// Close.
func TestBlockedStream(t *testing.T) {
	t.Parallel()
	_, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	require.NoError(t, p.Flush(t.Context()))
	st, _ := blockedStream(t, g.Device())
	require.NoError(t, g.AppendOn(st, pattern(100, 100)))
	flushed := make(chan error, 1)
	go func() { flushed <- p.Flush(context.Background()) }()
	<-time.After(20 * time.Millisecond) // one of them waits for the stream now

	for what, call := range map[string]func(ctx context.Context) error{
		"flush":  p.Flush,
		"retire": func(ctx context.Context) error { return p.Retire(ctx, 50) },
		"seal":   func(ctx context.Context) error { return p.Seal(ctx, SealOptions{}) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		done := make(chan error, 1)
		go func() { done <- call(ctx) }()
		select {
		case err := <-done:
			require.ErrorIs(t, err, context.DeadlineExceeded, what)
		case <-time.After(inTime):
			t.Errorf("%s does not give up", what)
		}
		cancel()
	}

	require.ErrorIs(t, p.Flush(nil), vmm.ErrInvalid)               //nolint:staticcheck // that is the test
	require.ErrorIs(t, p.Retire(nil, 0), vmm.ErrInvalid)           //nolint:staticcheck // and this
	require.ErrorIs(t, p.Seal(nil, SealOptions{}), vmm.ErrInvalid) //nolint:staticcheck // and this
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
		require.ErrorIs(t, <-flushed, vmm.ErrClosed)
	case <-time.After(inTime):
		t.Error("Close waits for the stream")
	}
}

// TestRetireGivenUp: a reader that does not acknowledge in time.
func TestRetireGivenUp(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 5<<20)))
	r := attachPlain(t, s.Path(), "x")
	require.Equal(t, pattern(0, 5<<20), r.until(5<<20))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Retire(ctx, 1<<20), context.DeadlineExceeded)
	require.Equal(t, uint64(5<<20), g.Len())
	require.Eventually(t, func() bool { return p.Len() == 5<<20 }, inTime, time.Millisecond)
	for r.step() != wire.TypeRetire {
	}
	require.Equal(t, pattern(0, 5<<20), r.until(5<<20))
	// Somebody else needs more than is to stay.
	release, err := g.Hold(0, 4<<20)
	require.NoError(t, err)
	retired := make(chan error, 1)
	go func() { retired <- p.Retire(t.Context(), 1<<20) }()
	for r.step() != wire.TypeRetire {
	}
	require.ErrorIs(t, <-retired, vmm.ErrBusy)
	require.Equal(t, pattern(0, 5<<20), r.until(5<<20))
	release()
}

// TestLengthBackAndForth: a length that was written once, went back, and came
// again with bytes that are still to come.
func TestLengthBackAndForth(t *testing.T) {
	t.Parallel()
	_, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Grow(4<<20))
	old, fresh := bytes.Repeat([]byte{1}, 64<<10), bytes.Repeat([]byte{2}, 64<<10)
	for i := range 300 {
		require.NoError(t, p.Flush(t.Context()))
		from := g.Len()
		if from+uint64(len(old)) > 4<<20 {
			require.NoError(t, p.Retire(t.Context(), 0))
			from = 0
		}
		func() {
			st, open := blockedStream(t, g.Device())
			defer open()
			require.NoError(t, g.Append(old))
			for range i % 7 {
				runtime.Gosched()
			}
			if g.SetLen(from) != nil {
				return // published already
			}
			require.NoError(t, g.AppendOn(st, fresh))
			for end := time.Now().Add(300 * time.Microsecond); time.Now().Before(end); {
				require.Equal(t, from, p.Len(), "published before it is written, in round %d", i)
			}
		}()
	}
}

// TestSealThenClose: what was sealed is known to be, however soon the object is
// taken back.
func TestSealThenClose(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	require.NoError(t, p.Flush(t.Context()))
	ses, far := served(t, s)
	require.NoError(t, ses.startAttachment(&p.object, 1, wire.Attach{Access: wire.AccessRead, Name: p.name}))
	a := ses.find(p.id)
	sent, err := a.sendNext()
	require.NoError(t, err)
	require.True(t, sent)
	require.NoError(t, p.Seal(t.Context(), SealOptions{Digest: true}))
	require.NoError(t, p.Close())
	for sent = true; sent; {
		sent, err = a.sendNext()
		require.NoError(t, err)
	}
	for _, kind := range []wire.Type{wire.TypeObject, wire.TypeChunks, wire.TypeSealed, wire.TypeDeleted} {
		f, err := far.Read()
		require.NoError(t, err)
		require.Equal(t, kind, f.Type)
		if kind == wire.TypeSealed {
			m, err := wire.DecodeSealed(f.Payload)
			require.NoError(t, err)
			require.Equal(t, uint64(100), m.Length)
			require.True(t, m.HasDigest)
		}
		require.NoError(t, f.Close())
	}
}

// TestSealThenServerClose is the same where the connection ends too.
func TestSealThenServerClose(t *testing.T) {
	t.Parallel()
	for range 50 {
		s, p, g := stage(t, Options{}, PublishOptions{})
		require.NoError(t, g.Append(pattern(0, 100)))
		v := attached(t, s, AttachOptions{})
		wait(t, v, 100)
		require.NoError(t, p.Seal(t.Context(), SealOptions{}))
		require.NoError(t, s.Close())
		require.Eventually(t, func() bool { return v.Sealed() || v.Err() != nil }, inTime, time.Millisecond)
		require.NoError(t, v.Err())
	}
}

// TestResyncOwesNothing: a reader that has everything says how many descriptors
// it takes in a frame; no time limit begins with that.
func TestResyncOwesNothing(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	r := attachPlain(t, s.Path(), "x")
	require.Equal(t, pattern(0, 100), r.until(100))
	m := wire.Resync{Object: r.o.ID, Next: r.tracker.LastID() + 1, Batch: 1}
	require.NoError(t, r.c.Write(wire.TypeResync, 0, 0, m.Append(nil)))
	soon(t, "the RESYNC is handled, and so all before it", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for a := range p.attachments {
			if a.batch == 1 {
				require.Zero(t, a.behindLocked())
				return true
			}
		}
		return false
	})
	require.NoError(t, g.Append(pattern(100, 9<<20)))
	require.Equal(t, pattern(0, 100+9<<20), r.until(100+9<<20))
}

// TestUnsentOwesNothing: a chunk goes before it is sent; until the publication
// has seen it the reader has nothing to acknowledge.
func TestUnsentOwesNothing(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	require.NoError(t, p.Flush(t.Context()))
	ses, _ := served(t, s)
	require.NoError(t, ses.startAttachment(&p.object, 1, wire.Attach{Access: wire.AccessRead, Name: p.name}))
	a := ses.find(p.id)
	chunks := a.nextChunks()
	require.Len(t, chunks, 1)
	require.NoError(t, a.exportFailed(chunks[0], vmm.ErrClosed))
	at, err := a.due()
	require.NoError(t, err)
	require.Zero(t, a.chunksClock)
	require.NotZero(t, at)
	a.detach()
}

// TestCloseTwiceAtOnce: both return when it is closed.
func TestCloseTwiceAtOnce(t *testing.T) {
	t.Parallel()
	_, p, _ := stage(t, Options{}, PublishOptions{})
	p.exclusive <- struct{}{}
	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- p.Close() }()
	}
	select {
	case err := <-closed:
		t.Error("one has not waited", err)
	case <-time.After(50 * time.Millisecond):
		defer func() { require.NoError(t, <-closed) }()
	}
	<-p.exclusive
	require.NoError(t, <-closed)
}

// TestPublishAfterDuringRetireAndSeal: a length that is accepted is published, so none is
// accepted while another one is being decided.
func TestPublishAfterDuringRetireAndSeal(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 4<<20)))
	require.NoError(t, p.Flush(t.Context()))
	st, err := g.Device().NewStream()
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	after := func(n uint64) error {
		e, err := st.Record()
		require.NoError(t, err)
		return p.PublishAfter(n, e)
	}

	e := rawConn(t, s.Path())
	e.hello()
	e.attach("x")
	retired := make(chan error, 1)
	go func() { retired <- p.Retire(t.Context(), 1<<20) }()
	soon(t, "Retire waits for the reader", func() bool { return p.Generation() == 1 })
	require.ErrorIs(t, after(3<<20), vmm.ErrBusy)
	e.close()
	require.NoError(t, <-retired)
	require.EqualValues(t, 1<<20, p.page.queued.Load())

	require.NoError(t, after(2<<20))
	soon(t, "that is published", func() bool { return p.Len() == 2<<20 })
	p.exclusive <- struct{}{}
	sealed := make(chan error, 1)
	go func() { sealed <- p.Seal(t.Context(), SealOptions{}) }()
	soon(t, "Seal runs", func() bool { return errors.Is(after(2<<20), vmm.ErrBusy) })
	require.ErrorIs(t, after(3<<20), vmm.ErrBusy)
	<-p.exclusive
	require.NoError(t, <-sealed)
	require.EqualValues(t, 2<<20, p.Len())
	require.EqualValues(t, 2<<20, p.page.queued.Load())
}

// TestClipBelowAQueuedLength: the memory of a length that was accepted stays.
func TestClipBelowAQueuedLength(t *testing.T) {
	t.Parallel()
	_, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Grow(4<<20))
	st, open := blockedStream(t, g.Device())
	defer open()
	e, err := st.Record()
	require.NoError(t, err)
	require.NoError(t, p.PublishAfter(1<<20, e))
	require.ErrorIs(t, g.Clip(), vmm.ErrBusy)
	require.NoError(t, g.SetLen(1<<10), "what is held can be counted")
	open()
	soon(t, "it is published", func() bool { return p.Len() == 1<<20 })
	require.NoError(t, p.Err())

	require.ErrorIs(t, p.PublishAfter(1<<10, nil), vmm.ErrInvalid)
	e, err = st.Record()
	require.NoError(t, err)
	require.ErrorIs(t, p.PublishAfter(1<<10, e), vmm.ErrInvalid, "below the length")
	require.ErrorIs(t, p.PublishAfter(1<<20, e), vmm.ErrClosed, "it closes the event, also if it fails")
	require.NoError(t, p.Err())
}

// TestQueuedAfterAFailure: what was queued behind work that failed does not
// become readable.
func TestQueuedAfterAFailure(t *testing.T) {
	t.Parallel()
	_, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Grow(4<<20))
	st, open := blockedStream(t, g.Device())
	for n := uint64(1); n <= 2; n++ {
		e, err := st.Record()
		require.NoError(t, err)
		require.NoError(t, p.PublishAfter(n<<20, e))
	}
	p.fail(vmm.ErrDeviceLost)
	open()
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.pendingRunning
	}, inTime, time.Millisecond)
	require.Zero(t, g.Len())
	require.ErrorIs(t, p.Err(), vmm.ErrDeviceLost)
}

func TestNoPublication(t *testing.T) {
	t.Parallel()
	var p *Publication
	var s *Server
	require.ErrorIs(t, p.PublishAfter(1, nil), vmm.ErrInvalid)
	require.ErrorIs(t, p.Flush(t.Context()), vmm.ErrInvalid)
	require.ErrorIs(t, p.Retire(t.Context(), 0), vmm.ErrInvalid)
	require.ErrorIs(t, p.Seal(t.Context(), SealOptions{}), vmm.ErrInvalid)
	require.ErrorIs(t, p.Err(), vmm.ErrInvalid)
	require.Zero(t, p.Len()+p.Generation()+uint64(p.Readers()))
	require.Empty(t, p.Name())
	require.NoError(t, p.Close())
	_, err := s.Publish("x", nil, PublishOptions{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	near, _ := pair(t)
	require.ErrorIs(t, s.ServeConn(near), vmm.ErrInvalid)
	require.Zero(t, s.Stats())
	require.Zero(t, s.Instance())
	require.Empty(t, s.Path())
	require.NoError(t, s.Close())
}

// TestToken: both sides take what the other's documentation says. A zero byte more is another token.
func TestToken(t *testing.T) {
	t.Parallel()
	for _, token := range [][]byte{nil, {}, []byte("short"), make([]byte, tokenSize)} {
		s, _, g := stage(t, Options{Token: token}, PublishOptions{})
		v, err := Attach(t.Context(), s.Path(), "x", g.Device(), AttachOptions{Token: token})
		require.NoError(t, err, "%q", token)
		require.NoError(t, v.Close())
		if len(token) == 0 || len(token) == tokenSize {
			continue
		}
		for _, other := range [][]byte{append(token[:len(token):len(token)], 0), token[:len(token)-1]} {
			_, err = Attach(t.Context(), s.Path(), "x", g.Device(), AttachOptions{Token: other})
			require.ErrorIs(t, err, vmm.ErrPermission, "%q", other)
		}
	}
}

// TestRefusalArrivesBeforeTheEnd: the owner closes while this side still asks.
func TestRefusalArrivesBeforeTheEnd(t *testing.T) {
	t.Parallel()
	s, _, g := stage(t, Options{Token: make([]byte, tokenSize), Logger: slog.New(slog.DiscardHandler)}, PublishOptions{})
	for i := range 300 {
		_, err := Attach(t.Context(), s.Path(), "x", g.Device(), AttachOptions{})
		require.ErrorIs(t, err, vmm.ErrPermission, "try %d", i)
	}
}

// TestReadAckGivesUp: the context has ended just before the deadline is set anew.
func TestReadAckGivesUp(t *testing.T) {
	t.Parallel()
	s, p, _ := stage(t, Options{}, PublishOptions{})
	ses, _ := served(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error, 1)
	go func() { done <- ses.readAck(ctx, &attachment{obj: &p.object, ses: ses}) }()
	select {
	case err := <-done:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(inTime):
		t.Error("it waits for the reader")
		require.NoError(t, ses.conn.Close())
		require.Error(t, <-done)
	}
}

// TestSealGivenUp: what could not be sealed can be written as before.
func TestSealGivenUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sealing atomic.Bool
	dev := vmmtest.Device(t, func(c drivertest.Call) error {
		if c.Name == "SetAccess" && sealing.Load() { // write access is taken away, and the digest comes next
			cancel()
		}
		return nil
	})
	_, p, g := stageOn(t, dev, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 5<<20)))
	require.NoError(t, p.Flush(t.Context()))
	sealing.Store(true)
	require.ErrorIs(t, p.Seal(ctx, SealOptions{Digest: true}), context.Canceled)
	require.NoError(t, g.Append(pattern(0, 100)))
	require.NoError(t, p.Flush(t.Context()))
}

// TestPublicationThatFails: a publication that cannot go on says so to its
// readers, after what they lack.
func TestPublicationThatFails(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	v := attached(t, s, AttachOptions{})
	require.NoError(t, g.Append(pattern(0, 5<<20)))
	require.NoError(t, p.Flush(t.Context()))
	require.WithinDuration(t, time.Now(), v.Heartbeat(), time.Minute)
	p.fail(vmm.ErrDeviceLost)
	require.ErrorIs(t, v.Wait(t.Context(), 6<<20), ErrOwnerGone)
	require.Equal(t, pattern(0, 5<<20), read(t, v, 5<<20))
	require.ErrorIs(t, p.Err(), vmm.ErrDeviceLost)
}

// TestIdleAfterDetach: who has nothing any more has to ask for something.
func TestIdleAfterDetach(t *testing.T) {
	t.Parallel()
	s, p, _ := stage(t, Options{RequestTimeout: time.Second}, PublishOptions{})
	attachPlain(t, s.Path(), "x")
	require.Equal(t, 1, s.Stats().Conns)
	require.NoError(t, p.Close())
	require.Eventually(t, func() bool { return s.Stats().Conns == 0 }, inTime, time.Millisecond)
}

// TestKeptDescriptorsMakeRoom: those that are kept for later go before a chunk
// cannot be sent.
func TestKeptDescriptorsMakeRoom(t *testing.T) {
	t.Parallel()
	few := false
	dev := vmmtest.Device(t, func(c drivertest.Call) error {
		if c.Name == "Export" && few {
			few = false
			return vmm.ErrLimit
		}
		return nil
	})
	g, err := dev.NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: 8 << 20, Chunk: 2 << 20})
	require.NoError(t, err)
	require.NoError(t, g.Grow(8<<20))
	k := newFDCache(8)
	segs := g.Segments()
	for _, seg := range segs[:3] {
		d, err := k.acquire(seg)
		require.NoError(t, err)
		k.release(d)
	}
	few = true
	d, err := k.acquire(segs[3])
	require.NoError(t, err)
	require.Equal(t, 1, k.len())
	k.release(d)
	for _, seg := range segs {
		k.drop(seg)
	}
	require.NoError(t, g.Close())
}
