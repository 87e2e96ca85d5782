package store

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestWaitsUnderEveryName: an object that goes ends the waits under all its names.
func TestWaitsUnderEveryName(t *testing.T) {
	t.Parallel()
	ends := map[string]func(*Client, *Writer) error{
		"abort":  func(_ *Client, w *Writer) error { return w.Abort(t.Context()) },
		"close":  func(_ *Client, w *Writer) error { return w.Close() },
		"delete": func(c *Client, _ *Writer) error { return c.Delete(t.Context(), "first", DeleteOptions{}) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			s := listening(t, Options{})
			c := clientOf(t, s)
			w := writer(t, c, "first", CreateOptions{Size: 1000})
			require.NoError(t, c.Link(t.Context(), "first", "second"))
			waited := make(chan error, 1)
			go func() { _, err := c.Get(within(t), "second", GetOptions{Wait: true}); waited <- err }()
			require.Eventually(t, func() bool { return s.Stats().Waits == 1 }, inTime, step)
			require.NoError(t, end(c, w))
			require.ErrorIs(t, <-waited, shareable.ErrAborted)
		})
	}
}

// TestDeletedWhileItGrows: memory that was being created when its object went is given back
// once.
func TestDeletedWhileItGrows(t *testing.T) {
	t.Parallel()
	var once sync.Once
	meanwhile := func() {}
	dev := vmmtest.Device(t, func(c drivertest.Call) error {
		if c.Name == "Create" {
			once.Do(func() { meanwhile() })
		}
		return nil
	})
	s, err := NewServer(dev, Options{MaxBytes: 1 << 30})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	c, err := s.Connect(t.Context(), vmmtest.Device(t), ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	w := writer(t, c, "g", CreateOptions{Size: 1 << 20, Growable: true, Durable: true})
	meanwhile = func() { require.NoError(t, c.Delete(t.Context(), "g", DeleteOptions{})) }
	require.Error(t, w.Append([]byte("bytes")))
	require.Zero(t, s.Stats().Bytes)
	sealed(t, c, "next", []byte("there is room"))
}

// TestLateLease: a lease that has ended before the client was told of it does nothing to the
// next client's.
func TestLateLease(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	create := wire.Create{Name: "d", Size: 1 << 20, Flags: wire.StoreDurable}
	first := connected(t, s)
	m, err := first.leaseWith(wire.TypeCreate, create.Append(nil))
	require.NoError(t, err)
	s.mu.Lock()
	e := s.byName["d"]
	gone := e.lease
	s.mu.Unlock()
	require.NoError(t, first.ask(wire.TypeRelease, wire.Release{Object: m.ID}.Append(nil)))

	next := connected(t, s)
	err = next.Call(t.Context(), wire.TypeLease, wire.Lease{Name: "d"}.Append(nil), wire.TypeObject, func(f wire.Frame) error {
		m.page, err = sharing.OpenWriterPage(f.FDs[0].Int(), next.Hello().Instance, m.ID)
		return err
	})
	require.NoError(t, err)
	s.passLease(e, wait{c: gone, name: "d"})
	require.NoError(t, next.ask(wire.TypeMapped, wire.Mapped{Object: m.ID}.Append(nil)))
	m.page.Publish(1000)
	require.NoError(t, next.ask(wire.TypeRelease, wire.Release{Object: m.ID}.Append(nil)))
	require.NoError(t, m.page.Close())
	info, err := clientOf(t, s).Stat(t.Context(), "d")
	require.NoError(t, err)
	require.EqualValues(t, 1000, info.Len)
}

// TestNoWritesAfterTheSeal: also through a View that could write before.
func TestNoWritesAfterTheSeal(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "u", CreateOptions{Size: 1000})
	require.NoError(t, w.Append([]byte("sealed bytes")))
	require.NoError(t, w.Flush(t.Context()))
	b := got(t, c, "u", GetOptions{Unsafe: true, Write: true})
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{Digest: true}))
	require.NoError(t, b.WaitSealed(within(t)))
	_, err := b.WriteAt([]byte("other"), 0)
	require.ErrorIs(t, err, vmm.ErrPermission)
	require.False(t, b.Writable())
	require.Equal(t, "sealed bytes", string(contents(t, b)))
}

// TestNoWaitForAnID that has gone: no other object gets it.
func TestNoWaitForAnID(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	id := sealed(t, c, "x", []byte("x"))
	require.NoError(t, c.Delete(t.Context(), "x", DeleteOptions{}))
	_, err := c.Get(within(t), id.String(), GetOptions{Wait: true})
	require.ErrorIs(t, err, shareable.ErrNotFound)
}

// TestGetBesideEnd: a Get during which the object goes says so; the server is still there.
func TestGetBesideEnd(t *testing.T) {
	t.Parallel()
	ends := map[string]func(*Client, *Writer) error{
		"abort": func(_ *Client, w *Writer) error { return w.Abort(t.Context()) },
		"delete": func(c *Client, w *Writer) error {
			return errors.Join(c.Delete(t.Context(), "g", DeleteOptions{}), w.Close())
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := listening(t, Options{})
			c, reader := clientOf(t, s), clientOf(t, s)
			for range testgate.Effort(25, 150, 1500) {
				w, err := c.Create(t.Context(), "g", CreateOptions{Size: 1000})
				require.NoError(t, err)
				require.NoError(t, w.Append([]byte("bytes")))
				got := make(chan error, 1)
				go func() {
					v, err := reader.Get(within(t), "g", GetOptions{Unsafe: true})
					if err == nil {
						err = v.Close()
					}
					got <- err
				}()
				require.NoError(t, end(c, w))
				if err := <-got; err != nil {
					require.ErrorIs(t, err, shareable.ErrNotFound)
				}
			}
		})
	}
}
