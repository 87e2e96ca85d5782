package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestLeases: one Writer at a time. The next is refused, or waits, as it asks.
func TestLeases(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "d", CreateOptions{Size: 1 << 20, Growable: true, Durable: true})
	require.NoError(t, w.Append([]byte("first,")))
	_, err := c.Append(t.Context(), "d", AppendOptions{})
	require.ErrorIs(t, err, vmm.ErrBusy)

	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() { _, err := c.Append(ctx, "d", AppendOptions{Wait: true}); gaveUp <- err }()
	require.Eventually(t, func() bool { return s.Stats().Waits == 1 }, inTime, step)
	cancel()
	require.ErrorIs(t, <-gaveUp, context.Canceled)
	require.Eventually(t, func() bool { return s.Stats().Waits == 0 }, inTime, step)

	next := make(chan *Writer, 1)
	go func() {
		w, err := c.Append(within(t), "d", AppendOptions{Wait: true})
		if err != nil {
			t.Error(err)
		}
		next <- w
	}()
	require.Eventually(t, func() bool { return s.Stats().Waits == 1 }, inTime, step)
	require.NoError(t, w.Close())
	w2 := <-next
	require.EqualValues(t, 6, w2.Len())
	require.NoError(t, w2.Append([]byte("second")))
	require.NoError(t, w2.Seal(t.Context(), shareable.SealOptions{}))
	require.NoError(t, w2.Close())
	require.Equal(t, "first,second", string(contents(t, got(t, c, "d", GetOptions{}))))
}

// TestManyWriters: many Writers append to one object, each for a while, and nothing of any
// is lost.
func TestManyWriters(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "m", CreateOptions{Size: 1 << 22, Growable: true, Durable: true})
	require.NoError(t, w.Close())
	const writers, parts = 6, 8
	part := func(i, k int) []byte { return []byte(fmt.Sprintf("<%d:%d>", i, k)) }
	var tasks sync.WaitGroup
	for i := range writers {
		tasks.Go(func() {
			for k := range parts {
				w, err := c.Append(within(t), "m", AppendOptions{Wait: true})
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(w.Append(part(i, k)), w.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	tasks.Wait()
	all := contents(t, got(t, c, "m", GetOptions{Unsafe: true}))
	for i := range writers {
		for k := range parts {
			require.Equal(t, 1, bytes.Count(all, part(i, k)))
		}
	}
	require.Len(t, all, writers*parts*len("<0:0>"))
}

// TestNotDurable: an object whose Writer is closed before Seal has gone.
func TestNotDurable(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "n", CreateOptions{Size: 1000})
	require.NoError(t, w.Append([]byte("x")))
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	_, err := c.Append(t.Context(), "n", AppendOptions{})
	require.ErrorIs(t, err, shareable.ErrNotFound)
	require.Eventually(t, func() bool { return s.Stats().Bytes == 0 }, inTime, step)
}

// TestCloseOrder: the Client may be closed before what it has made.
func TestCloseOrder(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c, err := Connect(t.Context(), s.Path(), vmmtest.Device(t), ClientOptions{})
	require.NoError(t, err)
	w := writer(t, c, "o", CreateOptions{Size: 1000})
	b := got(t, c, "o", GetOptions{Unsafe: true})
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	for _, err := range []error{
		c.Link(t.Context(), "o", "p"), c.Delete(t.Context(), "o", DeleteOptions{}),
		func() error { _, err := c.Get(t.Context(), "o", GetOptions{}); return err }(),
		func() error { _, err := c.Create(t.Context(), "o", CreateOptions{Size: 1}); return err }(),
		func() error { _, err := c.List(t.Context(), ListOptions{}); return err }(),
		func() error { _, err := c.GetAll(t.Context(), []string{"o"}, GetOptions{}); return err }(),
	} {
		require.ErrorIs(t, err, vmm.ErrClosed)
	}
	require.NoError(t, w.Append([]byte("still")))
	require.NoError(t, b.Wait(within(t), 5))
	require.Equal(t, "still", string(contents(t, b)))
}

// TestCloseEndsCalls: Close of the Client ends the calls that wait.
func TestCloseEndsCalls(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, clientOf(t, s), "c", CreateOptions{Size: 1000, Durable: true})
	ends := make(chan error, 3)
	events, err := c.Watch(t.Context(), "")
	require.NoError(t, err)
	go func() { _, err := c.Get(t.Context(), "c", GetOptions{Wait: true}); ends <- err }()
	go func() { _, err := c.Append(t.Context(), "c", AppendOptions{Wait: true}); ends <- err }()
	go func() {
		for _, err := range events {
			ends <- err
		}
	}()
	require.Eventually(t, func() bool { return s.Stats().Waits == 2 }, inTime, step)
	require.NoError(t, c.Close())
	for range cap(ends) {
		require.ErrorIs(t, <-ends, vmm.ErrClosed)
	}
	require.NoError(t, w.Err())
	require.Eventually(t, func() bool { return s.Stats().Waits == 0 }, inTime, step)
}

// TestDeletedUnderWriter: a Writer whose object is deleted learns it and can be closed.
func TestDeletedUnderWriter(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		t.Run(fmt.Sprint(force), func(t *testing.T) {
			s := listening(t, Options{})
			c := clientOf(t, s)
			w := writer(t, c, "d", CreateOptions{Size: 1 << 24, Growable: true, Durable: true})
			require.NoError(t, w.Append([]byte("x")))
			require.NoError(t, w.Flush(t.Context()))
			require.NoError(t, c.Delete(t.Context(), "d", DeleteOptions{Force: force}))
			require.Eventually(t, func() bool { return w.Err() != nil }, inTime, step)
			require.ErrorIs(t, w.Err(), shareable.ErrNotFound)
			require.ErrorIs(t, w.Flush(t.Context()), shareable.ErrNotFound)
			require.ErrorIs(t, w.Seal(t.Context(), shareable.SealOptions{}), shareable.ErrNotFound)
			require.NoError(t, w.Abort(t.Context()))
			require.Eventually(t, func() bool { return s.Stats().Objects == 0 && s.Stats().Bytes == 0 }, inTime, step)
		})
	}
}

// TestForcedDelete: readers of an object that is deleted by force unmap it, and know.
func TestForcedDelete(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	sealed(t, c, "f", bytesOf(100_000))
	b := got(t, c, "f", GetOptions{})
	require.NoError(t, c.Delete(t.Context(), "f", DeleteOptions{Force: true}))
	require.Eventually(t, func() bool { return b.Err() != nil }, inTime, step)
	require.NotErrorIs(t, b.Err(), shareable.ErrProtocol)
	require.Zero(t, b.Len())
	require.Zero(t, b.Stats().Mapped)
	require.Eventually(t, func() bool { return s.Stats().Bytes == 0 }, inTime, step)
}

// TestGetWaits: Get returns once an object is sealed, all of several.
func TestGetWaits(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("all/%d", i))
	}
	sealed(t, c, names[0], []byte(names[0]))
	_, err := c.GetAll(t.Context(), names, GetOptions{})
	require.ErrorIs(t, err, shareable.ErrNotFound)
	require.Eventually(t, func() bool { return s.Stats().Clients == 1 }, inTime, step) // none is left
	all := make(chan []*shareable.View, 1)
	go func() {
		b, err := c.GetAll(within(t), names, GetOptions{Wait: true})
		if err != nil {
			t.Error(err)
		}
		all <- b
	}()
	require.Eventually(t, func() bool { return s.Stats().Waits > 0 }, inTime, step)
	for _, name := range names[1:] {
		sealed(t, c, name, []byte(name))
	}
	for i, b := range <-all {
		require.Equal(t, names[i], string(contents(t, b)))
		require.NoError(t, b.Close())
	}
	none, err := c.GetAll(t.Context(), nil, GetOptions{})
	require.NoError(t, err)
	require.Empty(t, none)
}

// TestWatching: the events of an object's life, until the context ends.
func TestWatching(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := c.Watch(ctx, "e/")
	require.NoError(t, err)
	sealed(t, c, "other", nil)
	w := writer(t, c, "e/1", CreateOptions{Size: 100, Durable: true})
	require.NoError(t, w.Append([]byte("abc")))
	require.NoError(t, w.Close())
	w2, err := c.Append(t.Context(), "e/1", AppendOptions{})
	require.NoError(t, err)
	require.NoError(t, w2.Seal(t.Context(), shareable.SealOptions{}))
	require.NoError(t, w2.Close())
	require.NoError(t, c.Delete(t.Context(), "e/1", DeleteOptions{}))
	v := writer(t, c, "e/2", CreateOptions{Size: 100})
	require.NoError(t, v.Close())
	want := []Event{
		{EventCreated, w.ID(), "e/1", 0}, {EventReleased, w.ID(), "e/1", 0}, {EventSealed, w.ID(), "e/1", 3}, {EventDeleted, w.ID(), "e/1", 0},
		{EventCreated, v.ID(), "e/2", 0}, {EventAborted, v.ID(), "e/2", 0},
	}
	var seen []Event
	for e, err := range events {
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
			break
		}
		e.Len = map[EventKind]uint64{EventSealed: e.Len}[e.Kind] // only the last length is certain
		if seen = append(seen, e); len(seen) == len(want) {
			cancel()
		}
	}
	require.Equal(t, want, seen)
	for _, e := range seen {
		require.NotContains(t, e.Kind.String(), "event")
	}
	require.Equal(t, "event(99)", EventKind(99).String())
	require.Eventually(t, func() bool { return s.Stats().Clients == 1 }, inTime, step)
}

// TestRestart: the server ends and another takes its place. Views of the first say that they
// are orphaned, and requests go to the second.
func TestRestart(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	path := filepath.Join(t.TempDir(), "s.sock")
	s, err := Listen(dev, path, Options{})
	require.NoError(t, err)
	c, err := Connect(t.Context(), path, dev, ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	whole := sealed(t, c, "whole", []byte("all of it"))
	w := writer(t, c, "part", CreateOptions{Size: 1 << 20, Durable: true})
	require.NoError(t, w.Append([]byte("a part")))
	require.NoError(t, w.Flush(t.Context()))
	a, b := got(t, c, "whole", GetOptions{}), got(t, c, "part", GetOptions{Unsafe: true})
	first := c.Instance()

	require.NoError(t, s.Close())
	_, err = c.List(t.Context(), ListOptions{})
	require.ErrorIs(t, err, shareable.ErrOwnerGone)
	require.Eventually(t, func() bool { return b.Err() != nil && w.Err() != nil }, inTime, step)
	require.ErrorIs(t, b.Err(), shareable.ErrOwnerGone)
	require.ErrorIs(t, w.Err(), shareable.ErrOwnerGone)
	require.ErrorIs(t, w.Flush(t.Context()), shareable.ErrOwnerGone)
	require.NoError(t, a.Err())
	require.Equal(t, "all of it", string(contents(t, a)))
	require.Equal(t, "a part", string(contents(t, b)))

	s, err = Listen(dev, path, Options{})
	require.NoError(t, err)
	all, err := c.List(t.Context(), ListOptions{})
	require.NoError(t, err)
	require.Empty(t, all)
	require.NotEqual(t, first, c.Instance())
	require.Equal(t, s.Instance(), c.Instance())
	sealed(t, c, "whole", []byte("another"))
	_, err = c.Get(t.Context(), whole.String(), GetOptions{})
	require.ErrorIs(t, err, shareable.ErrNotFound)

	// An idle connection whose end the client has not seen yet is no reason to fail.
	require.NoError(t, s.Close())
	s, err = Listen(dev, path, Options{})
	require.NoError(t, err)
	_, err = c.Stats(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, w.Close())
}

// TestLostDevice: a Writer whose device is lost says so, and what it has published stays for
// the next.
func TestLostDevice(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	var lost atomic.Bool
	dev := vmmtest.Device(t, func(c drivertest.Call) error {
		if lost.Load() && slices.Contains([]string{"SyncEvent", "EventDone", "SyncStream", "StreamDone", "CopyIn"}, c.Name) {
			return vmm.ErrDeviceLost
		}
		return nil
	})
	mine, err := Connect(t.Context(), s.Path(), dev, ClientOptions{})
	require.NoError(t, err)
	w := writer(t, mine, "l", CreateOptions{Size: 1 << 20, Growable: true, Durable: true})
	stream, err := dev.NewStream()
	require.NoError(t, err)
	require.NoError(t, w.Append([]byte("kept")))
	require.NoError(t, w.Flush(t.Context()))
	lost.Store(true)
	require.NoError(t, w.Range().AppendOn(stream, []byte("lost")))
	require.Eventually(t, func() bool { return w.Err() != nil }, inTime, step)
	require.ErrorIs(t, w.Err(), vmm.ErrDeviceLost)
	// The loss is a pretence: the copy runs all the same, and must be over before its memory goes.
	lost.Store(false)
	require.NoError(t, stream.Sync())
	lost.Store(true)
	require.NoError(t, w.Close())
	lost.Store(false)
	require.NoError(t, stream.Close())
	require.NoError(t, mine.Close())

	c := clientOf(t, s)
	next, err := c.Append(t.Context(), "l", AppendOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 4, next.Len())
	require.NoError(t, next.Append([]byte(" too")))
	require.NoError(t, next.Close())
	require.Equal(t, "kept too", string(contents(t, got(t, c, "l", GetOptions{Unsafe: true}))))
}

// TestClientOptions: the token, and the limit of a client on what it maps.
func TestClientOptions(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{Token: []byte("secret")})
	dev := vmmtest.Device(t)
	for range 20 { // whether the refusal comes before the first request or after it
		_, err := Connect(t.Context(), s.Path(), dev, ClientOptions{})
		require.ErrorIs(t, err, vmm.ErrPermission)
	}
	with := func(o ClientOptions) *Client {
		o.Token = []byte("secret")
		c, err := Connect(t.Context(), s.Path(), dev, o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c
	}
	large, small := with(ClientOptions{}), with(ClientOptions{MaxBytes: 5 << 20})
	sealed(t, large, "s", bytesOf(6<<20))
	w := writer(t, large, "g", CreateOptions{Growable: true, Durable: true}) // as large as the device
	require.NoError(t, w.Append(bytesOf(7<<20)))
	require.NoError(t, w.Flush(t.Context()))
	for _, o := range []GetOptions{{}, {Wait: true}} {
		_, err := small.Get(t.Context(), "s", o)
		require.ErrorIs(t, err, vmm.ErrLimit)
	}
	_, err := small.GetAll(t.Context(), []string{"s", "s"}, GetOptions{})
	require.ErrorIs(t, err, vmm.ErrLimit)
	require.NoError(t, w.Close())
	_, err = small.Append(t.Context(), "g", AppendOptions{})
	require.ErrorIs(t, err, vmm.ErrLimit)
	waitUnleased(t, s, "g")

	v := writer(t, small, "v", CreateOptions{Growable: true})
	require.EqualValues(t, 4<<20, v.Max())
	require.ErrorIs(t, v.Append(bytesOf(4<<20+1)), vmm.ErrFull)
	require.NoError(t, v.Append(bytesOf(4<<20)))
	require.NoError(t, v.Seal(t.Context(), shareable.SealOptions{KeepWriting: true}))
	b := got(t, small, "v", GetOptions{})
	require.Equal(t, bytesOf(4<<20), contents(t, b))
	tiny := writer(t, with(ClientOptions{MaxBytes: 1}), "tiny", CreateOptions{Growable: true})
	require.EqualValues(t, 2<<20, tiny.Max()) // the least there is
}

// TestSealEmptyObject: an object can be sealed without a byte.
func TestSealEmptyObject(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	for name, o := range map[string]CreateOptions{"fixed": {Size: 1}, "growable": {Growable: true}} {
		w := writer(t, c, name, o)
		require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{Digest: true}))
		b := got(t, c, name, GetOptions{})
		require.Zero(t, b.Len())
		require.True(t, b.Sealed())
		require.Zero(t, b.Location())
		d, ok := b.Digest()
		require.True(t, ok)
		require.Equal(t, sha256.Sum256(nil), d)
		_, err := b.ReadAt(make([]byte, 1), 0)
		require.ErrorIs(t, err, io.EOF)
	}
}

// TestPublishedByTheCall: what is written is published when the call that appends it returns, with no
// goroutine between, unless another call has decided to publish or the lease is in doubt.
func TestPublishedByTheCall(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "x", CreateOptions{Growable: true})
	require.NoError(t, w.Append(waveAt(0, 100)))
	v, err := c.Get(t.Context(), "x", GetOptions{Unsafe: true})
	require.NoError(t, err)
	defer v.Close() //nolint:errcheck // it only reads
	require.NoError(t, v.Wait(t.Context(), 100))
	w.cancel()
	w.tasks.Wait() // it has no goroutines any more
	for n := uint64(100); n < 1000; n += 100 {
		require.NoError(t, w.r.Append(waveAt(n, 100)))
		require.Equal(t, n+100, v.Len())
	}
	w.exclusive <- struct{}{}
	require.NoError(t, w.r.Append(waveAt(1000, 100)))
	require.EqualValues(t, 1000, v.Len())
	require.NotEmpty(t, w.changes, "follow is told")
	<-w.exclusive
	w.lastBeat.Store(int64(time.Since(started)))
	require.True(t, w.lenRaised(1100))
	w.lastBeat.Store(int64(time.Since(started) - time.Hour))
	require.False(t, w.lenRaised(1100), "follow asks the server")
	w.cutOff = errSealed
	require.False(t, w.lenRaised(1100))
	require.NoError(t, checkWave(v, 1100))
}

// TestAppendBesideTheEnd: what Append has reported is in the object, also beside a Seal or a Close. What
// came too late is an error, and at most one call of each goroutine has that for bytes that are there.
func TestAppendBesideTheEnd(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	seal := func(o shareable.SealOptions) func(*Writer) error {
		return func(w *Writer) error { return w.Seal(t.Context(), o) }
	}
	ends := []struct {
		end  func(*Writer) error
		late error
	}{{(*Writer).Close, vmm.ErrClosed}, {seal(shareable.SealOptions{KeepWriting: true}), shareable.ErrSealed}, {seal(shareable.SealOptions{}), shareable.ErrSealed}}
	for round := range testgate.Effort(12, 99, 999) {
		w := writer(t, c, "x", CreateOptions{Growable: true, Durable: true})
		const writers = 2
		var told atomic.Uint64
		var began, all sync.WaitGroup
		began.Add(writers)
		late := make(chan error, writers)
		for range writers {
			all.Go(func() {
				err := w.Append([]byte("four"))
				for began.Done(); err == nil; err = w.Append([]byte("four")) {
					told.Add(4)
				}
				late <- err
			})
		}
		began.Wait()
		end := ends[round%len(ends)]
		require.NoError(t, end.end(w))
		all.Wait()
		for range writers {
			require.ErrorIs(t, <-late, end.late)
		}
		require.NoError(t, w.Close())
		info, err := c.Stat(t.Context(), "x")
		require.NoError(t, err)
		require.GreaterOrEqual(t, info.Len, told.Load())
		require.LessOrEqual(t, info.Len, told.Load()+4*writers)
		require.NoError(t, c.Delete(t.Context(), "x", DeleteOptions{}))
	}
}

// TestAppendBesideASealThatFails: what is appended while a Seal runs that fails is in the object.
func TestAppendBesideASealThatFails(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "x", CreateOptions{Growable: true, Durable: true})
	require.NoError(t, w.Append([]byte("one")))
	w.exclusive <- struct{}{}
	require.NoError(t, w.settleExclusive(t.Context(), errSealed))
	appended := make(chan error)
	go func() { appended <- w.Append([]byte("two")) }()
	require.Eventually(t, func() bool { return w.Len() == 6 }, inTime, step)
	w.unsettle(errSealed)
	<-w.exclusive
	require.NoError(t, <-appended)
	require.NoError(t, w.checkCutOff())

	require.NoError(t, w.Close())
	info, err := c.Stat(t.Context(), "x")
	require.NoError(t, err)
	require.EqualValues(t, 6, info.Len)
}

// TestSealThatFailsIsADoubt: the server may have sealed the object when Seal has failed. So the Writer
// asks whether it has its lease still, and what is appended is not said to be published.
func TestSealThatFailsIsADoubt(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	w := writer(t, clientOf(t, s), "x", CreateOptions{Size: 1 << 20, Durable: true})
	require.NoError(t, w.Append([]byte("one")))
	s.mu.Lock()
	e, conn := s.byName["x"], s.byName["x"].lease
	s.mu.Unlock()
	s.endLease(e, conn, leaseEnd{})
	require.Error(t, w.Seal(within(t), shareable.SealOptions{}))
	_ = w.Append([]byte("lost")) // it may be the first to hear
	require.Error(t, w.Flush(within(t)))
	require.Error(t, w.Append([]byte("lost")))
	require.Error(t, w.Close()) // once
}
