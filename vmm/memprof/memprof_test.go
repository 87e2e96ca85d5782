package memprof_test

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/memprof"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// all samples everything until the test ends. Tests that use it do not run in parallel.
func all(t *testing.T) { at(t, 1) }

func at(t *testing.T, rate int64) {
	t.Helper()
	old := memprof.SetRate(rate)
	t.Cleanup(func() { memprof.SetRate(old) })
}

// inUse is how many bytes a device has of each kind, by the profile as pprof reads it.
func inUse(t *testing.T) map[string]int64 {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, memprof.Write(&b))
	p, err := profile.Parse(&b)
	require.NoError(t, err)
	require.NoError(t, p.CheckValid())
	have := map[string]int64{}
	for _, s := range p.Sample {
		have[s.Label["kind"][0]] += s.Value[3]
	}
	return have
}

// physical is the sum of the kinds that are memory of the device.
func physical(have map[string]int64) (n int64) {
	for kind, bytes := range have {
		if kind != "host copy" && kind != "pinned" {
			n += bytes
		}
	}
	return n
}

func TestKinds(t *testing.T) {
	all(t)
	d := vmmtest.Device(t)
	d.SetReleaseThreshold(1 << 30)
	gran, err := d.Driver().Granularity(vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice}})
	require.NoError(t, err)
	g, err := d.NewRange(vmm.RangeOptions{Max: 64 * gran, Chunk: gran})
	require.NoError(t, err)
	require.NoError(t, g.Append(make([]byte, 3*gran)))
	c, err := d.Create(2*gran, vmm.Prop{})
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	p, err := pool.New(d, pool.Options{ChunkSize: gran})
	require.NoError(t, err)
	long, err := p.Alloc(s, gran-100)
	require.NoError(t, err)
	short, err := p.Alloc(s, 100)
	require.NoError(t, err)
	st, err := p.Stats()
	require.NoError(t, err)

	have := inUse(t)
	require.EqualValues(t, 3*gran, have["range"])
	require.EqualValues(t, 2*gran, have["chunk"])
	require.EqualValues(t, st.Used, have["pool block"])
	require.EqualValues(t, st.Reserved-st.Used, have["pool free"])
	require.EqualValues(t, d.Stats().Committed, physical(have))

	require.NoError(t, g.SetLen(gran))
	require.NoError(t, g.Clip())
	require.NoError(t, p.Free(s, long))
	require.NoError(t, p.FreeNow(short))
	have = inUse(t)
	require.EqualValues(t, d.Stats().Cached, have["cached"])
	require.EqualValues(t, gran, have["range"])
	require.Zero(t, have["pool block"])
	require.EqualValues(t, d.Stats().Committed, physical(have))

	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	have = inUse(t)
	require.Zero(t, have["range"])
	require.EqualValues(t, d.Stats().HostCopies, have["host copy"])
	require.EqualValues(t, d.Stats().Committed, physical(have))
	require.NoError(t, vmm.Wake(g))
	require.NoError(t, p.Close())
	require.NoError(t, s.Close())
	require.NoError(t, c.Close())
	require.NoError(t, g.Close())
	d.SetReleaseThreshold(0)
	require.Zero(t, physical(inUse(t)))
}

// TestNothingNegative: a tool that takes what is in use from what was allocated has what was freed, for no
// kind or name less than nothing.
func TestNothingNegative(t *testing.T) {
	all(t)
	d := vmmtest.Device(t, drivertest.FailNth("Release", 1, vmm.ErrInvalid))
	gran, err := d.Driver().Granularity(vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice}})
	require.NoError(t, err)
	d.SetReleaseThreshold(1 << 30)
	g, err := d.NewRange(vmm.RangeOptions{Name: "seq-17", Max: 4 * gran, Chunk: gran})
	require.NoError(t, err)
	require.NoError(t, g.Grow(4*gran))
	require.NoError(t, g.Clip())
	_, err = d.Trim(3 * gran)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, g.Grow(gran))
	m, err := d.AllocPinned(1 << 20)
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	p, err := pool.New(d, pool.Options{Name: "batch", ChunkSize: gran})
	require.NoError(t, err)
	b, err := p.Alloc(s, gran/2)
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, s := range memprof.Take().Sample {
		seen[s.Label["kind"][0]] = true
		require.GreaterOrEqual(t, s.Value[0], s.Value[2], s.Label)
		require.GreaterOrEqual(t, s.Value[1], s.Value[3], s.Label)
		require.GreaterOrEqual(t, s.Value[3], int64(0), s.Label)
	}
	for _, kind := range []string{"range", "pool free", "pool block", "cached", "leaving", "pinned"} {
		require.True(t, seen[kind], kind)
	}
	require.NoError(t, errors.Join(p.FreeNow(b), p.Close(), s.Close(), m.Close(), g.Close()))
}

// TestRefusedRelease: cached memory that the driver does not take back is on its way there.
func TestRefusedRelease(t *testing.T) {
	all(t)
	d := vmmtest.Device(t, drivertest.FailNth("Release", 1, vmm.ErrInvalid))
	d.SetReleaseThreshold(1 << 30)
	g, err := d.NewRange(vmm.RangeOptions{Max: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, g.Append([]byte{1}))
	require.NoError(t, g.Close())
	_, err = d.Trim(0)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	st := d.Stats()
	require.NotZero(t, st.Quarantined)
	require.Zero(t, st.Cached)
	have := inUse(t)
	require.EqualValues(t, st.Quarantined, have["leaving"])
	require.EqualValues(t, st.Committed, physical(have))
	_, err = d.Trim(0)
	require.NoError(t, err)
	require.Zero(t, physical(inUse(t)))
}

// TestOfOneMoment: beside goroutines that allocate and free, what the profile has is what was
// committed at that moment.
func TestOfOneMoment(t *testing.T) {
	all(t)
	d := vmmtest.Device(t)
	d.SetReleaseThreshold(1 << 20)
	var workers sync.WaitGroup
	done := make(chan struct{})
	for range 8 {
		workers.Go(func() {
			s, err := d.NewStream()
			require.NoError(t, err)
			p, err := pool.New(d, pool.Options{})
			require.NoError(t, err)
			for {
				select {
				case <-done:
					require.NoError(t, p.Close())
					require.NoError(t, s.Close())
					return
				default:
				}
				g, err := d.NewRange(vmm.RangeOptions{Max: 1 << 20})
				require.NoError(t, err)
				require.NoError(t, g.Append(make([]byte, 1+rand.IntN(100_000))))
				b, err := p.Alloc(s, 1+rand.Uint64N(100_000))
				require.NoError(t, err)
				require.NoError(t, g.SetLen(0))
				require.NoError(t, g.Clip())
				require.NoError(t, p.Free(s, b))
				require.NoError(t, g.Close())
			}
		})
	}
	for range 300 {
		for _, o := range memsample.Owners() {
			var records []memsample.Record
			totals := o.Moment(func() { records = o.Records() })
			sum := float64(totals.Cached)
			for _, r := range records {
				if r.Kind != memsample.Block && r.Kind != memsample.HostCopy {
					sum += r.AllocBytes - r.FreeBytes
				}
			}
			require.EqualValues(t, totals.Committed, sum)
		}
	}
	close(done)
	workers.Wait()
}

// leak makes vectors of which it closes all but each thousandth.
func leak(t *testing.T, d *vmm.Device, n int) (kept []*vmm.Range) {
	for i := range n {
		g, err := d.NewRange(vmm.RangeOptions{Max: 1 << 20})
		require.NoError(t, err)
		require.NoError(t, g.Grow(1))
		if i%1000 == 7 {
			kept = append(kept, g)
			continue
		}
		require.NoError(t, g.Close())
	}
	return kept
}

// TestOfAFullPool: what one goroutine frees another one allocates at once, and no profile has both.
func TestOfAFullPool(t *testing.T) {
	all(t)
	d := vmmtest.Device(t)
	gran, err := d.Driver().Granularity(vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice}})
	require.NoError(t, err)
	p, err := pool.New(d, pool.Options{Max: 4 * gran, ChunkSize: gran, ReleaseThreshold: math.MaxUint64})
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	b, err := p.Alloc(s, 4*gran)
	require.NoError(t, err)
	require.NoError(t, p.Free(s, b))
	stop := make(chan struct{})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if b, err := p.Alloc(s, gran); err == nil {
					require.NoError(t, p.Free(s, b))
				}
			}
		})
	}
	for range testgate.Effort(100, 500, 5000) {
		require.EqualValues(t, 4*gran, physical(inUse(t))) //nolint:testifylint // a test that fails ends with its goroutines
	}
	close(stop)
	group.Wait()
	require.NoError(t, p.Close())
	require.NoError(t, s.Close())
}

// TestPinnedOnce: two Devices of one device share what is pinned.
func TestPinnedOnce(t *testing.T) {
	all(t)
	drv := host.New(host.Config{Memory: 64 << 20})
	var devs []*vmm.Device
	for range 2 {
		d, err := vmm.OpenDriver(drv, 0)
		require.NoError(t, err)
		devs = append(devs, d)
	}
	m, err := devs[0].AllocPinned(1 << 20)
	require.NoError(t, err)
	require.EqualValues(t, devs[0].Stats().Pinned, inUse(t)["pinned"])
	require.NoError(t, m.Close())
	for _, d := range devs {
		require.NoError(t, d.Close())
	}
}

// TestOfGrownBlocks: a block that Resize has made longer is sampled as one of that size.
func TestOfGrownBlocks(t *testing.T) {
	const size, rounds = 64 << 20, 4000
	at(t, size)
	d := vmmtest.Device(t)
	p, err := pool.New(d, pool.Options{Max: 2 * size, ReleaseThreshold: math.MaxUint64})
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	sampled := 0
	for range rounds {
		b, err := p.Alloc(s, 128<<10)
		require.NoError(t, err)
		b, err = p.Resize(s, b, size)
		require.NoError(t, err)
		for _, r := range inside.VMM.Samples(d).Records() {
			if r.Kind == memsample.Block && r.AllocObjects > r.FreeObjects+0.5 {
				sampled++
			}
		}
		require.NoError(t, p.FreeNow(b))
	}
	chance := 1 - 1/math.E
	deviation := math.Sqrt(rounds * chance * (1 - chance))
	require.InDelta(t, rounds*chance, sampled, 6*deviation)
	require.NoError(t, p.Close())
	require.NoError(t, s.Close())
}

// TestLeak: the line that leaks one vector in a thousand has the most memory in use.
func TestLeak(t *testing.T) {
	all(t)
	d := vmmtest.Device(t)
	kept := leak(t, d, 5000)
	r := httptest.NewRecorder()
	memprof.Handler().ServeHTTP(r, httptest.NewRequest("GET", "/debug/pprof/gpumem", nil))
	p, err := profile.ParseData(r.Body.Bytes())
	require.NoError(t, err)
	require.Equal(t, "inuse_space", p.DefaultSampleType)
	var found bool
	for _, s := range p.Sample {
		if s.Value[3] == 0 {
			continue
		}
		line := s.Location[0].Line[0]
		require.True(t, strings.HasSuffix(line.Function.Name, "memprof_test.leak"), line.Function.Name)
		require.EqualValues(t, 5000, s.Value[0])
		require.EqualValues(t, len(kept), s.Value[2])
		found = true
	}
	require.True(t, found)
	for _, g := range kept {
		require.NoError(t, g.Close())
	}
}

// TestEstimates: sampled now and then, the numbers are what they stand for, within four standard
// deviations of the sampling.
func TestEstimates(t *testing.T) {
	const rate = 1 << 20
	at(t, rate)
	d := vmmtest.Device(t)
	s, err := d.NewStream()
	require.NoError(t, err)
	p, err := pool.New(d, pool.Options{})
	require.NoError(t, err)
	var blocks []pool.Block
	for i := range 4000 {
		b, err := p.Alloc(s, uint64(1000+i*10))
		require.NoError(t, err)
		blocks = append(blocks, b)
	}
	st, err := p.Stats()
	require.NoError(t, err)
	have := float64(inUse(t)["pool block"])
	used := float64(st.Used)
	require.InDelta(t, used, have, 4*math.Sqrt(used*rate))
	for _, b := range blocks {
		require.NoError(t, p.Free(s, b))
	}
	require.Zero(t, inUse(t)["pool block"])
	require.NoError(t, p.Close())
	require.NoError(t, s.Close())
}

// TestOff: with a rate of 0 nothing is sampled.
func TestOff(t *testing.T) {
	at(t, 0)
	d := vmmtest.Device(t)
	kept := leak(t, d, 8)
	require.Zero(t, physical(inUse(t)))
	for _, g := range kept {
		require.NoError(t, g.Close())
	}
}

// TestNames: what is in use has the name of its range or pool as a label, and what was freed has none.
func TestNames(t *testing.T) {
	all(t)
	d := vmmtest.Device(t)
	gran, err := d.Driver().Granularity(vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice}})
	require.NoError(t, err)
	type key struct{ name, kind string }
	have := func() (inUse, ever map[key]int64) {
		var b bytes.Buffer
		require.NoError(t, memprof.Write(&b))
		p, err := profile.Parse(&b)
		require.NoError(t, err)
		inUse, ever = map[key]int64{}, map[key]int64{}
		for _, s := range p.Sample {
			k := key{kind: s.Label["kind"][0]}
			if l := s.Label["name"]; l != nil {
				k.name = l[0]
			}
			if s.Value[3] != 0 {
				inUse[k] += s.Value[3]
			}
			if s.Value[1] != 0 && s.Label["device"][0] == d.String() {
				ever[k] += s.Value[1]
			}
		}
		delete(inUse, key{"", "pinned"})
		return inUse, ever
	}
	_, before := have()
	var ranges []*vmm.Range
	for i, name := range []string{"", "seq-17", "a\n\x00\xff\""} { // on one line
		g, err := d.NewRange(vmm.RangeOptions{Name: name, Max: 64 * gran, Chunk: gran})
		require.NoError(t, err)
		require.NoError(t, g.Grow(uint64(i+1)*gran)) //nolint:gosec // not negative
		ranges = append(ranges, g)
	}
	s, err := d.NewStream()
	require.NoError(t, err)
	full, err := pool.New(d, pool.Options{Name: "full", ChunkSize: gran})
	require.NoError(t, err)
	b, err := full.Alloc(s, gran)
	require.NoError(t, err)
	idle, err := pool.New(d, pool.Options{Name: "idle", ChunkSize: gran, ReleaseThreshold: gran})
	require.NoError(t, err)
	gone, err := idle.Alloc(s, gran)
	require.NoError(t, err)
	require.NoError(t, idle.Free(s, gone))

	inUse, ever := have()
	n := int64(gran) //nolint:gosec // small
	require.Equal(t, map[key]int64{
		{"", "range"}: n, {"seq-17", "range"}: 2 * n, {`a\n\x00\xff\"`, "range"}: 3 * n,
		{"full", "pool block"}: n, {"idle", "pool free"}: n,
	}, inUse)
	require.Equal(t, n, ever[key{"", "range"}]-before[key{"", "range"}])
	require.Equal(t, 2*n, ever[key{"seq-17", "range"}])

	require.NoError(t, ranges[1].SetLen(gran))
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, ranges[1]))
	inUse, _ = have()
	require.Zero(t, inUse[key{"seq-17", "range"}])
	require.Equal(t, n, inUse[key{"seq-17", "host copy"}])
	require.NoError(t, vmm.Wake(ranges[1]))
	inUse, _ = have()
	require.Equal(t, 2*n, inUse[key{"seq-17", "range"}])
	require.NoError(t, ranges[1].Close())
	_, ever = have()
	require.Equal(t, 5*n, ever[key{"", "range"}]-before[key{"", "range"}])
	require.NotContains(t, ever, key{"seq-17", "range"})
	require.NoError(t, full.Free(s, b))
	require.NoError(t, errors.Join(full.Close(), idle.Close(), s.Close(), ranges[0].Close(), ranges[2].Close()))
	inUse, _ = have()
	require.Empty(t, inUse)
}
