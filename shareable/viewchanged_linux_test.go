package shareable

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

func isChanged(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// changes runs f, after which the View says that it has changed, and not before.
func changes(t *testing.T, v *View, what string, f func()) {
	t.Helper()
	c := v.Changed()
	require.Equal(t, c, v.Changed())
	require.False(t, isChanged(c), what)
	f()
	soon(t, what+" is a change", func() bool { return isChanged(c) })
}

// TestViewChanged: each change closes the channel, and the next one is another. Once
// nothing more can come it is closed already.
func TestViewChanged(t *testing.T) {
	t.Parallel()
	require.True(t, isChanged((*View)(nil).Changed()))
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(3)
	changes(t, v, "Cap", func() { s.chunks(0, 2); s.ack() })
	changes(t, v, "Len", func() { s.done(10) })
	changes(t, v, "Len again", func() { s.done(20) })
	require.Equal(t, uint64(20), v.Len())
	changes(t, v, "Generation", func() {
		s.generation(2)
		retiring(2, s.gran)(t, s)
		s.ack()
	})
	// What has moved before is no change that comes next.
	storeWord(s.page, atDone, 30)
	require.False(t, isChanged(v.Changed()))

	changes(t, v, "Sealed", func() { sealing(2*s.gran)(t, s) })
	changes(t, v, "the rest of it", func() {
		c, fds := s.records(1, 1)
		s.send(c, fds)
		s.ack()
	})
	require.True(t, isChanged(v.Changed()), "it is sealed, and wholly mapped")
	require.NoError(t, v.Err())

	s, far = newScriptedOwner(t, 4)
	v = viewed(t, s, far, AttachOptions{})
	changes(t, v, "Err", func() { require.NoError(t, s.c.Close()) })
	require.ErrorIs(t, v.Err(), ErrOwnerGone)
	require.True(t, isChanged(v.Changed()))

	s, far = newScriptedOwner(t, 4)
	v = viewed(t, s, far, AttachOptions{})
	changes(t, v, "Close", func() { require.NoError(t, v.Close()) })
	require.True(t, isChanged(v.Changed()))
}

// TestViewStats: they count what has happened, under names of their own in JSON.
func TestViewStats(t *testing.T) {
	t.Parallel()
	require.Zero(t, (*View)(nil).Stats())
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	require.Zero(t, v.Stats())
	s.grow(3)
	s.chunks(0, 2)
	s.ack()
	s.chunks(2, 1)
	s.ack()
	require.Equal(t, ViewStats{Chunks: 3, Mapped: 3 * s.gran, Frames: 2}, v.Stats())
	changes(t, v, "a wake", func() { s.done(5) })
	soon(t, "the wake is counted", func() bool { return v.Stats().Wakes > 0 })
	s.generation(2)
	retiring(2, s.gran)(t, s)
	s.ack()
	now := v.Stats()
	require.Equal(t, 1, now.Chunks)
	require.Equal(t, s.gran, now.Mapped)
	b, err := json.Marshal(ViewStats{1, 2, 3, 4, 5})
	require.NoError(t, err)
	require.JSONEq(t, `{"chunks":1,"mapped":2,"frames":3,"resyncs":4,"wakes":5}`, string(b))
	require.NoError(t, v.Close())
	require.Zero(t, v.Stats().Chunks+int(v.Stats().Mapped))
	require.Equal(t, uint64(2), v.Stats().Frames)
}

// TestViewMax: it is what can be mapped here, and nothing waits for more.
func TestViewMax(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ limit, max uint64 }{{0, 4}, {100, 4}, {3, 3}, {1, 1}} {
		s, far := newScriptedOwner(t, 4)
		v := viewed(t, s, far, AttachOptions{MaxBytes: c.limit * s.gran})
		require.Equal(t, c.max*s.gran, v.Max())
		word(s.page, atQueued).Store(4 * s.gran)
		require.Equal(t, c.max*s.gran, v.Queued())
		require.ErrorIs(t, v.Wait(t.Context(), c.max*s.gran+1), vmm.ErrBounds)
	}
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{MaxBytes: 1})
	require.Zero(t, v.Max(), "not one page")
	require.ErrorIs(t, v.Wait(t.Context(), 1), vmm.ErrBounds)
}

// TestMaxChunks: a View maps no more chunks at a time than it may, each of which keeps a
// descriptor on the host. Those that were taken back do not count.
func TestMaxChunks(t *testing.T) {
	s, far := newScriptedOwner(t, 8)
	v := viewed(t, s, far, AttachOptions{MaxChunks: 3})
	s.grow(6)
	s.chunks(0, 3)
	s.ack()
	s.generation(2)
	retiring(2, s.gran)(t, s)
	s.ack()
	s.chunks(1, 2)
	s.ack()
	s.chunks(3, 1)
	err := ended(t, v)
	require.ErrorIs(t, err, vmm.ErrLimit)
	require.ErrorContains(t, err, "4 chunks, over 3")
	require.Equal(t, 3, v.Stats().Chunks)

	_, err = Attach(t.Context(), "none", "x", pageDevice(t), AttachOptions{MaxChunks: -1})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 200, Max: old.Max}))
	o, err := AttachOptions{}.resolve(vmmtest.Device(t))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, err)
	require.Equal(t, 100, o.MaxChunks)
	o, err = AttachOptions{MaxChunks: 1 << 30}.resolve(vmmtest.Device(t))
	require.NoError(t, err)
	require.Equal(t, wire.MaxChunks, o.MaxChunks)
}

// TestNoServerListens: where there is no server, the error says so, and of what path; it is
// ErrOwnerGone all the same.
func TestNoServerListens(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/none.sock"
	dev := pageDevice(t)
	for name, try := range map[string]func() error{
		"Attach": func() error { _, err := Attach(t.Context(), path, "x", dev, AttachOptions{}); return err },
		"List":   func() error { _, err := List(t.Context(), path, dev, AttachOptions{Timeout: time.Second}); return err },
	} {
		err := try()
		require.ErrorIs(t, err, ErrOwnerGone, name)
		require.ErrorIs(t, err, os.ErrNotExist)
		require.ErrorContains(t, err, "no server listens at "+path)
		require.NotContains(t, err.Error(), ErrOwnerGone.Error())
	}
}

// TestConnectWithoutDescriptors: a process that may open no more files has reached a limit.
func TestConnectWithoutDescriptors(t *testing.T) {
	dev := vmmtest.Device(t)
	s, err := Listen(dev, t.TempDir()+"/s.sock", Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}))
	_, err = Attach(t.Context(), s.Path(), "x", dev, AttachOptions{})
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	require.ErrorIs(t, err, vmm.ErrLimit)
	_, err = Attach(t.Context(), s.Path(), "x", dev, AttachOptions{})
	require.ErrorIs(t, err, ErrNotFound)
	require.NotContains(t, strings.TrimPrefix(err.Error(), "attach to \"x\": "+ErrNotFound.Error()), ErrNotFound.Error(), "the kind of error is said once")
}
