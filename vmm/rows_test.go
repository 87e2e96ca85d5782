package vmm_test

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// between is what lies between rows before they are written.
const between = 0xee

// noRows has the driver say that it cannot copy rows.
func noRows(c drivertest.Call) error {
	switch c.Name {
	case "Pitch", "CopyIn2D", "CopyOut2D", "Copy2D":
		return vmm.ErrNotSupported
	}
	return nil
}

// rowWorlds is a device for each way in which rows are copied.
func rowWorlds(t *testing.T) map[string]*world {
	none := unstaged(t)
	none.before = noRows
	both := staged(t, 2)
	both.before = noRows
	return map[string]*world{
		"by the driver": unstaged(t), "row by row": none,
		"staged": staged(t, 2), "staged row by row": both,
	}
}

// TestRowsMoveOnlyTheData: rows of every width and pitch come back as they went in, and no
// byte beside them is written, in device memory or in the caller's.
func TestRowsMoveOnlyTheData(t *testing.T) {
	for name, w := range rowWorlds(t) {
		t.Run(name, func(t *testing.T) {
			for i, shape := range [][3]int{
				{1, 1, 5}, {1, 2, 700}, {3, 8, 300}, {64, 100, 90}, {100, 128, 1}, {125, 126, 64}, {333, 500, 31},
				{edge - 1, edge, 9}, {edge, edge + 1, 9}, {edge + 1, 2*edge + 3, 5}, {edge, edge, 7},
			} {
				width, pitch, n := shape[0], shape[1], shape[2]
				g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 512 * page})
				require.NoError(t, g.Append(bytes.Repeat([]byte{between}, 3*n*pitch+11)))
				require.NoError(t, g.SetLen(11))
				want := bytes.Repeat([]byte{between}, 11)
				put := func(at int, rows []byte) {
					for r := range len(rows) / width {
						copy(want[at+r*pitch:], rows[r*width:][:width])
					}
				}
				for k, count := range []int{n, 0, 1, n} {
					rows := noise(count*width, uint64(10*i+k))
					at := len(want)
					want = append(want, bytes.Repeat([]byte{between}, count*pitch)...)
					put(at, rows)
					require.NoError(t, g.AppendRows(rows, uint64(width), uint64(pitch)))
					clear(rows)
					require.EqualValues(t, len(want), g.Len())
				}
				rows := noise(n*width, uint64(10*i+9))
				put(11+pitch, rows)
				m, err := g.WriteRowsAt(rows, int64(11+pitch), uint64(width), uint64(pitch))
				require.NoError(t, err)
				require.Equal(t, len(rows), m)

				got := make([]byte, len(want))
				_, err = g.ReadAt(got, 0)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got), "%v", shape)
				for _, count := range []int{0, 1, n, 2*n + 1, 2*n + 4} {
					dst := bytes.Repeat([]byte{0xdd}, (count+1)*width)
					m, err := g.ReadRowsAt(dst[:count*width], 11, uint64(width), uint64(pitch))
					have := min(count, 2*n+1)
					require.Equal(t, have < count, err == io.EOF, "%v", err) //nolint:errorlint // as io.ReaderAt has it
					require.Equal(t, have*width, m)
					for r := range have {
						require.True(t, bytes.Equal(want[11+r*pitch:][:width], dst[r*width:][:width]), "row %d of %v", r, shape)
					}
					require.Equal(t, bytes.Repeat([]byte{0xdd}, len(dst)-have*width), dst[have*width:])
				}
				require.NoError(t, g.Close())
			}
			made := w.drv.Counts()
			switch name {
			case "by the driver":
				require.Positive(t, made["CopyIn2D"].Made)
				require.Positive(t, made["CopyOut2D"].Made)
			case "staged":
				require.Positive(t, made["Copy2D"].Made)
			}
		})
	}
	for _, w := range rowWorlds(t) {
		w.end()
	}
}

func TestRowsBadInput(t *testing.T) {
	w := newWorld(t, 1)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 16 * page, Chunk: page})
	require.NoError(t, g.AppendRows(make([]byte, 12), 4, 10))
	s := stream(t, w.devs[0])
	at := func(p vmm.Ptr, pitch uint64) vmm.PitchedPtr { return vmm.PitchedPtr{Ptr: p, Pitch: pitch} }
	read := func(n int, off int64, width, pitch uint64) error {
		_, err := g.ReadRowsAt(make([]byte, n), off, width, pitch)
		return err
	}
	write := func(n int, off int64, width, pitch uint64) error {
		_, err := g.WriteRowsAt(make([]byte, n), off, width, pitch)
		return err
	}
	for name, c := range map[string]struct{ want, got error }{
		"append of no width":           {vmm.ErrInvalid, g.AppendRows(make([]byte, 4), 0, 8)},
		"append of rows that overlap":  {vmm.ErrInvalid, g.AppendRows(make([]byte, 8), 4, 3)},
		"append of part of a row":      {vmm.ErrInvalid, g.AppendRows(make([]byte, 7), 4, 8)},
		"append that overflows":        {vmm.ErrFull, g.AppendRows(make([]byte, 8), 2, 1<<62)},
		"append beyond the maximum":    {vmm.ErrFull, g.AppendRows(make([]byte, 2), 1, 16*page)},
		"read of no width":             {vmm.ErrInvalid, read(4, 0, 0, 8)},
		"read of rows that overlap":    {vmm.ErrInvalid, read(8, 0, 4, 3)},
		"read of part of a row":        {vmm.ErrInvalid, read(7, 0, 4, 8)},
		"read before the start":        {vmm.ErrBounds, read(4, -1, 4, 10)},
		"read past the end":            {io.EOF, read(8, 20, 4, 10)},
		"read of a huge pitch":         {io.EOF, read(8, 0, 4, math.MaxUint64)},
		"read far beyond the end":      {io.EOF, read(8, math.MaxInt64, 4, 10)},
		"write of rows that overlap":   {vmm.ErrInvalid, write(8, 0, 4, 3)},
		"write before the start":       {vmm.ErrBounds, write(4, -1, 4, 10)},
		"write past the end":           {vmm.ErrBounds, write(8, 20, 4, 10)},
		"write of part of the padding": {vmm.ErrBounds, write(4, 21, 4, 10)},
		"write that overflows":         {vmm.ErrBounds, write(8, 0, 2, 1<<62)},
		"copy of rows that overlap":    {vmm.ErrInvalid, s.Copy2D(at(g.Ptr(), 3), at(g.Ptr()+page, 8), 4, 2)},
		"copy from rows that overlap":  {vmm.ErrInvalid, s.Copy2D(at(g.Ptr(), 8), at(g.Ptr()+page, 3), 4, 2)},
		"copy that overflows":          {vmm.ErrInvalid, s.Copy2D(at(g.Ptr(), 1<<63), at(g.Ptr(), 8), 4, 3)},
		"copy beyond the mapped":       {vmm.ErrBounds, s.Copy2D(at(g.Ptr(), page), at(g.Ptr(), 8), 4, 2)},
		"copy from beyond the mapped":  {vmm.ErrBounds, s.Copy2D(at(g.Ptr(), 8), at(g.Ptr(), page), 4, 2)},
		"copy of no rows":              {nil, s.Copy2D(at(g.Ptr(), page), at(64, 1), 4, 0)},
		"copy on no stream":            {vmm.ErrInvalid, (*vmm.Stream)(nil).Copy2D(at(g.Ptr(), 8), at(g.Ptr(), 8), 4, 2)},
		"append to no range":           {vmm.ErrInvalid, (*vmm.Range)(nil).AppendRows(make([]byte, 4), 4, 8)},
	} {
		require.ErrorIs(t, c.got, c.want, name)
	}
	require.EqualValues(t, 30, g.Len())
	require.EqualValues(t, page, g.Cap())
	for _, width := range []uint64{0, math.MaxUint64} {
		_, err := w.devs[0].Pitch(width)
		require.ErrorIs(t, err, vmm.ErrInvalid)
	}
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	require.ErrorIs(t, g.AppendRows(make([]byte, 4), 4, 8), vmm.ErrClosed)
	require.ErrorIs(t, g.AppendRows(make([]byte, 4), 0, 8), vmm.ErrClosed)
	require.ErrorIs(t, read(4, 0, 4, 8), vmm.ErrClosed)
	require.ErrorIs(t, write(4, 0, 0, 8), vmm.ErrClosed)
	w.end()
	_, err := w.devs[0].Pitch(1)
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = (*vmm.Device)(nil).Pitch(1)
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

func TestPitch(t *testing.T) {
	w := newWorld(t, 1)
	for _, width := range []uint64{1, 100, 512, 3000} {
		n, err := w.devs[0].Pitch(width)
		require.NoError(t, err)
		require.GreaterOrEqual(t, n, width)
		require.Zero(t, n%64)
		w.before = noRows
		n, err = w.devs[0].Pitch(width)
		require.NoError(t, err)
		require.Equal(t, width, n, "a driver that prefers none")
		w.before = nil
	}
	w.end()
}

// TestFailedAppendRows: some of the rows are written when a copy fails, but Len stays, and nothing is
// written to the padding, which is zeros with Zero.
func TestFailedAppendRows(t *testing.T) {
	for _, zero := range []bool{false, true} {
		w := unstaged(t)
		g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 16 * page, Chunk: page, Zero: zero})
		require.NoError(t, g.Append([]byte{1, 2}))
		require.NoError(t, g.Grow(page))
		last := drivertest.FailNth("CopyIn", 4, errInjected)
		w.before = func(c drivertest.Call) error {
			if err := noRows(c); err != nil {
				return err
			}
			return last(c)
		}
		rows := bytes.Repeat([]byte{secret}, 40)
		err := g.AppendRows(rows, 10, 16)
		isInjected(w, err)
		require.EqualValues(t, 2, g.Len())
		w.before = nil
		dirty := make([]byte, 64)
		require.NoError(t, w.devs[0].CopyOut(dirty, g.Ptr()+2))
		require.True(t, bytes.Contains(dirty, []byte{secret}))

		require.NoError(t, g.AppendRows(rows, 10, 16))
		require.EqualValues(t, 66, g.Len())
		require.NoError(t, w.devs[0].CopyOut(dirty, g.Ptr()+2))
		want := bytes.Repeat(append(bytes.Repeat([]byte{secret}, 10), make([]byte, 6)...), 4)
		require.Equal(t, want, dirty)
		require.NoError(t, g.Close())
		w.end()
	}
}

// TestRowsQueuedBeforeAFailureAreWaitedFor: where rows go to a lane's stream one by one and
// one cannot be queued, those before it have run when the call returns.
func TestRowsQueuedBeforeAFailureAreWaitedFor(t *testing.T) {
	w := staged(t, 1)
	g, want := noisy(t, w, 2*edge)
	open := gate(t, w.devs[0], vmm.IdleLane(w.devs[0]))
	third := drivertest.FailNth("Copy", 3, errInjected)
	w.before = func(c drivertest.Call) error {
		if err := noRows(c); err != nil {
			return err
		}
		return third(c)
	}
	written := parked(func() error {
		_, err := g.WriteRowsAt(bytes.Repeat([]byte{secret}, 40), 0, 10, 16)
		return err
	})
	require.Contains(t, stacks(), "vmm_test.runParked(", "two rows are still to be copied")
	open()
	require.ErrorIs(t, written(), errInjected)
	got := make([]byte, len(want))
	_, err := g.ReadAt(got, 0)
	require.NoError(t, err)
	copy(want, bytes.Repeat([]byte{secret}, 10))
	copy(want[16:], bytes.Repeat([]byte{secret}, 10))
	require.True(t, bytes.Equal(want, got))
	require.NoError(t, g.Close())
	w.end()
}

// TestCopy2D copies rows in the order of a stream, with and without a driver that can.
func TestCopy2D(t *testing.T) {
	for _, before := range []func(drivertest.Call) error{nil, noRows} {
		w := unstaged(t)
		w.before = before
		g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 16 * page, Chunk: page})
		require.NoError(t, g.Append(make([]byte, 2*page)))
		src := pattern(8*100, 5)
		_, err := g.WriteAt(src, 0)
		require.NoError(t, err)
		s := stream(t, w.devs[0])
		to := g.Ptr() + page
		open := gate(t, w.devs[0], s.Raw())
		require.NoError(t, s.Fill(to, between, 1, 8*128))
		require.NoError(t, s.Copy2D(vmm.PitchedPtr{Ptr: to, Pitch: 128}, vmm.PitchedPtr{Ptr: g.Ptr(), Pitch: 100}, 90, 8))
		got := make([]byte, 8*128)
		require.NoError(t, w.devs[0].CopyOut(got, to))
		require.Equal(t, make([]byte, len(got)), got, "nothing has run yet")
		open()
		require.NoError(t, s.Sync())
		want := bytes.Repeat([]byte{between}, len(got))
		for r := range 8 {
			copy(want[r*128:], src[r*100:][:90])
		}
		require.NoError(t, w.devs[0].CopyOut(got, to))
		require.Equal(t, want, got)
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
		w.end()
	}
}

// BenchmarkRows appends and reads rows with padding.
func BenchmarkRows(b *testing.B) {
	for _, width := range []int{500, 3072} {
		w := newWorld(b, 1)
		g := newRange(b, w.devs[0], vmm.RangeOptions{Max: 64 * mib})
		rows := noise(1000*width, 1)
		pitch, err := w.devs[0].Pitch(uint64(width))
		require.NoError(b, err)
		b.Run(fmt.Sprintf("AppendRows/width=%d", width), func(b *testing.B) {
			b.SetBytes(int64(len(rows)))
			for b.Loop() {
				require.NoError(b, g.SetLen(0))
				require.NoError(b, g.AppendRows(rows, uint64(width), pitch))
			}
		})
		b.Run(fmt.Sprintf("ReadRowsAt/width=%d", width), func(b *testing.B) {
			b.SetBytes(int64(len(rows)))
			for b.Loop() {
				_, err := g.ReadRowsAt(rows, 0, uint64(width), pitch)
				require.NoError(b, err)
			}
		})
		require.NoError(b, g.Close())
		w.end()
	}
}
