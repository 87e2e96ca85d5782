package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// overdue has a store that waits for its successor go on, as it does after handoverTime.
func overdue(t *testing.T, s *Server) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NotNil(t, s.handing)
	s.handing.timer.Reset(0)
}

// TestHandoverCostsNoTime: a reader that owes an acknowledgement is not cut off for the time
// in which its connection stood still, whichever of the two servers goes on.
func TestHandoverCostsNoTime(t *testing.T) {
	t.Parallel()
	const limit = 500 * time.Millisecond
	for _, ends := range []string{"cancelled", "taken"} {
		t.Run(ends, func(t *testing.T) {
			t.Parallel()
			s := listening(t, Options{Timeout: limit})
			w := writer(t, clientOf(t, s), "k", CreateOptions{Size: 1 << 20, Growable: true, Durable: true})
			require.NoError(t, w.Append([]byte("x")))
			sent := make(chan wire.Chunks, 1)
			event := func(f wire.Frame) error {
				if f.Type != wire.TypeChunks {
					return nil
				}
				c, err := wire.DecodeChunks(f.Payload)
				sent <- c
				return err
			}
			r, err := shareable.Dial(t.Context(), s.Path(), vmmtest.Device(t), shareable.AttachOptions{}, event)
			require.NoError(t, err)
			t.Cleanup(r.Close)
			attach := wire.Attach{Name: "k", Access: wire.AccessRead, Flags: wire.AttachUnsealed}.Append(nil)
			require.NoError(t, r.Call(t.Context(), wire.TypeAttach, attach, wire.TypeObject, ignore))
			got := <-sent

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := Options{Timeout: limit}
			o.hooks.beforeTaken = func() {
				<-time.After(limit + limit/4)
				if ends == "cancelled" {
					cancel()
				}
			}
			next, err := takeOverFrom(t, s, ctx, vmmtest.Device(t), o)
			if ends == "cancelled" {
				require.ErrorIs(t, err, context.Canceled)
				next = s
			} else {
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, next.Close()) })
			}
			require.NoError(t, w.Flush(within(t)))
			require.NoError(t, r.Call(within(t), wire.TypeCount, nil, wire.TypeCounters, ignore), "the connections go on")
			ack := wire.Ack{Object: got.Object, Generation: got.Generation, Chunk: got.Records[0].ID}.Append(nil)
			require.NoError(t, r.Send(wire.TypeAck, ack))
			require.NoError(t, r.Call(within(t), wire.TypeCount, nil, wire.TypeCounters, ignore))
			require.Zero(t, next.Stats().Conns.TimedOut)
		})
	}
}

// TestTakeOverDespiteSlowWatcher: a client that does not read its events holds up a takeover for a moment, and is
// disconnected.
func TestTakeOverDespiteSlowWatcher(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{Timeout: 2 * inTime})
	c := clientOf(t, s)
	over := make(chan struct{})
	slow, err := shareable.Dial(t.Context(), s.Path(), vmmtest.Device(t), shareable.AttachOptions{}, func(wire.Frame) error {
		<-over
		return nil
	})
	require.NoError(t, err)
	t.Cleanup(slow.Close)
	t.Cleanup(func() { close(over) })
	require.NoError(t, slow.Call(t.Context(), wire.TypeWatch, wire.Watch{}.Append(nil), wire.TypeDone, ignore))
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.watchers))
	s.mu.Unlock()
	require.Len(t, all, 1)
	w := all[0]
	queued := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.queue)
	}
	for i := 0; queued() < 100; i++ { // the connection has no room for more
		sealed(t, c, fmt.Sprint(i), nil)
	}
	start := time.Now()
	next, err := takeOverFrom(t, s, t.Context(), vmmtest.Device(t), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, next.Close()) })
	require.Less(t, time.Since(start), handoverTime/2)
	_, err = c.List(t.Context(), ListOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return next.Stats().Clients == 1 }, inTime, step, "it is disconnected")
}

// TestSlowSuccessor: the time for which connections stop is no client's fault, so none is
// cut off for it, whether the successor is there in the end or not.
func TestSlowSuccessor(t *testing.T) {
	t.Parallel()
	for _, ends := range []string{"killed", "has"} {
		t.Run(ends, func(t *testing.T) {
			t.Parallel()
			const limit = 2500 * time.Millisecond // clients on a busy machine reply within it; handoverTime is longer
			path := socketAt(t)
			d := spawn(t, "daemon", path, "listen", limit.String())
			d.expect("ready")
			all := stormOn(t, path)
			for range testgate.Effort(1, 2, 3) {
				goesOn(all, 10)
				next := spawn(t, "daemon", path, "halting", limit.String())
				next.expect("go")
				next.expect("has")
				<-time.After(limit + limit/4)
				if ends == "killed" {
					next.kill()
					continue
				}
				next.tell("on")
				next.expect("ready")
				d.expect("taken")
				d.wait()
				d = next
			}
			goesOn(all, 10)
			require.Zero(t, statsOf(t, d).Conns.TimedOut)
			ended(t, all)
		})
	}
}

// TestHungSuccessor: a successor that does not go on costs clients a wait that is shorter than
// their time limit.
func TestHungSuccessor(t *testing.T) {
	t.Parallel()
	require.Less(t, handoverTime, defaultTimeout)
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "k", CreateOptions{Size: 1 << 20, Durable: true})
	o, dev := Options{}, vmmtest.Device(t)
	stands, goesOn := make(chan struct{}), make(chan struct{})
	o.hooks.beforeTaken = func() { close(stands); <-goesOn }
	over := make(chan error, 1)
	go func() { _, err := takeOverFrom(t, s, t.Context(), dev, o); over <- err }()
	<-stands
	overdue(t, s)
	_, err := c.List(t.Context(), ListOptions{})
	close(goesOn)
	require.NoError(t, err)
	require.ErrorIs(t, <-over, vmm.ErrBusy)
	require.NoError(t, w.Append([]byte("x")))
	require.NoError(t, w.Flush(t.Context()))
	require.Zero(t, s.Stats().Taken)
}

// TestTakeOverDuringForcedDelete: a takeover waits for readers that are to unmap an object,
// and for none that it keeps from saying so.
func TestTakeOverDuringForcedDelete(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	sealed(t, c, "k", waveAt(0, 1000))
	var got wire.Chunks
	has, told := make(chan struct{}), make(chan wire.Retire, 1)
	event := func(f wire.Frame) (err error) {
		switch f.Type {
		case wire.TypeChunks:
			got, err = wire.DecodeChunks(f.Payload)
			close(has)
		case wire.TypeRetire:
			r, err := wire.DecodeRetire(f.Payload)
			told <- r
			return err
		}
		return err
	}
	r, err := shareable.Dial(t.Context(), s.Path(), vmmtest.Device(t), shareable.AttachOptions{}, event)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	attach := wire.Attach{Name: "k", Access: wire.AccessRead}.Append(nil)
	require.NoError(t, r.Call(t.Context(), wire.TypeAttach, attach, wire.TypeObject, ignore))
	<-has
	ack := func(generation uint64) {
		a := wire.Ack{Object: got.Object, Chunk: got.Records[0].ID, Generation: generation}
		require.NoError(t, r.Send(wire.TypeAck, a.Append(nil)))
	}
	ack(got.Generation)
	deleted := make(chan error, 1)
	go func() { deleted <- c.Delete(t.Context(), "k", DeleteOptions{Force: true, Timeout: inTime}) }()
	retire := <-told

	dev := vmmtest.Device(t)
	next := make(chan *Server, 1)
	accepted := s.Stats().Conns.Accepted
	go func() {
		s, err := takeOverFrom(t, s, within(t), dev, Options{})
		if err != nil {
			t.Error(err)
		}
		next <- s
	}()
	require.Eventually(t, func() bool { return s.Stats().Conns.Accepted > accepted }, inTime, step)
	<-time.After(50 * time.Millisecond) // for the connections to stop, if they do
	ack(retire.Generation)
	require.NoError(t, <-deleted)
	successor := <-next
	require.NotNil(t, successor)
	t.Cleanup(func() { require.NoError(t, successor.Close()) })
	require.Zero(t, successor.Stats().Objects)
	require.NoError(t, r.Call(within(t), wire.TypeCount, nil, wire.TypeCounters, ignore))
}

// TestCloseDuringHandover: a store that is closed meanwhile is closed, and the successor has
// nothing, whether it goes on or not.
func TestCloseDuringHandover(t *testing.T) {
	t.Parallel()
	for _, cancelled := range []bool{true, false} {
		s := listening(t, Options{})
		c := clientOf(t, s)
		w := writer(t, c, "k", CreateOptions{Size: 1 << 20, Durable: true})
		closed := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		o := Options{}
		o.hooks.exitTime = 50 * time.Millisecond
		o.hooks.beforeTaken = func() {
			go func() { closed <- s.Close() }()
			require.Eventually(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.closed }, inTime, step)
			<-time.After(50 * time.Millisecond) // for the socket, which is closed next
			if cancelled {
				cancel()
			}
		}
		_, err := takeOverFrom(t, s, ctx, vmmtest.Device(t), o)
		cancel()
		require.Error(t, err)
		select {
		case err := <-closed:
			require.NoError(t, err)
		case <-time.After(inTime):
			require.Fail(t, "Close hangs")
		}
		require.Eventually(t, func() bool { return w.Err() != nil }, inTime, step)
		require.ErrorIs(t, w.Err(), shareable.ErrOwnerGone)
		require.False(t, s.Wait())
	}
}
