package store

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testgate"
	"github.com/cuvmm/cuvmm/shareable"
)

// useOf is what a daemon uses.
func useOf(t *testing.T, d *child) (u use) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(d.ask("use")), &u))
	return u
}

// backTo waits until a daemon uses no more than before, but for the connections that this
// test has more.
func backTo(t *testing.T, d *child, before use) {
	t.Helper()
	const more, each = 2, 4 // connections: a Client's and that of its events; goroutines and descriptors of one
	var after use
	for end := time.Now().Add(inTime); ; <-time.After(step) {
		after = useOf(t, d)
		if after.FDs <= before.FDs+more*each && after.Goroutines <= before.Goroutines+more*each && after.Heap <= before.Heap+1<<20 {
			break
		}
		require.True(t, time.Now().Before(end), "%+v at first, %+v at the end", before, after)
	}
	t.Logf("%+v at first, %+v at the end", before, after)
}

// stormOn starts 8 writers and 32 readers, in two processes.
func stormOn(t *testing.T, path string) (all []*child) {
	t.Helper()
	for i := range 2 {
		c := spawn(t, "storm", path, fmt.Sprintf("storm%d", i), "4", "4")
		c.expect("ready")
		all = append(all, c)
	}
	return all
}

// goesOn waits until each process of a storm has done so much more without an error.
func goesOn(all []*child, ops int) {
	for _, c := range all {
		c.t.Helper()
		c.ask("ops", ops)
	}
}

// ended ends a storm.
func ended(t *testing.T, all []*child) {
	t.Helper()
	for _, c := range all {
		t.Logf("%s operations", c.ask("end"))
		c.wait()
	}
}

// waiting is requests that wait while daemons come and go.
type waiting struct {
	c      *Client
	w      *Writer
	get    chan error
	lease  chan *Writer
	events chan Event
}

func waitingOn(t *testing.T, d *child) *waiting {
	t.Helper()
	path := d.cmd.Args[1]
	c, err := Connect(t.Context(), path, testDevice(t), ClientOptions{Timeout: inTime})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	x := &waiting{c: c, get: make(chan error, 1), lease: make(chan *Writer, 1), events: make(chan Event, 100)}
	x.w, err = c.Create(t.Context(), "held", CreateOptions{Size: 1 << 20, Durable: true})
	require.NoError(t, err)
	events, err := c.Watch(t.Context(), "held")
	require.NoError(t, err)
	go func() {
		defer close(x.events)
		for e, err := range events {
			if err != nil {
				return
			}
			x.events <- e
		}
	}()
	go func() {
		b, err := c.Get(t.Context(), "held/later", GetOptions{Wait: true})
		if err == nil {
			err = b.Close()
		}
		x.get <- err
	}()
	go func() {
		w, err := c.Append(t.Context(), "held", AppendOptions{Wait: true})
		if err != nil {
			t.Error(err)
		}
		x.lease <- w
	}()
	require.Eventually(t, func() bool { return statsOf(t, d).Waits == 2 }, inTime, step)
	return x
}

// survived ends the waits, each as it should.
func (x *waiting) survived(t *testing.T) {
	t.Helper()
	require.Empty(t, x.get)
	require.Empty(t, x.lease)
	require.NoError(t, x.w.Append([]byte("by the first")))
	require.NoError(t, x.w.Close())
	w := <-x.lease
	require.NotNil(t, w)
	require.EqualValues(t, len("by the first"), w.Len())
	require.NoError(t, w.Close())
	v, err := x.c.Create(t.Context(), "held/later", CreateOptions{Size: 10})
	require.NoError(t, err)
	require.NoError(t, v.Seal(t.Context(), shareable.SealOptions{}))
	require.NoError(t, v.Close())
	require.NoError(t, <-x.get)
	var kinds []EventKind
	for e := range x.events {
		if kinds = append(kinds, e.Kind); e.Kind == EventSealed {
			break
		}
	}
	require.Equal(t, []EventKind{EventReleased, EventCreated, EventSealed}, kinds)
	require.NoError(t, x.c.Delete(t.Context(), "held", DeleteOptions{}))
	require.NoError(t, x.c.Delete(t.Context(), "held/later", DeleteOptions{}))
}

// TestUpgrades: daemons take over from each other, under 8 writers and 32 readers that
// never pause. No call of any has an error. The last daemon uses what the first did.
func TestUpgrades(t *testing.T) {
	path := socketAt(t)
	d, _ := daemonAt(t, path)
	before := useOf(t, d)
	all := stormOn(t, path)
	x := waitingOn(t, d)
	goesOn(all, 20)
	for i := range testgate.Effort(3, 10, 10) {
		next := spawn(t, "daemon", path, "takeover")
		next.expect("go")
		next.expect("ready")
		require.Equal(t, "0", d.expect("taken"), "contexts")
		d.wait()
		d = next
		goesOn(all, 20)
		require.Equal(t, uint64(i+1), statsOf(t, d).Taken)
	}
	require.Zero(t, statsOf(t, d).Conns.Violations)
	x.survived(t)
	ended(t, all)
	require.Eventually(t, func() bool {
		s := statsOf(t, d)
		return s.Objects == 0 && s.Bytes == 0 && s.Leases == 0 && s.Waits == 0
	}, inTime, step)
	backTo(t, d, before)
	d.ask("close")
}

// TestSuccessorKilled: a successor that is killed at any moment before it has taken over
// changes nothing: the daemon goes on, and no client notices.
func TestSuccessorKilled(t *testing.T) {
	path := socketAt(t)
	d, _ := daemonAt(t, path)
	before := useOf(t, d)
	all := stormOn(t, path)
	x := waitingOn(t, d)
	for i := 0; i < 20; i += testgate.Effort(4, 1, 1) {
		next := spawn(t, "daemon", path, "halting")
		next.expect("go")
		killedAt(next, i)
		goesOn(all, 5)
	}
	require.Zero(t, statsOf(t, d).Taken)
	// One that is not killed still can.
	next := spawn(t, "daemon", path, "takeover")
	next.expect("go")
	next.expect("ready")
	d.expect("taken")
	d.wait()
	goesOn(all, 20)
	x.survived(t)
	ended(t, all)
	require.Eventually(t, func() bool { s := statsOf(t, next); return s.Objects == 0 && s.Bytes == 0 }, inTime, step)
	backTo(t, next, before)
	next.ask("close")
}

// TestPredecessorKilled: a daemon that is killed when its successor has everything has lost
// nothing; if both are killed, it is as if the daemon had been killed.
func TestPredecessorKilled(t *testing.T) {
	path := socketAt(t)
	d, c := daemonAt(t, path)
	all := stormOn(t, path)
	x := waitingOn(t, d)
	next := spawn(t, "daemon", path, "halting")
	next.expect("go")
	next.expect("has")
	d.kill()
	next.tell("on")
	next.expect("ready")
	goesOn(all, 20)
	x.survived(t)
	ended(t, all)

	w, err := c.Create(t.Context(), "w", CreateOptions{Size: 1000, Durable: true})
	require.NoError(t, err)
	last := spawn(t, "daemon", path, "halting")
	last.expect("go")
	last.expect("has")
	last.kill()
	require.NoError(t, w.Append([]byte("still")))
	require.NoError(t, w.Flush(t.Context()))
	next.kill()
	require.Eventually(t, func() bool { return w.Err() != nil }, inTime, step)
	require.ErrorIs(t, w.Err(), shareable.ErrOwnerGone)
	require.NoError(t, w.Close())
	_, err = c.List(t.Context(), ListOptions{})
	require.ErrorIs(t, err, shareable.ErrOwnerGone)
	again := spawn(t, "daemon", path, "listen")
	again.expect("ready")
	_, err = c.List(context.Background(), ListOptions{})
	require.NoError(t, err)
}
