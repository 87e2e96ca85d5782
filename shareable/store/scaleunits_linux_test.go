package store

import (
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// saysHello is a connection of which only the HELLO counts.
type saysHello struct{ serve.Client }

func (saysHello) Hello() wire.Hello { return wire.Hello{} }

// TestDeletedBeforeItsWriterKnows: an object has its name before its writer gets the reply,
// so another client can delete it by then.
func TestDeletedBeforeItsWriterKnows(t *testing.T) {
	t.Parallel()
	w := &Writer{c: &Client{}, conn: saysHello{}}
	err := w.takeObject(wire.Frame{Payload: wire.Object{ID: 1, Max: 4096, State: wire.StateClosed, Access: wire.AccessReadWrite, Name: "x"}.Append(nil)})
	require.ErrorIs(t, err, shareable.ErrNotFound)
	require.NotErrorIs(t, err, shareable.ErrProtocol)
}

// TestCountsOnceWhileItGrows: memory that was being made for an object counts no more once the
// object is deleted, and not less than nothing.
func TestCountsOnceWhileItGrows(t *testing.T) {
	t.Parallel()
	var other plainClient
	var armed atomic.Bool
	dev := vmmtest.Device(t, func(c drivertest.Call) error {
		if c.Name == "Create" && armed.CompareAndSwap(true, false) {
			require.NoError(t, other.ask(wire.TypeDelete, wire.Delete{Name: "x"}.Append(nil)))
		}
		return nil
	})
	s, err := Listen(dev, filepath.Join(t.TempDir(), "s.sock"), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	other = connected(t, s)
	w := connected(t, s)
	m, err := w.leaseWith(wire.TypeCreate, wire.Create{Flags: wire.StoreGrowable, Size: 64 << 20, Name: "x"}.Append(nil))
	require.NoError(t, err)
	armed.Store(true) // after all that the hook uses
	require.Error(t, w.grow(&m, 1))
	x := s.Stats()
	require.Zero(t, x.Bytes)
	require.Zero(t, x.Objects)
}
