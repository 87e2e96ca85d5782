package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestSlowWatch: a loop that takes longer than the server's time limit is not cut off. It gets the
// events of before, how many were lost, and those that come after that.
func TestSlowWatch(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{Timeout: 200 * time.Millisecond})
	c := clientOf(t, s)
	events, err := c.Watch(within(t), "")
	require.NoError(t, err)
	w := writer(t, c, "first", CreateOptions{Size: 1, Growable: true})
	e := s.byID[w.ID().Number]
	const emitted = 5 * maxEvents
	for i := range uint64(emitted) {
		s.emit(wire.EventSealed, e, i)
		if i%100 == 0 {
			<-time.After(time.Millisecond) // the connection takes some
		}
	}
	<-time.After(500 * time.Millisecond)
	var seen, lost, last uint64
	for event, err := range events {
		require.NoError(t, err)
		switch {
		case event.Kind == EventCreated && event.Name == "last":
			require.EqualValues(t, emitted, seen+lost)
			require.GreaterOrEqual(t, seen, uint64(maxEvents-1), "and the first, of the Create")
			return
		case event.Kind == EventLost:
			lost += event.Len
			writer(t, c, "last", CreateOptions{Size: 1, Growable: true})
		case event.Kind == EventSealed:
			require.GreaterOrEqual(t, event.Len, last)
			last = event.Len
			seen++
		}
	}
	t.Fatal(fmt.Sprint("the events ended, ", seen, " seen, ", lost, " lost"))
}

// TestWatchWhoseContextEnds: whichever frame it is at, the call returns the error of its context.
func TestWatchWhoseContextEnds(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	s := listening(t, Options{})
	for step := 1; ; step++ {
		for range 30 { // of two cases of a select that are ready either may be taken
			ctx, cancel := context.WithCancel(t.Context())
			p := &tap{s: s}
			c, err := newClient(t.Context(), "", p.dial, dev, ClientOptions{})
			require.NoError(t, err)
			p.mu.Lock()
			p.left, p.act, p.stall = step, cancel, true
			p.mu.Unlock()
			_, err = c.Watch(ctx, "")
			require.NoError(t, c.Close())
			p.close()
			if ctx.Err() == nil {
				cancel()
				require.Greater(t, step, 2)
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, context.Canceled, "at frame %d", step)
		}
	}
}
