package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/engine"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/hostengine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// misuseEngine is an engine on which the cases of misuse run.
type misuseEngine struct {
	group func(t *testing.T, limit time.Duration, devs []*vmm.Device) misuseGroup
	// left is what a member gets that waits for one which has aborted or closed.
	left error
	// blind: it does not see that members make different calls of Do.
	blind bool
}

// misuseGroup is a group on such an engine.
type misuseGroup struct {
	groups []*Group
	// kill ends a member as if its process had ended, but not its calls; Abort of it follows.
	kill func(rank int)
	// waiting is how many calls have begun to wait for other members.
	waiting func() int
}

// misuseMember is a member, with memory: dst is empty, and a call that appends to it has to grow
// it; full has its maximum.
type misuseMember struct {
	*Group
	ctx                   context.Context
	st                    *vmm.Stream
	src, dst, fixed, full *vmm.Range
	all                   []*misuseMember
	waiting               func() int
}

const (
	misuseBytes = 64      // of src and fixed
	fullBytes   = 2 << 20 // a chunk
)

// misuse is one case: what each member does, at the same time, and the kind of error that it gets.
type misuse struct {
	do   []func(m *misuseMember) error
	want []error
	// goesOn: the group can be used afterwards. Else it has ended for all members that got an
	// error.
	goesOn bool
	// mismatch: members make different calls of Do.
	mismatch bool
	// texts are in the errors of an engine that sees mismatches.
	texts []string
	// dies is at which call of its engine member 1 dies; 0: it does not.
	dies int32
}

// Kinds of error: one that depends on the engine, and one that depends on who is first.
var (
	errEnded = errors.New("a member has aborted or closed")
	errAny   = errors.New("an error or none")
)

// kind is the error of this engine.
func (e misuseEngine) kind(want error) error {
	if errors.Is(want, errEnded) {
		return e.left
	}
	return want
}

// dying is the engine of a member that dies.
type dying struct {
	engine.Engine
	left    atomic.Int32 // calls before that
	die     func()
	aborted chan struct{}
}

func (d *dying) Run(st driver.Stream, memory []driver.Span, calls []nccl.Call) error {
	if d.left.Add(-1) == 0 {
		d.die()
		<-d.aborted
	}
	return d.Engine.Run(st, memory, calls)
}

func (d *dying) Abort() error {
	defer close(d.aborted)
	return d.Engine.Abort()
}

// runMisuse runs all cases on an engine.
func runMisuse(t *testing.T, e misuseEngine) {
	for name, c := range misuses() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.mismatch && e.blind {
				t.Skip("NCCL exchanges nothing before calls of Do: it waits, or some members get bytes that no member sent")
			}
			c.run(t, e)
		})
	}
}

func (c misuse) run(t *testing.T, e misuseEngine) {
	limit := time.Minute
	if slices.ContainsFunc(c.want, func(want error) bool { return errors.Is(e.kind(want), os.ErrDeadlineExceeded) }) {
		limit = 500 * time.Millisecond
	}
	var devs []*vmm.Device
	for range c.do {
		devs = append(devs, vmmtest.Device(t))
	}
	made := e.group(t, limit, devs)
	groups := made.groups
	members := make([]*misuseMember, len(groups))
	for i, g := range groups {
		members[i] = newMisuseMember(t, g, members)
		members[i].waiting = made.waiting
	}
	var killed sync.WaitGroup
	if c.dies > 0 {
		d := &dying{Engine: groups[1].e, aborted: make(chan struct{})}
		d.die = func() {
			made.kill(1)
			killed.Go(func() { _ = groups[1].Abort() })
		}
		d.left.Store(c.dies)
		groups[1].e = d
	}
	errs := make([]error, len(members))
	together(groups, func(g *Group) error {
		errs[g.rank] = c.do[g.rank](members[g.rank])
		return nil
	})
	killed.Wait()
	for rank, err := range errs {
		switch want := e.kind(c.want[rank]); {
		case want == nil:
			require.NoError(t, err, "rank %d", rank)
		case !errors.Is(want, errAny):
			require.ErrorIs(t, err, want, "rank %d", rank)
			for _, text := range c.texts {
				require.ErrorContains(t, err, text, "rank %d", rank)
			}
		}
		if c.goesOn {
			require.NoError(t, groups[rank].Err(), "rank %d", rank)
		} else if err != nil {
			require.Error(t, groups[rank].Err(), "rank %d", rank)
		}
		require.EqualValues(t, misuseBytes, members[rank].fixed.Len())
	}
	if c.goesOn {
		require.NoError(t, errors.Join(together(groups, func(g *Group) error { return members[g.rank].works() })...))
	}
	for _, m := range members { // and with that the streams and the memory are free
		require.NoError(t, m.Abort())
	}
	for _, m := range members {
		require.NoError(t, errors.Join(m.st.Sync(), m.st.Close(), m.src.Close(), m.dst.Close(), m.fixed.Close(), m.full.Close()))
	}
}

func newMisuseMember(t *testing.T, g *Group, all []*misuseMember) *misuseMember {
	t.Helper()
	m := &misuseMember{Group: g, ctx: t.Context(), all: all}
	var err error
	m.st, err = g.Device().NewStream()
	require.NoError(t, err)
	for r, n := range map[**vmm.Range]int{&m.src: misuseBytes, &m.dst: 0, &m.fixed: misuseBytes, &m.full: fullBytes} {
		*r, err = g.Device().NewRange(vmm.RangeOptions{Max: fullBytes})
		require.NoError(t, err)
		require.NoError(t, (*r).Append(bytes.Repeat([]byte{byte(g.rank + 1)}, n)))
	}
	return m
}

// run makes a call of Do and waits for it.
func (m *misuseMember) run(ops ...Op) error {
	if err := m.Do(m.ctx, m.st, ops...); err != nil {
		return err
	}
	return m.Sync(m.ctx, m.st)
}

// grow makes a call that grows dst and waits for it. If the call fails, dst is as before.
func (m *misuseMember) grow(call func() error) error {
	was := m.dst.Len()
	if err := call(); err != nil {
		if now := m.dst.Len(); now != was {
			return fmt.Errorf("dst had %d bytes and has %d after: %w", was, now, errors.New(err.Error()))
		}
		return err
	}
	return m.Sync(m.ctx, m.st)
}

func (m *misuseMember) gatherAll(dst, src Memory) error {
	return m.grow(func() error { _, err := m.AllGather(m.ctx, m.st, dst, src); return err })
}

// works is a call that must work, with its result.
func (m *misuseMember) works() error {
	if err := m.run(AllReduce(m.src, m.src, Uint8, Sum)); err != nil {
		return err
	}
	b, n := make([]byte, misuseBytes), len(m.all)
	if err := m.Device().CopyOut(b, m.src.Ptr()); err != nil {
		return err
	}
	if want := bytes.Repeat([]byte{byte(n * (n + 1) / 2)}, misuseBytes); !bytes.Equal(b, want) {
		return fmt.Errorf("rank %d: %v after all, not %v", m.rank, b, want)
	}
	return nil
}

// untilWaiting returns once n calls wait for other members.
func (m *misuseMember) untilWaiting(n int) {
	for m.waiting() < n && m.ctx.Err() == nil {
		runtime.Gosched()
	}
}

// afterOthers returns once all others wait in a call.
func (m *misuseMember) afterOthers() { m.untilWaiting(len(m.all) - 1) }

// together runs f for each member at once.
func together(groups []*Group, f func(*Group) error) []error {
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() { errs[i] = f(g) })
	}
	wg.Wait()
	return errs
}

// begun runs f in a goroutine.
func begun(f func() error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	return ended
}

// TestMisuseOnHostMemory: the engine sees all that members do wrong.
func TestMisuseOnHostMemory(t *testing.T) {
	t.Parallel()
	e := misuseEngine{left: ErrPeerGone}
	e.group = func(t *testing.T, limit time.Duration, devs []*vmm.Device) misuseGroup {
		var groups []*Group
		worlds := &hostengine.Worlds{Options: hostengine.Options{Report: t.Errorf}}
		for rank, dev := range devs {
			g, err := forTests{}.JoinOn(t.Context(), dev, Options{Rank: rank, Size: len(devs), Timeout: limit}, worlds, nil)
			require.NoError(t, err)
			groups = append(groups, g)
		}
		return misuseGroup{groups: groups, kill: func(int) {}, waiting: func() (n int) {
			for _, g := range groups {
				n += min(int(g.Stats().Calls), 1)
			}
			return n
		}}
	}
	runMisuse(t, e)
}
