package ipc_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// A value of before Resize made the block longer is a part of it, and exports no more.
func TestExportedBeforeResize(t *testing.T) {
	w := newBlockWorld(t, pool.Options{})
	b, err := w.own.Alloc(w.s, mib)
	require.NoError(t, err)
	longer, err := w.own.Resize(w.s, b, 3*mib)
	require.NoError(t, err)
	token, err := w.ex.Export(b)
	require.NoError(t, err)
	require.Equal(t, uint64(mib), token.Size())
	_, err = w.ex.Export(longer)
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.NoError(t, w.ex.Unexport(t.Context(), b))
	whole, err := w.ex.Export(longer)
	require.NoError(t, err)
	require.Equal(t, uint64(3*mib), whole.Size())
	again, err := w.ex.Export(b)
	require.NoError(t, err)
	require.Equal(t, whole, again)
	w.free(longer)
}

// Two exporters of a pool know nothing of each other: the block is free when both have ended.
func TestTwoExportersOfABlock(t *testing.T) {
	w := newBlockWorld(t, pool.Options{})
	other, err := ipc.NewExporter(w.srv, w.own)
	require.NoError(t, err)
	b, token := w.block(mib, 7)
	second, err := other.Export(b)
	require.NoError(t, err)
	require.NotEqual(t, token, second)
	i := w.imports(second)
	require.NoError(t, w.ex.Unexport(t.Context(), b))
	require.ErrorIs(t, w.own.FreeNow(b), vmm.ErrBusy)
	require.ErrorIs(t, other.Close(), vmm.ErrBusy)
	holds(t, w.devs[0], i.Ptr(), mib, 7)
	require.NoError(t, i.FreeNow())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, other.Unexport(ctx, b))
	require.NoError(t, other.Close())
	require.NoError(t, w.own.FreeNow(b))
}
