package shareable

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// receiving runs Receive against a scripted sender.
func receiving(t *testing.T, s *scriptedOwner, far *net.UnixConn, o AttachOptions, sender func()) (*View, error) {
	t.Helper()
	type answer struct {
		v   *View
		err error
	}
	dev := pageDevice(t)
	got := make(chan answer, 1)
	go func() {
		v, err := Receive(context.Background(), far, dev, o)
		got <- answer{v, err}
	}()
	sender()
	a := <-got
	t.Cleanup(func() { require.NoError(t, a.v.Close()) })
	return a.v, a.err
}

func sending(t *testing.T, chunks uint64) (*scriptedOwner, *net.UnixConn) {
	s, far := newScriptedOwner(t, chunks)
	s.grow(int(chunks))
	s.obj.State, s.obj.Length, s.obj.Capacity = wire.StateSealed, s.rng.Len()-1, s.rng.Cap()
	return s, far
}

func TestReceive(t *testing.T) {
	t.Parallel()
	s, far := sending(t, 3)
	v, err := receiving(t, s, far, AttachOptions{}, func() {
		s.hello()
		s.write(wire.TypeObject, 0, s.obj.Append(nil))
		s.chunks(0, 2)
		require.Equal(t, uint64(2), s.ack().Chunk)
		s.chunks(2, 1)
		require.Equal(t, uint64(3), s.ack().Chunk)
		s.write(wire.TypeDone, 0, nil)
	})
	require.NoError(t, err)
	require.Equal(t, s.obj.Length, v.Len())
	require.True(t, v.Sealed())
	require.NoError(t, v.Err())
	require.NoError(t, v.Wait(t.Context(), v.Len()))
	require.ErrorIs(t, v.Wait(t.Context(), v.Len()+1), ErrSealed)
	b, err := v.Host()
	require.NoError(t, err)
	require.Equal(t, byte(3), b[2*s.gran])
	require.Equal(t, v.Len(), v.Queued())
	require.True(t, v.Valid(v.Snapshot()))

	// The connection is the caller's still, and free of deadlines.
	again, err := receiving(t, s, far, AttachOptions{}, func() {
		c, err := wire.NewConn(s.raw)
		require.NoError(t, err)
		s.c = c
		s.hello()
		s.write(wire.TypeObject, 0, s.obj.Append(nil))
		s.chunks(0, 3)
		s.ack()
		s.write(wire.TypeDone, 0, nil)
	})
	require.NoError(t, err)
	require.Equal(t, v.Len(), again.Len())
	require.NoError(t, v.Close())
	_, err = far.Write([]byte{1})
	require.NoError(t, err)
}

func TestReceiveArguments(t *testing.T) {
	t.Parallel()
	_, err := Receive(t.Context(), nil, pageDevice(t), AttachOptions{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	a, _ := pair(t)
	_, err = Receive(t.Context(), a, nil, AttachOptions{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
}
