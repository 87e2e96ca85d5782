package growable_test

import (
	"errors"
	"io"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// memory is a Source of this test's own.
type memory struct {
	mu      sync.Mutex
	b       []byte
	changed chan struct{}
	read    func([]byte, int64) (int, error) // in place of ReadAt
}

func (m *memory) Len() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return uint64(len(m.b))
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.read != nil {
		return m.read(p, off)
	}
	if off > int64(len(m.b)) {
		return 0, io.EOF
	}
	n := copy(p, m.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *memory) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changed == nil {
		m.changed = make(chan struct{})
	}
	return m.changed
}

// set replaces the bytes.
func (m *memory) set(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.b = b
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// described is memory that knows its layout, as a shareable.View does.
type described struct {
	memory
	layout vmm.Layout
}

func (d *described) Layout() vmm.Layout { return d.layout }

// seen is memory that the CPU can address.
type seen struct{ memory }

func (s *seen) Host() ([]byte, error) { return s.b, nil }

func collect[T any](t *testing.T, seq func(func(T, error) bool)) (all []T) {
	t.Helper()
	for x, err := range seq {
		require.NoError(t, err)
		all = append(all, x)
	}
	return all
}

func TestReaderFollowsARange(t *testing.T) {
	v := vector[int32](t, vmmtest.Device(t), growable.Options{MaxLen: 1000})
	r, err := growable.NewReader[int32](v.Range())
	require.NoError(t, err)
	require.Zero(t, r.Len())
	require.Empty(t, collect(t, r.All()))

	changed := r.Changed()
	require.NoError(t, v.Append(1, 2, 3))
	<-changed
	require.Equal(t, 3, r.Len())
	require.Equal(t, []int32{1, 2, 3}, collect(t, r.All()))
	x, err := r.At(2)
	require.NoError(t, err)
	require.EqualValues(t, 3, x)
	dst := make([]int32, 4)
	n, err := r.ReadAt(dst, 1)
	require.Equal(t, 2, n)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []int32{2, 3}, dst[:n])
	for b, err := range r.Blocks(make([]int32, 2)) {
		require.NoError(t, err)
		require.Equal(t, []int32{1, 2}, b)
		break
	}
	for x, err := range r.All() {
		require.NoError(t, err)
		require.EqualValues(t, 1, x)
		break
	}
	h, err := r.Host()
	require.NoError(t, err)
	require.Equal(t, []int32{1, 2, 3}, h)

	// No index panics: another process may take elements back at any time.
	for _, i := range []int{-1, 3, math.MaxInt} {
		_, err = r.At(i)
		require.ErrorIs(t, err, vmm.ErrBounds)
		require.ErrorContains(t, err, "there are 3 elements")
	}
	require.NoError(t, v.Close())
	<-r.Changed()
	_, err = r.At(0)
	require.ErrorIs(t, err, vmm.ErrClosed)
}

func TestRowsReader(t *testing.T) {
	rows, err := growable.LayoutOf[int16](3)
	require.NoError(t, err)
	rows.Pitch = 8
	src := &described{layout: rows}
	r, err := growable.NewRowsReader[int16](src, 0)
	require.NoError(t, err)
	require.Equal(t, 3, r.Width())
	require.Equal(t, 8, r.Pitch())
	_, err = growable.NewRowsReader[int16](src, 3)
	require.NoError(t, err)

	// Two rows and a part of a third one, as while a chunk is on its way.
	changed := r.Changed()
	src.set([]byte{1, 0, 2, 0, 3, 0, 9, 9, 4, 0, 5, 0, 6, 0, 9, 9, 7, 0})
	<-changed
	require.Equal(t, 2, r.Len())
	var got [][]int16
	for row, err := range r.All() {
		require.NoError(t, err)
		got = append(got, slices.Clone(row))
	}
	require.Equal(t, [][]int16{{1, 2, 3}, {4, 5, 6}}, got)
	dst := make([]int16, 9)
	n, err := r.ReadAt(dst, 0)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, 2, n)
	require.Equal(t, []int16{1, 2, 3, 4, 5, 6}, dst[:6])
	_, err = r.Host()
	require.ErrorIs(t, err, vmm.ErrNotSupported, "padding")
	for row, err := range r.All() {
		require.NoError(t, err)
		require.Equal(t, []int16{1, 2, 3}, row)
		break
	}

	// Without a layout there is no padding, and the width is the caller's word.
	plain, err := growable.NewRowsReader[int16](&src.memory, 4)
	require.NoError(t, err)
	require.Equal(t, [][]int16{{1, 2, 3, 0x0909}, {4, 5, 6, 0x0909}}, func() (all [][]int16) {
		for row, err := range plain.All() {
			require.NoError(t, err)
			all = append(all, slices.Clone(row))
		}
		return all
	}())
	_, err = plain.Host()
	require.ErrorIs(t, err, vmm.ErrNotSupported, "no method Host")

	// Arrays are dimensions: rows of 2x3 are two elements of three.
	deep, err := growable.LayoutOf[int16](2, 3)
	require.NoError(t, err)
	of, err := growable.NewRowsReader[[3]int16](&described{layout: deep}, 0)
	require.NoError(t, err)
	require.Equal(t, 2, of.Width())
	_, err = growable.NewReader[[2][3]int16](&described{layout: deep})
	require.NoError(t, err)
}

// TestReadersRefuse: a source whose layout differs, with what differs and both values.
func TestReadersRefuse(t *testing.T) {
	layout := func(dims ...int) vmm.Layout {
		l, err := growable.LayoutOf[float32](dims...)
		require.NoError(t, err)
		return l
	}
	padded, unhashed := layout(768), layout(768)
	padded.Pitch, unhashed.Hash = 4096, [32]byte{}
	rows := func(l vmm.Layout, width int) func() error {
		return func() error { _, err := growable.NewRowsReader[float32](&described{layout: l}, width); return err }
	}
	elements := func(l vmm.Layout) func() error {
		return func() error { _, err := growable.NewReader[float32](&described{layout: l}); return err }
	}
	huge := layout(2)
	huge.Pitch = 1 << 63
	for name, c := range map[string]struct {
		text string
		do   func() error
	}{
		"another width":         {"a layout of rows of 768 float32, not rows of 512 float32: a shape of [768], not [512]", rows(layout(768), 512)},
		"no hash":               {"a layout of rows of 768 float32, not rows of 768 float32: a hash of none, not bd2616c5", rows(unhashed, 768)},
		"elements as rows":      {"a layout of float32, not rows of 768 float32: a shape of [], not [768]", rows(layout(), 768)},
		"more dimensions":       {"a shape of [3 4], not [3]", rows(layout(3, 4), 0)},
		"elements without rows": {"rows of 0 elements", rows(layout(), 0)},
		"no layout":             {"there is no layout, and rows of 768 float32 is wanted", rows(vmm.Layout{}, 768)},
		"a pitch beyond all":    {"apart", rows(huge, 2)},
		"a negative width":      {"rows of -1 elements, where 1 is the least", rows(layout(768), -1)},
		"rows as elements":      {"a shape of [768], not []", elements(layout(768))},
		"padding":               {"a shape of [768], not []", elements(padded)},
		"another type": {"elements of kind float, not int", func() error {
			_, err := growable.NewReader[int32](&described{layout: layout()})
			return err
		}},
		"another pitch": {"a pitch of 4096 bytes, not 3072", func() error {
			_, err := growable.NewReader[[768]float32](&described{layout: padded})
			return err
		}},
		"no source":      {"no source", func() error { _, err := growable.NewReader[float32](nil); return err }},
		"no source rows": {"no source", func() error { _, err := growable.NewRowsReader[float32](nil, 1); return err }},
		"no width": {"rows of 0 elements", func() error {
			_, err := growable.NewRowsReader[float32](&memory{}, 0)
			return err
		}},
	} {
		err := c.do()
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
		require.ErrorContains(t, err, c.text, name)
	}
	_, err := growable.NewReader[string](&memory{})
	require.ErrorIs(t, err, growable.ErrElement)
	_, err = growable.NewRowsReader[string](&memory{}, 1)
	require.ErrorIs(t, err, growable.ErrElement)
}

// TestReadersOfBadSources: a source of somebody else's ends no loop and no process.
func TestReadersOfBadSources(t *testing.T) {
	full := make([]byte, 64)
	for name, read := range map[string]func([]byte, int64) (int, error){
		"too little":     func(p []byte, _ int64) (int, error) { return len(p) - 1, nil },
		"nothing":        func([]byte, int64) (int, error) { return 0, nil },
		"too much":       func(p []byte, _ int64) (int, error) { return len(p) + 1, nil },
		"less than none": func([]byte, int64) (int, error) { return -1, io.EOF },
	} {
		src := &memory{b: full, read: read}
		r, err := growable.NewReader[int32](src)
		require.NoError(t, err)
		rows, err := growable.NewRowsReader[int32](src, 2)
		require.NoError(t, err)
		for _, err := range r.Blocks(nil) {
			require.ErrorIs(t, err, vmm.ErrInvalid, name)
		}
		for _, err := range rows.All() {
			require.ErrorIs(t, err, vmm.ErrInvalid, name)
		}
		_, err = r.At(1)
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
	}

	odd := &seen{memory{b: full[1:33]}}
	r, err := growable.NewReader[int32](odd)
	require.NoError(t, err)
	_, err = r.Host()
	require.ErrorIs(t, err, vmm.ErrNotSupported, "they begin between two elements")
	odd.b = full[:7]
	h, err := r.Host()
	require.NoError(t, err)
	require.Equal(t, []int32{0}, h, "without the half behind it")

	// The length falls while all of it is read.
	failed := errors.New("failed")
	src := &memory{b: full}
	r, err = growable.NewReader[int32](src)
	require.NoError(t, err)
	n := 0
	for b, err := range r.Blocks(make([]int32, 4)) {
		require.NoError(t, err)
		n += len(b)
		src.set(full[:24])
	}
	require.Equal(t, 6, n)
	n = 0
	for _, err := range r.All() {
		if n++; n == 1 {
			require.NoError(t, err)
		}
	}
	require.Equal(t, 6, n)
	src.read = func([]byte, int64) (int, error) { return 0, failed }
	n = 0
	for x, err := range r.All() {
		require.ErrorIs(t, err, failed)
		require.Zero(t, x)
		n++
	}
	require.Equal(t, 1, n)
}
