package ipc_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/ipc"
)

// Functions of OnSync use the same objects whose calls wait.
func TestWaitsHoldNoLock(t *testing.T) {
	w := newWorld(t)
	m := alloc(t, w.devs[0], 10)
	b, token := w.block(1)
	c, otherToken := w.block(2)
	calls := 0
	stop := w.devs[0].OnSync(func() {
		calls++
		_, _ = m.ReadAt(make([]byte, 1), 0)
		if i, err := w.in.Import(otherToken); err == nil {
			require.NoError(t, i.FreeNow())
		}
	})
	require.NoError(t, m.Close())
	require.Equal(t, 1, calls)

	i, j := w.imports(token), w.imports(token)
	require.NoError(t, i.Free(w.s))
	require.NoError(t, j.FreeNow()) // after the stream
	require.Equal(t, 2, calls)
	for range 10 {
		i = w.imports(token) // after the stream, as far as that is still at it
		for range 20 {
			require.NoError(t, w.s.Fill(i.Ptr(), 1, 1, mib))
		}
		require.NoError(t, i.Free(w.s))
	}
	require.NoError(t, w.s.Sync())
	require.Greater(t, calls, 3)
	stop()
	require.NoError(t, w.own.FreeNow(b))
	require.NoError(t, w.own.FreeNow(c))
}

// Two FreeNows of one Block, of which the first waits: one of them frees.
func TestFreedWhileItWaits(t *testing.T) {
	w := newWorld(t)
	b, token := w.block(1)
	i, j := w.imports(token), w.imports(token)
	require.NoError(t, i.Free(w.s))
	again := []error{}
	stop := w.devs[0].OnSync(func() {
		if len(again) == 0 {
			again = append(again, nil)
			again[0] = j.FreeNow()
		}
	})
	require.ErrorIs(t, j.FreeNow(), ipc.ErrFreed)
	require.Equal(t, []error{nil}, again)
	stop()
	require.NoError(t, w.own.FreeNow(b))
}

func TestTokensAreForgotten(t *testing.T) {
	w := newWorld(t)
	before := ipc.OwnTokens()
	kept, _ := w.block(1)
	for range 1000 {
		b, err := w.own.Alloc(w.s, 100)
		require.NoError(t, err)
		_, err = ipc.ExportPointer(w.own, b)
		require.NoError(t, err)
		require.NoError(t, w.own.FreeNow(b))
	}
	require.Less(t, ipc.OwnTokens(), before+200)
	require.NoError(t, w.own.FreeNow(kept))
}
