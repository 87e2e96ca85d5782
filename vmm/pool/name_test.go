package pool_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestName: what a pool's errors, the device's list of what is open, and the history call it.
func TestName(t *testing.T) {
	const name, quoted = "batch\n\x00\xff\"", `"batch\n\x00\xff\""`
	w := newWorld(t, 1, 64*mib)
	defer w.end()
	d := w.devs[0]
	d.SetHistory(vmm.HistoryOptions{Events: 1000, Blocks: true})
	tooLong := pool.Options{Name: strings.Repeat("n", 65)}
	_, err := pool.New(d, tooLong)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = pool.NewDriver(d, tooLong)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = pool.New(d, pool.Options{Name: name, Align: 3})
	require.ErrorContains(t, err, "make pool of "+quoted+" on ")

	p := w.pool(pool.Options{Name: name, Max: 2 * mib})
	dp := w.driverPool(pool.Options{Name: name, Max: 2 * mib})
	require.Equal(t, name, d.Report().Open[0].Name)
	require.ErrorContains(t, d.Close(), "pool of "+d.String()+" "+quoted+" at ")
	require.Contains(t, p.String(), quoted)
	s := w.stream(0)
	for _, a := range []pool.Allocator{p, dp} {
		b := alloc(t, a, s, 1000)
		require.NoError(t, a.Free(s, b))
		_, err := a.Alloc(s, 3*mib)
		require.ErrorIs(t, err, vmm.ErrOutOfMemory)
		var e *vmm.OpError
		require.ErrorAs(t, err, &e)
		require.Equal(t, name, e.Name)
		require.ErrorContains(t, err, "allocate 3 MiB (3145728 bytes) of "+quoted+" on "+d.String())
	}
	kinds := map[string]int{}
	for _, e := range d.History(0) {
		kinds[e.Kind]++
		if e.Kind != "pressure" {
			require.Equal(t, name, e.Name, e.Kind)
		}
	}
	for kind, n := range map[string]int{"reserve": 1, "create": 1, "map": 1, "alloc": 2, "free": 2, "refused": 2} {
		require.Equal(t, n, kinds[kind], kind)
	}
	closeAll(t, p, dp, s)
}

// TestPressureNamesThePool: a function of OnPressure hears which pool needs memory.
func TestPressureNamesThePool(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	defer w.end()
	d := w.devs[0]
	p := w.pool(pool.Options{Name: "batch", ChunkSize: chunk})
	dp := w.driverPool(pool.Options{Name: "driver's"})
	s := w.stream(0)
	for _, c := range []struct {
		a    pool.Allocator
		name string
	}{{p, "batch"}, {dp, "driver's"}} {
		hog, err := d.Create(63*mib, vmm.Prop{})
		require.NoError(t, err)
		var have []vmm.OpError
		stop := d.OnPressure(func(need error) bool {
			var e *vmm.OpError
			require.ErrorAs(t, need, &e)
			have = append(have, vmm.OpError{Name: e.Name, Device: e.Device, Size: min(e.Size, 1)})
			return len(have) == 1 && hog.Close() == nil
		})
		b := alloc(t, c.a, s, 2*mib)
		require.Equal(t, []vmm.OpError{{Name: c.name, Device: d.String(), Size: 1}}, have)
		stop()
		require.NoError(t, c.a.Free(s, b))
		require.NoError(t, s.Sync())
		_, err = p.TrimTo(0)
		require.NoError(t, err)
	}
	closeAll(t, p, dp, s)
}
