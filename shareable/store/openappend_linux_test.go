package store

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestOpenAppend: the first call creates a durable object, the next ones append to it.
func TestOpenAppend(t *testing.T) {
	t.Parallel()
	c := clientOf(t, listening(t, Options{}))
	layout, err := growable.LayoutOf[byte]()
	require.NoError(t, err)
	o := CreateOptions{Size: 1 << 20, Growable: true, Layout: layout, Meta: []byte("first")}
	for _, part := range []string{"one,", "two,", "three"} {
		w, err := c.OpenAppend(t.Context(), "log", o)
		require.NoError(t, err)
		_, err = c.OpenAppend(t.Context(), "log", o)
		require.ErrorIs(t, err, vmm.ErrBusy)
		require.NoError(t, w.Append([]byte(part)))
		require.Equal(t, "first", string(w.Meta()))
		require.NoError(t, w.Close())
		o.Meta = nil
	}
	require.Equal(t, "one,two,three", string(contents(t, got(t, c, "log", GetOptions{Unsafe: true}))))

	// Another layout is refused, and the object can be had again at once.
	other := o
	other.Layout, err = growable.LayoutOf[float32]()
	require.NoError(t, err)
	_, err = c.OpenAppend(t.Context(), "log", other)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.ErrorContains(t, err, "elements of kind uint, not float")
	other.Layout = vmm.Layout{}
	w, err := c.OpenAppend(t.Context(), "log", other)
	require.NoError(t, err)
	require.True(t, w.Layout().Equal(layout))
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
	require.NoError(t, w.Close())
	_, err = c.OpenAppend(t.Context(), "log", o)
	require.ErrorIs(t, err, shareable.ErrSealed)
}

// TestOpenAppendWaits: for the Writer before, and for one whose object goes with it.
func TestOpenAppendWaits(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	for name, durable := range map[string]bool{"stays": true, "goes": false} {
		w := writer(t, c, name, CreateOptions{Size: 1 << 20, Growable: true, Durable: durable})
		require.NoError(t, w.Append([]byte("first")))
		next := make(chan *Writer, 1)
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error, 1)
		go func() {
			_, err := c.OpenAppend(ctx, name, CreateOptions{Size: 1 << 20, Growable: true, Wait: true})
			gaveUp <- err
		}()
		go func() {
			w, err := c.OpenAppend(within(t), name, CreateOptions{Size: 1 << 20, Growable: true, Wait: true})
			if err != nil {
				t.Error(err)
			}
			next <- w
		}()
		require.Eventually(t, func() bool { return s.Stats().Waits == 2 }, inTime, step)
		cancel()
		require.ErrorIs(t, <-gaveUp, context.Canceled)
		require.Eventually(t, func() bool { return s.Stats().Waits == 1 }, inTime, step)
		require.NoError(t, w.Close())
		w = <-next
		require.Equal(t, durable, w.Len() == 5)
		require.NoError(t, w.Close())
	}
}

// TestOpenAppendRefuses: what cannot be is an error whether the object is there or not.
func TestOpenAppendRefuses(t *testing.T) {
	t.Parallel()
	c := clientOf(t, listening(t, Options{}))
	o := CreateOptions{Size: 1 << 20, Growable: true}
	w := writer(t, c, "there", o)
	for _, name := range []string{"", "a..b", "@1", w.ID().String()} {
		_, err := c.OpenAppend(t.Context(), name, o)
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
	}
	for _, name := range []string{"there", "missing"} {
		_, err := c.OpenAppend(t.Context(), name, CreateOptions{})
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
	}
	_, err := c.OpenAppend(t.Context(), "there", o) // it is not durable, and its Writer has it
	require.ErrorIs(t, err, vmm.ErrBusy)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.OpenAppend(ended, "missing", o)
	require.ErrorIs(t, err, context.Canceled)
	_, err = c.OpenAppend(nil, "missing", o) //nolint:staticcheck // what must not crash
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

// TestOpenAppendAtEachStep: another client creates or deletes the object before and after each
// request of an OpenAppend.
func TestOpenAppendAtEachStep(t *testing.T) {
	t.Parallel()
	o := CreateOptions{Size: 1 << 16, Growable: true, Durable: true}
	var at, now atomic.Int64 // the step at which something happens, and the present one; at is 0 outside the call
	var steps atomic.Int64   // all: a request that is over has made two
	var meanwhile func(context.Context) error
	s := listening(t, Options{hooks: hooks{step: func() {
		defer steps.Add(1)
		if n := at.Load(); n != 0 && now.Add(1) == n {
			at.Store(0)
			if err := meanwhile(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}}})
	c, other := clientOf(t, s), clientOf(t, s)
	// A reply comes before the second step of its request.
	over := func() { require.Eventually(t, func() bool { return steps.Load()%2 == 0 }, inTime, step) }
	make := func(ctx context.Context) error {
		w, err := other.Create(ctx, "x", o)
		switch {
		case errors.Is(err, vmm.ErrBusy):
			return nil // it is there by now
		case err != nil:
			return err
		}
		return errors.Join(w.Append([]byte("x")), w.Close())
	}
	remove := func(ctx context.Context) error {
		if err := other.Delete(ctx, "x", DeleteOptions{}); !errors.Is(err, shareable.ErrNotFound) {
			return err
		}
		return nil
	}
	for name, there := range map[string]bool{"made": false, "removed": true} {
		meanwhile = map[bool]func(context.Context) error{false: make, true: remove}[there]
		for n := int64(1); ; n++ {
			require.NoError(t, remove(t.Context()))
			if there {
				require.NoError(t, make(t.Context()))
			}
			over()
			now.Store(0)
			at.Store(n)
			w, err := c.OpenAppend(within(t), "x", CreateOptions{Size: 1 << 16, Growable: true, Wait: true})
			over()
			last := at.Swap(0) != 0 // nothing has happened
			require.NoError(t, err, "%s at %d", name, n)
			require.NoError(t, w.Close())
			if last {
				require.Greater(t, n, int64(6), "LEASE, CREATE, MAPPED; LEASE, MAPPED, GROW")
				break
			}
		}
	}
}

// TestOpenAppendAndPermission: the lease of an object that is being deleted goes a moment before
// it.
func TestOpenAppendAndPermission(t *testing.T) {
	t.Parallel()
	c := clientOf(t, listening(t, Options{}))
	w := writer(t, c, "x", CreateOptions{Size: 1000})
	require.False(t, c.isDeleted(t.Context(), w, vmm.ErrPermission), "it is there")
	require.False(t, c.isDeleted(t.Context(), nil, vmm.ErrPermission))
	require.NoError(t, c.Delete(t.Context(), "x", DeleteOptions{}))
	require.True(t, c.isDeleted(t.Context(), w, vmm.ErrPermission))
	require.False(t, c.isDeleted(t.Context(), &Writer{}, vmm.ErrPermission), "of another user")
}

// TestOpenAppendRaces: clients open one name while others delete it. Each call has a Writer or an
// error that says why not, and what a Writer has shown is whole.
func TestOpenAppendRaces(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	const clients, turns = 4, 25
	var tasks sync.WaitGroup
	done := make(chan struct{})
	deleter := clientOf(t, s)
	go func() {
		defer close(done)
		for range clients * turns {
			err := deleter.Delete(t.Context(), "raced", DeleteOptions{})
			if err != nil && !errors.Is(err, shareable.ErrNotFound) {
				t.Errorf("delete: %v", err)
			}
		}
	}()
	for range clients {
		c := clientOf(t, s)
		tasks.Go(func() {
			for range turns {
				w, err := c.OpenAppend(within(t), "raced", CreateOptions{Size: 1 << 16, Growable: true})
				if errors.Is(err, vmm.ErrBusy) { // another client writes
					continue
				}
				if err != nil {
					t.Errorf("open: %v", err)
					return
				}
				// An error here is that the object was deleted meanwhile, or is about to be.
				err = w.Append([]byte("part,"))
				if err != nil && !errors.Is(err, shareable.ErrNotFound) && !errors.Is(err, vmm.ErrPermission) {
					t.Errorf("append: %v", err)
				}
				// What was appended may have gone with the object.
				if err := w.Close(); err != nil && !errors.Is(err, shareable.ErrNotFound) && !errors.Is(err, vmm.ErrPermission) {
					t.Errorf("close: %v", err)
				}
			}
		})
	}
	tasks.Wait()
	<-done
	w, err := deleter.OpenAppend(t.Context(), "raced", CreateOptions{Size: 1 << 16, Growable: true})
	require.NoError(t, err)
	require.NoError(t, w.Append([]byte("part,")))
	require.NoError(t, w.Close())
	all := contents(t, got(t, deleter, "raced", GetOptions{Unsafe: true}))
	require.Equal(t, string(bytes.Repeat([]byte("part,"), len(all)/5)), string(all))
}
