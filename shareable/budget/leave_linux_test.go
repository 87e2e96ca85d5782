package budget_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestLeaveWhileAsked: a member that leaves while the broker sends it something is gone all the same.
func TestLeaveWhileAsked(t *testing.T) {
	path := serve(t, 1024*unit)
	d, _ := join(t, path, "b", 0)
	g := vector(t, d)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
				_ = g.Grow(1022 * unit) // too much: a gives what it has idle
				_ = g.Clip()
			}
		}
	}()
	defer func() { close(end); <-ended }()
	a := process(t)
	for i := range testgate.Effort(200, 1500, 5000) {
		m, err := budget.Join(t.Context(), path, a, budget.JoinOptions{Name: "a"})
		require.NoError(t, err)
		ga, err := a.NewRange(vmm.RangeOptions{Max: 1 << 30, Chunk: unit})
		require.NoError(t, err)
		_ = ga.Grow(4 * unit)
		require.NoError(t, ga.Close())
		require.NoError(t, m.Close())
		all, err := budget.Reports(t.Context(), path, d, shareable.AttachOptions{})
		require.NoError(t, err)
		require.Len(t, all[0].Members, 1, "after %d", i)
	}
}

// TestAllIsReleased: the broker hears of it also from a member that had memory when it joined.
func TestAllIsReleased(t *testing.T) {
	t.Parallel()
	path := serve(t, 64*unit)
	d := process(t)
	g := vector(t, d)
	require.NoError(t, g.Grow(8*unit))
	m, err := budget.Join(t.Context(), path, d, budget.JoinOptions{Name: "a"})
	require.NoError(t, err)
	require.NoError(t, g.Clip())
	require.Eventually(t, func() bool {
		all, err := budget.Reports(t.Context(), path, d, shareable.AttachOptions{})
		return err == nil && all[0].Members[0].Created == 0
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, m.Close())
}

// TestCloseThatFails: a member whose Close returned ErrBusy, since it has memory, is one as before.
func TestCloseThatFails(t *testing.T) {
	t.Parallel()
	path := serve(t, 64*unit)
	d, m := join(t, path, "a", 16*unit)
	g := vector(t, d)
	require.NoError(t, g.Grow(unit))
	require.ErrorIs(t, m.Close(), vmm.ErrBusy)
	require.Eventually(t, func() bool {
		all, err := budget.Reports(t.Context(), path, d, shareable.AttachOptions{})
		return err == nil && all[0].Members[0].Lease == m.Stats().Lease
	}, 10*time.Second, time.Millisecond)
	was := m.Stats().Asked
	require.NoError(t, g.Grow(16*unit))
	require.LessOrEqual(t, m.Stats().Asked, was+1)
}

// TestCloseWithoutAConnection: the broker forgets the member all the same.
func TestCloseWithoutAConnection(t *testing.T) {
	t.Parallel()
	path := serve(t, 64*unit)
	d, m := join(t, path, "a", 40*unit)
	cut(t, path)
	require.NoError(t, m.Close())
	all, err := budget.Reports(t.Context(), path, d, shareable.AttachOptions{})
	require.NoError(t, err)
	require.Empty(t, all[0].Members)
	join(t, path, "b", 40*unit)
}

// cut ends all connections of this process to a socket.
func cut(t *testing.T, path string) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	n := 0
	for _, e := range list {
		fd, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		peer, err := unix.Getpeername(fd)
		a, ok := peer.(*unix.SockaddrUnix)
		if err == nil && ok && strings.HasPrefix(a.Name, path) {
			require.NoError(t, unix.Shutdown(fd, unix.SHUT_RDWR))
			n++
		}
	}
	require.NotZero(t, n)
}

// TestManyAskAndGive: members whose goroutines take and give back all the time are refused or get memory at once. A member
// that is asked to give, and whose own operation has the turn, does not keep others waiting.
func TestManyAskAndGive(t *testing.T) {
	t.Parallel()
	path := serve(t, 24*unit)
	var all sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		d, _ := join(t, path, name, 0)
		var mu sync.Mutex
		var has []*vmm.Range
		take := func(n int) (g *vmm.Range) {
			mu.Lock()
			defer mu.Unlock()
			if len(has) > n {
				g, has = has[0], has[1:]
			}
			return g
		}
		stop := d.OnPressure(func(need error) bool {
			var e *vmm.OpError
			if !errors.As(need, &e) || e.Op != "give" {
				return false
			}
			g := take(0)
			return g != nil && g.Close() == nil
		})
		for i := range 2 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(65, uint64(i)))
				for range testgate.Effort(300, 1000, 10000) {
					g, err := d.Alloc(uint64(1+r.IntN(4)) * unit)
					if err == nil {
						mu.Lock()
						has = append(has, g)
						mu.Unlock()
					}
					assert.True(t, err == nil || errors.Is(err, vmm.ErrOutOfMemory), "%v", err)
					if g := take(r.IntN(16)); g != nil {
						assert.NoError(t, g.Close())
					}
				}
			})
		}
		t.Cleanup(func() {
			stop()
			for g := take(0); g != nil; g = take(0) {
				require.NoError(t, g.Close())
			}
		})
	}
	all.Wait()
	reports, err := budget.Reports(t.Context(), path, process(t), shareable.AttachOptions{})
	require.NoError(t, err)
	require.Zero(t, reports[0].Counts.Expired)
	require.NotZero(t, reports[0].Counts.Demands)
	require.Less(t, reports[0].Counts.Granted, uint64(3*2*testgate.Effort(300, 1000, 10000)*10), "no one asks again and again")
}
