package vmm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// edge is the size of staging's blocks in these tests. It is small and odd, so that many
// pieces begin and end anywhere.
const edge = 1000

// staged returns a world of one device whose copies all go through blocks of edge.
func staged(t testing.TB, lanes int) *world {
	t.Helper()
	w := newWorld(t, 1)
	vmm.SetStaging(w.devs[0], &vmm.Staging{Block: edge, Lanes: lanes})
	return w
}

// unstaged returns a world none of whose copies is staged, so that an operation always
// makes the same calls.
func unstaged(t testing.TB) *world {
	t.Helper()
	w := newWorld(t, peers())
	for _, d := range w.devs {
		vmm.SetStaging(d, nil)
	}
	return w
}

// noisy is a range with n bytes of noise.
func noisy(t testing.TB, w *world, n int) (*vmm.Range, []byte) {
	t.Helper()
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 512 * page})
	require.NoError(t, err)
	b := noise(n, 1)
	require.NoError(t, g.Append(b))
	return g, b
}

// noise is n bytes that repeat nowhere.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b) // never fails
	return b
}

func TestStagedCopiesEveryByte(t *testing.T) {
	for _, lanes := range []int{1, 2, 3, 8} {
		w := staged(t, lanes)
		s := stream(t, w.devs[0])
		g, want := noisy(t, w, 64*edge)
		for i, n := range []int{1, 2, edge/8 - 1, edge / 8, edge/8 + 1, edge - 1, edge, edge + 1, 2*edge - 1, 2 * edge,
			2*edge + 1, 4*edge*lanes - 1, 4 * edge * lanes, 4*edge*lanes + 1, 33*edge + 7} {
			note := fmt.Sprintf("%d bytes by %d lanes", n, lanes)
			off := 3*i + 1
			at := g.Ptr() + vmm.Ptr(off)
			for k, in := range []func(b []byte) error{
				func(b []byte) error { return w.devs[0].CopyIn(at, b) },
				func(b []byte) error { _, err := g.WriteAt(b, int64(off)); return err },
				func(b []byte) error { return s.CopyIn(at, b) },
				func(b []byte) error { want = append(want, b...); off = int(g.Len()); return g.Append(b) },
				func(b []byte) error { want = append(want, b...); off = int(g.Len()); return g.AppendOn(s, b) },
			} {
				b := noise(n, uint64(10*i+k+2))
				require.NoError(t, in(b), note)
				copy(want[off:], b)
				clear(b)
				got := make([]byte, len(want)+1)
				m, err := g.ReadAt(got, 0)
				require.Error(t, err, "the end")
				require.True(t, bytes.Equal(want, got[:m]), note)
				part := got[:n+1]
				part[n] = 0xee
				for _, out := range []func([]byte, vmm.Ptr) error{w.devs[0].CopyOut, s.CopyOut} {
					clear(part[:n])
					require.NoError(t, out(part[:n], g.Ptr()+vmm.Ptr(off)), note)
					require.True(t, bytes.Equal(want[off:off+n], part[:n]), note)
					require.EqualValues(t, 0xee, part[n], "nothing beyond")
				}
			}
		}
		all, broken := vmm.Lanes(w.devs[0])
		require.Equal(t, lanes, all)
		require.Zero(t, broken)
		require.Zero(t, w.drv.Counts()["CopyIn"].Made+w.drv.Counts()["CopyOut"].Made, "all of it was staged")
		require.NoError(t, g.Close())
		require.NoError(t, s.Close())
		w.end()
	}
}

func TestStagedReadFromWriteTo(t *testing.T) {
	w := staged(t, 3)
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 4 * mib})
	require.NoError(t, err)
	want := noise(3*mib+5, 1)
	_, err = g.ReadFrom(bytes.NewReader(want))
	require.NoError(t, err)
	var got bytes.Buffer
	_, err = g.WriteTo(&got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got.Bytes()))
	require.NoError(t, g.Close())
	w.end()
}

// TestStagedByManyAtOnce has more copies than lanes. Copies without a lane go the driver's
// way.
func TestStagedByManyAtOnce(t *testing.T) {
	const ranges, each, rounds = 3, 4, 12
	w := staged(t, 3)
	t.Cleanup(w.end)
	var all sync.WaitGroup
	for i := range ranges {
		g, _ := noisy(t, w, 0)
		t.Cleanup(func() { require.NoError(t, g.Close()) })
		for k := range each {
			s := stream(t, w.devs[0])
			all.Go(func() {
				b := bytes.Repeat([]byte{byte(1 + i*each + k)}, 3*edge+k)
				got := make([]byte, len(b))
				for r := range rounds {
					var err error
					if r%2 == 0 {
						err = g.Append(b)
					} else {
						err = g.AppendOn(s, b)
					}
					if err == nil {
						_, err = g.ReadAt(got, 0)
					}
					if err != nil && !bytes.Contains([]byte(err.Error()), []byte("EOF")) {
						t.Error(err)
					}
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		t.Cleanup(func() {
			// Each piece is whole, wherever it is.
			have := make([]byte, g.Len())
			_, err := g.ReadAt(have, 0)
			require.NoError(t, err)
			for len(have) > 0 {
				k := int(have[0]) - 1 - i*each
				require.Contains(t, []int{0, 1, 2, 3}, k)
				n := 3*edge + k
				require.Equal(t, bytes.Repeat(have[:1], n), have[:n])
				have = have[n:]
			}
		})
	}
	all.Wait()
}

// TestStagedFaults fails each driver call of each staged operation in turn.
func TestStagedFaults(t *testing.T) {
	type scene struct {
		w *world
		g *vmm.Range
		s *vmm.Stream
	}
	add := noise(7*edge+3, 2)
	for name, do := range map[string]func(c scene) error{
		"Append":   func(c scene) error { return c.g.Append(add) },
		"AppendOn": func(c scene) error { return c.g.AppendOn(c.s, add) },
		"ReadAt": func(c scene) error {
			_, err := c.g.ReadAt(make([]byte, 5*edge), 3)
			return err
		},
		"WriteRowsAt": func(c scene) error {
			_, err := c.g.WriteRowsAt(pattern(3*edge, 3), 2*edge, edge/2, 3*edge/4)
			return err
		},
		"ReadRowsAt": func(c scene) error {
			_, err := c.g.ReadRowsAt(make([]byte, 4*edge), 3, edge/2, edge)
			return err
		},
		"WriteAt": func(c scene) error {
			_, err := c.g.WriteAt(pattern(5*edge, 3), 2*edge)
			return err
		},
		"Device.CopyIn":  func(c scene) error { return c.w.devs[0].CopyIn(c.g.Ptr()+2*edge, pattern(5*edge, 3)) },
		"Device.CopyOut": func(c scene) error { return c.w.devs[0].CopyOut(make([]byte, 5*edge), c.g.Ptr()) },
		"Stream.CopyIn":  func(c scene) error { return c.s.CopyIn(c.g.Ptr()+2*edge, pattern(5*edge, 3)) },
		"Stream.CopyOut": func(c scene) error { return c.s.CopyOut(make([]byte, 5*edge), c.g.Ptr()) },
		"Sleep":          func(c scene) error { return errors.Join(vmm.Sleep(vmm.SleepKeep, c.g), vmm.Wake(c.g)) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, lanes := range []int{3, 1}[:testgate.Effort(1, 2, 2)] {
				for _, warm := range []bool{false, true} {
					for _, more := range []int{0, 1, 2}[:testgate.Effort(2, 3, 3)] { // calls that fail after the first
						if testing.Short() && warm != (more == 1) {
							continue
						}
						if onCUDA && (lanes == 1 || warm || more > 0) {
							continue // each world makes a context, which takes a GPU long
						}
						reached := true
						for i := 1; reached; i++ {
							w := newWorld(t, 1)
							c := scene{w: w, s: stream(t, w.devs[0])}
							var want []byte
							c.g, want = noisy(t, w, 10*edge)
							vmm.SetStaging(w.devs[0], &vmm.Staging{Block: edge, Lanes: lanes})
							if warm {
								require.NoError(t, w.devs[0].CopyIn(c.g.Ptr(), want))
							}
							w.arm(i, i+more, i+2*more)
							err := do(c)
							calls := w.disarm()
							reached = len(calls) >= i
							note := fmt.Sprintf("call %d of %v: %v", i, calls, err)
							if err != nil {
								isInjected(w, err)
								require.EqualValues(t, 10*edge, c.g.Len(), note)
							}
							require.NoError(t, vmm.Wake(c.g), "what could not be undone; %s", note)
							require.Zero(t, w.devs[0].Stats().HostCopies, note)
							if more == 0 || err == nil {
								require.NoError(t, do(c), note)
							}
							got := make([]byte, 2*edge)
							require.NoError(t, c.s.Sync())
							_, err = c.g.ReadAt(got, 0)
							require.NoError(t, err, note)
							require.True(t, bytes.Equal(want[:2*edge], got), note)
							_, err = c.g.ReadAt(got, 7*edge)
							require.NoError(t, err, note)
							require.True(t, bytes.Equal(want[7*edge:9*edge], got), note)
							if n := c.g.Len(); n > 10*edge {
								got := make([]byte, len(add))
								_, err = c.g.ReadAt(got, int64(n)-int64(len(add)))
								require.NoError(t, err, note)
								require.True(t, bytes.Equal(add, got), note)
							}
							require.NoError(t, c.s.Close(), note)
							require.NoError(t, c.g.Close(), note)
							w.end()
						}
					}
				}
			}
		})
	}
}

// TestNoPinnedMemoryFallsBack: a lane that cannot be made is no error and is not tried
// again, and nothing of it is left.
func TestNoPinnedMemoryFallsBack(t *testing.T) {
	for _, refused := range []error{vmm.ErrOutOfMemory, vmm.ErrNotSupported} {
		for nth := 1; nth <= 4; nth++ {
			fail := drivertest.FailNth("AllocHost", nth, refused)
			w := newWorld(t, 1)
			w.before = fail
			vmm.SetStaging(w.devs[0], &vmm.Staging{Block: edge, Lanes: 2})
			g, want := noisy(t, w, 9*edge)
			require.NoError(t, g.Append(want))
			want = append(want, want...)
			got := make([]byte, len(want))
			_, err := g.ReadAt(got, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
			tried := w.drv.Counts()["AllocHost"]
			require.Equal(t, 1, tried.Failed)

			s := stream(t, w.devs[0])
			err = s.CopyIn(g.Ptr(), want[7:9])
			if nth <= 2 && refused == vmm.ErrNotSupported { //nolint:errorlint // it is this one
				require.ErrorIs(t, err, vmm.ErrNotSupported)
				require.ErrorIs(t, s.CopyOut(got, g.Ptr()), vmm.ErrNotSupported)
			} else {
				require.NoError(t, err)
				require.NoError(t, s.CopyOut(got[:2], g.Ptr()))
				require.Equal(t, want[7:9], got[:2])
			}
			require.NoError(t, g.Append(want))
			require.Equal(t, tried, w.drv.Counts()["AllocHost"], "not tried anew")
			require.NoError(t, s.Close())
			require.NoError(t, g.Close())
			w.end()
		}
	}
}

// TestStagingSparesCaptures: pinning memory would destroy a capture that is not a relaxed
// one, and a staged copy would be captured.
func TestStagingSparesCaptures(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w := staged(t, 2)
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 512 * page})
	require.NoError(t, err)
	s := stream(t, w.devs[0])
	cap := raw(t, w.devs[0]).(driver.Grapher)
	for _, lanes := range []int{0, 2} {
		require.NoError(t, cap.BeginCapture(s.Raw(), driver.CaptureGlobal))
		require.NoError(t, g.Append(noise(9*edge, 1)), "growing and appending are fine")
		require.ErrorIs(t, s.CopyIn(g.Ptr(), []byte{1}), vmm.ErrCapturing)
		require.ErrorIs(t, s.CopyOut(make([]byte, 1), g.Ptr()), vmm.ErrCapturing)
		n, c := g.Len(), g.Cap()
		require.ErrorIs(t, g.AppendOn(s, noise(9*page, 1)), vmm.ErrCapturing)
		require.Equal(t, n, g.Len())
		require.Equal(t, c, g.Cap())
		all, _ := vmm.Lanes(w.devs[0])
		require.Equal(t, lanes, all)
		require.NoError(t, endCapture(cap, s.Raw()), "the capture is whole")
		require.NoError(t, g.Append(noise(9*edge, 1)))
	}
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// held makes each block of each lane busy on a stream that waits for a gate.
func held(t *testing.T, w *world, g *vmm.Range, lanes int) (s *vmm.Stream, open func()) {
	t.Helper()
	s = stream(t, w.devs[0])
	open = gate(t, w.devs[0], s.Raw())
	require.NoError(t, s.CopyIn(g.Ptr(), noise(2*lanes*edge, 9)[:2*edge]))
	for range lanes - 1 {
		require.NoError(t, s.CopyIn(g.Ptr(), noise(2*edge, 9)))
	}
	return s, open
}

// TestGatedStreamDelaysNoOtherCopy: other copies use other lanes, or the driver's way, and
// do not wait for a stream that is not theirs.
func TestGatedStreamDelaysNoOtherCopy(t *testing.T) {
	const lanes = 2
	w := staged(t, lanes)
	g, want := noisy(t, w, 20*edge)
	s, open := held(t, w, g, lanes)
	before := w.drv.Counts()["CopyIn"].Made
	require.NoError(t, w.devs[0].CopyIn(g.Ptr()+4*edge, want[:4*edge]))
	require.Equal(t, before+1, w.drv.Counts()["CopyIn"].Made, "the driver's way")
	got := make([]byte, 4*edge)
	require.NoError(t, w.devs[0].CopyOut(got, g.Ptr()+4*edge))
	require.True(t, bytes.Equal(want[:4*edge], got))
	other := stream(t, w.devs[0])
	require.NoError(t, other.CopyIn(g.Ptr()+8*edge, want[:4*edge]))
	require.NoError(t, other.CopyOut(got, g.Ptr()+8*edge))
	require.True(t, bytes.Equal(want[:4*edge], got))
	open()
	require.NoError(t, s.Close())
	require.NoError(t, other.Close())
	before = w.drv.Counts()["CopyIn"].Made
	require.NoError(t, g.Append(want))
	require.Equal(t, before, w.drv.Counts()["CopyIn"].Made, "the lanes are free again")
	require.NoError(t, g.Close())
	w.end()
}

// TestSyncCopySparesBusyBlocks: a synchronous copy must not take a block that
// a stream still has to read.
func TestSyncCopySparesBusyBlocks(t *testing.T) {
	for _, careless := range []bool{false, true} {
		w := newWorld(t, 1)
		g, _ := noisy(t, w, 10*edge)
		vmm.SetStaging(w.devs[0], &vmm.Staging{Block: edge, Lanes: 1, Careless: careless})
		s := stream(t, w.devs[0])
		open := gate(t, w.devs[0], s.Raw())
		want := noise(2*edge, 3)
		require.NoError(t, s.CopyIn(g.Ptr(), want))
		require.NoError(t, w.devs[0].CopyIn(g.Ptr()+3*edge, make([]byte, 5*edge)))
		open()
		got := make([]byte, len(want))
		require.NoError(t, s.CopyOut(got, g.Ptr()))
		require.Equal(t, !careless, bytes.Equal(want, got))
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
		w.end()
	}
}

func TestGrantOfLessWaitsForAnAppendUnderWay(t *testing.T) {
	s := stopAt(t, 1, "Copy", 0)
	vmm.SetStaging(s.devs[0], &vmm.Staging{Block: edge, Lanes: 1})
	g, err := s.devs[0].NewRange(vmm.RangeOptions{Max: 16 * page})
	require.NoError(t, err)
	s.during(t, func() error { return g.Append(noise(3*edge, 1)) },
		func() error { return g.Grant(vmm.AccessRead, s.devs[0]) }, "SetAccess")
	require.Error(t, g.Append(noise(3*edge, 1)))
	require.NoError(t, g.Close())
	s.end()
}

// TestAppendIsRefusedWhileItsAccessIsReduced: the fence of a Grant of less does not wait
// for staging's streams.
func TestAppendIsRefusedWhileItsAccessIsReduced(t *testing.T) {
	s := stopAt(t, 1, "SyncIfActive|RecordContext", 0)
	g, _ := noisy(t, s.world, 3*edge)
	granted := make(chan error, 1)
	go func() { granted <- g.Grant(vmm.AccessRead, s.devs[0]) }()
	<-s.reached
	require.ErrorIs(t, g.Append([]byte{1}), vmm.ErrBusy)
	_, err := g.WriteAt([]byte{1}, 0)
	require.ErrorIs(t, err, vmm.ErrBusy)
	s.let()
	require.NoError(t, <-granted)
	require.NoError(t, g.Close())
	s.end()
}

func TestDeviceCloseRefusesWhileACopyIsUnderWay(t *testing.T) {
	s := stopAt(t, 1, "Copy", 0)
	d := s.devs[0]
	vmm.SetStaging(d, &vmm.Staging{Block: edge, Lanes: 1})
	plain := raw(t, d).(driver.Allocator)
	p, err := plain.AllocPlain(4 * edge)
	require.NoError(t, err)
	copied := make(chan error, 1)
	go func() { copied <- d.CopyIn(p, noise(4*edge, 1)) }()
	<-s.reached
	require.ErrorIs(t, d.Close(), vmm.ErrBusy)
	s.let()
	require.NoError(t, <-copied)
	require.NoError(t, plain.FreePlain(p))
	s.end()
}

// TestDeviceCloseFreesLanesOnceMore: each call that frees the lanes fails in turn, and the
// next Close goes on from there.
func TestDeviceCloseFreesLanesOnceMore(t *testing.T) {
	for i := 1; ; i++ {
		w := staged(t, 2)
		g, _ := noisy(t, w, 9*edge)
		require.NoError(t, g.Close())
		w.arm(i)
		err := w.devs[0].Close()
		calls := w.disarm()
		if err == nil {
			require.Less(t, len(calls), i)
			require.Greater(t, i, 10)
			w.end()
			return
		}
		isInjected(w, err)
		w.end()
	}
}

func TestStagingOnALostDevice(t *testing.T) {
	mayLose(t)
	w := staged(t, 2)
	g, want := noisy(t, w, 9*edge)
	r := holed(t, w)
	s := stream(t, w.devs[0])
	open := work(t, w.devs[0], s.Raw(), r.Ptr())
	vmm.SetNoWait(w.devs[0], true)
	require.NoError(t, r.Close())
	open()
	require.ErrorIs(t, g.Append(want), vmm.ErrDeviceLost)
	require.ErrorIs(t, s.CopyIn(g.Ptr(), want), vmm.ErrDeviceLost)
	vmm.SetNoWait(w.devs[0], false)
	require.ErrorIs(t, s.Close(), vmm.ErrDeviceLost)
	require.ErrorIs(t, g.Close(), vmm.ErrDeviceLost)
	require.NoError(t, w.devs[0].Close())
}

// TestStagingWaitsForNoStream: a copy that makes lanes checks whether streams are captured,
// while it keeps its memory from being unmapped. It must not wait there for a stream that
// waits to close, behind a copy that may be waiting for that memory.
func TestStagingWaitsForNoStream(t *testing.T) {
	stopped := stopAt(t, 1, "Fill", 0)
	d := stopped.devs[0]
	g, _ := noisy(t, stopped.world, 9*edge)
	vmm.SetStaging(d, &vmm.Staging{Block: edge, Lanes: 2})
	s := stream(t, d)
	filled, closed := make(chan error, 1), make(chan error, 1)
	go func() { filled <- s.Fill(g.Ptr(), 1, 1, 1) }()
	<-stopped.reached
	go func() { closed <- s.Close() }()
	for !vmm.Closing(s) {
		runtime.Gosched()
	}
	require.NoError(t, g.Append(noise(9*edge, 1)))
	stopped.let()
	require.NoError(t, <-filled)
	require.NoError(t, <-closed)
	require.NoError(t, g.Append(noise(9*edge, 1)))
	all, _ := vmm.Lanes(d)
	require.Equal(t, 2, all, "made now")
	require.NoError(t, g.Close())
	stopped.end()
}

// TestStagedCopyEndsWithItsWaits: whatever its pieces return, each block is waited for
// before the copy returns the memory to the caller.
func TestStagedCopyEndsWithItsWaits(t *testing.T) {
	for _, failing := range []bool{false, true} {
		w := staged(t, 1)
		g, _ := noisy(t, w, 9*edge)
		if w.arm(); failing {
			w.arm(6) // the third Copy
		}
		_, err := g.WriteAt(noise(9*edge, 2), 0)
		calls := w.disarm()
		note := fmt.Sprint(calls, err)
		require.Equal(t, failing, err != nil, note)
		last := len(calls) - 1
		require.Equal(t, "SyncEvent", calls[last], note)
		if !failing {
			require.Equal(t, "SyncEvent", calls[last-1], note)
		}
		require.NoError(t, g.Close())
		w.end()
	}
}

// TestOrphanedCopiesAreWaitedFor: if a piece could neither be ended nor be waited for, the
// next copy, and every call that unmaps the memory, wait for it instead.
func TestOrphanedCopiesAreWaitedFor(t *testing.T) {
	for _, closing := range []bool{false, true} {
		w := staged(t, 1)
		g, _ := noisy(t, w, 2*edge)
		s := stream(t, w.devs[0])
		require.NoError(t, g.UsedBy(s))
		open := gate(t, w.devs[0], vmm.IdleLane(w.devs[0]))
		w.refuse("SyncEvent", 2, errInjected)
		w.refuse("SyncStream", 1, errInjected)
		_, err := g.WriteAt(noise(2*edge, 2), 0)
		require.ErrorIs(t, err, errInjected)
		w.refuse("SyncEvent", 0, nil)
		_, broken := vmm.Lanes(w.devs[0])
		require.Equal(t, 1, broken)
		if closing {
			ctx, cancel := context.WithCancel(t.Context())
			closed := parked(func() error { return g.CloseContext(ctx) })
			cancel()
			require.ErrorIs(t, closed(), context.Canceled, "it waits")
			open()
		} else {
			want := noise(2*edge, 3)
			written := parked(func() error {
				_, err := g.WriteAt(want, 0)
				return err
			})
			require.Contains(t, stacks(), "vmm_test.runParked(", "the orphaned copy comes later")
			open()
			require.NoError(t, written())
			got := make([]byte, len(want))
			_, err := g.ReadAt(got, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		}
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
		w.end()
	}
}
