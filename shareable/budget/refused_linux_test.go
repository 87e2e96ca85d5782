package budget_test

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// TestServeRefuses: budgets that cannot be.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	d := process(t)
	path := filepath.Join(t.TempDir(), "b.sock")
	for name, all := range map[string][]budget.Budget{
		"none":           nil,
		"no device":      {{Bytes: unit}},
		"of 0 bytes":     {{Device: d}},
		"above the card": {{Device: d, Bytes: d.Info().Memory + 1}},
		"two":            {{Device: d, Bytes: unit}, {Device: d, Bytes: unit}},
	} {
		_, err := budget.Serve(path, budget.ServeOptions{Budgets: all})
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
	}
	s, err := budget.Serve(path, budget.ServeOptions{Budgets: []budget.Budget{{Device: d, Bytes: d.Info().Memory}}})
	require.NoError(t, err, "nothing is left of what was refused")
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
}

// TestJoinRefuses: each error is the one that Join documents, and the device is as before.
func TestJoinRefuses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "b.sock")
	_, err := budget.Join(t.Context(), path, process(t), budget.JoinOptions{})
	require.ErrorIs(t, err, shareable.ErrOwnerGone)
	s, err := budget.Serve(path, budget.ServeOptions{Budgets: []budget.Budget{{Device: process(t), Bytes: 16 * unit}}, Token: []byte("secret")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	d := process(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	secret := func(o budget.JoinOptions) budget.JoinOptions {
		o.Token = []byte("secret")
		return o
	}
	for name, c := range map[string]struct {
		ctx context.Context
		o   budget.JoinOptions
		err error
	}{
		"no token":          {t.Context(), budget.JoinOptions{}, vmm.ErrPermission},
		"another token":     {t.Context(), budget.JoinOptions{Token: []byte("guess")}, vmm.ErrPermission},
		"another user's":    {t.Context(), secret(budget.JoinOptions{UIDs: []uint32{math.MaxUint32 - 1}}), vmm.ErrPermission},
		"odd name":          {t.Context(), secret(budget.JoinOptions{Name: "a\x1b[2J\n"}), vmm.ErrInvalid},
		"spaces":            {t.Context(), secret(budget.JoinOptions{Name: "a b"}), vmm.ErrInvalid},
		"long name":         {t.Context(), secret(budget.JoinOptions{Name: strings.Repeat("x", 257)}), vmm.ErrInvalid},
		"promised too much": {t.Context(), secret(budget.JoinOptions{Least: 17 * unit}), vmm.ErrLimit},
		"ended":             {ended, secret(budget.JoinOptions{}), context.Canceled},
	} {
		_, err := budget.Join(c.ctx, path, d, c.o)
		require.ErrorIs(t, err, c.err, name)
	}
	m, err := budget.Join(t.Context(), path, d, secret(budget.JoinOptions{Name: strings.Repeat("x", 256)}))
	require.NoError(t, err)
	_, err = budget.Join(t.Context(), path, d, secret(budget.JoinOptions{}))
	require.ErrorIs(t, err, vmm.ErrBusy, "it is a member")
	require.Len(t, s.Reports()[0].Members, 1)
	require.Zero(t, m.Stats().Most)
	g := vector(t, d)
	require.NoError(t, g.Grow(16*unit))
	require.ErrorIs(t, m.Close(), vmm.ErrBusy)
	other := process(t)
	_, err = budget.Join(t.Context(), path, other, secret(budget.JoinOptions{Name: "other", Least: 4 * unit}))
	require.ErrorIs(t, err, vmm.ErrOutOfMemory, "who has it does not give")
	require.Eventually(t, func() bool { return len(s.Reports()[0].Members) == 1 }, 10*time.Second, time.Millisecond, "a Join that failed leaves nothing")
	require.NoError(t, g.Clip())
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.NoError(t, vector(t, other).Grow(20*unit), "no lease bounds it")
}

// TestTwoDevices: each has a budget of its own, and members of both.
func TestTwoDevices(t *testing.T) {
	t.Parallel()
	open := func() (two [2]*vmm.Device) {
		drv := host.New(host.Config{Granularity: unit, Devices: 2})
		for i := range two {
			var err error
			two[i], err = vmm.OpenDriver(drv, i)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, two[i].Close()) })
		}
		return two
	}
	path, cards := filepath.Join(t.TempDir(), "b.sock"), open()
	s, err := budget.Serve(path, budget.ServeOptions{Budgets: []budget.Budget{{Device: cards[0], Bytes: 8 * unit}, {Device: cards[1], Bytes: 16 * unit}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	two := open()
	for i, d := range two {
		m, err := budget.Join(t.Context(), path, d, budget.JoinOptions{Name: "m"})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		g := vector(t, d)
		require.NoError(t, g.Grow(uint64(8*(i+1))*unit))
		require.ErrorIs(t, g.Grow(uint64(8*(i+1))*unit+1), vmm.ErrOutOfMemory)
	}
	for i, r := range s.Reports() {
		require.Equal(t, uint64(8*(i+1))*unit, r.Budget)
		require.Zero(t, r.Idle)
	}
	sixteen := uint64(12 * unit)
	require.NoError(t, budget.SetTerms(t.Context(), path, two[0], budget.Change{Budget: &sixteen}, shareable.AttachOptions{}))
	require.Equal(t, sixteen, s.Reports()[0].Budget)
	require.Equal(t, uint64(16*unit), s.Reports()[1].Budget)
}
