package pool_test

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// driverPool is a pool of the driver's on device 0.
func (w *world) driverPool(o pool.Options) *pool.DriverPool {
	w.t.Helper()
	p, err := pool.NewDriver(w.devs[0], o)
	require.NoError(w.t, err)
	return p
}

// take is Alloc of any Allocator that works.
func take(t testing.TB, p pool.Allocator, s *vmm.Stream, n uint64) pool.Block {
	t.Helper()
	b, err := p.Alloc(s, n)
	require.NoError(t, err)
	require.Equal(t, n, b.Size())
	return b
}

func TestDriverPool(t *testing.T) {
	w := oneDevice(t, 64*mib)
	p, s := w.driverPool(pool.Options{ReleaseThreshold: mib, NoReuse: pool.ReuseOpportunistic}), w.stream(0)
	require.Equal(t, w.devs[0], p.Device())
	kept, err := p.ReleaseThreshold()
	require.NoError(t, err)
	require.EqualValues(t, mib, kept)
	on, err := p.Reuse()
	require.NoError(t, err)
	require.Equal(t, pool.ReuseFollowEvents|pool.ReuseInternalDependencies, on)
	require.NoError(t, p.SetReuse(pool.ReuseOpportunistic))
	on, err = p.Reuse()
	require.NoError(t, err)
	require.Equal(t, pool.ReuseOpportunistic, on)
	require.ErrorIs(t, p.SetReuse(8), vmm.ErrInvalid)

	b, c := take(t, p, s, 3*mib), take(t, p, s, 100*kib)
	require.NoError(t, s.Fill(b.Ptr(), 7, 4, 3*mib/4))
	require.NoError(t, s.Copy(c.Ptr(), b.Ptr(), 100*kib))
	require.NoError(t, s.Sync())
	got := make([]byte, 100*kib)
	require.NoError(t, w.devs[0].CopyOut(got, c.Ptr()))
	require.EqualValues(t, 7, got[100*kib-4])
	st, err := p.Stats()
	require.NoError(t, err)
	require.GreaterOrEqual(t, st.Used, uint64(3*mib+100*kib))
	require.GreaterOrEqual(t, st.Reserved, st.Used)
	require.Equal(t, pool.Stats{Reserved: st.Reserved, ReservedPeak: st.Reserved, Used: st.Used, UsedPeak: st.Used}, st)

	var arg vmm.MemoryArg
	c.MemoryArg(&arg)
	require.Equal(t, vmm.Span{Addr: c.Ptr(), Size: 100 * kib, Access: vmm.AccessReadWrite}, arg.Span)
	require.EqualValues(t, 100*kib, arg.Count)

	require.ErrorIs(t, p.Close(), vmm.ErrBusy)
	require.NoError(t, p.Free(s, c))
	require.NoError(t, s.Sync())
	require.NoError(t, p.Free(s, b))
	require.NoError(t, p.SetReleaseThreshold(math.MaxUint64))
	require.NoError(t, s.Sync())
	require.NoError(t, p.ResetPeaks())
	st, err = p.Stats()
	require.NoError(t, err)
	require.Zero(t, st.Used+st.UsedPeak)
	require.Equal(t, st.Reserved, st.ReservedPeak)
	require.GreaterOrEqual(t, st.Reserved, uint64(3*mib))
	freed, err := p.TrimTo(0)
	require.NoError(t, err)
	require.Equal(t, st.Reserved, freed)

	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	require.NoError(t, (*pool.DriverPool)(nil).Close())
	for _, p := range []*pool.DriverPool{p, nil, {}} {
		_, err := p.Alloc(s, 1)
		require.Error(t, err)
		require.Error(t, p.Free(s, b))
		require.Error(t, p.FreeNow(b))
		_, err = p.Stats()
		require.Error(t, err)
		_, err = p.TrimTo(0)
		require.Error(t, err)
		require.Error(t, p.SetCurrent())
		require.Error(t, p.Grant(vmm.AccessReadWrite, w.devs[0]))
	}
	_, err = p.Alloc(s, 1)
	require.ErrorIs(t, err, vmm.ErrClosed)
	closeAll(t, s)
	w.end()
}

// A block is freed once, by whom it is of.
func TestDriverPoolBlocks(t *testing.T) {
	w := oneDevice(t, 64*mib)
	s := w.stream(0)
	p, ours := w.driverPool(pool.Options{}), w.pool(pool.Options{})
	same, err := pool.DriverDefault(w.devs[0])
	require.NoError(t, err)
	twin, err := pool.DriverDefault(w.devs[0])
	require.NoError(t, err)
	frees := map[string]func(pool.Allocator, pool.Block) error{
		"Free":    func(p pool.Allocator, b pool.Block) error { return p.Free(s, b) },
		"FreeNow": func(p pool.Allocator, b pool.Block) error { return p.FreeNow(b) },
	}
	all := []pool.Allocator{p, ours, same, twin}
	for name, free := range frees {
		for _, of := range all {
			b := take(t, of, s, 1000)
			for _, other := range all {
				if other != of {
					require.ErrorIs(t, free(other, b), pool.ErrForeignBlock, name)
				}
			}
			require.NoError(t, free(of, b), name)
			for again, free := range frees {
				require.ErrorIs(t, free(of, b), pool.ErrDoubleFree, "%s after %s", again, name)
			}
			// The next block may be at the same address, and is another one.
			next := take(t, of, s, 1000)
			require.ErrorIs(t, free(of, b), pool.ErrDoubleFree, name)
			require.NoError(t, of.Free(s, next))
			require.ErrorIs(t, free(of, pool.Block{}), pool.ErrForeignBlock)
			empty := take(t, of, s, 0)
			require.Zero(t, empty.Ptr())
			require.NoError(t, free(of, empty))
			require.NoError(t, free(of, empty), "of 0 bytes, as often as one likes")
		}
	}
	_, err = p.Alloc(s, 1<<45)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.NoError(t, s.Sync())
	closeAll(t, p, ours, same, twin, s)
	w.end()
}

// A stream that cannot take the call changes nothing.
func TestDriverPoolStreams(t *testing.T) {
	w, stranger := newWorld(t, 2, 64*mib), newWorld(t, 1, mib)
	p, s, closed, foreign, theirs := w.driverPool(pool.Options{}), w.stream(0), w.stream(0), stranger.stream(0), w.stream(1)
	closeAll(t, closed)
	b := take(t, p, s, 1000)
	refused := func(s *vmm.Stream, kind error) {
		t.Helper()
		before, err := p.Stats()
		require.NoError(t, err)
		_, err = p.Alloc(s, 1000)
		require.ErrorIs(t, err, kind)
		_, err = p.Alloc(s, 0)
		require.ErrorIs(t, err, kind)
		require.ErrorIs(t, p.Free(s, b), kind)
		require.ErrorIs(t, pool.FreePlain(s, b.Ptr()), kind)
		after, err := p.Stats()
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
	refused(closed, vmm.ErrClosed)
	refused(nil, vmm.ErrInvalid)
	refused(foreign, vmm.ErrInvalid)
	require.NoError(t, s.BeginCapture())
	refused(s, vmm.ErrCapturing)
	require.NoError(t, s.Fill(b.Ptr(), 1, 1, 8))
	g, err := s.EndCapture()
	require.NoError(t, err, "the capture went on")
	closeAll(t, g)

	_, err = p.Alloc(theirs, 1000)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, p.Grant(vmm.AccessReadWrite, w.devs[1]))
	c := take(t, p, theirs, 1000)
	require.NoError(t, theirs.Fill(c.Ptr(), 1, 1, 1000))
	require.NoError(t, p.Free(theirs, c))
	require.NoError(t, theirs.Sync())
	require.NoError(t, p.Free(s, b))
	closeAll(t, p, s, foreign, theirs)
	w.end()
	stranger.end()
}

func TestDriverPoolOptions(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	s := w.stream(0)
	for _, o := range []pool.Options{
		{Align: 512}, {ChunkSize: mib}, {Addresses: mib}, {Share: vmm.ShareFabric},
	} {
		_, err := pool.NewDriver(w.devs[0], o)
		require.ErrorIs(t, err, vmm.ErrNotSupported, "%+v", o)
	}
	for _, o := range []pool.Options{{Align: 48}, {NoReuse: 8}} {
		_, err := pool.NewDriver(w.devs[0], o)
		require.ErrorIs(t, err, vmm.ErrInvalid, "%+v", o)
	}
	_, err := pool.NewDriver(nil, pool.Options{})
	require.ErrorIs(t, err, vmm.ErrInvalid)

	// The callback frees what stands in the way, and is asked until it says no.
	var p *pool.DriverPool
	var held []pool.Block
	asked := 0
	p = w.driverPool(pool.Options{Align: 16, Max: mib, OnOOM: func(s *vmm.Stream, n uint64) bool {
		require.EqualValues(t, 600*kib, n)
		asked++
		if len(held) == 0 {
			return false
		}
		require.NoError(t, p.Free(s, held[0]))
		require.NoError(t, s.Sync())
		held = held[1:]
		return true
	}})
	held = append(held, take(t, p, s, 500*kib))
	b := take(t, p, s, 600*kib)
	require.Equal(t, 1, asked)
	_, err = p.Alloc(s, 600*kib)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.Equal(t, 2, asked)
	require.NoError(t, p.FreeNow(b))
	closeAll(t, p, s)
	w.end()
}

// What others allocate by the driver's own call comes from the current pool.
func TestDriverCurrent(t *testing.T) {
	w := oneDevice(t, 64*mib)
	d, s := w.devs[0], w.stream(0)
	raw, err := d.Raw()
	require.NoError(t, err)
	current := func() driver.Pool {
		t.Helper()
		p, err := pool.DriverCurrent(d)
		require.NoError(t, err)
		at, err := raw.(driver.Allocator).AllocAsync(mib, s.Raw())
		require.NoError(t, err)
		found, err := pool.Lookup(d, at)
		require.NoError(t, err)
		require.Equal(t, pool.Found{Driver: p.Raw()}, found)
		require.NoError(t, raw.(driver.Allocator).FreeAsync(at, s.Raw()))
		closeAll(t, p)
		return p.Raw()
	}
	own, err := pool.DriverDefault(d)
	require.NoError(t, err)
	require.Equal(t, own.Raw(), current())
	p := w.driverPool(pool.Options{})
	require.NotEqual(t, p.Raw(), current())
	require.NoError(t, p.SetCurrent())
	require.Equal(t, p.Raw(), current())
	require.NoError(t, own.SetCurrent())
	require.Equal(t, own.Raw(), current())
	require.NoError(t, p.SetCurrent())
	closeAll(t, p)
	require.Equal(t, own.Raw(), current())

	closeAll(t, own, s)
	w.end()
}

func TestDriverPoolAccess(t *testing.T) {
	w := worldOf(t, 3, host.New(host.Config{Devices: 3, Memory: 64 * mib, Granularity: chunk, NoPeer: [][2]int{{0, 2}}}))
	p, s, theirs := w.driverPool(pool.Options{}), w.stream(0), w.stream(1)
	stranger := newWorld(t, 1, mib)
	has := func(d *vmm.Device, want vmm.Access) {
		t.Helper()
		got, err := p.Access(d)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	b := take(t, p, s, mib)
	require.Error(t, theirs.Fill(b.Ptr(), 1, 1, mib))
	require.NoError(t, p.Grant(vmm.AccessReadWrite, w.devs[1]))
	has(w.devs[1], vmm.AccessReadWrite)
	require.NoError(t, theirs.Fill(b.Ptr(), 1, 1, mib))
	require.NoError(t, p.Grant(vmm.AccessRead, w.devs[1]))
	has(w.devs[1], vmm.AccessRead)

	var pair *vmm.PairError
	for _, c := range []struct {
		err, kind error
	}{
		{p.Grant(vmm.AccessReadWrite), vmm.ErrInvalid},
		{p.Grant(vmm.AccessReadWrite, w.devs[1], w.devs[2]), vmm.ErrNotSupported},
		{p.Grant(vmm.AccessReadWrite, stranger.devs[0]), vmm.ErrInvalid},
		{p.Grant(vmm.AccessReadWrite, nil), vmm.ErrInvalid},
		{p.Grant(vmm.AccessReadWrite, w.devs[1], w.devs[1]), vmm.ErrInvalid},
		{p.Revoke(w.devs[0]), vmm.ErrInvalid},
		{p.Revoke(w.devs[1], w.devs[0]), vmm.ErrInvalid},
		{p.Grant(vmm.AccessNone, w.devs[0]), vmm.ErrInvalid},
	} {
		require.ErrorIs(t, c.err, c.kind)
		has(w.devs[1], vmm.AccessRead)
		has(w.devs[0], vmm.AccessReadWrite)
		has(w.devs[2], vmm.AccessNone)
	}
	require.ErrorAs(t, p.Grant(vmm.AccessRead, w.devs[2]), &pair)
	again, err := vmm.OpenDriver(w.devs[1].Driver(), 1)
	require.NoError(t, err)
	require.NoError(t, again.Close())
	require.ErrorIs(t, p.Grant(vmm.AccessReadWrite, again), vmm.ErrClosed)
	has(w.devs[1], vmm.AccessRead)
	has(stranger.devs[0], vmm.AccessNone)
	has(nil, vmm.AccessNone)

	// Revoke waits for the device's work: without it all devices would be lost.
	require.NoError(t, p.Grant(vmm.AccessReadWrite, w.devs[1]))
	g := w.gates(1)
	open := g.hold(theirs)
	require.NoError(t, theirs.Fill(b.Ptr(), 2, 1, mib))
	revoked := make(chan error, 1)
	go func() { revoked <- p.Revoke(w.devs[1]) }()
	require.Empty(t, revoked)
	open()
	require.NoError(t, <-revoked)
	has(w.devs[1], vmm.AccessNone)
	require.NoError(t, p.Free(s, b))
	closeAll(t, p, s, theirs)
	w.end()
	stranger.end()
}

// After a call of the driver that failed all is as it was, and the call works the next time.
func TestDriverPoolFaults(t *testing.T) {
	w := newWorld(t, 2, 64*mib)
	s := w.stream(0)
	var p *pool.DriverPool
	var b pool.Block
	steps := []struct {
		name string
		do   func() error
	}{
		{"NewDriver", func() (err error) {
			p, err = pool.NewDriver(w.devs[0], pool.Options{ReleaseThreshold: mib})
			return err
		}},
		{"Alloc", func() (err error) { b, err = p.Alloc(s, mib); return err }},
		{"SetCurrent", func() error { return p.SetCurrent() }},
		{"Grant", func() error { return p.Grant(vmm.AccessReadWrite, w.devs[1]) }},
		{"Revoke", func() error { return p.Revoke(w.devs[1]) }},
		{"SetReuse", func() error { return p.SetReuse(0) }},
		{"Reuse", func() error { _, err := p.Reuse(); return err }},
		{"Stats", func() error { _, err := p.Stats(); return err }},
		{"ResetPeaks", func() error { return p.ResetPeaks() }},
		{"TrimTo", func() error { _, err := p.TrimTo(0); return err }},
		{"Free", func() error { return p.Free(s, b) }},
		{"Alloc again", func() (err error) { b, err = p.Alloc(s, mib); return err }},
		{"FreeNow", func() error { return p.FreeNow(b) }},
		{"Close", func() error { return p.Close() }},
	}
	for _, step := range steps {
		failed := 0
		for k := 1; ; k++ {
			seen := 0
			w.watch(func(drivertest.Call) error {
				if seen++; seen == k {
					return errInjected
				}
				return nil
			})
			err := step.do()
			w.watch(nil)
			if err == nil {
				require.Less(t, seen, k, "%s: a failure is not reported", step.name)
				break
			}
			require.ErrorIs(t, err, errInjected, step.name)
			failed++
		}
		require.Positive(t, failed, step.name)
	}
	closeAll(t, s)
	w.end()
}

// Goroutines on streams of their own never see each other's stamps.
func TestDriverPoolConcurrent(t *testing.T) {
	w := oneDevice(t, 256*mib)
	p := w.driverPool(pool.Options{ReleaseThreshold: 8 * mib})
	const workers, rounds = 4, 60
	var streams []*vmm.Stream
	var ledgers []*ledger
	for range workers {
		streams = append(streams, w.stream(0))
		ledgers = append(ledgers, newLedger(t, w.devs[0], rounds))
	}
	var once atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, workers)
	for i := range workers {
		group.Go(func() {
			s, l := streams[i], ledgers[i]
			for k := range rounds {
				stamp := uint32(i<<16 | k)
				b, err := p.Alloc(s, uint64(4096*(1+k%7)))
				if err == nil {
					err = s.Fill(b.Ptr(), stamp, 4, b.Size()/4)
				}
				if err == nil {
					err = l.read(s, b.Ptr()+vmm.Ptr(b.Size()-entry), stamp)
				}
				if err != nil {
					errs[i] = err
					return
				}
				// Two at once: one of them frees.
				var both sync.WaitGroup
				for range 2 {
					both.Go(func() {
						if p.Free(s, b) == nil {
							once.Add(1)
						}
					})
				}
				both.Wait()
				if k%10 == 9 {
					errs[i] = s.Sync()
				}
			}
		})
	}
	group.Wait()
	for i := range workers {
		require.NoError(t, errs[i])
		require.NoError(t, streams[i].Sync())
		require.Zero(t, ledgers[i].foreign(t))
		closeAll(t, streams[i], ledgers[i].mem)
	}
	require.EqualValues(t, workers*rounds, once.Load())
	closeAll(t, p)
	w.end()
}

// Plain memory is freed in a stream's order, and memory of a pool at once.
func TestFreePlain(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	s, g := w.stream(0), w.gates(0)
	raw, err := w.devs[0].Raw()
	require.NoError(t, err)
	to, err := w.devs[0].Alloc(mib)
	require.NoError(t, err)
	before := w.free(0)
	at, err := raw.(driver.Allocator).AllocPlain(mib)
	require.NoError(t, err)
	open := g.hold(s)
	require.NoError(t, s.Fill(at, 5, 1, mib))
	require.NoError(t, s.Copy(to.Ptr(), at, mib))
	require.NoError(t, pool.FreePlain(s, at), "it does not wait")
	require.ErrorIs(t, pool.FreePlain(s, at), vmm.ErrInvalid, "twice")
	require.ErrorIs(t, pool.FreePlain(s, to.Ptr()), vmm.ErrInvalid, "mapped memory")
	require.Equal(t, before-mib, w.free(0), "until the stream comes there")
	open()
	require.NoError(t, s.Sync())
	require.Equal(t, before, w.free(0))
	got := make([]byte, mib)
	require.NoError(t, w.devs[0].CopyOut(got, to.Ptr()))
	require.EqualValues(t, 5, got[mib-1])

	p := w.driverPool(pool.Options{})
	b := take(t, p, s, mib)
	require.NoError(t, s.Fill(b.Ptr(), 1, 1, mib))
	require.NoError(t, s.Sync())
	require.NoError(t, p.FreeNow(b))
	st, err := p.Stats()
	require.NoError(t, err)
	require.Zero(t, st.Used)
	closeAll(t, p, to, s)
	w.end()
}

func TestDriverPoolHold(t *testing.T) {
	w := oneDevice(t, 64*mib)
	p, s := w.driverPool(pool.Options{}), w.stream(0)
	b, freed := take(t, p, s, mib), take(t, p, s, mib)
	require.NoError(t, p.Free(s, freed))
	release, err := p.HoldBlock(b)
	require.NoError(t, err)
	again, err := p.HoldBlock(b)
	require.NoError(t, err)
	require.ErrorIs(t, p.Free(s, b), vmm.ErrBusy)
	release()
	release()
	require.ErrorIs(t, p.FreeNow(b), vmm.ErrBusy, "held once still")
	again()

	other := w.driverPool(pool.Options{})
	foreign := take(t, other, s, mib)
	nothing, err := p.Alloc(s, 0)
	require.NoError(t, err)
	for _, c := range []struct {
		b    pool.Block
		want error
	}{{freed, pool.ErrDoubleFree}, {foreign, pool.ErrForeignBlock}, {pool.Block{}, pool.ErrForeignBlock}, {nothing, vmm.ErrInvalid}} {
		_, err := p.HoldBlock(c.b)
		require.ErrorIs(t, err, c.want)
	}
	require.NoError(t, other.Free(s, foreign))
	require.NoError(t, other.Close())
	require.NoError(t, p.Free(s, b), "as often as it was refused")

	// A wrapped pool is the driver's own: its Close destroys nothing.
	same, err := inPool.WrapDriver(w.devs[0], p.Raw())
	require.NoError(t, err)
	require.NoError(t, same.Close())
	handle, release, err := p.Hold()
	require.NoError(t, err)
	require.Equal(t, p.Raw(), handle)
	closed := make(chan error)
	go func() { closed <- p.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("closed though it is held: %v", err)
	default:
	}
	release()
	require.NoError(t, <-closed)
	_, _, err = p.Hold()
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = p.HoldBlock(b)
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = inPool.WrapDriver(nil, 1)
	require.ErrorIs(t, err, vmm.ErrInvalid)
}
