package vmm_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cuvmm/cuvmm/vmm"
)

// slow is the model's part for memory that is kept, made ahead of need, clipped while work
// runs, or asleep.
type slow struct {
	t       *testing.T
	ahead   bool
	asleep  bool
	s       *vmm.Stream
	scratch *vmm.Range
	gate    func() // opens the stream; nil while it is open
	limit   uint64 // 0: none
	most    uint64 // of memory, while there is a limit
}

func (m *model) begin() {
	s, err := m.w.devs[0].NewStream()
	require.NoError(m, err)
	m.s = s
	m.scratch, err = m.w.devs[0].Alloc(page)
	require.NoError(m, err)
}

// end leaves a range that is awake, and nothing else of this file.
func (m *model) end() {
	m.setLimit(0)
	m.finishWork()
	if m.asleep {
		m.wake()
	}
	require.NoError(m, m.s.Close())
	require.NoError(m, m.scratch.Close())
}

func (m *model) slowActions() map[string]func() {
	return map[string]func(){
		"threshold": m.threshold, "trim": m.trim, "limit": m.changeLimit,
		"use": m.use, "work": m.work, "finish work": m.finishWork,
		"sleep": m.sleep, "wake": m.wake,
	}
}

// unlessAsleep runs an action. If the range sleeps, it checks that the action returns
// ErrAsleep, and sometimes wakes the range.
func (m *model) unlessAsleep(name string, f func()) {
	g, b := m.g, []byte{1}
	calls := map[string]func() error{
		"append": func() error { return g.Append(b) }, "grow": func() error { return g.Grow(page) },
		"set length": func() error { return g.SetLen(0) }, "clip": g.Clip,
		"read":   func() error { return second(g.ReadAt(b, 0)) },
		"write":  func() error { return second(g.WriteAt(b, 0)) },
		"all":    func() error { return second(g.Host()) },
		"hold":   func() error { return second(g.Hold(0, 0)) },
		"peer":   func() error { return m.w.devs[0].CopyOut(b, m.ptr) },
		"grant":  func() error { return g.Grant(vmm.AccessRead, m.w.devs[len(m.w.devs)-1]) },
		"revoke": func() error { return g.Revoke(m.w.devs[len(m.w.devs)-1]) },
		"watch":  func() error { return second(g.Watch(vmm.Watch{Mapped: func(vmm.Segment) {}})) },
	}
	call := calls[name]
	if !m.asleep || call == nil {
		f()
		return
	}
	require.ErrorIs(m, call(), vmm.ErrAsleep)
	require.EqualValues(m, len(m.want), g.Len())
	require.Zero(m, g.Cap())
	if rapid.IntRange(0, 3).Draw(m.T, "wake") == 0 {
		m.wake()
	}
}

// scarce reports whether err is the limit's. Nothing has changed then.
func (m *model) scarce(err error) bool {
	if m.limit == 0 || !errors.Is(err, vmm.ErrOutOfMemory) {
		return false
	}
	require.EqualValues(m, len(m.want), m.g.Len())
	return true
}

// budget checks what is cheap to see of the device's counts.
func (m *model) budget() {
	st := m.w.devs[0].Stats()
	if m.limit > 0 {
		require.LessOrEqual(m, st.Committed, m.most)
	}
	require.LessOrEqual(m, st.Cached, st.ReleaseThreshold)
	require.Zero(m, st.Quarantined)
	if !m.asleep {
		require.EqualValues(m, uint64(len(m.want))+page, st.Used)
	}
}

func (m *model) threshold() {
	to := page * rapid.Uint64Range(0, 40).Draw(m.T, "threshold")
	m.w.devs[0].SetReleaseThreshold(to)
	require.Equal(m, to, m.w.devs[0].SetReleaseThreshold(to))
	m.budget()
}

func (m *model) trim() {
	keep := page * rapid.Uint64Range(0, 10).Draw(m.T, "keep")
	_, err := m.w.devs[0].Trim(keep)
	require.NoError(m, err)
	m.budget()
}

func (m *model) changeLimit() {
	if m.limit > 0 || rapid.IntRange(0, 2).Draw(m.T, "limited") > 0 {
		m.setLimit(0)
		return
	}
	m.setLimit(m.w.devs[0].Stats().Committed + page*rapid.Uint64Range(0, 20).Draw(m.T, "more"))
	m.budget()
}

func (m *model) setLimit(n uint64) {
	require.Equal(m, m.limit, m.w.devs[0].SetLimit(n))
	m.limit = n
	m.most = max(n, m.w.devs[0].Stats().Committed)
	if m.ahead {
		m.most += m.g.Max() // the goroutine may be creating some
	}
}

func (m *model) use() {
	if err := m.g.UsedBy(m.s); m.asleep {
		require.ErrorIs(m, err, vmm.ErrAsleep)
	} else {
		require.NoError(m, err)
	}
}

// work makes the stream read the range's memory, now or when the gate opens. If the memory
// were unmapped meanwhile, the device would be lost.
func (m *model) work() {
	if m.asleep || m.g.Cap() < page {
		return
	}
	if m.gate == nil {
		if rapid.IntRange(0, 3).Draw(m.T, "gated") > 0 {
			return
		}
		m.gate = gate(m.t, m.w.devs[0], m.s.Raw())
	}
	from := vmm.Ptr(rapid.Uint64Range(0, m.g.Cap()-page).Draw(m.T, "from"))
	require.NoError(m, m.s.Copy(m.scratch.Ptr(), m.ptr+from, page))
	// Only a named stream is waited for by a clip that ignores the others.
	require.NoError(m, m.g.UsedBy(m.s))
}

// finishWork opens the gate: later work waits.
func (m *model) finishWork() {
	if m.gate != nil {
		m.gate()
		m.gate = nil
	}
}

func (m *model) sleep() {
	keep := rapid.SampledFrom([]vmm.SleepMode{vmm.SleepDrop, vmm.SleepKeep, vmm.SleepKeep}).Draw(m.T, "keep")
	if rapid.IntRange(0, 3).Draw(m.T, "really") > 0 {
		return
	}
	m.finishWork()
	err := vmm.Sleep(keep, m.g)
	switch {
	case m.asleep:
		require.ErrorIs(m, err, vmm.ErrAsleep)
	case len(m.holds) > 0:
		require.ErrorIs(m, err, vmm.ErrBusy)
	default:
		require.NoError(m, err)
		m.asleep = true
		if keep == vmm.SleepDrop {
			m.want = nil
		}
		require.EqualValues(m, len(m.want), m.w.devs[0].Stats().Asleep)
		require.Empty(m, m.registry.have)
	}
	m.w.registered("")
}

func (m *model) wake() {
	err := vmm.Wake(m.g)
	if m.asleep && m.scarce(err) {
		return
	}
	require.NoError(m, err)
	m.asleep = false
	m.check()
}
