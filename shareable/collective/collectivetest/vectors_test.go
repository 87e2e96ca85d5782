package collectivetest_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
)

// TestAllGatherOfVectors: members that have more and fewer elements collect those of all.
func TestAllGatherOfVectors(t *testing.T) {
	var wg sync.WaitGroup
	for _, g := range collectivetest.Groups(t, 3) {
		wg.Go(func() {
			if err := collect(t, g); err != nil {
				t.Errorf("rank %d: %v", g.Rank(), err)
			}
		})
	}
	wg.Wait()
}

// collect is what an application might do.
func collect(t *testing.T, g *collective.Group) error {
	v, err := growable.New[uint32](g.Device(), growable.Options{MaxLen: 100})
	if err != nil {
		return err
	}
	defer v.Close()
	st, err := g.Device().NewStream()
	if err != nil {
		return err
	}
	defer st.Close()
	for range g.Rank() {
		if err := v.Append(uint32(10 * g.Rank())); err != nil {
			return err
		}
	}
	lengths, err := g.AllGather(t.Context(), st, v, v)
	if err != nil {
		return err
	}
	require.Equal(t, []uint64{0, 4, 8}, lengths)
	if err := g.Sync(t.Context(), st); err != nil {
		return err
	}
	all := make([]uint32, v.Len())
	if _, err := v.ReadAt(all, 0); err != nil {
		return err
	}
	require.Equal(t, []uint32{10, 20, 20}, all[g.Rank():])
	return nil
}
