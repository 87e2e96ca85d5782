package pool_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestGrant: a device with access allocates in its own streams, also memory that is mapped
// later; without it, it cannot.
func TestGrant(t *testing.T) {
	w := newWorld(t, 3, 16*mib)
	owner, peer, other := w.devs[0], w.devs[1], w.devs[2]
	p, s, theirs, others := w.pool(pool.Options{}), w.stream(0), w.stream(1), w.stream(2)
	early := alloc(t, p, s, 100)
	_, err := p.Alloc(theirs, 100)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, p.Grant(vmm.AccessReadWrite, peer))
	for d, want := range map[*vmm.Device]vmm.Access{owner: vmm.AccessReadWrite, peer: vmm.AccessReadWrite, other: vmm.AccessNone} {
		a, err := p.Access(d)
		require.NoError(t, err)
		require.Equal(t, want, a)
	}
	for _, n := range []uint64{100, 70 * kib, 9 * chunk} {
		b := alloc(t, p, theirs, n)
		require.NoError(t, theirs.Fill(b.Ptr(), 7, 1, n))
		require.NoError(t, theirs.Fill(early.Ptr(), 7, 1, 100))
		require.NoError(t, theirs.Sync())
		got := make([]byte, 1)
		require.NoError(t, owner.CopyOut(got, b.Ptr()+vmm.Ptr(n-1)))
		require.EqualValues(t, 7, got[0])
		require.ErrorIs(t, other.CopyOut(got, b.Ptr()), vmm.ErrPermission)
		require.NoError(t, p.Free(theirs, b))
		_, err = p.Alloc(others, n)
		require.ErrorIs(t, err, vmm.ErrInvalid)
	}
	require.NoError(t, pool.Check(p))
	require.NoError(t, p.Free(theirs, early))
	closeAll(t, s, theirs, others, p)
	w.end()
}

// TestRevoke: streams of the device return ErrInvalid from then on, what it has allocated can
// be freed by others, and it may get access again.
func TestRevoke(t *testing.T) {
	w := newWorld(t, 2, 16*mib)
	peer := w.devs[1]
	p, s, theirs := w.pool(pool.Options{}), w.stream(0), w.stream(1)
	require.NoError(t, p.Grant(vmm.AccessRead, peer))
	all := blocks(t, p, theirs)
	require.NoError(t, p.Revoke(peer))
	a, err := p.Access(peer)
	require.NoError(t, err)
	require.Equal(t, vmm.AccessNone, a)
	for _, b := range all {
		unchanged(t, p, func() {
			_, err := p.Alloc(theirs, b.Size())
			require.ErrorIs(t, err, vmm.ErrInvalid)
			require.ErrorIs(t, p.Free(theirs, b), vmm.ErrInvalid)
			_, err = p.Resize(theirs, b, 1)
			require.ErrorIs(t, err, vmm.ErrInvalid)
		})
		require.NoError(t, p.Free(s, b))
	}
	require.ErrorIs(t, p.Revoke(w.devs[0]), vmm.ErrInvalid, "the owner")
	_, err = p.Access(w.devs[0])
	require.NoError(t, err)
	require.NoError(t, p.Free(s, alloc(t, p, s, 100)))
	require.NoError(t, p.Grant(vmm.AccessReadWrite, peer))
	require.NoError(t, p.Free(theirs, alloc(t, p, theirs, 100)))
	closeAll(t, s, theirs, p)
	w.end()
}

// TestRevokeWaits for work that uses blocks.
func TestRevokeWaits(t *testing.T) {
	w := newWorld(t, 2, 16*mib)
	p, theirs, g := w.pool(pool.Options{}), w.stream(1), w.gates(1)
	require.NoError(t, p.Grant(vmm.AccessReadWrite, w.devs[1]))
	b := alloc(t, p, theirs, 5*chunk)
	open := g.hold(theirs)
	require.NoError(t, theirs.Fill(b.Ptr(), 1, 1, b.Size()))
	revoked := make(chan error, 1)
	go func() { revoked <- p.Revoke(w.devs[1]) }()
	require.Empty(t, revoked)
	open()
	require.NoError(t, <-revoked)
	require.NoError(t, theirs.Sync(), "the work was waited for")
	require.NoError(t, p.FreeNow(b))
	closeAll(t, theirs, p)
	w.end()
}

func TestGrantsThatCannotBe(t *testing.T) {
	w, x := newWorld(t, 2, 16*mib), newWorld(t, 1, 16*mib)
	p := w.pool(pool.Options{})
	unchanged(t, p, func() {
		require.ErrorIs(t, p.Grant(vmm.AccessReadWrite, nil), vmm.ErrInvalid)
		require.ErrorIs(t, p.Grant(vmm.AccessReadWrite, x.devs[0]), vmm.ErrInvalid)
		require.ErrorIs(t, p.Grant(200, w.devs[1]), vmm.ErrInvalid)
		require.ErrorIs(t, p.Revoke(w.devs[1], nil), vmm.ErrInvalid)
		require.ErrorIs(t, p.Revoke(w.devs[1], w.devs[0]), vmm.ErrInvalid)
	})
	a, err := p.Access(w.devs[1])
	require.NoError(t, err)
	require.Equal(t, vmm.AccessNone, a)
	closeAll(t, p)
	w.end()
	x.end()
}

// TestEnablePeers takes pools: access that is given and taken by way of the reservation
// counts, also for streams that the pool knows.
func TestEnablePeers(t *testing.T) {
	w := newWorld(t, 2, 16*mib)
	p, s, theirs := w.pool(pool.Options{}), w.stream(0), w.stream(1)
	r, err := w.devs[0].Alloc(chunk)
	require.NoError(t, err)
	_, err = p.Alloc(theirs, 100)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	early := alloc(t, p, s, 100)
	plan, err := vmm.PlanPeers(vmm.AccessReadWrite, w.devs, p, r)
	require.NoError(t, err)
	require.NoError(t, plan.Err())
	require.NoError(t, vmm.EnablePeers(vmm.AccessReadWrite, w.devs, p, r))
	require.NoError(t, theirs.Fill(early.Ptr(), 1, 1, 100))
	b := alloc(t, p, theirs, 5*chunk)
	require.NoError(t, theirs.Fill(b.Ptr(), 1, 1, b.Size()), "memory that was mapped later")
	require.NoError(t, p.Free(theirs, b))
	require.NoError(t, theirs.Sync())
	require.NoError(t, p.Reservation().Revoke(w.devs[1]))
	for _, n := range []uint64{100, 5 * chunk} {
		_, err = p.Alloc(theirs, n)
		require.ErrorIs(t, err, vmm.ErrInvalid)
	}
	require.NoError(t, p.Free(s, early))
	closeAll(t, r, s, theirs, p)
	w.end()
}
