package collectivetest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/engine"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/hostengine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestRowsWithAPitch: rows are moved whole, with their padding, and not to rows of another pitch.
func TestRowsWithAPitch(t *testing.T) {
	groups := collectivetest.Groups(t, 3)
	rows, others, sts := make([]*growable.Rows[float32], 3), make([]*growable.Rows[float32], 3), make([]*vmm.Stream, 3)
	for i, g := range groups {
		sts[i] = newStream(t, g.Device())
		for to, pitch := range map[*[]*growable.Rows[float32]]int{&rows: 64, &others: 64 << i} {
			r, err := growable.NewRows[float32](g.Device(), 3, growable.RowsOptions{MaxRows: 100, Pitch: pitch})
			require.NoError(t, err)
			t.Cleanup(func() { _ = r.Close() })
			(*to)[i] = r
		}
	}
	var want, got [][]float32
	for k := range 7 {
		want = append(want, []float32{float32(k), float32(k) + .5, -float32(k)})
		require.NoError(t, rows[2].Append(want[k]...))
	}
	rebalance := func(of []*growable.Rows[float32]) []error {
		return all(groups, func(i int, g *collective.Group) error { return g.Rebalance(t.Context(), sts[i], of[i]) })
	}
	require.NoError(t, errors.Join(rebalance(rows)...))
	for i, r := range rows {
		require.Equal(t, []int{3, 2, 2}[i], r.Len())
		for row, err := range r.All() {
			require.NoError(t, err)
			got = append(got, append([]float32(nil), row...))
		}
	}
	require.Equal(t, want, got)
	for _, err := range rebalance(others) {
		require.ErrorIs(t, err, collective.ErrMismatch)
	}
}

// killed is a member that is killed at one of its engine's calls.
type killed struct {
	*hostengine.Member
	mu      sync.Mutex
	left    int // calls before that
	kill    func()
	aborted chan struct{}
}

func (k *killed) step() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left--; k.left == 0 {
		k.kill()
		<-k.aborted
	}
}

func (k *killed) Run(st driver.Stream, memory []driver.Span, calls []nccl.Call) error {
	k.step()
	return k.Member.Run(st, memory, calls)
}

func (k *killed) Register(p vmm.Ptr, n uint64) (uint64, error) {
	k.step()
	return k.Member.Register(p, n)
}

func (k *killed) Abort() error {
	defer close(k.aborted)
	return k.Member.Abort()
}

// TestKillAtEachStep: whenever a member is killed while a call grows memory, the others get an
// error of that call or of Sync, and the devices can be in other groups.
func TestKillAtEachStep(t *testing.T) {
	const part = 900 << 10
	counts := []uint64{part, part, part}
	type member struct {
		*collective.Group
		ctx      context.Context
		st       *vmm.Stream
		dst, src *vmm.Range
	}
	for name, call := range map[string]func(m member) error{
		"AllGather": func(m member) error {
			_, err := m.AllGather(m.ctx, m.st, m.dst, collective.Part(m.src, 0, part))
			return err
		},
		"Exchange":   func(m member) error { _, err := m.Exchange(m.ctx, m.st, m.dst, m.src, counts); return err },
		"Gather":     func(m member) error { _, err := m.Gather(m.ctx, m.st, 1, m.dst, m.src); return err },
		"Scatter":    func(m member) error { _, err := m.Scatter(m.ctx, m.st, 1, m.dst, m.src, counts); return err },
		"AppendFrom": func(m member) error { _, err := m.AppendFrom(m.ctx, m.st, 1, m.dst, m.src); return err },
		"Rebalance":  func(m member) error { return m.Rebalance(m.ctx, m.st, m.dst) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			devs := []*vmm.Device{vmmtest.Device(t), vmmtest.Device(t), vmmtest.Device(t)}
			for step, again := 1, true; again; step++ {
				var members []member
				var groups []*collective.Group
				var victim *killed
				worlds := &hostengine.Worlds{Options: hostengine.Options{Report: t.Errorf}, Wrap: func(rank int, m *hostengine.Member) engine.Engine {
					if rank != 1 {
						return m
					}
					victim = &killed{Member: m, aborted: make(chan struct{})}
					return victim
				}}
				for i, dev := range devs {
					g, err := collectivetest.JoinOn(t.Context(), dev, collective.Options{Rank: i, Size: len(devs), Timeout: time.Minute}, worlds, nil)
					require.NoError(t, err)
					groups = append(groups, g)
					members = append(members, member{g, t.Context(), newStream(t, dev), newRange(t, dev, 100+100*i), newRange(t, dev, 3*part)})
					_, err = g.Register(t.Context(), members[i].dst, collective.RegisterOptions{})
					require.NoError(t, err)
				}
				var wg sync.WaitGroup
				victim.left = step
				again = false
				victim.kill = func() {
					again = true
					wg.Go(func() { _ = collectivetest.Kill(groups[1]) })
				}
				errs := all(groups, func(i int, g *collective.Group) error {
					was := members[i].dst.Len()
					if err := call(members[i]); err != nil {
						if now := members[i].dst.Len(); now != was {
							t.Errorf("%s, step %d: rank %d had %d bytes, and has %d", name, step, i, was, now)
						}
						return err
					}
					return g.Sync(t.Context(), members[i].st)
				})
				wg.Wait()
				for i, err := range errs {
					if again {
						require.Error(t, err, "%s, step %d, rank %d", name, step, i)
					} else {
						require.NoError(t, err, "%s, step %d, rank %d", name, step, i)
					}
					require.NoError(t, groups[i].Abort())
					require.Equal(t, groups[i].Stats().Registered, groups[i].Stats().Deregistered)
					require.NoError(t, errors.Join(members[i].dst.Close(), members[i].src.Close(), members[i].st.Close()))
				}
			}
		})
	}
}
