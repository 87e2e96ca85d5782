package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// evicting makes a store for n objects of one chunk each, and n of them, sealed.
func evicting(t *testing.T, n uint64, o Options) (*Server, *Client) {
	t.Helper()
	gran, err := granularity(vmmtest.Device(t))
	require.NoError(t, err)
	o.Evict = true
	if o.MaxObjects == 0 && o.MaxBytesPerUID == 0 {
		o.MaxBytes = n * gran
	}
	if o.MaxBytesPerUID > 0 {
		o.MaxBytesPerUID *= gran
	}
	s := listening(t, o)
	c := clientOf(t, s)
	for i := range n {
		sealed(t, c, fmt.Sprint("o", i), []byte{byte(i)})
	}
	return s, c
}

// names are the names of all objects.
func names(t *testing.T, c *Client) (all []string) {
	t.Helper()
	infos, err := c.List(t.Context(), ListOptions{})
	require.NoError(t, err)
	for _, i := range infos {
		all = append(all, i.Names...)
	}
	return all
}

// TestEvictsTheOldest: room is made by what was used least recently, and neither by what a
// client has mapped nor by what is not sealed.
func TestEvictsTheOldest(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{"bytes": {}, "objects": {MaxObjects: 3}} {
		t.Run(name, func(t *testing.T) {
			s, c := evicting(t, 3, o)
			b := got(t, c, "o1", GetOptions{})
			require.NoError(t, got(t, c, "o0", GetOptions{}).Close()) // used after o2
			require.Eventually(t, func() bool { i, err := c.Stat(t.Context(), "o0"); return err == nil && i.Readers == 0 }, inTime, step)
			sealed(t, c, "n0", []byte{9})
			require.Equal(t, []string{"o0", "o1", "n0"}, names(t, c))
			w := writer(t, c, "n1", CreateOptions{Size: 1})
			require.Equal(t, []string{"o1", "n0", "n1"}, names(t, c))
			sealed(t, c, "n2", []byte{9})
			require.Equal(t, []string{"o1", "n1", "n2"}, names(t, c))
			require.NoError(t, c.Delete(t.Context(), "n2", DeleteOptions{}))
			// Its writer has closed it, which the server may hear of later.
			require.Eventually(t, func() bool { return s.Stats().Objects == 2 }, inTime, step)
			_ = writerSoon(t, c, "n3", CreateOptions{Size: 1})
			_, err := c.Create(t.Context(), "n4", CreateOptions{Size: 1})
			require.ErrorIs(t, err, vmm.ErrLimit)
			require.Equal(t, []string{"o1", "n1", "n3"}, names(t, c))
			require.EqualValues(t, 3, s.Stats().Evicted)
			require.NoError(t, w.Err())
			require.Equal(t, []byte{1}, contents(t, b))
		})
	}
}

// TestEvictsNothingInVain: an object that has no room whatever is evicted costs none.
func TestEvictsNothingInVain(t *testing.T) {
	t.Parallel()
	s, c := evicting(t, 4, Options{})
	b := got(t, c, "o3", GetOptions{})
	for _, size := range []uint64{4 * s.gran, 5 * s.gran, 1 << 40} {
		_, err := c.Create(t.Context(), "n", CreateOptions{Size: size})
		require.ErrorIs(t, err, vmm.ErrLimit, size)
		require.Equal(t, []string{"o0", "o1", "o2", "o3"}, names(t, c))
	}
	require.NoError(t, b.Close())
	require.Eventually(t, func() bool { i, err := c.Stat(t.Context(), "o3"); return err == nil && i.Readers == 0 }, inTime, step)
	writer(t, c, "n", CreateOptions{Size: 4 * s.gran})
	require.Equal(t, []string{"n"}, names(t, c))
}

// TestEvictsOwn: where one user's limit is reached, objects of that user make room.
func TestEvictsOwn(t *testing.T) {
	t.Parallel()
	s, c := evicting(t, 3, Options{MaxBytesPerUID: 3})
	s.mu.Lock()
	e := s.byName["o0"]
	s.ledger.Return(e.uid, e.has)
	e.uid++
	s.ledger.Add(e.uid, e.has)
	s.mu.Unlock()
	sealed(t, c, "n0", []byte{9})
	require.Equal(t, []string{"o0", "o1", "o2", "n0"}, names(t, c))
	sealed(t, c, "n1", []byte{9})
	require.Equal(t, []string{"o0", "o2", "n0", "n1"}, names(t, c))
	_, err := c.Get(t.Context(), "o1", GetOptions{})
	require.ErrorIs(t, err, shareable.ErrNotFound)
}

// TestGrowsToTheLimit: a growing object gets the last chunk below a limit, too, though its
// memory would double otherwise.
func TestGrowsToTheLimit(t *testing.T) {
	t.Parallel()
	gran, err := granularity(vmmtest.Device(t))
	require.NoError(t, err)
	s := listening(t, Options{MaxBytes: 3 * gran})
	c := clientOf(t, s)
	w := writer(t, c, "g", CreateOptions{Size: 64 * gran, Growable: true})
	for i := range uint64(3) {
		require.NoError(t, w.Grow((i+1)*gran))
	}
	require.Equal(t, 3*gran, w.Cap())
	require.ErrorIs(t, w.Grow(4*gran), vmm.ErrLimit)
	require.Equal(t, 3*gran, s.Stats().Bytes)
}

// TestRefusedRequestsChangeNothing: what does not fit as a whole evicts nothing and stays charged
// for nothing, though its first chunks would have fitted.
func TestRefusedRequestsChangeNothing(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	dev, err := vmm.OpenDriver(host.New(host.Config{Memory: 64 * gib}), 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	s, err := Listen(dev, filepath.Join(t.TempDir(), "s.sock"), Options{MaxBytes: 4 * gib, Evict: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	c := clientOf(t, s)
	_ = writer(t, c, "open", CreateOptions{Size: 3 * gib / 2})
	w := writer(t, c, "sealed", CreateOptions{Size: gib})
	require.NoError(t, w.Append([]byte{1}))
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
	require.NoError(t, w.Close())
	require.EqualValues(t, 5*gib/2, s.Stats().Bytes)
	grows := writer(t, c, "grows", CreateOptions{Size: 8 * gib, Growable: true})
	before := s.Stats()
	same := func() {
		now := s.Stats()
		require.Equal(t, before.Bytes, now.Bytes)
		require.Equal(t, before.Objects, now.Objects)
		require.Zero(t, now.Evicted)
	}
	_, err = c.Create(t.Context(), "new", CreateOptions{Size: 3 * gib})
	require.ErrorIs(t, err, vmm.ErrLimit)
	same()
	require.ErrorIs(t, grows.Grow(3*gib), vmm.ErrLimit)
	same()
	require.NoError(t, grows.Grow(2*gib), "it evicts")
	require.EqualValues(t, 1, s.Stats().Evicted)
}

// TestEvictsNoShare: what others have within their share stays, and they cannot be kept from it by
// objects that cost no memory.
func TestEvictsNoShare(t *testing.T) {
	t.Parallel()
	self := uint32(os.Getuid())
	s := listening(t, Options{MaxObjects: 8, Evict: true, UIDs: []uint32{self, self + 1}})
	c := clientOf(t, s)
	theirs := func(names ...string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, name := range names {
			e := s.byName[name]
			s.ledger.Return(e.uid, e.has)
			e.uid++
			s.ledger.Add(e.uid, e.has)
		}
	}
	for _, name := range []string{"t0", "t1", "t2"} {
		sealed(t, c, name, []byte(name))
		theirs(name)
	}
	for i := range 20 {
		w, err := c.Create(t.Context(), fmt.Sprint("mine", i), CreateOptions{Size: 1 << 30, Growable: true, Durable: true, Meta: make([]byte, 1000)})
		if i < 4 {
			require.NoError(t, err)
			require.NoError(t, w.Close())
			continue
		}
		require.ErrorIs(t, err, vmm.ErrLimit)
		require.ErrorContains(t, err, "objects")
	}
	require.Equal(t, []string{"t0", "t1", "t2", "mine0", "mine1", "mine2", "mine3"}, names(t, c))
}

// TestRecordsAreLimited: metadata, names, labels and requests that wait count, and what is over
// counts no more.
func TestRecordsAreLimited(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{MaxRecordBytes: 100 << 10})
	c := clientOf(t, s)
	create := func(name string) error {
		w, err := c.Create(t.Context(), name, CreateOptions{Size: 1, Growable: true, Durable: true, Meta: make([]byte, 30<<10)})
		return errors.Join(err, w.Close())
	}
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, create(name))
	}
	require.ErrorIs(t, create("d"), vmm.ErrLimit)
	for i := range 100 {
		err := c.Link(t.Context(), []string{"a", "b", "c"}[i%3], fmt.Sprint(i))
		if err != nil {
			require.ErrorIs(t, err, vmm.ErrLimit)
			require.ErrorContains(t, err, "records")
			break
		}
	}
	ctx, cancel := context.WithCancel(within(t))
	_, err := c.Get(ctx, "none", GetOptions{Wait: true})
	require.ErrorIs(t, err, vmm.ErrLimit)
	require.NoError(t, c.Delete(t.Context(), "b", DeleteOptions{}))
	waits := make(chan error, 5)
	for range cap(waits) {
		go func() { _, err := c.Get(ctx, "none", GetOptions{Wait: true}); waits <- err }()
	}
	require.Eventually(t, func() bool { return s.Stats().Waits == cap(waits) }, inTime, step)
	cancel()
	for range cap(waits) {
		require.ErrorIs(t, <-waits, context.Canceled)
	}
	for _, name := range []string{"a", "c"} {
		require.NoError(t, c.Delete(t.Context(), name, DeleteOptions{}))
	}
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.ledger.Users()) == 0
	}, inTime, step, "nothing is counted any more")
}
