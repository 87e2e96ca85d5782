package shareable

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestViewOfSealed: a View of an object that is sealed already knows the length before the
// memory comes, and WaitSealed returns once it has the memory and the digest.
func TestViewOfSealed(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	s.grow(2)
	s.obj.State, s.obj.Length = wire.StateSealed, s.gran+1
	v := viewed(t, s, far, AttachOptions{})
	require.Equal(t, s.obj.ID, v.ID())
	require.Zero(t, v.Len())
	require.Equal(t, s.gran+1, v.Published())
	require.Equal(t, s.gran+1, v.Queued())
	waits := make(chan error, 1)
	go func() { waits <- v.WaitSealed(t.Context()) }()
	s.chunks(0, 2)
	s.ack()
	require.NoError(t, v.Wait(t.Context(), s.gran+1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, v.WaitSealed(ctx), context.Canceled) // the digest has not come
	seal := wire.Sealed{Object: 7, Length: s.gran + 1, HasDigest: true, Digest: [32]byte{9}}
	s.write(wire.TypeSealed, 0, seal.Append(nil))
	require.NoError(t, <-waits)
	d, ok := v.Digest()
	require.True(t, ok)
	require.Equal(t, seal.Digest, d)
	require.NoError(t, s.c.Close())
	require.NoError(t, v.WaitSealed(t.Context()))
	require.NoError(t, v.Close())
	require.ErrorIs(t, v.WaitSealed(t.Context()), vmm.ErrClosed)
	require.Zero(t, v.Published())
}

// TestWaitSealedOfAnOwner: the owner ends before it seals.
func TestWaitSealedOfAnOwner(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(1)
	s.done(s.gran)
	require.Equal(t, s.gran, v.Published()) // and not mapped
	require.NoError(t, s.c.Close())
	require.ErrorIs(t, v.WaitSealed(t.Context()), ErrOwnerGone)
	require.Zero(t, v.Published())                        // it will never be mapped
	require.ErrorIs(t, v.WaitSealed(nil), vmm.ErrInvalid) //nolint:staticcheck // a nil context is what is tested
}
