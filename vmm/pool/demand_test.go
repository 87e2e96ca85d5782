package pool_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// demand is goroutines that allocate and free at random, and an account of what they need at most:
// for each block the chunks in which its pages may lie, as if no two blocks shared any. As long as
// the account stays below Max, a chunk is free for each that a block needs, wherever other blocks
// lie; so no Alloc may fail.
type demand struct {
	p     *pool.Pool
	dev   *vmm.Device
	chunk uint64
	most  uint64
	now   atomic.Int64 // chunks
	reuse pool.Reuse
	fill  bool

	failed atomic.Pointer[string]
}

// chunksOf is how many chunks a block may lie in.
func (d *demand) chunksOf(n uint64) int64 {
	return int64((pool.PagesOf(d.p, n)-pool.Unit(d.p)+d.chunk-1)/d.chunk) + 1
}

// reserve enters a block in the account; false if there is no room.
func (d *demand) reserve(n uint64) bool {
	c := d.chunksOf(n)
	if d.now.Add(c) <= int64(d.most/d.chunk) {
		return true
	}
	d.now.Add(-c)
	return false
}

func (d *demand) release(n uint64) { d.now.Add(-d.chunksOf(n)) }

func (d *demand) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	d.failed.CompareAndSwap(nil, &text)
}

// user is the work of one goroutine until the barrier.
type user struct {
	*demand
	rnd     *rand.Rand
	streams []*vmm.Stream
	live    []held
}

type held struct {
	b pool.Block
	s *vmm.Stream
}

func (u *user) size() uint64 {
	switch u.rnd.IntN(8) {
	case 0, 1, 2:
		return 1 + u.rnd.Uint64N(4*kib)
	case 3, 4:
		return 1 + u.rnd.Uint64N(64*kib)
	case 5, 6:
		return 1 + u.rnd.Uint64N(2*u.chunk)
	}
	return 1 + u.rnd.Uint64N(u.most/8)
}

func (u *user) stream() *vmm.Stream { return u.streams[u.rnd.IntN(len(u.streams))] }

func (u *user) alloc(beside bool) {
	n, s := u.size(), u.stream()
	if beside && !u.reserve(n) {
		return
	}
	b, err := u.p.Alloc(s, n)
	if err != nil {
		if beside {
			u.release(n)
		}
		if u.reuse&pool.ReuseInternalDependencies != 0 || !errors.Is(err, vmm.ErrOutOfMemory) {
			u.fail("%d bytes, with %d chunks of %d in demand: %v", n, u.now.Load(), u.most/u.chunk, err)
		}
		return
	}
	if u.fill {
		if err := s.Fill(b.Ptr(), 7, 1, n); err != nil {
			u.fail("fill: %v", err)
		}
	}
	u.live = append(u.live, held{b, s})
}

func (u *user) free() {
	if len(u.live) == 0 {
		return
	}
	i := u.rnd.IntN(len(u.live))
	x := u.live[i]
	u.live[i] = u.live[len(u.live)-1]
	u.live = u.live[:len(u.live)-1]
	s := x.s
	if u.rnd.IntN(4) == 0 { // in another stream, which comes after
		to := u.stream()
		if f, err := fences.Fence(s); err == nil {
			if fences.WaitFence(to, f) == nil {
				s = to
			}
			f.Free()
		}
	}
	if err := u.p.Free(s, x.b); err != nil {
		u.fail("free: %v", err)
	}
	u.release(x.b.Size())
}

func (u *user) run(steps int) {
	for range steps {
		if u.failed.Load() != nil {
			return
		}
		switch k := u.rnd.IntN(100); {
		case k < 45:
			u.alloc(true)
		case k < 90 || len(u.live) > 40:
			u.free()
		case k < 94:
			_ = u.stream().Sync()
		case k < 96:
			_, _ = u.p.TrimTo(u.rnd.Uint64N(u.most))
		case k < 97:
			_ = u.p.SetReleaseThreshold([]uint64{0, u.most / 2, math.MaxUint64}[u.rnd.IntN(3)])
		case k < 98:
			_, _ = u.p.Stats()
		default:
			_, _ = u.stream().Done()
		}
	}
}

// fits reports whether a block of n bytes must be found while all streams are idle, which is what
// docs/reference/pool.md says of one: in a slab, as pages of free memory, or with memory that is mapped at
// free addresses, behind free memory, of chunks that are new or lie nowhere else in use.
func (d *demand) fits(n uint64) bool {
	all, chunkSize, create := pool.Layout(d.p)
	type run struct {
		off, size uint64
		hole      bool
		region    int
	}
	var runs []run
	for _, x := range all {
		if x.Each >= n && x.Live > 0 && x.Free > 0 {
			return true
		}
		if x.Block || x.Live > 0 {
			continue
		}
		if last := len(runs) - 1; last >= 0 && runs[last].region == x.Region && runs[last].hole == x.Hole && runs[last].off+runs[last].size == x.Off {
			runs[last].size += x.Size
			continue
		}
		runs = append(runs, run{x.Off, x.Size, x.Hole, x.Region})
	}
	whole := func(r run) uint64 {
		first, end := (r.off+chunkSize-1)/chunkSize, (r.off+r.size)/chunkSize
		return max(first, end) - first
	}
	size := (n + pool.Unit(d.p) - 1) / pool.Unit(d.p) * pool.Unit(d.p)
	chunks := uint64(create)
	for _, r := range runs {
		if !r.hole && r.size >= size {
			return true
		}
		if !r.hole {
			chunks += whole(r)
		}
	}
	long := false // there are addresses
	site := func() bool {
		for i, r := range runs {
			if !r.hole {
				continue
			}
			var before run
			if i > 0 && runs[i-1].region == r.region && runs[i-1].off+runs[i-1].size == r.off {
				before = runs[i-1]
			}
			for _, b := range []run{{}, before} {
				k := (size - b.size + chunkSize - 1) / chunkSize
				long = long || k*chunkSize <= r.size
				if k*chunkSize <= r.size && k+whole(b) <= chunks {
					return true
				}
			}
		}
		return false
	}
	if site() {
		return true
	}
	if long || chunks*chunkSize < size {
		return false
	}
	// Without addresses all free chunks are unmapped.
	var after []run
	for _, r := range runs {
		pieces := []run{r}
		if n := whole(r); !r.hole && n > 0 {
			at := (r.off + chunkSize - 1) / chunkSize * chunkSize
			end := at + n*chunkSize
			pieces = []run{{r.off, at - r.off, false, r.region}, {at, n * chunkSize, true, r.region}, {end, r.off + r.size - end, false, r.region}}
		}
		for _, x := range pieces {
			if x.size == 0 {
				continue
			}
			if last := len(after) - 1; last >= 0 && x.hole && after[last].hole && after[last].region == x.region && after[last].off+after[last].size == x.off {
				after[last].size += x.size
				continue
			}
			after = append(after, x)
		}
	}
	runs = after
	return site()
}

// runDemand runs goroutines, with a barrier now and then at which all streams are idle and the
// model decides what an Alloc returns. It returns what was wrong first.
func runDemand(t *testing.T, d *demand, goroutines int, until func() bool) (wrong string, rounds int) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var users []*user
	shared, err := d.dev.NewStream()
	require.NoError(t, err)
	for i := range goroutines {
		u := &user{demand: d, rnd: rand.New(rand.NewPCG(seed, uint64(i))), streams: []*vmm.Stream{shared}}
		for range 2 {
			s, err := d.dev.NewStream()
			require.NoError(t, err)
			u.streams = append(u.streams, s)
		}
		users = append(users, u)
	}
	for !until() && d.failed.Load() == nil {
		var wg sync.WaitGroup
		for _, u := range users {
			wg.Go(func() { u.run(400) })
		}
		wg.Wait()
		require.NoError(t, d.dev.Sync())
		if d.failed.Load() == nil {
			d.barrier(users)
		}
		rounds++
	}
	require.NoError(t, d.dev.Sync())
	require.NoError(t, pool.Check(d.p))
	for _, u := range users {
		for _, x := range u.live {
			require.NoError(t, d.p.FreeNow(x.b))
		}
		for _, s := range u.streams[1:] {
			require.NoError(t, s.Close())
		}
	}
	require.NoError(t, shared.Close())
	if text := d.failed.Load(); text != nil {
		return *text, rounds
	}
	return "", rounds
}

// barrier: all streams are idle, and one Alloc after the other has the outcome that the model says,
// whatever the policies.
func (d *demand) barrier(users []*user) {
	var filled []pool.Block
	defer func() {
		for _, b := range filled {
			if err := d.p.FreeNow(b); err != nil {
				d.fail("free now: %v", err)
			}
		}
	}()
	if u := users[0]; u.rnd.IntN(2) == 0 { // all pages, so that only blocks of slabs are left
		for n := d.most / 2; n >= pool.Unit(d.p); n /= 2 {
			for d.fits(n) {
				b, ok := d.decide(u, u.stream(), n)
				if !ok {
					return
				}
				filled = append(filled, b)
			}
		}
	}
	for range 40 {
		u := users[rand.IntN(len(users))]
		n := u.size()
		if u.rnd.IntN(4) == 0 {
			n = 1 + u.rnd.Uint64N(u.most)
		}
		s := u.stream()
		b, ok := d.decide(u, s, n)
		switch {
		case d.failed.Load() != nil:
			return
		case !ok:
		case u.rnd.IntN(3) == 0 && d.reserve(n):
			u.live = append(u.live, held{b, s})
		default:
			if err := u.p.FreeNow(b); err != nil {
				d.fail("free now: %v", err)
			}
		}
		if u.rnd.IntN(3) == 0 && len(u.live) > 0 {
			x := u.live[len(u.live)-1]
			u.live = u.live[:len(u.live)-1]
			if err := u.p.FreeNow(x.b); err != nil {
				d.fail("free now: %v", err)
			}
			u.release(x.b.Size())
		}
	}
}

// decide allocates, with the outcome that the model says; false if there is no memory.
func (d *demand) decide(u *user, s *vmm.Stream, n uint64) (b pool.Block, ok bool) {
	if err := d.dev.Sync(); err != nil { // what was freed since is idle, too
		d.fail("sync: %v", err)
	}
	want := d.fits(n)
	b, err := u.p.Alloc(s, n)
	if (err == nil) != want {
		d.fail("all streams are idle, and %d bytes fit: %v, but Alloc says %v", n, want, err)
	}
	return b, err == nil
}

// demandRounds is how many rounds TestDemand makes.
func demandRounds(t *testing.T) int {
	t.Helper()
	rounds := testgate.Effort(2, 24, 240)
	if v := os.Getenv("VMM_DEMAND_ROUNDS"); v != "" {
		var err error
		rounds, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	return rounds
}

func newDemand(t *testing.T, reuse pool.Reuse) *demand {
	t.Helper()
	var drv driver.Driver = host.New(host.Config{Devices: 1, Memory: 256 * mib, Granularity: chunk})
	o := pool.Options{Max: 8 * mib, ChunkSize: 4 * chunk, NoReuse: pool.ReuseAll &^ reuse}
	if onCUDA {
		d, err := vmm.Open("cuda:0")
		testgate.Require(t, "cuda", err)
		drv = d.Driver()
		require.NoError(t, d.Close())
		o = pool.Options{Max: 128 * mib, ChunkSize: 2 * mib, NoReuse: pool.ReuseAll &^ reuse}
	}
	dev, err := vmm.OpenDriver(drv, 0)
	require.NoError(t, err)
	p, err := pool.New(dev, o)
	require.NoError(t, err)
	return &demand{p: p, dev: dev, chunk: o.ChunkSize, most: o.Max, reuse: reuse, fill: true}
}

func (d *demand) end(t *testing.T) {
	t.Helper()
	require.NoError(t, d.p.Close())
	require.NoError(t, d.dev.Close())
}

// TestDemand: as long as what is needed at once, rounded up, is below Max, no Alloc fails, with
// other calls that trim and synchronise; with ReuseInternalDependencies off, one may while streams
// have work, and none at a barrier. VMM_DEMAND_ROUNDS is how many rounds it makes with each reuse.
func TestDemand(t *testing.T) {
	all := []pool.Reuse{
		pool.ReuseAll, pool.ReuseAll &^ pool.ReuseFollowEvents, pool.ReuseAll &^ pool.ReuseOpportunistic,
		pool.ReuseInternalDependencies, pool.ReuseAll &^ pool.ReuseInternalDependencies, 0,
	}
	for _, reuse := range all {
		t.Run(fmt.Sprintf("reuse %d", reuse), func(t *testing.T) {
			d := newDemand(t, reuse)
			left := demandRounds(t)
			wrong, rounds := runDemand(t, d, 6, func() bool { left--; return left < 0 })
			require.Empty(t, wrong)
			st := statsOf(t, d.p)
			t.Logf("%d rounds, %d allocations, %d waits, %d bytes moved, %d created", rounds, st.Allocs, st.Waits, st.Remapped, st.Created)
			d.end(t)
		})
	}
}

// TestDemandControls: what TestDemand finds without what it is about.
func TestDemandControls(t *testing.T) {
	for name, off := range map[string]func(*pool.Pool){"lending": pool.SetNoLending, "waits for other calls": pool.SetNoWait} {
		t.Run(name, func(t *testing.T) {
			d := newDemand(t, pool.ReuseAll)
			off(d.p)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			wrong, rounds := runDemand(t, d, 6, func() bool { return ctx.Err() != nil })
			t.Logf("after %d rounds: %s", rounds, wrong)
			require.NotEmpty(t, wrong)
			d.end(t)
		})
	}
}
