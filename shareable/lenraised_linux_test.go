package shareable

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// stopFollow keeps the publication's own goroutine from publishing until the returned function is
// called.
func stopFollow(t *testing.T, p *Publication) (resume func()) {
	t.Helper()
	require.NoError(t, p.Flush(t.Context()))
	p.exclusive <- struct{}{}
	resume = sync.OnceFunc(func() { <-p.exclusive })
	t.Cleanup(resume)
	return resume
}

// TestPublishedByTheCall: what is written, in chunks that are published, is published when the
// call that appends it returns. No reader is attached, and nothing is exported ahead: while a
// goroutine of those looks at the publication, the call leaves it to follow.
func TestPublishedByTheCall(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{KeepFDs: -1}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	resume := stopFollow(t, p)
	for n := 100; n < 1000; n += 100 {
		require.NoError(t, g.Append(pattern(n, 100)))
		require.EqualValues(t, n+100, p.Len())
		require.EqualValues(t, n+100, p.page.published.Load())
	}
	require.NoError(t, g.SetLen(g.Cap()))
	require.Equal(t, g.Cap(), p.Len())
	require.NoError(t, g.Append(pattern(0, 100)), "in a chunk that is not published yet")
	require.Equal(t, g.Len()-100, p.Len())
	resume()
	v := attached(t, s, AttachOptions{})
	wait(t, v, g.Len())
	require.Equal(t, pattern(0, 1000), read(t, v, 1000))
}

// TestPublishedByTheCallWithItsChunks: a chunk that has taken the place of a published one is
// published before its bytes are. With the guard off they are not.
func TestPublishedByTheCallWithItsChunks(t *testing.T) {
	t.Parallel()
	for _, guard := range []bool{true, false} {
		_, p, g := stage(t, Options{KeepFDs: -1}, PublishOptions{})
		require.NoError(t, g.Append(pattern(0, 100)))
		require.NoError(t, g.Grow(4<<20))
		resume := stopFollow(t, p)
		p.mu.Lock()
		require.Equal(t, g.Cap(), p.endLocked())
		p.mu.Unlock()
		require.NoError(t, g.Clip())
		require.NoError(t, g.Grow(4<<20)) // by another chunk
		if !guard {
			p.chunksGeneration = g.Generation()
		}
		require.NoError(t, g.SetLen(3<<20))
		require.Equal(t, !guard, p.Len() == 3<<20, "readers have the chunk that went")
		resume()
		require.NoError(t, p.Flush(t.Context()))
		require.Equal(t, uint64(3<<20), p.Len())
	}
}

// TestPublishedByTheCallUnlessItMustNot: while Seal or Retire runs, and for bytes that are not
// written yet, the call publishes nothing.
func TestPublishedByTheCallUnlessItMustNot(t *testing.T) {
	t.Parallel()
	_, p, g := stage(t, Options{KeepFDs: -1}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	resume := stopFollow(t, p)
	p.addLengthSetter()
	require.NoError(t, g.SetLen(200))
	require.Equal(t, uint64(100), p.Len())
	p.removeLengthSetter()
	require.NoError(t, g.SetLen(300))
	require.Equal(t, uint64(300), p.Len())
	st, err := g.Device().NewStream()
	require.NoError(t, err)
	require.NoError(t, g.AppendOn(st, pattern(0, 100)))
	require.NoError(t, g.Append(pattern(0, 100)))
	require.Equal(t, uint64(300), p.Len())
	require.ErrorIs(t, g.SetLen(300), vmm.ErrBusy, "it is about to be published")
	resume()
	require.NoError(t, p.Flush(t.Context()))
	require.Equal(t, uint64(500), p.Len())
	require.NoError(t, p.Seal(t.Context(), SealOptions{KeepWriting: true}))
	require.NoError(t, g.SetLen(600))
	require.Equal(t, uint64(500), p.Len())
	require.NoError(t, g.SetLen(500), "what is not published any more is not held")
	require.ErrorIs(t, g.SetLen(499), vmm.ErrBusy)
	require.NoError(t, st.Close())
}
