package vmm_test

import (
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// testBroker lends what idle has, and with urgent what others have.
type testBroker struct {
	lease        door.Lease
	idle, others uint64
	asked        []bool // urgent
	near         atomic.Int64
	refusal      error
	raised       func() // called after a raise
}

func (l *testBroker) Borrow(need uint64, urgent bool, _ time.Time) error {
	l.asked = append(l.asked, urgent)
	have, _, _ := l.lease.State()
	if urgent {
		l.idle, l.others = l.idle+l.others, 0
	}
	if more := need - have; more <= l.idle {
		l.idle -= more
		l.lease.Raise(more)
		if l.raised != nil {
			l.raised()
		}
		return nil
	}
	return l.refusal
}

func (l *testBroker) Near() { l.near.Add(1) }

func leased(t *testing.T, l *testBroker) *vmm.Device {
	t.Helper()
	d := newWorld(t, 1).devs[0]
	var err error
	l.lease, err = inside.VMM.Lend(d, l)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.lease.End()) })
	return d
}

const leaseUnit = page

func growing(t *testing.T, d *vmm.Device) *vmm.Range {
	t.Helper()
	g := newRange(t, d, vmm.RangeOptions{Max: 64 * leaseUnit, Chunk: leaseUnit})
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return g
}

// TestLeaseOrder: an operation that its lease is too short for asks for what is idle, calls functions of
// OnPressure, and then has others asked, in this order. No more than it gets can be created.
func TestLeaseOrder(t *testing.T) {
	l := &testBroker{idle: 2 * leaseUnit, others: leaseUnit, refusal: errors.New("worker b gave nothing")}
	d := leased(t, l)
	g, own := growing(t, d), growing(t, d)
	require.NoError(t, own.Grow(leaseUnit))
	require.NoError(t, g.Grow(leaseUnit))
	require.Equal(t, []bool{false, false}, l.asked, "what is idle comes first")
	var called int
	stop := d.OnPressure(func(need error) bool {
		called++
		require.Equal(t, []bool{false}, l.asked)
		require.ErrorIs(t, need, vmm.ErrOutOfMemory)
		before := own.Cap()
		require.NoError(t, own.Clip())
		return own.Cap() < before
	})
	defer stop()
	l.asked = nil
	require.NoError(t, g.Grow(2*leaseUnit), "the function has given its own range's")
	require.Equal(t, 1, called)
	require.Equal(t, []bool{false}, l.asked)
	l.asked = nil
	require.NoError(t, g.Grow(3*leaseUnit))
	require.Equal(t, []bool{false, true}, l.asked, "others come last")
	l.asked = nil
	err := g.Grow(4 * leaseUnit)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, "lease")
	require.ErrorContains(t, err, "worker b gave nothing")
	have, created, limit := l.lease.State()
	require.Equal(t, uint64(3*leaseUnit), have)
	require.Equal(t, have, created)
	require.Equal(t, uint64(math.MaxUint64), limit)
}

// TestLeaseIsKeptForWhoAsked: a demand between a grant and its use does not get the grant; it gets the rest.
func TestLeaseIsKeptForWhoAsked(t *testing.T) {
	l := &testBroker{idle: 8 * leaseUnit}
	d := leased(t, l)
	l.raised = func() {
		l.lease.Raise(leaseUnit)
		require.Equal(t, uint64(leaseUnit), l.lease.DropCached(0))
		_, busy := l.lease.Give(0, time.Time{})
		require.True(t, busy)
	}
	g := growing(t, d)
	require.NoError(t, g.Grow(3*leaseUnit))
	have, created, _ := l.lease.State()
	require.Equal(t, have, created)
	l.raised = nil
	require.ErrorIs(t, g.Grow(20*leaseUnit), vmm.ErrOutOfMemory)
	l.lease.Raise(leaseUnit)
	require.Equal(t, uint64(leaseUnit), l.lease.DropCached(0), "nothing is kept for an operation that is over")
}

// TestLeaseNear: the lender hears of it when 7/8 are created, and not before.
func TestLeaseNear(t *testing.T) {
	l := &testBroker{}
	d := leased(t, l)
	l.lease.Raise(16 * leaseUnit)
	g := growing(t, d)
	require.NoError(t, g.Grow(14*leaseUnit))
	require.Zero(t, l.near.Load())
	require.NoError(t, g.Grow(15*leaseUnit))
	require.NotZero(t, l.near.Load())
}

// TestLeaseBesideLimit: the least of both counts, and only the limit is the most there can be.
func TestLeaseBesideLimit(t *testing.T) {
	l := &testBroker{idle: 8 * leaseUnit}
	d := leased(t, l)
	d.SetLimit(4 * leaseUnit)
	g := growing(t, d)
	require.NoError(t, g.Grow(4*leaseUnit))
	asked := len(l.asked)
	err := g.Grow(5 * leaseUnit)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, "more than there can be")
	require.Len(t, l.asked, asked, "no one is asked for what the limit excludes")
}

// TestGive: a demand gets what is idle, then what is cached, and then what functions of OnPressure release, and the
// lease is never below what is created.
func TestGive(t *testing.T) {
	l := &testBroker{}
	d := leased(t, l)
	l.lease.Raise(8 * leaseUnit)
	d.SetReleaseThreshold(8 * leaseUnit)
	g, cached := growing(t, d), growing(t, d)
	require.NoError(t, g.Grow(4*leaseUnit))
	require.NoError(t, cached.Grow(2*leaseUnit))
	require.NoError(t, cached.Clip())
	require.Equal(t, uint64(2*leaseUnit), d.Stats().Cached)

	require.Equal(t, uint64(leaseUnit), l.lease.DropCached(7*leaseUnit))
	require.Equal(t, uint64(2*leaseUnit), l.lease.DropCached(5*leaseUnit), "one is cached still")
	require.Equal(t, uint64(leaseUnit), d.Stats().Cached, "no more is released than is asked for")
	given, busy := l.lease.Give(2*leaseUnit, time.Now().Add(time.Minute))
	require.False(t, busy)
	require.Equal(t, uint64(leaseUnit), given, "no one releases what is used")
	var need *vmm.OpError
	stop := d.OnPressure(func(err error) bool {
		require.ErrorAs(t, err, &need)
		before := g.Cap()
		require.NoError(t, g.Clip())
		require.ErrorIs(t, l.lease.End(), vmm.ErrBusy, "a lease does not end in a function")
		return g.Cap() < before
	})
	defer stop()
	given, _ = l.lease.Give(2*leaseUnit, time.Now().Add(time.Minute))
	require.Equal(t, uint64(2*leaseUnit), given)
	require.Equal(t, uint64(2*leaseUnit), need.Size)
	require.Equal(t, "give", need.Op)
	have, created, _ := l.lease.State()
	require.Equal(t, uint64(2*leaseUnit), have)
	require.Equal(t, have, created, "no more has left the cache than the demand was for")
}

// TestGiveWaitsForRetired: memory that a function has given up counts once the work that uses it has ended.
func TestGiveWaitsForRetired(t *testing.T) {
	l := &testBroker{}
	d := leased(t, l)
	l.lease.Raise(4 * leaseUnit)
	g := growing(t, d)
	require.NoError(t, g.Grow(4*leaseUnit))
	s := stream(t, d)
	require.NoError(t, g.UsedBy(s))
	release := work(t, d, s.Raw(), g.Ptr())
	stop := d.OnPressure(func(error) bool {
		before := g.Cap()
		require.NoError(t, g.Clip())
		go release()
		return g.Cap() < before
	})
	defer stop()
	given, busy := l.lease.Give(0, time.Now().Add(time.Minute))
	require.False(t, busy)
	require.Equal(t, uint64(4*leaseUnit), given)
}

// TestGiveBesideAnOperation: a demand whose time is up before an operation of the process gives the turn back. What is
// idle is given all the same.
func TestGiveBesideAnOperation(t *testing.T) {
	l := &testBroker{}
	d := leased(t, l)
	l.lease.Raise(2 * leaseUnit)
	g := growing(t, d)
	require.NoError(t, g.Grow(leaseUnit))
	stop := d.OnPressure(func(error) bool {
		done := make(chan struct{})
		go func() {
			defer close(done)
			given, busy := l.lease.Give(0, time.Time{})
			require.True(t, busy)
			require.Equal(t, uint64(leaseUnit), given)
		}()
		<-done
		return false
	})
	defer stop()
	require.ErrorIs(t, g.Grow(3*leaseUnit), vmm.ErrOutOfMemory)
}

// TestTwoLeases: a device has one, until that has ended.
func TestTwoLeases(t *testing.T) {
	l := &testBroker{}
	d := newWorld(t, 1).devs[0]
	lease, err := inside.VMM.Lend(d, l)
	require.NoError(t, err)
	_, err = inside.VMM.Lend(d, l)
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.ErrorIs(t, d.Close(), vmm.ErrBusy)
	require.NoError(t, lease.End())
	lease, err = inside.VMM.Lend(d, l)
	require.NoError(t, err)
	require.NoError(t, lease.End())
	g := growing(t, d)
	require.NoError(t, g.Grow(leaseUnit), "without a lease there is no bound")
}

// TestLeaseOfWake: a Wake that creates several chunks asks for all of them at once. It has none once it has failed, so by
// the one that failed it would ask for too little again and again.
func TestLeaseOfWake(t *testing.T) {
	l := &testBroker{idle: 4 * leaseUnit, refusal: errors.New("worker b gave nothing")}
	d := leased(t, l)
	g := growing(t, d)
	require.NoError(t, g.Grow(4*leaseUnit))
	require.NoError(t, vmm.Sleep(vmm.SleepDrop, g))
	l.lease.DropCached(leaseUnit)
	l.idle, l.others, l.asked = leaseUnit, 0, nil
	err := vmm.Wake(g)
	require.ErrorIs(t, err, l.refusal)
	require.Equal(t, []bool{false, true}, l.asked, "what is idle, then others, once each")
	l.others, l.asked = 2*leaseUnit, nil
	require.NoError(t, vmm.Wake(g))
	require.Equal(t, []bool{false, true}, l.asked)
}
