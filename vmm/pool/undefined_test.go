package pool_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestFreedBlocksAreDefined: what was undefined in a block says nothing of the next one there.
func TestFreedBlocksAreDefined(t *testing.T) {
	d := vmmtest.Device(t)
	s, err := d.NewStream()
	require.NoError(t, err)
	p, err := pool.New(d, pool.Options{})
	require.NoError(t, err)
	stopped := errors.New("a member is gone")
	for name, free := range map[string]func(pool.Block) error{
		"Free":    func(b pool.Block) error { return p.Free(s, b) },
		"FreeNow": p.FreeNow,
	} {
		for _, size := range []uint64{1000, 3 << 20} {
			b, err := p.Alloc(s, size)
			require.NoError(t, err)
			s.MarkUndefined(stopped, vmm.Span{Addr: b.Ptr(), Size: size})
			require.ErrorIs(t, s.Sync(), stopped, name)
			require.NoError(t, free(b))
			require.NoError(t, s.Sync(), name)
		}
	}
	require.NoError(t, errors.Join(s.Close(), p.Close()))
}
