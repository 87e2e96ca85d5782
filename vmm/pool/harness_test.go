package pool_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

const (
	kib   = 1 << 10
	mib   = 1 << 20
	chunk = 64 * kib // the granularity of the devices of these tests, and the size of their pools' chunks
)

// How long tests wait for what another goroutine does, and how often they look.
const (
	patience = time.Minute
	waitStep = 100 * time.Microsecond
)

var fences = door.Through[order.Fences[*vmm.Stream]]()

var inPool = door.Through[door.Pool[*vmm.Device, *pool.DriverPool]]()

var errInjected = errors.New("injected")

// world is a driver, whose calls can be watched and refused, and devices of it. All its tests
// end with end.
type world struct {
	t    testing.TB
	drv  *drivertest.Injected
	devs []*vmm.Device
	held []*gates

	mayLose bool // the device, which is no error then
	lost    atomic.Bool

	mu     sync.Mutex
	before func(drivertest.Call) error // each call asks it; nil: none does
}

// newWorld has n host devices of so much memory.
func newWorld(t testing.TB, n int, memory uint64) *world {
	t.Helper()
	return worldOf(t, n, host.New(host.Config{Devices: n, Memory: memory, Granularity: chunk}))
}

// oneDevice has the machine's GPU, as VMM_TEST_DRIVER says, else a host device of so much memory.
func oneDevice(t testing.TB, memory uint64) *world {
	t.Helper()
	if !onCUDA {
		return newWorld(t, 1, memory)
	}
	d, err := vmm.Open("cuda:0")
	testgate.Require(t, "cuda", err)
	drv := d.Driver()
	require.NoError(t, d.Close())
	return worldOf(t, 1, drv)
}

func worldOf(t testing.TB, n int, drv driver.Driver) *world {
	t.Helper()
	w := &world{t: t}
	w.drv = drivertest.Inject(drv, func(c drivertest.Call) error {
		w.mu.Lock()
		f := w.before
		w.mu.Unlock()
		if f == nil {
			return nil
		}
		return f(c)
	})
	for i := range n {
		d, err := vmm.OpenDriver(w.drv, i)
		require.NoError(t, err)
		w.devs = append(w.devs, d)
	}
	return w
}

// forgiven reports whether an error is that the device is lost, as it may be.
func (w *world) forgiven(err error) bool {
	if !w.mayLose || !errors.Is(err, vmm.ErrDeviceLost) {
		return false
	}
	w.lost.Store(true)
	return true
}

// watch has f asked before each driver call; nil has none.
func (w *world) watch(f func(drivertest.Call) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before = f
}

// calls are the driver calls that f makes, by name.
func (w *world) calls(f func()) (names []string) {
	w.t.Helper()
	var mu sync.Mutex
	w.watch(func(c drivertest.Call) error {
		mu.Lock()
		defer mu.Unlock()
		names = append(names, c.Name)
		return nil
	})
	defer w.watch(nil)
	f()
	mu.Lock()
	defer mu.Unlock()
	return names
}

// end closes the devices and checks that nothing is left.
func (w *world) end() {
	w.t.Helper()
	w.watch(nil)
	for _, g := range w.held {
		g.giveBack()
	}
	for _, d := range w.devs {
		require.NoError(w.t, d.Close())
		st := d.Stats()
		require.Zero(w.t, st.Reserved+st.Committed+st.Quarantined+st.Retiring)
	}
	require.NoError(w.t, w.drv.Balanced())
}

func (w *world) pool(o pool.Options) *pool.Pool {
	w.t.Helper()
	p, err := pool.New(w.devs[0], o)
	require.NoError(w.t, err)
	return p
}

// stream makes a stream of device n.
func (w *world) stream(n int) *vmm.Stream {
	w.t.Helper()
	s, err := w.devs[n].NewStream()
	require.NoError(w.t, err)
	return s
}

// free is the memory of device n that is not in use.
func (w *world) free(n int) uint64 {
	w.t.Helper()
	free, _, err := w.devs[n].MemInfo()
	require.NoError(w.t, err)
	return free
}

// alloc is Alloc that works.
func alloc(t testing.TB, p pool.Allocator, s *vmm.Stream, n uint64) pool.Block {
	t.Helper()
	b, err := p.Alloc(s, n)
	require.NoError(t, err)
	return b
}

// statsOf is Stats that works.
func statsOf(t testing.TB, p *pool.Pool) pool.Stats {
	t.Helper()
	st, err := p.Stats()
	require.NoError(t, err)
	return st
}

func closeAll(t testing.TB, all ...interface{ Close() error }) {
	t.Helper()
	for _, x := range all {
		require.NoError(t, x.Close())
	}
}

// gates hold streams of one device back: work that is queued behind a gate runs once that
// is opened. They are words of page-locked memory that streams wait for.
type gates struct {
	*world
	dev   driver.Device
	words driver.Ptr
	other driver.Stream // which opens them

	wordMu sync.Mutex
	next   int
	freed  bool
}

const gateCount = 4096 // words; that many gates may be closed at once

// gates are device n's. They are made before any stream waits: making a stream may wait for
// the device.
func (w *world) gates(n int) *gates {
	w.t.Helper()
	dev, err := w.devs[n].Raw()
	require.NoError(w.t, err)
	g := &gates{world: w, dev: dev}
	g.words, _, err = dev.(driver.HostAllocator).AllocHost(4 * gateCount)
	require.NoError(w.t, err)
	g.other, err = dev.NewStream()
	require.NoError(w.t, err)
	w.held = append(w.held, g)
	return g
}

func (g *gates) giveBack() {
	g.freed = true
	require.NoError(g.t, g.dev.FreeStream(g.other))
	require.NoError(g.t, g.dev.(driver.HostAllocator).FreeHost(g.words))
}

// write stores a value in a word, now.
func (g *gates) write(word driver.Ptr, v uint64) {
	err := g.dev.(driver.StreamMemOps).WriteValue(g.other, word, v, 4)
	if err == nil {
		err = g.dev.SyncStream(g.other)
	}
	if err != nil && !g.forgiven(err) { // it is called by goroutines that are not the test's, too
		g.t.Error(err)
	}
}

// hold makes later work of s wait until open is called.
func (g *gates) hold(s *vmm.Stream) (open func()) {
	g.t.Helper()
	g.wordMu.Lock()
	defer g.wordMu.Unlock()
	word := g.words + driver.Ptr(4*(g.next%gateCount))
	g.next++
	g.write(word, 0)
	if err := g.dev.(driver.StreamMemOps).WaitValue(s.Raw(), word, 1, 4); !g.forgiven(err) {
		require.NoError(g.t, err)
	}
	open = sync.OnceFunc(func() {
		g.wordMu.Lock()
		defer g.wordMu.Unlock()
		g.write(word, 1)
	})
	g.t.Cleanup(func() { // of a test that has failed
		if !g.freed {
			open()
		}
	})
	return open
}

// passed waits for what the stream has been told, unseen by package vmm.
func (g *gates) passed(s *vmm.Stream) { require.NoError(g.t, g.dev.SyncStream(s.Raw())) }

// ledger is device memory for what streams have read, and what it should be.
type ledger struct {
	mem  *vmm.Range
	want []uint32
}

const entry = 16 // bytes that are read at once; each word is the stamp

func newLedger(t testing.TB, d *vmm.Device, entries int) *ledger {
	t.Helper()
	g, err := d.Alloc(uint64(entries) * entry)
	require.NoError(t, err)
	return &ledger{mem: g}
}

// read queues a copy of what the stream will find at p.
func (l *ledger) read(s *vmm.Stream, p vmm.Ptr, stamp uint32) error {
	at := uint64(len(l.want)) * entry
	if at+entry > l.mem.Len() {
		return nil // it has seen enough
	}
	l.want = append(l.want, stamp)
	return s.Copy(l.mem.Ptr()+vmm.Ptr(at), p, entry)
}

// foreign counts what was read and is not the stamp. The streams have been waited for.
func (l *ledger) foreign(t testing.TB) (n int) {
	t.Helper()
	got := make([]byte, len(l.want)*entry)
	require.NoError(t, l.mem.Device().CopyOut(got, l.mem.Ptr()))
	for i, want := range l.want {
		for k := range entry / 4 {
			if binary.LittleEndian.Uint32(got[i*entry+4*k:]) != want {
				n++
				break
			}
		}
	}
	l.want = l.want[:0]
	return n
}

// openAtWait opens a gate once the pool waits for what is behind it.
func openAtWait(open func()) func(drivertest.Call) error {
	return func(c drivertest.Call) error {
		if c.Name == "SyncEvent" && calledBy("(*search).await") {
			open()
		}
		return nil
	}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }
