package vmm_test

// What users of other libraries of growable memory complain about, each as a
// test. The table is in docs/contributing/field-cases.md, which also names those that are
// covered by tests of other files.

import (
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// registration is what a library keeps of a range that it has registered.
type registration struct {
	generation, bytes uint64
	changed           <-chan struct{}
}

func register(g *vmm.Range) registration {
	changed := g.Changed()
	r := registration{generation: g.Generation(), changed: changed}
	for _, s := range g.Segments() {
		r.bytes += s.Size
	}
	return r
}

// told reports whether Changed is closed.
func (r registration) told() bool {
	select {
	case <-r.changed:
		return true
	default:
		return false
	}
}

// TestRegistrationsByAddress: the address never changes. So a library that keeps a
// registration by address learns from Changed that the range has grown, and from
// Generation that the memory is another. Sleep changes both before Wake maps new memory.
func TestRegistrationsByAddress(t *testing.T) {
	w := newWorld(t, 1)
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 64 * page, Chunk: page})
	require.NoError(t, err)
	require.NoError(t, g.Append(pattern(2*page, 1)))
	first := register(g)
	require.False(t, first.told())

	require.NoError(t, g.Append(pattern(3*page, 2)))
	require.True(t, first.told())
	require.Equal(t, first.generation, g.Generation(), "what is registered is still right")
	grown := register(g)
	require.Greater(t, grown.bytes, first.bytes, "but not all there is")

	require.NoError(t, g.SetLen(page))
	clipped := register(g)
	require.NoError(t, g.Clip())
	require.True(t, clipped.told())
	require.NoError(t, g.Append(pattern(4*page, 3)))
	require.NotEqual(t, grown.generation, g.Generation(), "other memory at the same addresses")

	for _, mode := range []vmm.SleepMode{vmm.SleepKeep, vmm.SleepDrop} {
		awake := register(g)
		require.NoError(t, vmm.Sleep(mode, g))
		require.True(t, awake.told(), "before there is new memory")
		require.NotEqual(t, awake.generation, g.Generation())
		asleep := register(g)
		require.Zero(t, asleep.bytes)
		require.NoError(t, vmm.Wake(g))
		require.True(t, asleep.told())
		require.NotEqual(t, awake.generation, g.Generation())
	}

	last := register(g)
	require.NoError(t, g.Close())
	require.True(t, last.told(), "another range may get the addresses")
	require.NotEqual(t, last.generation, g.Generation())
	w.end()
}

// TestAnothersCaptureSurvives the first and the last calls of this library: a graph that
// one thread captures does not concern the others.
func TestAnothersCaptureSurvives(t *testing.T) {
	w := newWorld(t, 2)
	d := w.devs[0]
	capturing, err := d.NewStream()
	require.NoError(t, err)
	end := captured(t, w, capturing)

	done := make(chan error)
	go func() { done <- useAll(d) }()
	require.NoError(t, <-done, "the device whose stream is captured")
	go func() { done <- useAll(w.devs[1]) }()
	require.NoError(t, <-done, "a device that was never used")

	end()
	require.NoError(t, capturing.Close())
	w.end()
}

// useAll uses all memory of a range in a stream.
func useAll(d *vmm.Device) (err error) {
	do := func(f func() error) {
		if err == nil {
			err = f()
		}
	}
	var s *vmm.Stream
	var g *vmm.Range
	do(func() (err error) { s, err = d.NewStream(); return err })
	do(func() (err error) {
		g, err = d.NewRange(vmm.RangeOptions{Max: 64 * page, Chunk: page})
		return err
	})
	do(func() error { return g.UsedBy(s) })
	do(func() error { return g.Append(pattern(5*page, 1)) })
	do(func() error { return g.AppendOn(s, pattern(5*page, 2)) })
	do(s.Sync)
	do(func() error { return s.CopyOut(make([]byte, 10*page), g.Ptr()) })
	do(func() error { _, _, err := d.MemInfo(); return err })
	do(func() error { return g.SetLen(page) })
	do(g.Clip)
	do(func() error { return g.Grow(8 * page) })
	do(g.Close)
	do(s.Close)
	do(func() error { _, err := d.Trim(0); return err })
	return err
}

// TestUnalignedGrowth by sizes that are no multiple of anything: whole pages are
// committed, all of them are released at the end, and Clip really releases memory.
func TestUnalignedGrowth(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	for _, chunk := range []uint64{0, page, 3 * page} {
		g, err := d.NewRange(vmm.RangeOptions{Max: 500 * page, Chunk: chunk})
		require.NoError(t, err)
		var want []byte
		for _, n := range []int{1, page - 1, 1, page + 1, 3, 7*page + 5, 2*page - 9, 12345, 1} {
			b := pattern(n, byte(n))
			require.NoError(t, g.Append(b))
			want = append(want, b...)
			require.NoError(t, g.Grow(uint64(n/2+1)))
			committed := d.Stats().Committed
			require.Zero(t, committed%page)
			require.Equal(t, register(g).bytes, committed)
			require.Equal(t, g.Cap(), committed)
		}
		got := make([]byte, len(want))
		_, err = g.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, want, got)

		require.NoError(t, g.SetLen(1))
		require.NoError(t, g.Clip())
		require.LessOrEqual(t, d.Stats().Committed, max(chunk, page))
		require.NoError(t, g.Close())
		require.Zero(t, d.Stats().Committed)
	}
	w.end()
}

// TestZeroSizes: no call reaches the driver that it would refuse.
func TestZeroSizes(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	never, err := d.NewRange(vmm.RangeOptions{Max: page})
	require.NoError(t, err)
	require.NoError(t, never.Close(), "never grown")

	g, err := d.NewRange(vmm.RangeOptions{Max: 4 * page})
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	for range 2 { // without memory, and with
		committed := d.Stats().Committed
		require.NoError(t, g.Grow(0))
		require.NoError(t, g.Append(nil))
		require.NoError(t, g.AppendOn(s, nil))
		_, err = g.ReadAt(nil, 0)
		require.NoError(t, err)
		_, err = g.WriteAt(nil, 0)
		require.NoError(t, err)
		release, err := g.Hold(0, 0)
		require.NoError(t, err)
		release()
		require.NoError(t, s.Fill(g.Ptr(), 1, 4, 0))
		require.NoError(t, s.Copy(g.Ptr(), g.Ptr(), 0))
		require.NoError(t, s.CopyIn(g.Ptr(), nil))
		require.Equal(t, committed, d.Stats().Committed)
		require.NoError(t, g.SetLen(0))
		require.NoError(t, g.Clip())
		require.Zero(t, d.Stats().Committed)
		require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
		require.NoError(t, vmm.Wake(g))
		require.NoError(t, g.Append([]byte{1}))
	}
	_, err = d.Create(0, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = d.Reserve(0, vmm.ReserveOptions{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestThousandImports, half of which fail: each uses only the addresses that it needs, and
// neither addresses nor descriptors are left.
func TestThousandImports(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	shared, err := d.Create(page, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	fd, err := shared.Export()
	require.NoError(t, err)
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(all)
	}
	before := descriptors()
	var all []*vmm.Reservation
	for i := range 1000 {
		if i%2 == 1 {
			w.refuse([]string{"Import", "Map", "SetAccess"}[i/2%3], 1, errInjected)
		}
		r, err := d.Reserve(page, vmm.ReserveOptions{})
		if err != nil {
			require.ErrorIs(t, err, errInjected)
			continue
		}
		c, err := d.Import(fd, page, vmm.Prop{})
		if err == nil {
			err = r.Map(0, c)
			require.NoError(t, c.Close())
		}
		if i%2 == 0 {
			require.NoError(t, err)
			all = append(all, r)
			continue
		}
		require.ErrorIs(t, err, errInjected)
		require.NoError(t, r.Close())
	}
	require.LessOrEqual(t, descriptors(), before, "memory of earlier tests may have been freed meanwhile")
	require.EqualValues(t, 500*page, d.Stats().Reserved)
	for _, r := range all {
		require.NoError(t, r.Close())
	}
	require.NoError(t, os.NewFile(uintptr(fd), "memory").Close())
	require.NoError(t, shared.Close())
	w.end()
}

// TestStatsAfterOutOfMemory agree with the driver, whichever call ran out.
func TestStatsAfterOutOfMemory(t *testing.T) {
	for _, name := range []string{"", "Create", "Map", "SetAccess"} {
		for _, threshold := range []uint64{0, 20 * page} {
			w := worldOn(t, 1, host.Config{Memory: 100 * page, Granularity: page})
			d := w.devs[0]
			d.SetReleaseThreshold(threshold)
			agree := func() {
				t.Helper()
				free, total, err := d.MemInfo()
				require.NoError(t, err)
				require.Equal(t, total-free, d.Stats().Committed)
			}
			g, err := d.NewRange(vmm.RangeOptions{Max: 200 * page})
			require.NoError(t, err)
			require.NoError(t, g.Append(pattern(30*page, 1)))
			require.NoError(t, g.SetLen(10*page))
			require.NoError(t, g.Clip())
			agree()
			if name != "" {
				w.refuse(name, 100, vmm.ErrOutOfMemory)
			}
			require.ErrorIs(t, g.Grow(150*page), vmm.ErrOutOfMemory)
			agree()
			w.refuse(name, 0, nil)
			require.NoError(t, g.Append(pattern(50*page, 2)))
			agree()
			require.NoError(t, g.Close())
			_, err = d.Trim(0)
			require.NoError(t, err)
			agree()
			w.end()
		}
	}
}

// TestAnyOrder of closing, shrinking and growing again: no order leaves a hole that Trim
// cannot release.
func TestAnyOrder(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(50 * page)
	random := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		var all []*vmm.Range
		for range 10 {
			g, err := d.Alloc(uint64(random.IntN(20*page) + 1))
			require.NoError(t, err)
			all = append(all, g)
		}
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, g := range all[:5] {
			require.NoError(t, g.SetLen(g.Len()/2))
			require.NoError(t, g.Clip())
		}
		for _, g := range all {
			require.NoError(t, g.Close())
		}
		_, err := d.Trim(0)
		require.NoError(t, err)
		s := d.Stats()
		require.Zero(t, s.Committed+s.Cached+s.Reserved+s.Retiring, "%v", s)
	}
	w.end()
}

// reuser is a driver that uses the handle of a freed stream for the next one, as CUDA's
// does.
type reuser struct{ *host.Driver }

func (d *reuser) Open(n int) (driver.Device, error) {
	v, err := d.Driver.Open(n)
	if err != nil {
		return nil, err
	}
	return &reusing{Device: v, HostAllocator: v.(driver.HostAllocator), StreamMemOps: v.(driver.StreamMemOps), real: map[driver.Stream]driver.Stream{}}, nil
}

type reusing struct {
	driver.Device
	driver.HostAllocator
	driver.StreamMemOps

	mu   sync.Mutex
	real map[driver.Stream]driver.Stream // by the handle that the caller has
}

const firstReused = 1 << 40

// of is the stream behind a handle.
func (v *reusing) of(s driver.Stream) driver.Stream {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r, ok := v.real[s]; ok {
		return r
	}
	return s
}

func (v *reusing) NewStream() (driver.Stream, error) {
	r, err := v.Device.NewStream()
	if err != nil {
		return 0, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	s := driver.Stream(firstReused)
	for v.real[s] != 0 {
		s++
	}
	v.real[s] = r
	return s, nil
}

func (v *reusing) FreeStream(s driver.Stream) error {
	if err := v.Device.FreeStream(v.of(s)); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.real, s)
	return nil
}

func (v *reusing) Copy(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	return v.Device.Copy(dst, src, n, v.of(s))
}

func (v *reusing) Fill(dst driver.Ptr, pattern uint32, width int, n uint64, s driver.Stream) error {
	return v.Device.Fill(dst, pattern, width, n, v.of(s))
}

func (v *reusing) SyncStream(s driver.Stream) error { return v.Device.SyncStream(v.of(s)) }

func (v *reusing) StreamDone(s driver.Stream) (bool, error) {
	asked, ok := v.Device.(interface {
		StreamDone(driver.Stream) (bool, error)
	})
	if !ok {
		return false, driver.ErrNotSupported
	}
	return asked.StreamDone(v.of(s))
}

func (v *reusing) Capturing(s driver.Stream) (bool, error) { return v.Device.Capturing(v.of(s)) }

func (v *reusing) Record(e driver.Event, s driver.Stream) error {
	return v.Device.Record(e, v.of(s))
}

func (v *reusing) Wait(s driver.Stream, e driver.Event) error { return v.Device.Wait(v.of(s), e) }

func (v *reusing) WaitValue(s driver.Stream, p driver.Ptr, x uint64, width int) error {
	return v.StreamMemOps.WaitValue(v.of(s), p, x, width)
}

func (v *reusing) WriteValue(s driver.Stream, p driver.Ptr, x uint64, width int) error {
	return v.StreamMemOps.WriteValue(v.of(s), p, x, width)
}

// TestReusedStreamHandles: a closed stream and the next one are two streams, though the
// driver uses one handle for both.
func TestReusedStreamHandles(t *testing.T) {
	w := worldOf(t, 1, &reuser{host.New(host.Config{Memory: 512 * page, Granularity: page})}, nil)
	d := w.devs[0]
	g, err := d.NewRange(vmm.RangeOptions{Max: 64 * page, Chunk: page})
	require.NoError(t, err)
	old, err := d.NewStream()
	require.NoError(t, err)
	require.NoError(t, g.UsedBy(old))
	require.NoError(t, g.AppendOn(old, pattern(page, 1)))
	require.NoError(t, old.Close())

	s, err := d.NewStream()
	require.NoError(t, err)
	require.Equal(t, old.Raw(), s.Raw(), "the handle is reused, or this shows nothing")
	require.ErrorIs(t, old.Sync(), vmm.ErrClosed)
	require.ErrorIs(t, old.CopyIn(g.Ptr(), []byte{1}), vmm.ErrClosed)
	require.ErrorIs(t, g.UsedBy(old), vmm.ErrClosed)
	require.ErrorIs(t, g.AppendOn(s, []byte{1}), vmm.ErrInvalid, "this one is not named")
	require.NoError(t, old.Close(), "twice is fine, and frees nothing")

	require.NoError(t, g.UsedBy(s))
	want := pattern(3*page, 2)
	open := gate(t, d, s.Raw())
	require.NoError(t, g.AppendOn(s, want[page:]))
	require.NoError(t, s.CopyIn(g.Ptr(), want[:page]))
	require.NoError(t, g.Grow(2*page))
	require.NoError(t, g.Clip())
	require.NotZero(t, g.Stats().Retiring, "the stream with the handle has not come to it")
	open()
	got := make([]byte, len(want))
	_, err = g.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestGenerationsAreNeverTheSame: a registration kept by address and generation never
// matches a later range at the same address.
func TestGenerationsAreNeverTheSame(t *testing.T) {
	w := newWorld(t, 1)
	seen := map[uint64]bool{}
	for range 100 {
		g := ranged(t, w, page)
		require.NoError(t, g.Grow(2*page))
		require.NoError(t, g.Clip())
		require.False(t, seen[g.Generation()])
		seen[g.Generation()] = true
		require.NoError(t, g.Close())
	}
	w.end()
}
