package kernel_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// The kernels of these tests: an item appends its number as many times as by says, all or
// none.
const repeatCUDA = `
#include "cuvmm_append.cuh"
extern "C" __global__ void repeat(cuvmm::cursor *c, unsigned long long n, unsigned long long by)
{
	unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
	if (i >= cuvmm::item_count(c, n))
		return;
	unsigned long long item = cuvmm::item(c, i);
	unsigned long long first = cuvmm::reserve(c, by);
	if (first == cuvmm::full) {
		cuvmm::note_unfinished(c, item);
		return;
	}
	for (unsigned long long k = 0; k < by; k++)
		((unsigned *)c->data)[first + k] = item;
}
extern "C" __global__ void each(cuvmm::cursor *c, unsigned long long n, unsigned long long by)
{
	unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
	if (i >= cuvmm::item_count(c, n))
		return;
	unsigned long long item = cuvmm::item(c, i);
	if (item % by == 0 && !cuvmm::append(c, (unsigned)item))
		cuvmm::note_unfinished(c, item);
}
extern "C" __global__ void wide(cuvmm::cursor *c, unsigned long long n, unsigned long long by)
{
	unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
	if (i < cuvmm::item_count(c, n) && !cuvmm::append(c, by))
		cuvmm::note_unfinished(c, cuvmm::item(c, i));
}
template <class T> __device__ void tile(cuvmm::cursor *c, T value)
{
	typedef cuvmm::tile_appender<T, 256, 4> appender;
	__shared__ typename appender::shared s;
	T values[4] = {value, value, value, value};
	if (!appender::append(c, s, values, ~0u) && threadIdx.x == 0)
		cuvmm::note_unfinished(c, cuvmm::item(c, blockIdx.x));
}
extern "C" __global__ void tiles(cuvmm::cursor *c, unsigned long long n, unsigned long long by)
{
	tile(c, (unsigned)by);
}
extern "C" __global__ void wide_tiles(cuvmm::cursor *c, unsigned long long n, unsigned long long by)
{
	tile(c, by);
}
`

func repeat(c *kernel.DeviceCursor, n, by uint64) {
	for i := range c.ItemCount(n) {
		item := c.Item(i)
		if !kernel.AppendTo(c, slices.Repeat([]uint32{uint32(item)}, int(by))...) {
			c.NoteUnfinished(item)
		}
	}
}

func each(c *kernel.DeviceCursor, n, by uint64) {
	for i := range c.ItemCount(n) {
		if item := c.Item(i); item%by == 0 && !kernel.AppendTo(c, uint32(item)) {
			c.NoteUnfinished(item)
		}
	}
}

// wide appends elements that are too large.
func wide(c *kernel.DeviceCursor, n, by uint64) {
	for i := range c.ItemCount(n) {
		if !kernel.AppendTo(c, slices.Repeat([]uint64{by}, 1000)...) {
			c.NoteUnfinished(c.Item(i))
		}
	}
}

func repeaters(t *testing.T, dev *vmm.Device) *kernel.Module {
	t.Helper()
	m, err := kernel.Load(dev, kernel.Code{CUDA: repeatCUDA, Host: kernel.Host{"repeat": repeat, "each": each, "wide": wide, "wide_tiles": wide}})
	return ends(t, m, err)
}

func cursor(t *testing.T, v *growable.Vector[uint32]) *kernel.Cursor {
	t.Helper()
	c, err := kernel.NewCursor(v)
	return ends(t, c, err)
}

// launches counts what Append launches, and launches f.
func launches(s *vmm.Stream, f *kernel.Func, c *kernel.Cursor, n, by uint64, passes *[]uint64) func(uint64) error {
	return func(items uint64) error {
		*passes = append(*passes, items)
		return f.Launch(s, kernel.Over(items, 256), c, n, by)
	}
}

func TestCursor(t *testing.T) {
	dev := open(t)
	m, s := repeaters(t, dev), stream(t, dev)
	const n, by = 200_000, 7 // more than a GPU's smallest chunk
	var want []uint32
	for i := range uint32(n) {
		want = append(want, slices.Repeat([]uint32{i}, by)...)
	}
	v := vector[uint32](t, dev, 42)
	require.NoError(t, v.Clip())
	ptr := v.Ptr()
	c := cursor(t, v)
	var passes []uint64
	got, err := c.Append(s, n, launches(s, function(t, m, "repeat"), c, n, by, &passes))
	require.NoError(t, err)
	require.EqualValues(t, n*by, got)
	require.Len(t, passes, 2, "one growth is enough")
	require.EqualValues(t, n, passes[0])
	require.Less(t, passes[1], passes[0], "only what did not fit runs again")
	require.Equal(t, ptr, v.Ptr())
	all := contents(t, v)
	require.EqualValues(t, 42, all[0])
	require.Equal(t, want, sorted(all[1:]))

	// Elements one by one, by the warp form.
	w := vector[uint32](t, dev)
	c = cursor(t, w)
	got, err = c.Append(s, 1<<20, launches(s, function(t, m, "each"), c, 1<<20, 3, &passes))
	require.NoError(t, err)
	require.EqualValues(t, (1<<20+2)/3, got)
	for i, x := range sorted(contents(t, w)) {
		if x != uint32(3*i) {
			require.EqualValues(t, 3*i, x)
		}
	}
	require.Zero(t, c.Unfinished())
	got, err = c.Resume(s, func(uint64) error { return errors.New("there is nothing to resume") })
	require.NoError(t, err)
	require.Zero(t, got)
}

// TestCursorFull: what fitted stays when the range cannot grow, and Resume goes on once it
// can.
func TestCursorFull(t *testing.T) {
	dev := open(t)
	m, s := repeaters(t, dev), stream(t, dev)
	v, err := growable.New[uint32](dev, growable.Options{MaxLen: 1 << 19})
	ends(t, v, err)
	c := cursor(t, v)
	const n, by = 100_000, 7 // 700,000 elements of at most 524,288
	var passes []uint64
	f := function(t, m, "repeat")
	got, err := c.Append(s, n, launches(s, f, c, n, by, &passes))
	require.ErrorIs(t, err, vmm.ErrFull)
	require.Equal(t, int(got), v.Len())
	require.Positive(t, c.Unfinished())
	require.EqualValues(t, n, got/by+c.Unfinished(), "each item is done or noted")
	first := contents(t, v)

	require.NoError(t, v.SetLen(0))
	rest := uint64(0)
	for c.Unfinished() > 0 {
		more, err := c.Resume(s, launches(s, f, c, n, by, &passes))
		if err != nil {
			require.ErrorIs(t, err, vmm.ErrFull)
		}
		rest += more
		first = append(first, contents(t, v)...)
		require.NoError(t, v.SetLen(0))
	}
	require.EqualValues(t, n*by, got+rest)
	slices.Sort(first)
	for i, x := range first {
		if x != uint32(i/by) {
			require.EqualValues(t, i/by, x, "each item once")
		}
	}
}

// TestCursorResumes: items of an Append that failed, for whatever reason, are unfinished until
// Resume has done them, and an Append of no items does not pass them over.
func TestCursorResumes(t *testing.T) {
	dev := open(t)
	m, s := repeaters(t, dev), stream(t, dev)
	v := vector[uint32](t, dev, 42)
	c := cursor(t, v)
	const n, by = 1000, 7
	f := function(t, m, "repeat")
	var passes []uint64
	refused := errors.New("refused")
	got, err := c.Append(s, n, func(uint64) error { return refused })
	require.ErrorIs(t, err, refused)
	require.Zero(t, got)
	require.EqualValues(t, n, c.Unfinished())
	_, err = c.Append(s, 0, launches(s, f, c, n, by, &passes))
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.ErrorContains(t, err, "Resume")
	require.Empty(t, passes)
	require.EqualValues(t, n, c.Unfinished())
	got, err = c.Resume(s, launches(s, f, c, n, by, &passes))
	require.NoError(t, err)
	require.EqualValues(t, n*by, got)
	require.EqualValues(t, n, passes[0], "all of them")
	require.Zero(t, c.Unfinished())
	got, err = c.Append(s, 0, launches(s, f, c, n, by, &passes))
	require.NoError(t, err)
	require.Zero(t, got)
	for i, x := range sorted(contents(t, v)[1:]) {
		require.EqualValues(t, i/by, x, "each item once")
	}
}

// TestCursorChecksTheSize of what kernels append: it must be that of an element.
func TestCursorChecksTheSize(t *testing.T) {
	dev := open(t)
	m, s := repeaters(t, dev), stream(t, dev)
	for _, name := range []string{"wide", "wide_tiles"} {
		v := vector(t, dev, make([]uint32, 1<<14)...) // so that what is read below was written
		require.NoError(t, v.SetLen(1))
		read := func() []uint32 {
			all := make([]uint32, 1<<14)
			require.NoError(t, v.SetLen(1<<14))
			_, err := v.ReadAt(all, 0)
			require.NoError(t, err)
			require.NoError(t, v.SetLen(1))
			return all
		}
		before := read()
		c := cursor(t, v)
		got, err := c.Append(s, 4, func(uint64) error {
			return function(t, m, name).Launch(s, kernel.Config{Grid: vmm.Dim{X: 4}, Block: vmm.Dim{X: 256}}, c, uint64(4), uint64(7))
		})
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
		require.ErrorContains(t, err, "values of 8 bytes to elements of 4")
		require.Zero(t, got)
		require.Equal(t, 1, v.Len())
		require.Equal(t, before, read(), "%s: nothing is written", name)
	}
}

// TestCursorTilesOfFewValues: bits of keep that stand for no value append nothing.
func TestCursorTilesOfFewValues(t *testing.T) {
	dev := gpu(t)
	m, s := repeaters(t, dev), stream(t, dev)
	v := vector[uint32](t, dev)
	c := cursor(t, v)
	got, err := c.Append(s, 3, func(items uint64) error {
		return function(t, m, "tiles").Launch(s, kernel.Over(256*items, 256), c, uint64(3), uint64(7))
	})
	require.NoError(t, err)
	require.EqualValues(t, 3*1024, got)
	require.Equal(t, slices.Repeat([]uint32{7}, 3*1024), contents(t, v))
}

// TestCursorTakesWhatIsFree: growth ahead asks no one for memory, and keeps what the next Append
// needs if that is like the last one.
func TestCursorTakesWhatIsFree(t *testing.T) {
	dev := open(t)
	m, s := repeaters(t, dev), stream(t, dev)
	v := vector[uint32](t, dev)
	c := cursor(t, v)
	f := function(t, m, "repeat")
	const large = 8 << 20 // elements
	var passes []uint64
	add := func(n, by uint64) {
		t.Helper()
		got, err := c.Append(s, n, launches(s, f, c, n, by, &passes))
		require.NoError(t, err)
		require.EqualValues(t, n*by, got)
	}
	add(large/1024, 1024)
	other := vector[uint32](t, dev)
	require.NoError(t, other.Grow(4*large))
	asked := 0
	t.Cleanup(dev.OnPressure(func(error) bool { asked++; return false }))
	defer dev.SetLimit(0)
	dev.SetLimit(dev.Stats().Committed + 4*large) // the memory of one such Append: the next one is to have that of two
	require.NoError(t, v.SetLen(v.Len()-100))
	before := v.Cap()
	add(4, 1)
	require.Zero(t, asked)
	require.Equal(t, before, v.Cap(), "what was not used is given back")
	require.Positive(t, dev.Stats().GrowAheadFailures, "it wanted more than was free")
	// The device's goroutine does it.
	require.Eventually(t, func() bool { return v.Range().Stats().Retiring == 0 }, time.Minute, time.Millisecond)
	dev.SetLimit(0)
	add(large/1024, 1024)
	add(large/1024, 1024)
	passes = nil
	for range 3 {
		add(large/1024, 1024)
	}
	require.Len(t, passes, 3, "the memory was there")
	require.Zero(t, asked)
}

// TestCursorModel: items that append different numbers of elements, until memory runs out. No
// element is lost, none is there twice, and there is no gap, also after a Resume that had no
// memory.
func TestCursorModel(t *testing.T) {
	const n = 500
	dev, err := vmm.OpenDriver(host.New(host.Config{Memory: testgate.Effort[uint64](4, 8, 8) << 20, Granularity: 64 << 10}), 0)
	ends(t, dev, err)
	count := func(item, round uint64) uint64 { return item * round % 97 }
	m, err := kernel.Load(dev, kernel.Code{Host: kernel.Host{"several": func(c *kernel.DeviceCursor, round uint64) {
		for i := range c.ItemCount(n) {
			item := c.Item(i)
			values := make([]uint64, count(item, round))
			for j := range values {
				values[j] = round<<32 | item<<16 | uint64(j)
			}
			if !kernel.AppendTo(c, values...) {
				c.NoteUnfinished(item)
			}
		}
	}}})
	ends(t, m, err)
	v, err := growable.New[uint64](dev, growable.Options{})
	ends(t, v, err)
	c, err := kernel.NewCursor(v)
	ends(t, c, err)
	s, f := stream(t, dev), function(t, m, "several")
	want := map[uint64]bool{}
	for round := uint64(1); ; round++ {
		before := v.Len()
		next := func(uint64) error { return f.Launch(s, kernel.Config{}, c, round) }
		got, err := c.Append(s, n, next)
		if err != nil {
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			require.Positive(t, c.Unfinished())
			more, err := c.Resume(s, next)
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			require.Zero(t, more)
		}
		require.EqualValues(t, got, v.Len()-before)
		for item := range uint64(n) {
			for j := range count(item, round) {
				want[round<<32|item<<16|j] = true
			}
		}
		for _, x := range contents(t, v)[before:] {
			if !want[x] {
				require.True(t, want[x], "twice, or of no item")
			}
			delete(want, x)
		}
		if err != nil {
			require.Greater(t, round, uint64(10))
			return
		}
		require.Empty(t, want, "lost")
	}
}

// TestCursorNeedsItsCheck: without the check of the capacity a kernel writes beyond what is
// mapped, and the device is lost.
func TestCursorNeedsItsCheck(t *testing.T) {
	if onCUDA && !testgate.InChild(t) { // a GPU does not come back
		return
	}
	dev := openToLose(t)
	m, err := kernel.Load(dev, kernel.Code{
		CUDA: "#define CUVMM_NO_CAPACITY_CHECK\n" + repeatCUDA,
		Host: kernel.Host{"repeat": repeat},
	})
	require.NoError(t, err)
	v, err := growable.New[uint32](dev, growable.Options{})
	require.NoError(t, err)
	require.NoError(t, v.Append(1))
	c, err := kernel.NewCursor(v)
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	kernel.SetNoCapacityCheck(true)
	t.Cleanup(func() { kernel.SetNoCapacityCheck(false) })
	var passes []uint64
	_, err = c.Append(s, 1_000_000, launches(s, function(t, m, "repeat"), c, 1_000_000, 7, &passes))
	require.ErrorIs(t, err, vmm.ErrDeviceLost)
	t.Log(err)
}

func TestCursorRefuses(t *testing.T) {
	dev := open(t)
	s := stream(t, dev)
	v := vector[uint32](t, dev, 1)
	_, err := kernel.NewCursor(nil)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = kernel.NewCursor((*growable.Vector[uint32])(nil))
	require.ErrorIs(t, err, vmm.ErrInvalid)
	c := cursor(t, v)
	_, err = c.Append(s, 1, nil)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = c.Append(s, 1<<40, func(uint64) error { return nil })
	require.ErrorIs(t, err, vmm.ErrInvalid)
	refused := errors.New("refused")
	_, err = c.Append(s, 1, func(uint64) error { return refused })
	require.ErrorIs(t, err, refused)
	_, err = c.Append(s, 1, func(uint64) error { return v.Append(2) })
	require.ErrorIs(t, err, vmm.ErrBusy, "another call appends")
	got, err := c.Append(s, 1, func(uint64) error { return nil })
	require.NoError(t, err, "a kernel that appends nothing")
	require.Zero(t, got)
	_, err = c.Append(nil, 1, func(uint64) error { return nil })
	require.ErrorIs(t, err, vmm.ErrInvalid)
	if !onCUDA {
		noter := function(t, load(t, dev, kernel.Host{"note": func(c *kernel.DeviceCursor) { c.NoteUnfinished(0) }}), "note")
		_, err = c.Append(s, 1, func(uint64) error { return noter.Launch(s, kernel.Over(1, 1), c) })
		require.ErrorIs(t, err, vmm.ErrInvalid, "an item that is never done")
		greedy := function(t, load(t, dev, kernel.Host{"forget": func(c *kernel.DeviceCursor) { kernel.AppendTo(c, make([]uint32, 1<<20)...) }}), "forget")
		got, err := c.Append(s, 1, func(uint64) error { return greedy.Launch(s, kernel.Over(1, 1), c) })
		require.ErrorIs(t, err, vmm.ErrInvalid, "what did not fit is lost")
		require.ErrorContains(t, err, "1048576 elements did not fit")
		require.Zero(t, got)
	}
	require.NoError(t, (*kernel.Cursor)(nil).Close())
	gone, err := kernel.NewCursor(v)
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	require.NoError(t, gone.Close())
	_, err = gone.Append(s, 1, func(uint64) error { return nil })
	require.ErrorIs(t, err, vmm.ErrClosed)
}

// TestCursorHolds: nothing that a kernel may write is clipped under it.
func TestCursorHolds(t *testing.T) {
	dev := open(t)
	m, s := repeaters(t, dev), stream(t, dev)
	v := vector[uint32](t, dev)
	require.NoError(t, v.Grow(1_000_000))
	c := cursor(t, v)
	var passes []uint64
	next := launches(s, function(t, m, "repeat"), c, 10, 3, &passes)
	got, err := c.Append(s, 10, func(items uint64) error {
		require.ErrorIs(t, v.Clip(), vmm.ErrBusy)
		return next(items)
	})
	require.NoError(t, err)
	require.EqualValues(t, 30, got)
	require.Len(t, passes, 1)
	require.NoError(t, v.Clip())
}
