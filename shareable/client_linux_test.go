package shareable

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

var errTest = errors.New("of the test")

// scriptedStore is a store that does what a test tells it, and a client of it.
type scriptedStore struct {
	t      *testing.T
	c      *wire.Conn
	near   *net.UnixConn
	client serve.Client
	events chan wire.Type
	failed atomic.Bool // an event returns errTest
}

func newScriptedStore(t *testing.T) *scriptedStore {
	t.Helper()
	near, far := pair(t)
	c, err := wire.NewConn(near)
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	s := &scriptedStore{t: t, c: c, near: near, events: make(chan wire.Type)}
	require.NoError(t, c.Write(wire.TypeHello, 0, 0, wire.Hello{Instance: [16]byte{9}, Backend: wire.BackendHost, Granularity: 4096}.Append(nil)))
	s.client, err = forStore{}.DialConn(t.Context(), far, pageDevice(t), AttachOptions{}, serve.Notified{Event: s.event})
	require.NoError(t, err)
	t.Cleanup(func() {
		s.client.Close()
		_ = c.Close()
	})
	require.Equal(t, wire.TypeHello, s.next().Type)
	return s
}

func (s *scriptedStore) event(f wire.Frame) error {
	s.events <- f.Type
	if s.failed.Load() {
		return errTest
	}
	return nil
}

func (s *scriptedStore) next() wire.Frame {
	s.t.Helper()
	f, err := s.c.Read()
	require.NoError(s.t, err)
	return f
}

func (s *scriptedStore) write(of wire.Type, request uint32, payload []byte, fds ...int) {
	s.t.Helper()
	require.NoError(s.t, s.c.Write(of, request, 0, payload, fds...))
}

// call makes a call of an UNLINK, whose reply is DONE.
func (s *scriptedStore) call(ctx context.Context, done func(wire.Frame) error) <-chan error {
	got := make(chan error, 1)
	go func() {
		got <- s.client.Call(ctx, wire.TypeUnlink, wire.Unlink{Name: "x"}.Append(nil), wire.TypeDone, done)
	}()
	return got
}

// returned is what a call returns, soon.
func returned(t *testing.T, got <-chan error) error {
	t.Helper()
	select {
	case err := <-got:
		return err
	case <-time.After(inTime):
		t.Fatal("the call does not return")
		return nil
	}
}

func (s *scriptedStore) over(want error) {
	s.t.Helper()
	select {
	case <-s.client.Ended():
	case <-time.After(inTime):
		s.t.Fatal("the connection goes on")
	}
	require.ErrorIs(s.t, s.client.Err(), want)
	called := false
	err := s.client.Call(s.t.Context(), wire.TypeCount, nil, wire.TypeCounters, func(wire.Frame) error { called = true; return nil })
	require.ErrorIs(s.t, err, want)
	require.False(s.t, called)
	require.ErrorIs(s.t, s.client.Send(wire.TypeWrote, wire.Wrote{}.Append(nil)), want)
}

// heard waits until the client handles an event.
func (s *scriptedStore) heard() {
	s.t.Helper()
	select {
	case of := <-s.events:
		require.Equal(s.t, wire.TypeEvent, of)
	case <-time.After(inTime):
		s.t.Fatal("no event is handled")
	}
}

func nothing(wire.Frame) error { return nil }

// fullReplies replies with the largest frame that there is.
type fullReplies struct{ serve.Handler }

func (fullReplies) Request(c serve.Conn, f wire.Frame) error {
	return c.Reply(wire.TypeReported, f.Request, make([]byte, wire.MaxPayload))
}
func (fullReplies) End(serve.Conn)       {}
func (fullReplies) Idle(serve.Conn) bool { return true }

// TestFullFrame: a server's buffer has room for the largest frame.
func TestFullFrame(t *testing.T) {
	t.Parallel()
	s, objects, err := forStore{}.NewStore(pageDevice(t), Options{}, fullReplies{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, objects.Listen(filepath.Join(t.TempDir(), "s")))
	c, err := forStore{}.Dial(t.Context(), s.Path(), pageDevice(t), AttachOptions{}, serve.Notified{Event: nothing})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Call(t.Context(), wire.TypeReport, nil, wire.TypeReported, func(f wire.Frame) error {
		require.Len(t, f.Payload, wire.MaxPayload)
		return nil
	}))
}

func TestClientCalls(t *testing.T) {
	t.Parallel()
	s := newScriptedStore(t)
	require.Equal(t, [16]byte{9}, s.client.Hello().Instance)
	require.NoError(t, s.client.Err())
	got := s.call(t.Context(), nothing)
	f := s.next()
	require.Equal(t, wire.TypeUnlink, f.Type)
	require.NotZero(t, f.Request)
	s.write(wire.TypeDone, f.Request, nil)
	require.NoError(t, returned(t, got))

	got = s.call(t.Context(), func(wire.Frame) error { return errTest })
	s.write(wire.TypeDone, s.next().Request, nil)
	require.ErrorIs(t, returned(t, got), errTest)

	got = s.call(t.Context(), nothing)
	s.write(wire.TypeError, s.next().Request, wire.Error{Code: wire.CodeAborted, Text: "gone"}.Append(nil))
	require.ErrorIs(t, returned(t, got), ErrAborted)

	got = s.call(t.Context(), nothing)
	s.write(wire.TypeError, s.next().Request, []byte{1})
	require.ErrorIs(t, returned(t, got), ErrProtocol)

	require.NoError(t, s.client.Send(wire.TypeWrote, wire.Wrote{Object: 7}.Append(nil)))
	f = s.next()
	require.Equal(t, wire.TypeWrote, f.Type)
	require.Zero(t, f.Request)
	require.NoError(t, s.client.Err())
}

// Replies may come in any order.
func TestClientCallsAtOnce(t *testing.T) {
	t.Parallel()
	s := newScriptedStore(t)
	const n = 50
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			var got wire.Counters
			err := s.client.Call(t.Context(), wire.TypeGrow, wire.Grow{After: uint64(i)}.Append(nil), wire.TypeCounters, func(f wire.Frame) (err error) {
				got, err = wire.DecodeCounters(f.Payload)
				return err
			})
			if err != nil || len(got.Values) != 1 || got.Values[0] != uint64(i) {
				t.Errorf("call %d: %v, %v", i, got, err)
			}
		})
	}
	values := map[uint32]uint64{}
	for range n {
		f := s.next()
		q, err := wire.DecodeGrow(f.Payload)
		require.NoError(t, err)
		values[f.Request] = q.After
	}
	require.Len(t, values, n) // each has a number of its own
	for request, v := range values {
		s.write(wire.TypeCounters, request, wire.Counters{Values: []uint64{v}}.Append(nil))
	}
	all.Wait()
}

// A call whose context ends leaves nothing: its reply is dropped with its descriptors.
func TestClientCallGivesUp(t *testing.T) {
	t.Parallel()
	s := newScriptedStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	called := false
	got := make(chan error, 1)
	go func() {
		got <- s.client.Call(ctx, wire.TypeCreate, nil, wire.TypeObject, func(wire.Frame) error { called = true; return nil })
	}()
	request := s.next().Request
	cancel()
	require.ErrorIs(t, returned(t, got), context.Canceled)
	ends, fds := pipes(t, 2)
	s.write(wire.TypeObject, request, make([]byte, 200), fds...)
	closeAll(t, fds)
	again := s.call(t.Context(), nothing)
	s.write(wire.TypeDone, s.next().Request, nil)
	require.NoError(t, returned(t, again))
	soonClosed(t, s)
	areClosed(t, ends)
	require.False(t, called)

	// One that has ended before asks for nothing.
	require.ErrorIs(t, s.client.Call(ctx, wire.TypeCreate, nil, wire.TypeObject, nothing), context.Canceled)
	require.ErrorIs(t, s.client.Call(nil, wire.TypeCreate, nil, wire.TypeObject, nothing), vmm.ErrInvalid) //nolint:staticcheck // it is refused
	require.NoError(t, s.client.Send(wire.TypeWrote, wire.Wrote{}.Append(nil)))
	require.Equal(t, wire.TypeWrote, s.next().Type)
}

// soonClosed returns once the client has read on, and so closed what came before.
func soonClosed(t *testing.T, s *scriptedStore) {
	t.Helper()
	s.write(wire.TypeEvent, 0, wire.Event{Kind: wire.EventLost}.Append(nil))
	s.heard()
}

// A reply that is being handled counts, whatever becomes of the context.
func TestClientCallWaitsForDone(t *testing.T) {
	t.Parallel()
	s := newScriptedStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	begun, finish := make(chan struct{}), make(chan struct{})
	got := s.call(ctx, func(wire.Frame) error {
		close(begun)
		<-finish
		return nil
	})
	s.write(wire.TypeDone, s.next().Request, nil)
	<-begun
	cancel()
	s.client.Close() // neither does Close wait for it
	select {
	case err := <-got:
		t.Fatal("it has returned ", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(finish)
	require.NoError(t, returned(t, got))
}

func TestClientWrongReply(t *testing.T) {
	t.Parallel()
	s := newScriptedStore(t)
	other := s.call(t.Context(), nothing)
	s.next()
	got := s.call(t.Context(), nothing)
	s.write(wire.TypeFound, s.next().Request, wire.Found{}.Append(nil))
	require.ErrorIs(t, returned(t, got), ErrProtocol)
	require.ErrorIs(t, returned(t, other), ErrProtocol)
	s.over(ErrProtocol)
}

func TestClientEnds(t *testing.T) {
	for name, test := range map[string]struct {
		do   func(s *scriptedStore)
		want error
	}{
		"the owner is gone":  {func(s *scriptedStore) { require.NoError(s.t, s.c.Close()) }, ErrOwnerGone},
		"it closes":          {func(s *scriptedStore) { s.write(wire.TypeClosing, 0, wire.Closing{}.Append(nil)) }, ErrOwnerGone},
		"it refuses":         {func(s *scriptedStore) { s.write(wire.TypeError, 0, wire.Error{Code: wire.CodeLimit}.Append(nil)) }, vmm.ErrLimit},
		"noise":              {func(s *scriptedStore) { _, _ = s.near.Write([]byte("noise")) }, ErrProtocol},
		"the client is done": {func(s *scriptedStore) { s.client.Close() }, vmm.ErrClosed},
		"an event fails": {func(s *scriptedStore) {
			s.failed.Store(true)
			s.write(wire.TypeEvent, 0, wire.Event{Kind: wire.EventSealed, ID: 7}.Append(nil))
			s.heard()
		}, errTest},
	} {
		t.Run(name, func(t *testing.T) {
			before := openFDs(t)
			s := newScriptedStore(t)
			calls := []<-chan error{s.call(t.Context(), nothing), s.call(t.Context(), nothing)}
			s.next()
			s.next()
			test.do(s)
			for _, got := range calls {
				require.ErrorIs(t, returned(t, got), test.want)
			}
			s.over(test.want)
			s.client.Close()
			require.ErrorIs(t, s.client.Err(), test.want) // the first reason counts
			_ = s.c.Close()
			staysOpen(t, before)
		})
	}
}

// What the owner has sent before it closed counts, also if a call notices the close first.
func TestClientHearsWhyItIsRefused(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]bool{"Call": false, "Send": true} {
		t.Run(name, func(t *testing.T) {
			s := newScriptedStore(t)
			s.write(wire.TypeEvent, 0, wire.Event{Kind: wire.EventLost}.Append(nil)) // which keeps the client from reading on
			s.write(wire.TypeError, 0, wire.Error{Code: wire.CodeLimit, Text: "too many requests"}.Append(nil))
			require.NoError(t, s.c.Close())
			if send {
				require.ErrorIs(t, s.client.Send(wire.TypeWrote, wire.Wrote{}.Append(nil)), ErrOwnerGone)
				s.heard()
			} else {
				got := s.call(t.Context(), nothing)
				select {
				case err := <-got:
					t.Fatal("it does not wait for the reason: ", err)
				case <-time.After(20 * time.Millisecond):
				}
				s.heard()
				require.ErrorIs(t, returned(t, got), vmm.ErrLimit)
			}
			s.over(vmm.ErrLimit)
		})
	}
}

// A reply whose descriptors do not fit below the limit fails its call, and no other.
func TestClientLosesDescriptors(t *testing.T) {
	s := newScriptedStore(t)
	ends, fds := pipes(t, 2)
	restore := sync.OnceFunc(leaveFDs(t, 0))
	defer restore()
	var err error
	for range 10 { // a descriptor of an earlier test may be closed meanwhile: then they fit
		got := make(chan error, 1)
		go func() { got <- s.client.Call(t.Context(), wire.TypeCreate, nil, wire.TypeObject, nothing) }()
		s.write(wire.TypeObject, s.next().Request, make([]byte, 200), fds...)
		if err = returned(t, got); err != nil {
			break
		}
	}
	restore()
	require.ErrorIs(t, err, vmm.ErrLimit)
	closeAll(t, fds)
	again := s.call(t.Context(), nothing)
	s.write(wire.TypeDone, s.next().Request, nil)
	require.NoError(t, returned(t, again))
	areClosed(t, ends)
}

func TestDialRefuses(t *testing.T) {
	t.Parallel()
	dev := pageDevice(t)
	path := socketAt(t)
	_, err := forStore{}.Dial(t.Context(), path, dev, AttachOptions{}, serve.Notified{})
	require.ErrorIs(t, err, ErrOwnerGone)
	_, err = forStore{}.Dial(nil, path, dev, AttachOptions{}, serve.Notified{}) //nolint:staticcheck // it is refused
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = forStore{}.Dial(t.Context(), path, nil, AttachOptions{}, serve.Notified{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = forStore{}.DialConn(t.Context(), nil, dev, AttachOptions{}, serve.Notified{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, far := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = forStore{}.DialConn(ctx, far, dev, AttachOptions{}, serve.Notified{})
	require.ErrorIs(t, err, context.Canceled)
	s := newSmallStore(t, Options{})
	s.on(func(c serve.Conn, f wire.Frame) error {
		return c.Reply(wire.TypeCounters, f.Request, wire.Counters{Values: []uint64{1}}.Append(nil))
	})
	c, err := forStore{}.Dial(t.Context(), s.srv.Path(), dev, AttachOptions{}, serve.Notified{})
	require.NoError(t, err)
	require.NoError(t, c.Call(t.Context(), wire.TypeCount, nil, wire.TypeCounters, nothing))
	require.Equal(t, 1, s.clients())
	c.Close()
	soon(t, "End", func() bool { return s.clients() == 0 })
}
