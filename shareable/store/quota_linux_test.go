package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestQuotaCountsUntilTheLastReader: memory of an object that is deleted counts while a
// reader has it.
func TestQuotaCountsUntilTheLastReader(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{MaxBytes: 4 << 20}, {MaxBytesPerUID: 4 << 20}} {
		s := listening(t, o)
		c := clientOf(t, s)
		sealed(t, c, "a", bytesOf(4<<20))
		b := got(t, c, "a", GetOptions{})
		require.NoError(t, c.Delete(t.Context(), "a", DeleteOptions{}))
		_, err := c.Create(t.Context(), "b", CreateOptions{Size: 1})
		require.ErrorIs(t, err, vmm.ErrLimit)
		require.Equal(t, bytesOf(4<<20), contents(t, b))
		require.NoError(t, b.Close())
		require.Eventually(t, func() bool { return s.Stats().Bytes == 0 }, inTime, step)
		small := writerSoon(t, c, "b", CreateOptions{Size: 1})
		require.NoError(t, small.Append(bytesOf(1)))
		require.NoError(t, small.Seal(t.Context(), shareable.SealOptions{}))
		// What an object of that size would need is not there, and nothing is left of it.
		_, err = c.Create(t.Context(), "c", CreateOptions{Size: 4 << 20})
		require.ErrorIs(t, err, vmm.ErrLimit)
		w := writer(t, c, "c", CreateOptions{Size: 16 << 20, Growable: true})
		require.NoError(t, w.Grow(1))
		require.ErrorIs(t, w.Grow(5<<20), vmm.ErrLimit)
		require.NoError(t, w.Append(bytesOf(10)))
		require.Equal(t, []string{"b", "c"}, names(t, c))
	}
}

// evicts makes objects beyond a limit that two fit in, and checks which stay.
func evicts(t *testing.T, s *Server, c *Client) {
	t.Helper()
	const size = 2 << 20
	event, err := c.Watch(t.Context(), "")
	require.NoError(t, err)
	sealed(t, c, "a", bytesOf(size))
	sealed(t, c, "b", bytesOf(size))
	require.NoError(t, got(t, c, "a", GetOptions{}).Close()) // b is the one that is not used
	require.Eventually(t, func() bool {
		i, err := c.Stat(t.Context(), "a")
		return err == nil && i.Readers == 0
	}, inTime, step)
	sealed(t, c, "c", bytesOf(size))
	require.Equal(t, []string{"a", "c"}, names(t, c))
	for e, err := range event {
		require.NoError(t, err)
		if e.Kind == EventEvicted {
			require.Equal(t, "b", e.Name)
			break
		}
	}
	// What a reader has stays, and so does what is not sealed.
	a := got(t, c, "a", GetOptions{})
	d := writer(t, c, "d", CreateOptions{Size: size, Durable: true}) // evicts c
	require.Equal(t, []string{"a", "d"}, names(t, c))
	_, err = c.Create(t.Context(), "e", CreateOptions{Size: size})
	require.Error(t, err)
	require.Condition(t, func() bool { return isFull(err) }, "%v", err)
	require.NoError(t, d.Close())
	_, err = c.Create(t.Context(), "e", CreateOptions{Size: size})
	require.Condition(t, func() bool { return isFull(err) }, "%v", err)
	require.Equal(t, bytesOf(size), contents(t, a))
	require.Equal(t, []string{"a", "d"}, names(t, c))
	require.NoError(t, a.Close())
	require.Eventually(t, func() bool {
		i, err := c.Stat(t.Context(), "a")
		return err == nil && i.Readers == 0
	}, inTime, step)
	sealed(t, c, "e", bytesOf(size))
	require.Equal(t, []string{"d", "e"}, names(t, c))
	require.Equal(t, uint64(3), s.Stats().Evicted)
}

// TestEvict: sealed objects that no client has go when a limit or the device's memory is
// reached, the least recently used first.
func TestEvict(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"bytes": {MaxBytes: 4 << 20}, "bytes of a user": {MaxBytesPerUID: 5 << 20}, "objects": {MaxObjects: 2},
	} {
		t.Run(name, func(t *testing.T) {
			o.Evict = true
			s := listening(t, o)
			evicts(t, s, clientOf(t, s))
		})
	}
}

// TestEvictForMemory is TestEvict where the device's memory is the limit. It is not parallel: a process
// that another test starts has all descriptors for a moment, and what was evicted is not free then.
func TestEvictForMemory(t *testing.T) {
	drv := host.New(host.Config{Memory: 4 << 20})
	dev, err := vmm.OpenDriver(drv, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	s, err := Listen(dev, filepath.Join(t.TempDir(), "s.sock"), Options{Evict: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	evicts(t, s, clientOf(t, s))
}

// TestEvictPassesOverReaders: those that have an object are asked again when one is to go, so
// that one that has just come loses nothing.
func TestEvictPassesOverReaders(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{Evict: true, MaxObjects: 20})
	c := clientOf(t, s)
	var kept []*shareable.View
	for i := range 100 {
		name := fmt.Sprint("o", i)
		sealed(t, c, name, []byte(name))
		if i%10 == 0 {
			kept = append(kept, got(t, c, name, GetOptions{}))
		}
	}
	for i, b := range kept {
		require.Equal(t, fmt.Sprint("o", 10*i), string(contents(t, b)))
	}
	require.Equal(t, 20, s.Stats().Objects)
	require.Equal(t, uint64(80), s.Stats().Evicted)
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Equal(t, 10, s.unused.Len())
}

// isFull reports whether there was no room.
func isFull(err error) bool {
	return errors.Is(err, vmm.ErrLimit) || errors.Is(err, vmm.ErrOutOfMemory)
}

// fewFiles is a server of a process that may have few descriptors.
type fewFiles struct {
	serve.Server
	limit int
}

func (f fewFiles) FileLimit() int { return f.limit }

// TestObjectsLeaveDescriptors: objects cannot use up the descriptors that connections need.
func TestObjectsLeaveDescriptors(t *testing.T) {
	s, err := NewServer(vmmtest.Device(t), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	s.objects = fewFiles{s.objects, processFDs(t) + 100}
	s.ledger = newLedger(s.opts, s.objects.FileLimit())
	require.NoError(t, s.objects.Listen(filepath.Join(t.TempDir(), "s.sock")))
	w := connected(t, s)
	n := 0
	for ; err == nil; n++ {
		_, err = w.leaseWith(wire.TypeCreate, wire.Create{Size: 1}.Append(nil))
	}
	require.ErrorIs(t, err, vmm.ErrLimit)
	require.Greater(t, n, 10)
	require.Less(t, n, 100)
	c := clientOf(t, s)
	_, err = c.Create(t.Context(), "x", CreateOptions{Size: 1})
	require.ErrorIs(t, err, vmm.ErrLimit)
	_, err = c.Get(t.Context(), "x", GetOptions{})
	require.ErrorIs(t, err, shareable.ErrNotFound)
}
