package shareable

import (
	"context"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// viewFDs are the descriptors that a View keeps open, beside those of chunks: the
// connection and the wake socket.
const viewFDs = 2

func retiring(generation, capacity uint64) func(*testing.T, *scriptedOwner) {
	return func(_ *testing.T, s *scriptedOwner) {
		r := wire.Retire{Object: 7, Generation: generation, Capacity: capacity}
		s.write(wire.TypeRetire, 0, r.Append(nil))
	}
}

func sealing(n uint64) func(*testing.T, *scriptedOwner) {
	return func(_ *testing.T, s *scriptedOwner) {
		s.write(wire.TypeSealed, 0, wire.Sealed{Object: 7, Length: n}.Append(nil))
	}
}

// TestViewStepsFail: whichever step of a frame fails, nothing of it stays.
func TestViewStepsFail(t *testing.T) {
	for _, step := range []string{"Import", "Map", "SetAccess"} {
		for n := 3; n <= 4; n++ { // the first frame has two chunks and passes
			if step == "SetAccess" && n == 4 {
				continue
			}
			t.Run(step+strconv.Itoa(n), func(t *testing.T) {
				nth := n
				if step == "SetAccess" {
					nth = 2
				}
				s, far := newScriptedOwner(t, 6)
				dev := pageDevice(t, drivertest.FailNth(step, nth, vmm.ErrOutOfMemory))
				v := viewedOn(t, s, far, AttachOptions{}, dev)
				s.grow(4)
				s.chunks(0, 2)
				s.ack()
				before := openFDs(t)
				s.chunks(2, 2)
				s.gone()
				require.ErrorIs(t, ended(t, v), vmm.ErrOutOfMemory)
				require.Len(t, v.Segments(), 2)
				staysOpen(t, before-viewFDs)
			})
		}
	}
}

// leaveFDs lowers the limit on descriptors until n more can be opened. That is the process's
// limit, so the test is not parallel.
func leaveFDs(t *testing.T, n int) (restore func()) {
	t.Helper()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	var used []int
	for _, e := range all {
		fd, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		used = append(used, fd)
	}
	top := slices.Max(used)
	var fill []int // so that the numbers have no holes
	for {
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		fill = append(fill, fd)
		if fd > top {
			break
		}
	}
	last := fill[len(fill)-1]
	require.NoError(t, unix.Close(last))
	fill = fill[:len(fill)-1]
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(last + n), Max: old.Max}))
	return func() {
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
		for _, fd := range fill {
			require.NoError(t, unix.Close(fd))
		}
	}
}

// resends sends the chunks of c as the reader asks for them until all are mapped.
func (s *scriptedOwner) resends(v *View, c wire.Chunks, fds []int, each func(wire.Frame)) (batches []uint32) {
	s.t.Helper()
	n := len(fds)
	next, batch := 1, wire.MaxFDs
	for v.Cap() < uint64(n)*s.gran {
		f, err := s.c.Read()
		require.NoError(s.t, err)
		each(f)
		switch f.Type {
		case wire.TypeAck:
			a, err := wire.DecodeAck(f.Payload)
			require.NoError(s.t, err)
			next = int(a.Chunk) + 1
		case wire.TypeResync:
			r, err := wire.DecodeResync(f.Payload)
			require.NoError(s.t, err)
			batches = append(batches, r.Batch)
			batch, next = int(r.Batch), max(int(r.Next), 1)
		default:
			s.t.Fatal(f.Type)
		}
		if next <= n {
			s.part(c, fds, next-1, min(next-1+batch, n))
		}
	}
	return batches
}

func (s *scriptedOwner) part(c wire.Chunks, fds []int, from, to int) {
	s.t.Helper()
	c.Records = c.Records[from:to]
	s.write(wire.TypeChunks, 0, c.Append(nil), fds[from:to]...)
}

// TestViewFewDescriptors: frames become smaller until they fit.
func TestViewFewDescriptors(t *testing.T) {
	const n = 8
	s, far := newScriptedOwner(t, n)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(n)
	s.done(n * s.gran)
	before := openFDs(t)
	c, fds := s.records(0, n)
	restore := leaveFDs(t, n+2) // what is mapped keeps a descriptor each
	var more []int
	for range n - 1 {
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		more = append(more, fd)
	}
	s.part(c, fds, 0, 6) // there is room for three
	s.part(c, fds, 6, 8) // sent before the owner hears
	batches := s.resends(v, c, fds, func(f wire.Frame) {
		if f.Type == wire.TypeAck {
			for _, fd := range more { // somebody has let go of some
				require.NoError(t, unix.Close(fd))
			}
			more = nil
		}
	})
	restore()
	for _, fd := range fds {
		require.NoError(t, unix.Close(fd))
	}
	require.Equal(t, uint32(3), batches[0])
	require.NoError(t, v.Wait(t.Context(), n*s.gran))
	require.NoError(t, v.Err())
	require.Equal(t, before+n, openFDs(t))
}

// TestViewImportNeedsDescriptors: the frame arrives, and importing fails.
func TestViewImportNeedsDescriptors(t *testing.T) {
	const n = 8
	s, far := newScriptedOwner(t, n)
	v := viewedOn(t, s, far, AttachOptions{}, pageDevice(t, drivertest.FailNth("Import", 2, vmm.ErrLimit)))
	s.grow(n)
	c, fds := s.records(0, n)
	before := openFDs(t) - n
	s.part(c, fds, 0, 4)
	s.part(c, fds, 4, 8)
	batches := s.resends(v, c, fds, func(wire.Frame) {})
	for _, fd := range fds {
		require.NoError(t, unix.Close(fd))
	}
	require.Equal(t, []uint32{2}, batches)
	require.Len(t, v.Segments(), n)
	require.NoError(t, v.Err())
	require.Equal(t, before+n, openFDs(t))
}

// TestViewResyncIgnored: an owner that sends on and on is let go of.
func TestViewResyncIgnored(t *testing.T) {
	t.Parallel()
	const n = 8
	s, far := newScriptedOwner(t, n)
	v := viewedOn(t, s, far, AttachOptions{}, pageDevice(t, drivertest.FailNth("Import", 2, vmm.ErrLimit)))
	s.grow(n)
	c, fds := s.records(0, n)
	s.part(c, fds, 0, 4)
	for range maxStaleFrames + 1 {
		s.part(c, fds, 4, 8)
	}
	s.gone()
	for _, fd := range fds {
		require.NoError(t, unix.Close(fd))
	}
	require.ErrorIs(t, ended(t, v), ErrProtocol)
}

// TestViewShortForAMoment: a reader that has no descriptor free for a moment asks again,
// and loses nothing.
func TestViewShortForAMoment(t *testing.T) {
	s, far := newScriptedOwner(t, 2)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(2)
	c, fds := s.records(0, 2)
	restore := leaveFDs(t, 0)
	s.part(c, fds, 0, 2)
	asked := 0
	s.resends(v, c, fds, func(f wire.Frame) {
		if f.Type != wire.TypeResync {
			return
		}
		if asked++; asked == 4 { // two frames of one chunk have come to nothing
			restore()
		}
	})
	for _, fd := range fds {
		require.NoError(t, unix.Close(fd))
	}
	s.done(2 * s.gran)
	require.NoError(t, v.Wait(boundedContext(t), 2*s.gran))
	require.NoError(t, v.Err())
}

// TestViewNoDescriptors: it tries for Timeout, says which limit it is and leaves nothing
// open.
func TestViewNoDescriptors(t *testing.T) {
	s, far := newScriptedOwner(t, 2)
	const limit = 100 * time.Millisecond
	v := viewed(t, s, far, AttachOptions{Timeout: limit})
	s.grow(2)
	before := openFDs(t)
	c, fds := s.records(0, 2)
	restore := leaveFDs(t, 0)
	begun := time.Now()
	s.part(c, fds, 0, 2)
	asked := 0
	for {
		f, err := s.c.Read()
		if err != nil {
			require.True(t, disconnected(err), "%v", err)
			break
		}
		r, err := wire.DecodeResync(f.Payload)
		require.NoError(t, err)
		require.Equal(t, wire.Resync{Object: 7, Batch: 1}, r)
		asked++
		_ = s.c.Write(wire.TypeChunks, 0, 0, wire.Chunks{Object: 7, Generation: 1, Records: c.Records[:1]}.Append(nil), fds[0])
	}
	took := time.Since(begun)
	restore()
	require.Greater(t, took, limit)
	require.Less(t, asked, 10, "the pauses grow")
	for _, fd := range fds {
		require.NoError(t, unix.Close(fd))
	}
	err := ended(t, v)
	require.ErrorIs(t, err, vmm.ErrLimit)
	require.ErrorContains(t, err, "RLIMIT_NOFILE")
	staysOpen(t, before-viewFDs)
}

// TestViewLeavesNothing: as many descriptors and goroutines after as before.
func TestViewLeavesNothing(t *testing.T) {
	var fds, goroutines int
	for i := range 30 {
		t.Run("round", func(t *testing.T) {
			s, far := newScriptedOwner(t, 4)
			v := viewed(t, s, far, AttachOptions{})
			s.grow(2)
			s.chunks(0, 2)
			if i%2 == 0 {
				s.ack()
			}
			got := make(chan error, 1)
			go func() { got <- v.Wait(context.Background(), 1) }()
			require.NoError(t, v.Close())
			require.ErrorIs(t, <-got, vmm.ErrClosed)
			settled(t) // chunks that were not read are still the owner's until then
		})
		if i == 0 {
			fds, goroutines = openFDs(t), runtime.NumGoroutine()
		}
	}
	staysOpen(t, fds)
	soon(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines+1 })
}
