package pool_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// machine does to a pool what a source of numbers says, and knows what has to come of it:
// which blocks there are, that they lie apart, what is written in them once their streams
// have come there, and what Stats has to say. Streams may be held back.
type machine struct {
	t     require.TestingT
	w     *world
	pick  func(n int) int // a number below n
	o     pool.Options
	p     *pool.Pool
	gates []*gates
	books []*ledger // of each device
	lanes []*lane
	live  []*owned
	stamp uint32
	name  string // of the operation
	later []interface{ Close() error }

	allocs, frees uint64
	injected      func() bool // whether driver calls may fail now
	fault         func(c drivertest.Call) error
}

// lane is a stream.
type lane struct {
	s    *vmm.Stream
	dev  int
	open func() // nil: it is not held back
}

// owned is a block whose work is queued on a lane.
type owned struct {
	b     pool.Block
	stamp uint32
	on    *lane
	used  bool // there was work
}

const (
	machineMax   = 24 * chunk
	machineLanes = 5
	machineLive  = 60
)

func newMachine(tb testing.TB, t require.TestingT, pick func(n int) int) *machine {
	m := &machine{t: t, w: newWorld(tb, 2, 40*chunk), pick: pick, injected: func() bool { return false }}
	m.o = pool.Options{Max: machineMax, Addresses: uint64(4+60*pick(2)) * machineMax, ReleaseThreshold: uint64(pick(3)) * 10 * chunk}
	m.o.Align = []uint64{0, 16, 1024, chunk}[pick(4)]
	for i := range m.w.devs {
		m.gates = append(m.gates, m.w.gates(i))
		m.books = append(m.books, newLedger(tb, m.w.devs[i], 16*chunk/entry/16))
	}
	m.w.watch(func(c drivertest.Call) error {
		if c.Name == "SyncEvent" && calledBy("(*search).await") {
			m.openAll()
		}
		if m.fault != nil {
			return m.fault(c)
		}
		return nil
	})
	m.make()
	m.addLane(0)
	m.addLane(0)
	return m
}

// make makes the pool.
func (m *machine) make() {
	p, err := pool.New(m.w.devs[0], m.o)
	require.NoError(m.t, err)
	m.p, m.allocs, m.frees = p, 0, 0
	require.NoError(m.t, p.Grant(vmm.AccessReadWrite, m.w.devs[1]))
}

func (m *machine) addLane(dev int) {
	s, err := m.w.devs[dev].NewStream()
	if !m.fails(err) {
		m.lanes = append(m.lanes, &lane{s: s, dev: dev})
	}
}

// fails reports whether err is of a driver call that was refused on purpose. Any other is a
// failure of the test.
func (m *machine) fails(err error) bool {
	if err == nil {
		return false
	}
	if m.injected() && errors.Is(err, errInjected) {
		return true
	}
	require.NoError(m.t, err, m.name)
	return true
}

// closeOne closes something, in the end if it cannot be closed now.
func (m *machine) closeOne(x interface{ Close() error }) {
	if m.fails(x.Close()) {
		m.later = append(m.later, x)
	}
}

// scarce reports whether there was no memory, or a call was refused.
func (m *machine) scarce(err error) bool {
	return errors.Is(err, vmm.ErrOutOfMemory) || m.fails(err)
}

func (m *machine) lane() *lane { return m.lanes[m.pick(len(m.lanes))] }

func (m *machine) openAll() {
	for _, l := range m.lanes {
		l.release()
	}
}

func (l *lane) release() {
	if l.open != nil {
		l.open()
		l.open = nil
	}
}

// operations are what the machine can do.
func (m *machine) operations() []func() {
	return []func(){
		m.alloc, m.alloc, m.alloc, m.alloc, m.alloc, m.free, m.free, m.free, m.freeElsewhere, m.freeNow, m.freeNow,
		m.resize, m.resize, m.trim, m.hold, m.hold, m.release, m.sync, m.wait, m.openStream, m.closeStream,
		m.policy, m.threshold, m.find, m.settle, m.twice, m.close, m.range1,
	}
}

// step does one operation and checks what is known.
func (m *machine) step() {
	all := m.operations()
	i := m.pick(len(all))
	m.name = fmt.Sprintf("operation %d", i)
	all[i]()
	m.check()
}

func (m *machine) size() uint64 {
	switch m.pick(6) {
	case 0:
		return uint64(m.pick(3)) // a size of 0, too
	case 1, 2:
		return uint64(1 + m.pick(4*kib))
	case 3:
		return uint64(1 + m.pick(64*kib))
	case 4:
		return uint64(1 + m.pick(3*chunk))
	}
	return uint64(1 + m.pick(machineMax+chunk))
}

func (m *machine) alloc() {
	if len(m.live) == machineLive {
		m.free()
		return
	}
	l, n := m.lane(), m.size()
	b, err := m.p.Alloc(l.s, n)
	if m.scarce(err) {
		return
	}
	require.Equal(m.t, n, b.Size())
	require.Zero(m.t, uint64(b.Ptr())%max(m.o.Align, 16))
	if n > 0 {
		m.allocs++
	}
	x := &owned{b: b, on: l}
	m.live = append(m.live, x)
	if m.pick(4) > 0 {
		m.write(x, 0)
	}
}

// write queues a stamp, on all words from byte from on.
func (m *machine) write(x *owned, from uint64) {
	words := x.b.Size() / 4
	if words < entry/4 {
		return
	}
	if from == 0 {
		m.stamp++
		x.stamp = m.stamp
	}
	from = from / 4
	if from < words && !m.fails(x.on.s.Fill(x.b.Ptr()+vmm.Ptr(4*from), x.stamp, 4, words-from)) {
		x.used = true
		return
	}
	x.stamp = 0
}

// read queues reads of what was written.
func (m *machine) read(x *owned) {
	if x.stamp == 0 {
		return
	}
	n := x.b.Size() / 4 * 4
	for _, at := range []uint64{0, n - entry, uint64(m.pick(int(n/entry))) * entry} {
		if m.fails(m.books[x.on.dev].read(x.on.s, x.b.Ptr()+vmm.Ptr(at), x.stamp)) {
			b := m.books[x.on.dev]
			b.want = b.want[:len(b.want)-1]
		}
	}
}

func (m *machine) some() *owned {
	if len(m.live) == 0 {
		return nil
	}
	return m.live[m.pick(len(m.live))]
}

func (m *machine) drop(x *owned) {
	if x.b.Size() > 0 {
		m.frees++
	}
	m.live = slices.DeleteFunc(m.live, func(y *owned) bool { return x == y })
}

func (m *machine) free() {
	x := m.some()
	if x == nil {
		return
	}
	m.read(x)
	require.NoError(m.t, m.p.Free(x.on.s, x.b))
	m.drop(x)
}

// follow makes a lane come after another.
func (m *machine) follow(to, from *lane) bool {
	if m.pick(2) == 0 {
		e, err := from.s.Record()
		if m.fails(err) {
			return false
		}
		err = to.s.Wait(e)
		m.closeOne(e)
		return !m.fails(err)
	}
	f, err := fences.Fence(from.s)
	if m.fails(err) {
		return false
	}
	defer f.Free()
	return !m.fails(fences.WaitFence(to.s, f))
}

func (m *machine) freeElsewhere() {
	x, to := m.some(), m.lane()
	if x == nil {
		return
	}
	m.read(x)
	if m.follow(to, x.on) {
		require.NoError(m.t, m.p.Free(to.s, x.b))
		m.drop(x)
	}
}

// freeNow is for a block that no work uses, or whose work has ended.
func (m *machine) freeNow() {
	x := m.some()
	if x == nil {
		return
	}
	if x.used {
		m.read(x)
		m.openAll() // it may wait for others
		m.gates[x.on.dev].passed(x.on.s)
	}
	require.NoError(m.t, m.p.FreeNow(x.b))
	m.drop(x)
}

func (m *machine) resize() {
	x, n := m.some(), m.size()
	if x == nil || x.b.Size() == 0 {
		return
	}
	was := x.b.Size()
	b, err := m.p.Resize(x.on.s, x.b, n)
	if n == 0 {
		require.ErrorIs(m.t, err, vmm.ErrInvalid)
		return
	}
	if errors.Is(err, pool.ErrNoRoom) || m.scarce(err) {
		require.Equal(m.t, x.b, b)
		require.Greater(m.t, n, was)
		return
	}
	require.Equal(m.t, x.b.Ptr(), b.Ptr())
	require.Equal(m.t, n, b.Size())
	x.b = b
	switch {
	case n < entry:
		x.stamp = 0
	case n > was && x.stamp > 0:
		m.write(x, was/4*4)
	}
}

func (m *machine) trim() {
	keep := uint64(m.pick(machineMax))
	before := m.stats().Reserved
	freed, err := m.p.TrimTo(keep)
	m.fails(err)
	require.Equal(m.t, before-freed, m.stats().Reserved)
	if freed > 0 {
		require.GreaterOrEqual(m.t, before-freed+chunk, keep)
	}
}

func (m *machine) hold() {
	if l := m.lane(); l.open == nil {
		l.open = m.gates[l.dev].hold(l.s)
	}
}

func (m *machine) release() { m.lane().release() }

func (m *machine) sync() {
	l := m.lane()
	switch m.pick(4) {
	case 0:
		m.openAll() // it may wait for others
		m.fails(l.s.Sync())
	case 1:
		m.openAll()
		m.fails(m.w.devs[l.dev].Sync())
	case 2:
		e, err := l.s.Record()
		if m.fails(err) {
			return
		}
		m.openAll()
		m.fails(e.Sync())
		m.closeOne(e)
	default:
		_, err := l.s.Done()
		m.fails(err)
	}
}

func (m *machine) wait() {
	to, from := m.lane(), m.lane()
	if to != from {
		m.follow(to, from)
	}
}

func (m *machine) openStream() {
	if len(m.lanes) < machineLanes {
		m.addLane(m.pick(2))
	}
}

// closeStream closes one, whose blocks another takes over.
func (m *machine) closeStream() {
	if len(m.lanes) == 1 {
		return
	}
	l := m.lane()
	m.openAll()
	if m.fails(l.s.Close()) {
		return
	}
	m.lanes = slices.DeleteFunc(m.lanes, func(x *lane) bool { return x == l })
	for _, x := range m.live {
		if x.on == l {
			x.on = m.lane()
		}
	}
}

func (m *machine) policy() {
	require.NoError(m.t, m.p.SetReuse(pool.Reuse(m.pick(int(pool.ReuseAll)+1))))
}

func (m *machine) threshold() {
	require.NoError(m.t, m.p.SetReleaseThreshold(uint64(m.pick(machineMax))))
}

func (m *machine) find() {
	if x := m.some(); x != nil && x.b.Size() > 0 {
		b, ok := m.p.Find(x.b.Ptr() + vmm.Ptr(m.pick(int(x.b.Size()))))
		require.True(m.t, ok)
		require.Equal(m.t, x.b.Ptr(), b.Ptr())
		require.GreaterOrEqual(m.t, b.Size(), x.b.Size())
	}
	at := uint64(m.pick(int(m.p.Reservation().Size())))
	b, ok := m.p.Find(m.p.Reservation().Ptr() + vmm.Ptr(at))
	mine := slices.ContainsFunc(m.live, func(x *owned) bool { return x.b.Size() > 0 && x.b.Ptr() == b.Ptr() })
	require.Equal(m.t, ok, mine)
}

// settle lets all streams end, and looks at what they have read. What is left is blocks and
// what is free: any block fits for which there is memory.
func (m *machine) settle() {
	m.openAll()
	for _, l := range m.lanes {
		if m.fails(l.s.Sync()) {
			m.gates[l.dev].passed(l.s)
		}
	}
	if m.injected() {
		return
	}
	for i, b := range m.books {
		require.Zero(m.t, b.foreign(m.w.t), "device %d", i)
	}
	require.Zero(m.t, m.stats().Pending)
	if m.o.Addresses == 4*machineMax {
		return
	}
	_, err := m.p.TrimTo(0)
	require.NoError(m.t, err)
	most := min(machineMax-m.stats().Reserved, m.w.free(0))
	if most == 0 {
		return
	}
	l := m.lane()
	b, err := m.p.Alloc(l.s, most)
	require.NoError(m.t, err, "%d bytes are free", most)
	require.NoError(m.t, m.p.Free(l.s, b))
	m.allocs++
	m.frees++
}

// twice frees what was freed.
func (m *machine) twice() {
	x := m.some()
	if x == nil || x.b.Size() == 0 {
		return
	}
	m.read(x)
	require.NoError(m.t, m.p.Free(x.on.s, x.b))
	m.drop(x)
	for range 2 {
		require.ErrorIs(m.t, m.p.Free(x.on.s, x.b), pool.ErrDoubleFree)
		require.ErrorIs(m.t, m.p.FreeNow(x.b), pool.ErrDoubleFree)
		_, err := m.p.Resize(x.on.s, x.b, 1)
		require.ErrorIs(m.t, err, pool.ErrDoubleFree)
		if m.pick(2) == 0 {
			m.alloc()
		}
	}
}

func (m *machine) close() {
	if m.allocs != m.frees {
		require.ErrorIs(m.t, m.p.Close(), vmm.ErrBusy)
		return
	}
	m.openAll()
	if m.pick(3) > 0 {
		return
	}
	m.fails(m.p.Close())
	fault := m.fault
	m.fault = nil
	require.NoError(m.t, m.p.Close(), "after an error it can be called again")
	m.live = nil
	m.make()
	m.fault = fault
}

// range1 takes memory for a range for a moment: so the pool is pressed.
func (m *machine) range1() {
	r, err := m.w.devs[0].Alloc(uint64(1+m.pick(20)) * chunk)
	if !m.scarce(err) {
		m.openAll() // it waits for the device
		m.closeOne(r)
	}
}

func (m *machine) stats() pool.Stats {
	st, err := m.p.Stats()
	require.NoError(m.t, err)
	return st
}

// check compares the pool with what is known.
func (m *machine) check() {
	require.NoError(m.t, pool.Check(m.p), m.name)
	st := m.stats()
	var asked uint64
	all := make([]*owned, 0, len(m.live))
	for _, x := range m.live {
		if x.b.Size() > 0 {
			all = append(all, x)
			asked += x.b.Size()
		}
	}
	require.Len(m.t, all, st.Blocks, m.name)
	require.Equal(m.t, [2]uint64{m.allocs, m.frees}, [2]uint64{st.Allocs, st.Frees}, m.name)
	require.LessOrEqual(m.t, asked, st.Used)
	require.LessOrEqual(m.t, st.Used, st.Reserved)
	require.LessOrEqual(m.t, st.Used+st.Pending, st.Reserved)
	require.LessOrEqual(m.t, st.LargestFree, st.Reserved-st.Used)
	require.LessOrEqual(m.t, st.Reserved, st.ReservedPeak)
	require.LessOrEqual(m.t, st.ReservedPeak, uint64(machineMax))
	require.LessOrEqual(m.t, st.Used, st.UsedPeak)
	require.Equal(m.t, st.Created-st.Released, st.Reserved, m.name)
	slices.SortFunc(all, func(a, b *owned) int {
		if a.b.Ptr() < b.b.Ptr() {
			return -1
		}
		return 1
	})
	for i := 1; i < len(all); i++ {
		require.LessOrEqual(m.t, all[i-1].b.Ptr()+vmm.Ptr(all[i-1].b.Size()), all[i].b.Ptr(), "two blocks overlap")
	}
}

// end frees everything.
func (m *machine) end() {
	m.fault, m.injected = nil, func() bool { return false }
	m.name = "end"
	for len(m.live) > 0 {
		m.free()
	}
	m.settle()
	m.check()
	for _, l := range m.lanes {
		require.NoError(m.t, l.s.Close())
	}
	require.NoError(m.t, m.p.Close())
	for _, x := range m.later {
		require.NoError(m.t, x.Close())
	}
	for _, b := range m.books {
		require.NoError(m.t, b.mem.Close())
	}
	m.w.end()
}
