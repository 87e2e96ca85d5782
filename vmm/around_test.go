package vmm_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestRelieve: for a limit of the system, functions release memory as for a Lender. The Lender has not asked for it, so
// the lease stays.
func TestRelieve(t *testing.T) {
	l := &testBroker{refusal: errors.New("not asked")}
	d := leased(t, l)
	l.lease.Raise(8 * leaseUnit)
	g := growing(t, d)
	require.NoError(t, g.Grow(6*leaseUnit))
	var need *vmm.OpError
	stop := d.OnPressure(func(err error) bool {
		require.ErrorAs(t, err, &need)
		before := g.Cap()
		require.NoError(t, g.Clip())
		return g.Cap() < before
	})
	defer stop()
	soon := time.Now().Add(time.Minute)
	require.False(t, inside.VMM.Relieve(d, 6*leaseUnit, soon))
	require.Nil(t, need, "no more is created than that")
	require.False(t, inside.VMM.Relieve(d, 2*leaseUnit, soon))
	require.Equal(t, uint64(4*leaseUnit), need.Size)
	have, created, _ := l.lease.State()
	require.Equal(t, uint64(8*leaseUnit), have)
	require.Zero(t, created)

	require.Equal(t, uint64(math.MaxUint64), inside.VMM.SetAround(d, 4*leaseUnit, "dmem.max"))
	err := g.Grow(5 * leaseUnit)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, "part of dmem.max")
	require.Empty(t, l.asked, "a lease is of no use")
	require.Equal(t, uint64(4*leaseUnit), inside.VMM.SetAround(d, math.MaxUint64, ""))
	require.NoError(t, g.Grow(5*leaseUnit))
}
