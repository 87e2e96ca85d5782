package shareable

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// written is an object with memory, one reader, and a writer that has published 100 bytes.
func written(t *testing.T, o Options) (*smallStore, *storedX, serve.WriterPage, *View) {
	t.Helper()
	s := newSmallStore(t, o)
	x := s.object(4)
	x.grow(2)
	w := x.lease()
	w.Publish(100)
	v := s.attach(AttachOptions{Unsealed: true})
	wait(t, v, 100)
	return s, x, w, v
}

// onLoad has f called after each load that the server makes of a word that a writer stores, until the end
// of the test.
func (x *storedX) onLoad(f func(at int)) {
	o := x.own()
	o.mu.Lock()
	defer o.mu.Unlock()
	page := o.page.foreign
	page.loaded = f
	x.s.t.Cleanup(func() { // before the writer's page goes
		o.mu.Lock()
		defer o.mu.Unlock()
		page.loaded = nil
	})
}

// What the server decides it decides of one load of each word, and so does a view, also where the word
// changes after each.
func TestOneLoadADecision(t *testing.T) {
	t.Parallel()
	s, x, w, _ := written(t, Options{})
	o := x.own()
	loads, n := map[int]int{}, uint64(100)
	loaded := func(at int) {
		loads[at]++
		n++
		w.Queued(2 * n)
		w.Publish(n)
		w.Beat()
	}
	once := func(what string, needs []int, do func()) {
		t.Helper()
		clear(loads)
		do()
		for _, at := range needs {
			require.NotZero(t, loads[at], "%s: the word at %d", what, at)
		}
		for at, n := range loads {
			require.Equal(t, 1, n, "%s: the word at %d", what, at)
		}
	}
	x.onLoad(loaded)
	locked := func(f func()) func() { return func() { o.mu.Lock(); defer o.mu.Unlock(); f() } }
	a := &attachment{obj: &o.object, started: true, wantsPublish: true, sentPage: o.page, sentGeneration: o.generation, nextChunk: 2}
	done := []int{atDone}
	once("State", done, func() { x.State() })
	once("OBJECT", []int{atDone, atQueued}, locked(func() { o.describeLocked("x", wire.AccessRead) }))
	once("PUBLISH", done, func() {
		f, ok, err := a.nextFrame(nil)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, wire.TypePublish, f.kind)
	})
	once("a Seal that is refused", done, func() { require.ErrorIs(t, x.Seal(serve.Seal{Length: 1}), vmm.ErrBounds) })
	once("Record", done, func() {
		_, release, err := x.Record(0, "x", nil)
		require.NoError(t, err)
		release()
	})
	once("Beat", []int{atHeartbeat}, func() { x.Beat() })
	once("EndLease", done, x.EndLease)

	w = x.lease()
	v := s.attach(AttachOptions{Unsealed: true})
	wait(t, v, x.length())
	look := func(f func(int)) {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.page != nil {
			v.page.loaded = f
		}
	}
	look(loaded)
	t.Cleanup(func() { look(nil) })
	both := []int{atDone, atGeneration}
	once("Len", both, func() { v.Len() })
	once("Published", both, func() { require.Less(t, v.Published(), n) })
	once("Queued", append(both, atQueued), func() { v.Queued() })
	once("Heartbeat", []int{atHeartbeat}, func() { v.Heartbeat() })
	once("Snapshot", both, func() { v.Snapshot() })
	once("Valid", []int{atGeneration}, func() { require.True(t, v.Valid(Snapshot{Ptr: v.first(), Generation: v.generation})) })
	once("Host", both, func() {
		b, err := v.Host()
		require.NoError(t, err)
		require.Less(t, uint64(len(b)), n)
	})
	once("ReadAt", both, func() {
		_, err := v.ReadAt(make([]byte, 1), 0)
		require.NoError(t, err)
	})
	once("MemoryArg", both, func() { v.MemoryArg(&vmm.MemoryArg{}) })
	once("Wait", both, func() { require.NoError(t, v.Wait(t.Context(), 1)) })
	once("a new length", both, func() { v.mu.Lock(); defer v.mu.Unlock(); require.True(t, v.updateLenLocked()) })
	once("the end", both, func() { v.detach(ErrOwnerGone) })
	require.Less(t, v.Len(), n)
}

// What differs for whatever reason is made good by the next server: its length wins.
func TestRestoredLengthWins(t *testing.T) {
	t.Parallel()
	o := Options{}
	o.hooks.readTwice = true // the server has more than readers see
	s, x, w, _ := written(t, o)
	x.onLoad(func(int) { w.Publish(108) })
	x.EndLease()
	require.EqualValues(t, 108, x.length())
	require.EqualValues(t, 100, s.attach(AttachOptions{Unsealed: true}).Published())
	r, release, err := x.Record(0, "x", nil)
	require.NoError(t, err)
	kept := serve.Recorded{State: r.State, Chunks: map[uint64]int{}, Page: -1}
	for i, id := range r.Chunks {
		kept.Chunks[id], err = unix.FcntlInt(uintptr(r.FDs[i]), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
	}
	release()
	next := &smallStore{t: t, dev: s.dev, byName: map[string]serve.Object{}, conns: map[serve.Conn]bool{}}
	var all []serve.Object
	next.srv, next.objects, all, err = forStore{}.Restore(s.dev, Options{}, next, s.srv.Instance(), 100, []serve.Recorded{kept})
	require.NoError(t, err)
	next.byName["x"] = all[0]
	require.NoError(t, next.objects.Listen(socketAt(t)))
	t.Cleanup(func() { require.NoError(t, all[0].Close()); require.NoError(t, next.srv.Close()) })
	restored := &storedX{Object: all[0], s: next}
	require.EqualValues(t, 108, restored.length())
	v := next.attach(AttachOptions{Unsealed: true})
	wait(t, v, 108)
	of := pageOf(v)
	restored.lease().Publish(200)
	pageAfter(t, v, of)
	wait(t, v, 200)
}
