package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// stormOn starts 8 writers and 32 readers, in two processes. The quick suite
// has 4 and 8.
func stormOn(t *testing.T, path string) (all []*child) {
	t.Helper()
	each := testgate.Effort("2", "4", "4")
	for i := range 2 {
		c := spawn(t, "storm", path, fmt.Sprintf("storm%d", i), each, each)
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

// waiting is requests that wait while servers come and go.
type waiting struct {
	c      *Client
	w      *Writer
	get    chan error
	lease  chan *Writer
	events chan Event
}

func waitingOn(t *testing.T, path string) *waiting {
	t.Helper()
	c, err := Connect(t.Context(), path, testDevice(t), ClientOptions{Timeout: inTime})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	x := &waiting{c: c, get: make(chan error, 1), lease: make(chan *Writer, 1), events: make(chan Event, 1000)}
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
	require.Eventually(t, func() bool { s, err := c.Stats(t.Context()); return err == nil && s.Waits == 2 }, inTime, step)
	return x
}

// survived ends the waits, each as it should.
func (x *waiting) survived(t *testing.T) {
	t.Helper()
	require.Empty(t, x.get)
	require.Empty(t, x.lease)
	require.Eventually(t, func() bool { s, err := x.c.Stats(t.Context()); return err == nil && s.Waits == 2 }, inTime, step)
	x.heard(t)
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
		if e.Kind == EventLost {
			require.Empty(t, kinds)
			continue
		}
		if kinds = append(kinds, e.Kind); e.Kind == EventSealed {
			break
		}
	}
	require.Equal(t, []EventKind{EventReleased, EventCreated, EventSealed}, kinds)
	require.NoError(t, x.c.Delete(t.Context(), "held", DeleteOptions{}))
	require.NoError(t, x.c.Delete(t.Context(), "held/later", DeleteOptions{}))
}

// heard returns once the watcher is there: what happens while it is on its way back to a new server it
// is not told, but for EventLost.
func (x *waiting) heard(t *testing.T) {
	t.Helper()
	for n := 0; ; n++ {
		name := fmt.Sprint("held/heard", n)
		sealed(t, x.c, name, []byte{1})
		require.NoError(t, x.c.Delete(t.Context(), name, DeleteOptions{}))
		late := time.After(10 * time.Millisecond)
		for waits := true; waits; {
			select {
			case e, open := <-x.events:
				require.True(t, open)
				if e.Kind == EventDeleted && e.Name == name {
					return
				}
			case <-late:
				waits = false
			}
		}
	}
}

// TestStormOfDeaths: servers are killed, and replaced, under 8 writers and 32 readers that never
// pause. No call of any has an error, and no byte is wrong.
func TestStormOfDeaths(t *testing.T) {
	t.Parallel()
	path := socketAt(t)
	k := spawn(t, "keeper", path)
	k.expect("ready")
	all := stormOn(t, path)
	x := waitingOn(t, path)
	goesOn(all, testgate.Effort(5, 20, 20))
	for i := range testgate.Effort(2, 20, 200) {
		<-time.After(time.Duration(i*7%50) * time.Millisecond)
		if i%2 == 0 {
			k.ask("kill")
		} else {
			k.ask("reload")
		}
		goesOn(all, 5)
	}
	x.survived(t)
	ended(t, all)
	require.Eventually(t, func() bool {
		s, err := x.c.Stats(t.Context())
		return err == nil && s.Objects == 0 && s.Bytes == 0 && s.Leases == 0 && s.Waits == 0
	}, inTime, step)
	k.ask("close")
}

// kept is a Keeper in a process of its own, and a Client of its server.
func kept(t *testing.T) (k *child, path string, c *Client) {
	t.Helper()
	path = socketAt(t)
	k = spawn(t, "keeper", path)
	k.expect("ready")
	c, err := Connect(t.Context(), path, testDevice(t), ClientOptions{Timeout: inTime})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return k, path, c
}

// TestManyRequestsAtOnce: each of them is done, whatever the order in which they are sent.
func TestManyRequestsAtOnce(t *testing.T) {
	t.Parallel()
	k, _, c := kept(t)
	const many = 32
	over := make(chan error, many)
	for i := range many {
		name := fmt.Sprint("o", i)
		sealed(t, c, name, []byte{1})
		go func() {
			for range testgate.Effort(5, 200, 2000) {
				err := c.Link(t.Context(), name, name+"/2")
				if err == nil {
					_, err = c.Stat(t.Context(), name+"/2")
				}
				if err == nil {
					err = c.Unlink(t.Context(), name+"/2")
				}
				if _, after := c.Stat(t.Context(), name+"/2"); err == nil && after == nil {
					err = fmt.Errorf("%s is there still", name+"/2")
				}
				if err != nil {
					over <- err
					return
				}
			}
			over <- nil
		}()
	}
	for range many {
		require.NoError(t, <-over)
	}
	k.ask("close")
}

// TestDeathWithAnOverwrittenPage: what a writer has done to its page keeps no server from
// beginning.
func TestDeathWithAnOverwrittenPage(t *testing.T) {
	t.Parallel()
	k, path, c := kept(t)
	gran, err := granularity(c.Device())
	require.NoError(t, err)
	sealed(t, c, "s", []byte{1})
	h := newHostileAt(t, path, gran)
	id, page, _ := h.create(wire.Create{Name: "h", Size: 1, Flags: wire.StoreDurable})
	h.does(wire.TypeMapped, wire.Mapped{Object: id}.Append(nil))
	copy(page, bytes.Repeat([]byte{0xff}, len(page)))
	k.ask("kill")
	b := got(t, c, "s", GetOptions{})
	require.EqualValues(t, 1, b.Len())
	k.ask("close")
}

// TestRefusedSealOfAKeptServer: a seal that cannot be changes nothing, also where a keeper would be
// told of it.
func TestRefusedSealOfAKeptServer(t *testing.T) {
	t.Parallel()
	k, path, c := kept(t)
	gran, err := granularity(c.Device())
	require.NoError(t, err)
	pid := k.ask("pid")
	h := newHostileAt(t, path, gran)
	id, page, _ := h.create(wire.Create{Name: "h", Size: 1, Flags: wire.StoreDurable})
	h.does(wire.TypeMapped, wire.Mapped{Object: id}.Append(nil))
	binary.LittleEndian.PutUint64(page[128:], 100) // published
	for _, length := range []uint64{0, 99, gran + 1, 1 << 40, math.MaxUint64} {
		h.refused(wire.CodeBounds, wire.TypeSeal, wire.Seal{Object: id, Length: length}.Append(nil))
	}
	h.does(wire.TypeSeal, wire.Seal{Object: id, Length: 100}.Append(nil))
	require.Equal(t, pid, k.ask("pid"))
	k.ask("kill")
	require.EqualValues(t, 100, got(t, c, "h", GetOptions{}).Len())
	k.ask("close")
}

// TestOnlyACopyReplaces: and only by the client that has the lease of what it is a copy of.
func TestOnlyACopyReplaces(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	first := newHostile(t, s)
	old, page, _ := first.create(wire.Create{Name: "old", Size: 1 << 20, Flags: wire.StoreDurable})
	first.does(wire.TypeMapped, wire.Mapped{Object: old}.Append(nil))
	binary.LittleEndian.PutUint64(page[128:], 100) // published
	first.close()
	waitUnleased(t, s, "old")
	has, other := newHostile(t, s), newHostile(t, s)
	replace := func(id uint64) []byte { return wire.Replace{Old: old, New: id}.Append(nil) }
	require.Equal(t, wire.TypeObject, has.ask(wire.TypeLease, wire.Lease{Name: "old"}.Append(nil)).Type)
	has.refused(wire.CodePermission, wire.TypeMapped, wire.Mapped{Object: old}.Append(nil))
	has.refused(wire.CodePermission, wire.TypeGrow, wire.Grow{Object: old, Capacity: 1}.Append(nil))
	has.refused(wire.CodePermission, wire.TypeSeal, wire.Seal{Object: old, Length: 100}.Append(nil))
	for _, q := range []wire.Create{
		{Size: 1 << 20, Flags: wire.StoreDurable}, // fewer bytes
		{Size: 8 << 20, Flags: wire.StoreDurable},
		{Size: 1 << 20, Flags: wire.StoreGrowable},
		{Size: 1 << 20, Flags: wire.StoreDurable, Name: "named"},
	} {
		id, page, _ := other.create(q)
		other.does(wire.TypeMapped, wire.Mapped{Object: id}.Append(nil))
		if q.Size > 1<<20 || q.Name != "" {
			binary.LittleEndian.PutUint64(page[128:], 100)
		}
		has.refused(wire.CodeInvalid, wire.TypeReplace, replace(id))
	}
	id, page, _ := other.create(wire.Create{Size: 1 << 20, Flags: wire.StoreDurable})
	other.does(wire.TypeMapped, wire.Mapped{Object: id}.Append(nil))
	binary.LittleEndian.PutUint64(page[128:], 100)
	other.refused(wire.CodePermission, wire.TypeReplace, replace(id))
	has.does(wire.TypeReplace, replace(id))
	has.refused(wire.CodeNotFound, wire.TypeReplace, replace(id))
	info, err := clientOf(t, s).Stat(t.Context(), "old")
	require.NoError(t, err)
	require.Equal(t, id, info.ID.Number)
}
