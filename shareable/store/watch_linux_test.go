package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
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
