package store

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// counted is what several members of this process have together. Each has a driver of its own.
type counted struct {
	t       *testing.T
	path    string
	bytes   atomic.Int64
	most    atomic.Int64
	refused int
}

// countedMember is one of them.
type countedMember struct {
	*counted
	name string
	dev  *vmm.Device
	m    *budget.Member
	g    *vmm.Range
	stop func()
}

// join makes a member, which gives what it has.
func (c *counted) join(name string, least uint64) *countedMember {
	c.t.Helper()
	drv := drivertest.Inject(host.New(host.Config{}), func(call drivertest.Call) error {
		switch call.Name {
		case "Create":
			for n, most := c.bytes.Add(budgetChunk), c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
			}
		case "Release":
			c.bytes.Add(-budgetChunk)
		}
		return nil
	})
	x := &countedMember{counted: c, name: name}
	var err error
	x.dev, err = vmm.OpenDriver(drv, 0)
	require.NoError(c.t, err)
	x.g, err = x.dev.NewRange(vmm.RangeOptions{Max: 64 * budgetChunk, Chunk: budgetChunk})
	require.NoError(c.t, err)
	x.stop = x.dev.OnPressure(func(need error) bool {
		var e *vmm.OpError
		had := x.g.Cap()
		if !errors.As(need, &e) || e.Op != "give" || had == 0 {
			return false
		}
		return x.g.SetLen(0) == nil && x.g.Grow(had-min(had, e.Size)) == nil && x.g.SetLen(had-min(had, e.Size)) == nil && x.g.Clip() == nil && x.g.Cap() < had
	})
	x.retry(func() (err error) {
		x.m, err = budget.Join(c.t.Context(), c.path, x.dev, budget.JoinOptions{Name: name, Least: least})
		return err
	})
	return x
}

// await waits until f has nothing to say against it.
func await(t *testing.T, f func() (why string)) {
	t.Helper()
	var why atomic.Value
	if !assert.Eventually(t, func() bool { why.Store(f()); return why.Load() == "" }, inTime, step) {
		t.Fatal(why.Load())
	}
}

// retry does what may be refused while a server takes the place of another.
func (c *counted) retry(f func() error) {
	c.t.Helper()
	await(c.t, func() string {
		err := f()
		if err == nil {
			return ""
		}
		c.refused++
		require.ErrorIs(c.t, err, vmm.ErrOutOfMemory)
		return err.Error()
	})
}

// grow has a member come to so many chunks.
func (x *countedMember) grow(chunks uint64) {
	x.t.Helper()
	x.retry(func() error { return x.g.Grow(chunks*budgetChunk - x.g.Len()) })
	require.NoError(x.t, x.g.SetLen(chunks*budgetChunk))
}

// leave closes all that a member has.
func (x *countedMember) leave() {
	x.t.Helper()
	x.stop()
	require.NoError(x.t, x.g.Close())
	require.NoError(x.t, x.m.Close())
	require.NoError(x.t, x.dev.Close())
}

// agrees waits until the server has the leases that members have.
func (c *counted) agrees(all ...*countedMember) {
	c.t.Helper()
	await(c.t, func() string {
		rs, err := budget.Reports(c.t.Context(), c.path, testDevice(c.t), shareable.AttachOptions{})
		if err != nil || len(rs) != 1 || len(othersOf(rs[0])) != len(all) {
			return fmt.Sprintf("%+v, %v", rs, err)
		}
		sum, same := rs[0].Idle, true
		var has []uint64
		for _, x := range all {
			lease := x.m.Stats().Lease
			has = append(has, lease)
			sum += lease
			known := slices.IndexFunc(rs[0].Members, func(m budget.MemberReport) bool { return m.Name == x.name })
			same = same && known >= 0 && lease == rs[0].Members[known].Lease
		}
		if same && sum == rs[0].Budget {
			return ""
		}
		return fmt.Sprintf("members have %v, and the server knows %+v", has, rs[0])
	})
}

// has waits until members have no more than this together.
func (c *counted) has(most uint64, all ...*countedMember) {
	c.t.Helper()
	await(c.t, func() string {
		sum := uint64(0)
		for _, x := range all {
			sum += x.m.Stats().Lease
		}
		if sum <= most {
			return ""
		}
		return fmt.Sprintf("%d bytes of %d", sum, most)
	})
}

// handOver has a give to b, and changes what each may have.
func (c *counted) handOver(bytes uint64) (a, b *countedMember) {
	c.t.Helper()
	a = c.join("a", 2*budgetChunk)
	a.grow(12)
	b = c.join("b", 0)
	b.grow(6)
	c.agrees(a, b)
	change := func(q budget.Change) {
		require.NoError(c.t, budget.SetTerms(c.t.Context(), c.path, testDevice(c.t), q, shareable.AttachOptions{}))
	}
	less, most := bytes-4*budgetChunk, uint64(4*budgetChunk)
	change(budget.Change{Budget: &less})
	c.has(less, a, b)
	c.agrees(a, b)
	change(budget.Change{Member: "b", Most: &most})
	c.has(most, b)
	c.agrees(a, b)
	change(budget.Change{Budget: &bytes})
	a.grow(10)
	c.agrees(a, b)
	return a, b
}

// TestBudgetKeeperDies: without a server members grow within their leases, and they are members of the next one with
// what they have.
func TestBudgetKeeperDies(t *testing.T) {
	if withCUDA {
		t.Skip("each member has a driver of its own")
	}
	t.Parallel()
	const bytes = 16 * budgetChunk
	c := &counted{t: t, path: socketAt(t)}
	k := budgetKeeper(t, c.path, bytes)
	a, b := c.join("a", 8*budgetChunk), c.join("b", 0)
	a.grow(6)
	b.grow(7)
	c.agrees(a, b)
	k.kill()
	await(t, func() string {
		if a.m.Stats().Err == nil || b.m.Stats().Err == nil {
			return "a member has not seen that the server has ended"
		}
		return ""
	})
	a.grow(8)
	err := b.g.Grow(2 * budgetChunk)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, "no broker replies")
	k = budgetKeeper(t, c.path, bytes)
	b.grow(8)
	c.agrees(a, b)
	err = b.g.Grow(budgetChunk)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.NotContains(t, err.Error(), "no broker")
	require.EqualValues(t, bytes, c.most.Load())
	a.leave()
	b.leave()
	isUnused(t, c.path, bytes)
	k.ask("close")
}

// TestBudgetServerDiesAtEachStep: at whichever step of a hand-over the server dies, the hand-over is completed with
// the next one, the budget is not passed, the leases are those that members have, and nothing is left.
func TestBudgetServerDiesAtEachStep(t *testing.T) {
	if withCUDA {
		t.Skip("each member has a driver of its own")
	}
	t.Parallel()
	const bytes = 16 * budgetChunk
	const ownSteps = 3 // of the server's own JOIN: a first server that dies there has not begun
	refused := 0
	for step := 1 + ownSteps; ; step += testgate.Effort(61, 5, 1) {
		c := &counted{t: t, path: socketAt(t)}
		k := budgetKeeper(t, c.path, bytes, strconv.Itoa(step))
		first := k.ask("pid")
		a, b := c.handOver(bytes)
		was := k.ask("pid")
		a.leave()
		b.leave()
		await(t, func() string {
			all, err := budget.Reports(t.Context(), c.path, testDevice(t), shareable.AttachOptions{})
			if err == nil && all[0].Idle == bytes || k.ask("pid") != was { // then it may not know of a LEAVE
				return ""
			}
			return fmt.Sprintf("%+v, %v", all, err)
		})
		died := k.ask("pid") != first
		k.ask("close")
		if t.Failed() {
			t.Fatalf("step %d", step)
		}
		refused += c.refused
		require.LessOrEqual(t, c.most.Load(), int64(bytes))
		require.Zero(t, c.bytes.Load())
		if !died {
			t.Logf("%d steps, %d growths refused", step-1, refused)
			return
		}
	}
}

// TestBudgetLeaveAsTheServerDies: the next server does not go on with a member that has left meanwhile.
func TestBudgetLeaveAsTheServerDies(t *testing.T) {
	if withCUDA {
		t.Skip("each member has a driver of its own")
	}
	t.Parallel()
	const bytes = 16 * budgetChunk
	c := &counted{t: t, path: socketAt(t)}
	k := budgetKeeper(t, c.path, bytes)
	for range testgate.Effort(2, 5, 50) {
		x := c.join("a", 8*budgetChunk)
		k.ask("kill")
		x.leave()
		isUnused(t, c.path, bytes)
	}
	k.ask("close")
}
