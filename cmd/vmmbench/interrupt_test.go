package main

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// A signal that comes during the n-th call of the device lets that call end,
// and no other of its kind is made.
func TestInterruptWithinASample(t *testing.T) {
	growths := newGrowPlan()
	growths.targets, growths.step = []uint64{32 << 10}, 1<<10
	growths.mems.values = []string{memPlain}
	blocks := *growths // its data are several blocks of verify
	blocks.targets, blocks.step = []uint64{8 << 20}, 4<<20
	copies := newBWPlan()
	copies.sizes = []uint64{8 << 20}
	copies.mems.values = []string{memPlain}
	copies.directions.values = []string{d2h}
	copies.hosts.values = []string{pageable}
	upward := *copies
	upward.directions.values = []string{h2d}

	for _, c := range []struct {
		name, call string
		n          int64
		plan       plan
		samples    int
	}{
		{"in the warm-up of a growth", "AllocPlain", 3, growths, 0},
		{"in the first sample of a growth", "AllocPlain", 32 + 3, growths, 0},
		{"in the second sample of a growth", "AllocPlain", 64 + 3, growths, 1},
		{"while a growth is verified", "AllocPlain", 96 + 3, growths, 2},
		{"while a growth is read back", "CopyOut", 3, &blocks, 2},
		{"while a buffer is filled", "CopyIn", 3, copies, 2},
		{"in the warm-up of a copy", "CopyOut", 1, copies, 0},
		{"while a copy is verified", "CopyOut", 4, copies, 2},
		{"while a copy is read back", "CopyOut", 3, &upward, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var calls atomic.Int64
			dev := hookedDevice(t, func(call drivertest.Call) error {
				if call.Name == c.call && calls.Add(1) == c.n {
					cancel()
				}
				return nil
			})
			s := newRunner()
			s.run(ctx, t, dev, c.plan)
			// Blocks are read and written by as many goroutines as there are processors.
			require.LessOrEqual(t, calls.Load(), c.n+int64(runtime.GOMAXPROCS(0))+1)
			require.GreaterOrEqual(t, calls.Load(), c.n)
			require.Len(t, s.report.Cases, 1)
			got := s.report.Cases[0]
			require.Equal(t, report.Interrupted, got.Status, got.Reason)
			require.Contains(t, string(got.Reason), "interrupted: ")
			require.Len(t, got.Samples, c.samples)
		})
	}
}

// What is done in host memory calls no device, and sees the signal all the same.
func TestInterruptWhileHostMemoryIsWritten(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := &buffer{host: make([]byte, 2*verify.Block), size: 2 * verify.Block}
	require.ErrorIs(t, b.fill(ctx, verify.Pattern{Seed: 1}), context.Canceled)
	require.ErrorIs(t, b.poison(ctx), context.Canceled)
	require.Equal(t, make([]byte, len(b.host)), b.host)
	_, err := verify.Pattern{}.Check(ctx, verify.Full, b.size, b.chunks, b.view)
	require.ErrorIs(t, err, context.Canceled)
}

// TestEachGrowthHasItsOwnData: a contender that writes nothing, and gets the memory of the one
// before it, does not pass.
func TestEachGrowthHasItsOwnData(t *testing.T) {
	for _, write := range []string{onDevice, upload} {
		p := newGrowPlan()
		p.targets, p.step = []uint64{1 << 20}, 256<<10
		p.mems.values, p.writes.values = []string{memVMM, memPlain}, []string{write}
		dev := hookedDevice(t, nil)
		groups, err := p.groups([]device{dev}, 1)
		require.NoError(t, err)
		undo, err := groups[0].setup(t.Context())
		require.NoError(t, err)
		var left []byte // what the last one wrote
		check := func(i int, full bool) uint64 {
			c, err := groups[0].tasks[i].open(t.Context())
			require.NoError(t, err)
			g := c.(*growth)
			g.start = func() (*grower, error) {
				if full {
					left = nil
				}
				return staleGrower(&left, !full), nil
			}
			r, err := g.verify(t.Context(), verify.Full, -1)
			require.NoError(t, err)
			require.NoError(t, c.close())
			return r.Errors
		}
		require.Zero(t, check(0, true))
		require.NotZero(t, check(1, false), write)
		require.Zero(t, check(1, true))
		require.NoError(t, undo())
	}
}

// brokenOff is a contender whose check found a wrong byte before the signal.
type brokenOff struct{ contender }

func (brokenOff) verify(context.Context, verify.Mode, int64) (verify.Result, error) {
	return verify.Result{Mode: verify.Full, Bytes: 8, Errors: 1, FirstBad: &verify.Bad{Offset: 5}}, context.Canceled
}

func TestInterruptDoesNotHideWrongData(t *testing.T) {
	s, c := newRunner(), report.Case{}
	s.finishCase(t.Context(), group{}, &c, brokenOff{}, measure.Outcome{}, verify.Full)
	require.Equal(t, report.Failed, c.Status)
	require.Equal(t, uint64(1), c.Verify.Errors)
	s.report.Cases = append(s.report.Cases, c, report.Case{Status: report.Interrupted})
	s.report.Run.Interrupted = true
	require.Equal(t, report.ExitMismatch, s.report.Exit())
}

// staleGrower shows the data of an earlier growth if it is full: it does not write.
func staleGrower(b *[]byte, full bool) *grower {
	g := &grower{buffer: buffer{host: *b, free: noUndo}}
	g.more = func(piece *buffer) error {
		if !full {
			*b = append(*b, piece.host...)
			g.host = *b
		}
		return nil
	}
	return g
}

func TestStaleGrowthIsFound(t *testing.T) {
	var left []byte
	g := &growth{
		dev:    hookedDevice(t, nil),
		start:  func() (*grower, error) { return staleGrower(&left, len(left) > 0), nil },
		ready:  func(context.Context) {},
		target: 1 << 10, step: 64, write: upload, pattern: verify.Pattern{Seed: 1},
	}
	_, err := g.measure(t.Context(), 1)
	require.NoError(t, err)
	require.Len(t, left, 1<<10)
	r, err := g.verify(t.Context(), verify.Full, -1)
	require.NoError(t, err)
	require.NotZero(t, r.Errors, "what the sample wrote is not what verify asked for")
}
