//go:build cgo && linux

package nccl_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/internal/testing/fakenccl"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

func TestOperations(t *testing.T) {
	for size := 2; size <= 4; size++ {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			l, fake := onFake(t)
			fake.Polls(3)
			comms := join(t, l, size)
			src, dst := make([][]int32, size), make([][]int32, size)
			from, to := make([]uint64, size), make([]uint64, size)
			for r := range comms {
				src[r], from[r] = memory(t, make([]int32, size)...)
				dst[r], to[r] = memory(t, make([]int32, size)...)
				for i := range src[r] {
					src[r][i] = int32(10*r + i)
				}
			}
			one := func(call nccl.Call) {
				t.Helper()
				call.Kind = nccl.Int32
				each(t, comms, func(rank int, c *nccl.Comm) error {
					mine := call
					mine.Src, mine.Dst = from[rank], to[rank]
					return c.Run(7, []nccl.Call{mine})
				})
			}
			want := func(value func(rank, i int) int) {
				t.Helper()
				for r := range dst {
					for i := range dst[r] {
						require.EqualValues(t, value(r, i), dst[r][i], "member %d, element %d", r, i)
					}
				}
			}
			tens := 10 * size * (size - 1) / 2
			n := uint64(size)
			one(nccl.Call{Operation: nccl.AllReduce, Count: n})
			want(func(_, i int) int { return tens + size*i })
			one(nccl.Call{Operation: nccl.AllReduce, Count: n, Reduction: nccl.Max})
			want(func(_, i int) int { return 10*(size-1) + i })
			one(nccl.Call{Operation: nccl.AllReduce, Count: n, Reduction: nccl.Min})
			want(func(_, i int) int { return i })
			one(nccl.Call{Operation: nccl.AllReduce, Count: n, Reduction: nccl.Mean})
			want(func(_, i int) int { return (tens + size*i) / size })
			one(nccl.Call{Operation: nccl.AllReduce, Count: n, Reduction: nccl.Product})
			require.Zero(t, dst[0][0])
			one(nccl.Call{Operation: nccl.Broadcast, Count: n, Peer: size - 1})
			want(func(_, i int) int { return 10*(size-1) + i })
			one(nccl.Call{Operation: nccl.Reduce, Count: n, Peer: 1})
			want(func(r, i int) int {
				if r == 1 {
					return tens + size*i
				}
				return 10*(size-1) + i
			})
			one(nccl.Call{Operation: nccl.AllGather, Count: 1})
			want(func(_, i int) int { return 10 * i })
			one(nccl.Call{Operation: nccl.ReduceScatter, Count: 1})
			for r := range dst {
				require.EqualValues(t, tens+size*r, dst[r][0])
			}
			// Everyone sends to everyone, in one group; more calls than fit at first.
			for range 2 {
				each(t, comms, func(rank int, c *nccl.Comm) error {
					var calls []nccl.Call
					for range 3 {
						for peer := range comms {
							calls = append(calls,
								nccl.Call{Operation: nccl.Send, Kind: nccl.Int32, Peer: peer, Src: from[rank] + 4*uint64(peer), Count: 1},
								nccl.Call{Operation: nccl.Recv, Kind: nccl.Int32, Peer: peer, Dst: to[rank] + 4*uint64(peer), Count: 1})
						}
					}
					return c.Run(0, calls)
				})
				want(func(r, i int) int { return 10*i + r })
			}
			require.NoError(t, comms[0].Run(0, nil))
			require.Contains(t, fake.Log(), fmt.Sprintf("ncclAllReduce rank=0 src=%#x dst=%#x count=%d type=2 red=2 peer=0 stream=0x7\n", from[0], to[0], size))
			leave(t, comms)
		})
	}
}

func TestJoining(t *testing.T) {
	l, fake := onFake(t)
	id, err := l.NewID()
	require.NoError(t, err)
	first, err := l.Join(id, 0, 2, nil)
	require.NoError(t, err)
	_, p := memory(t, make([]float32, 4)...)
	calls := []nccl.Call{{Operation: nccl.AllReduce, Kind: nccl.Float32, Src: p, Dst: p, Count: 4}}
	waits := func() {
		t.Helper()
		require.ErrorIs(t, first.Progress(), nccl.ErrInProgress)
		require.ErrorIs(t, first.Run(0, calls), nccl.ErrInProgress)
		require.ErrorIs(t, first.Finalize(), nccl.ErrInProgress)
		require.ErrorIs(t, first.Destroy(), nccl.ErrInProgress)
	}
	waits()
	second, err := l.Join(id, 1, 2, nil)
	require.NoError(t, err)
	waits() // the other one has not split
	fake.Polls(3)
	require.NoError(t, done(second, nccl.ErrInProgress))
	require.NoError(t, done(first, nccl.ErrInProgress))
	leave(t, []*nccl.Comm{first, second})
}

func TestRegister(t *testing.T) {
	l, fake := onFake(t)
	comms := join(t, l, 2)
	h, err := comms[0].Register(0x1000, 64)
	require.NoError(t, err)
	require.NotZero(t, h)
	require.Equal(t, fakenccl.Live{Comms: 4, Registrations: 1}, fake.Live())
	require.NoError(t, comms[0].Deregister(h))

	windows := make([]uint64, 2)
	each(t, comms, func(rank int, c *nccl.Comm) (err error) {
		windows[rank], err = c.RegisterWindow(0x1000*uint64(rank+1), 64)
		return err
	})
	require.Contains(t, fake.Log(), "ncclCommWindowRegister rank=0 p=0x1000 size=64 flags=1\n")
	require.Equal(t, fakenccl.Live{Comms: 4, Windows: 2}, fake.Live())
	for i, c := range comms {
		require.NotZero(t, windows[i])
		require.NoError(t, c.DeregisterWindow(windows[i]))
	}
	none, err := comms[0].RegisterWindow(0, 0)
	require.NoError(t, err, "it is done at once")
	require.Zero(t, none)
	leave(t, comms)
}

func TestEnded(t *testing.T) {
	l, _ := onFake(t)
	comms := join(t, l, 2)
	require.NoError(t, comms[0].Abort())
	require.NoError(t, comms[1].Destroy())
	for _, c := range append(comms, nil, &nccl.Comm{}) {
		_, err := c.Register(1, 1)
		_, windowErr := c.RegisterWindow(1, 1)
		for _, err := range []error{
			err, windowErr, c.Progress(), c.Run(0, nil), c.Deregister(1), c.DeregisterWindow(1), c.Finalize(), c.Destroy(), c.Abort(),
		} {
			isOnly(t, err, driver.ErrClosed)
		}
	}
}

func TestInvalid(t *testing.T) {
	l, _ := onFake(t)
	id, err := l.NewID()
	require.NoError(t, err)
	for _, of := range [][2]int{{0, 0}, {-1, 1}, {1, 1}, {0, 1 << 40}, {1 << 40, 2}} {
		_, err := l.Join(id, of[0], of[1], nil)
		isOnly(t, err, driver.ErrInvalid, of)
	}
	for _, call := range []nccl.Call{
		{Operation: nccl.AllReduce, Kind: 99, Src: 8, Dst: 8, Count: 1},
		{Operation: nccl.AllReduce, Kind: nccl.Int8, Reduction: 9, Src: 8, Dst: 8, Count: 1},
		{Operation: nccl.AllReduce, Kind: nccl.Int8, Dst: 8, Count: 1},
		{Operation: nccl.Broadcast, Kind: nccl.Int8, Peer: 1, Src: 8, Dst: 8, Count: 1},
		{Operation: nccl.Send, Kind: nccl.Int8, Peer: -1, Src: 8, Count: 1},
		{Operation: nccl.Recv, Kind: nccl.Int8, Peer: 1 << 32, Dst: 8, Count: 1},
		{Operation: 99},
	} {
		for n := 1; n <= 2; n++ {
			comms := join(t, l, 1)
			isOnly(t, comms[0].Run(0, []nccl.Call{call, call}[:n]), driver.ErrInvalid, call)
			require.NoError(t, comms[0].Abort())
			leave(t, join(t, l, 1)) // the thread is in no group
		}
	}
}

// calls is every call that a member can make, by NCCL's name.
func calls(t *testing.T) map[string]func(c *nccl.Comm) error {
	t.Helper()
	_, p := memory(t, make([]int64, 4)...)
	of := func(ops ...nccl.Operation) func(c *nccl.Comm) error {
		return func(c *nccl.Comm) error {
			var list []nccl.Call
			for _, o := range ops {
				list = append(list, nccl.Call{Operation: o, Kind: nccl.Int64, Src: p, Dst: p, Count: 1})
			}
			return c.Run(0, list)
		}
	}
	return map[string]func(c *nccl.Comm) error{
		"ncclAllReduce":         of(nccl.AllReduce),
		"ncclReduce":            of(nccl.Reduce),
		"ncclBroadcast":         of(nccl.AllReduce, nccl.Broadcast, nccl.AllReduce),
		"ncclAllGather":         of(nccl.AllGather),
		"ncclReduceScatter":     of(nccl.ReduceScatter),
		"ncclSend":              of(nccl.Send, nccl.Recv),
		"ncclRecv":              of(nccl.Send, nccl.Recv),
		"ncclGroupStart":        of(nccl.AllReduce, nccl.AllReduce),
		"ncclGroupEnd":          of(nccl.AllReduce, nccl.AllReduce),
		"ncclCommGetAsyncError": func(c *nccl.Comm) error { return c.Progress() },
		"ncclCommRegister": func(c *nccl.Comm) error {
			_, err := c.Register(p, 8)
			return err
		},
		"ncclCommDeregister": func(c *nccl.Comm) error { return c.Deregister(0) },
		"ncclCommWindowRegister": func(c *nccl.Comm) error {
			_, err := c.RegisterWindow(p, 8)
			return err
		},
		"ncclCommWindowDeregister": func(c *nccl.Comm) error { return c.DeregisterWindow(0) },
		"ncclCommFinalize":         func(c *nccl.Comm) error { return c.Finalize() },
		"ncclCommDestroy":          func(c *nccl.Comm) error { return c.Destroy() },
	}
}

func TestFaults(t *testing.T) {
	l, fake := onFake(t)
	kinds := map[int]error{
		1: nccl.ErrFailed, 2: nccl.ErrFailed, 3: nccl.ErrFailed, 4: driver.ErrInvalid, 5: driver.ErrInvalid,
		6: nccl.ErrPeerGone, 8: nccl.ErrFailed,
	}
	for code, kind := range kinds {
		for name, call := range calls(t) {
			c := join(t, l, 1)[0]
			fake.Fail(name, 1, code)
			err := call(c)
			isOnly(t, err, kind, name)
			var status nccl.Status
			require.ErrorAs(t, err, &status)
			require.Equal(t, nccl.Status(code), status)
			require.ErrorContains(t, err, name+": ")
			require.ErrorContains(t, err, name+" was made to fail", "NCCL's last error")
			require.NoError(t, c.Abort(), name)
			require.Equal(t, fakenccl.Live{}, fake.Live(), name)
			leave(t, join(t, l, 1)) // the thread is in no group
		}
		id, err := l.NewID()
		require.NoError(t, err)
		fake.Fail("ncclCommInitRankConfig", 1, code)
		_, err = l.Join(id, 0, 1, nil)
		isOnly(t, err, kind)
		c, err := l.Join(id, 0, 1, nil)
		require.NoError(t, err)
		fake.Fail("ncclCommSplit", 1, code)
		isOnly(t, c.Progress(), kind)
		require.NoError(t, c.Abort())
		fake.Fail("ncclGetUniqueId", 1, code)
		_, err = l.NewID()
		isOnly(t, err, kind)
		for k := 1; k <= 2; k++ { // of the parent, and of its child
			c := join(t, l, 1)[0]
			fake.Fail("ncclCommAbort", k, code)
			isOnly(t, c.Abort(), kind)
			isOnly(t, c.Abort(), driver.ErrClosed)
			require.Equal(t, 1, fake.Live().Comms)
			violations := fake.Violations()
			require.Empty(t, violations)
			fake.Reset()
		}
		c = join(t, l, 1)[0]
		fake.Fail("ncclCommDestroy", 2, code)
		isOnly(t, c.Destroy(), kind)
		require.Equal(t, 1, fake.Live().Comms, "the parent")
		require.NoError(t, c.Abort())
	}
}

func TestPeerGone(t *testing.T) {
	l, fake := onFake(t)
	_, p := memory(t, make([]int8, 1)...)
	calls := []nccl.Call{{Operation: nccl.AllReduce, Src: p, Dst: p, Count: 1}}
	comms := join(t, l, 3)
	require.Equal(t, 1, fake.Kill(2, 6))
	for _, c := range comms[:2] {
		err := c.Progress()
		isOnly(t, err, nccl.ErrPeerGone)
		require.ErrorContains(t, err, "rank 2 is gone")
	}
	isOnly(t, comms[0].Destroy(), nccl.ErrPeerGone)
	isOnly(t, comms[0].Destroy(), driver.ErrClosed)
	require.NoError(t, comms[1].Abort())
	require.NoError(t, comms[2].Abort())

	// Nothing tells the others: a call is queued if the members are connected, and else it waits.
	for _, connected := range []bool{true, false} {
		comms = join(t, l, 2)
		if connected {
			each(t, comms, func(_ int, c *nccl.Comm) error { return c.Run(0, calls) })
		}
		ran := make(chan error, 1)
		go func() { ran <- comms[0].Run(0, calls) }()
		waiting(t, fake, 1)
		require.Equal(t, 1, fake.Kill(1, 0))
		if connected {
			require.NoError(t, <-ran)
			require.NoError(t, comms[0].Progress())
		}
		require.NoError(t, comms[0].Abort())
		if !connected {
			isOnly(t, <-ran, nccl.ErrFailed)
		}
		require.NoError(t, comms[1].Abort())
	}
}

// waiting waits until n calls wait for other members.
func waiting(t *testing.T, fake *fakenccl.Library, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return fake.Live().Waiting == n }, 10*time.Second, time.Millisecond)
}

// Abort ends a call that waits for another member, and is not called under it: the fake finds
// that. Calls that come after it are refused.
func TestAbortDuringCalls(t *testing.T) {
	l, fake := onFake(t)
	_, p := memory(t, make([]int8, 1)...)
	run := []nccl.Call{{Operation: nccl.AllReduce, Src: p, Dst: p, Count: 1}}
	for name, call := range map[string]func(c *nccl.Comm) error{
		"Run":      func(c *nccl.Comm) error { return c.Run(0, run) },
		"Finalize": func(c *nccl.Comm) error { return c.Finalize() },
		"Destroy":  func(c *nccl.Comm) error { return c.Destroy() },
		"RegisterWindow": func(c *nccl.Comm) error {
			_, err := c.RegisterWindow(p, 1)
			return err
		},
	} {
		for range 20 {
			comms := join(t, l, 2)
			ended := make(chan error, 3)
			go func() { ended <- call(comms[0]) }()
			waiting(t, fake, 1)
			for range 2 {
				go func() { ended <- comms[0].Progress() }()
			}
			if err := comms[0].Abort(); name != "Destroy" || !errors.Is(err, driver.ErrClosed) {
				require.NoError(t, err, name)
			}
			var closed, failed int
			for range cap(ended) {
				switch err := <-ended; {
				case errors.Is(err, driver.ErrClosed):
					closed++
				case errors.Is(err, nccl.ErrFailed):
					failed++
				default:
					t.Errorf("%s: %v", name, err)
				}
			}
			require.Equal(t, []int{2, 1}, []int{closed, failed}, name)
			require.NoError(t, comms[1].Abort())
			require.Zero(t, fake.Live())
		}
	}
	require.Empty(t, fake.Violations())
}

// A member that is still joining can be aborted at each step, during Progress too.
func TestAbortWhileJoining(t *testing.T) {
	l, fake := onFake(t)
	for steps := range 4 {
		fake.Polls(2)
		id, err := l.NewID()
		require.NoError(t, err)
		c, err := l.Join(id, 0, 1, nil)
		require.NoError(t, err)
		for range steps {
			err = c.Progress()
		}
		require.Equal(t, steps < 3, steps == 0 || errors.Is(err, nccl.ErrInProgress), "%d: %v", steps, err)
		ended := make(chan error, 1)
		go func() { ended <- done(c, nccl.ErrInProgress) }()
		require.NoError(t, c.Abort())
		if err := <-ended; err != nil {
			isOnly(t, err, driver.ErrClosed)
		}
		require.Zero(t, fake.Live())
	}
}

// All calls are made with the context current.
func TestWith(t *testing.T) {
	l, fake := onFake(t)
	id, err := l.NewID()
	require.NoError(t, err)
	within, lost := 0, error(nil)
	with := func(f func() error) error {
		if lost != nil {
			return lost
		}
		within++
		return f()
	}
	c, err := l.Join(id, 0, 1, with)
	require.NoError(t, err)
	require.NoError(t, c.Progress())
	require.Equal(t, 2, within)
	names := calls(t)
	for name, call := range names {
		if name != "ncclCommDestroy" && name != "ncclCommFinalize" {
			before := within
			require.NoError(t, call(c))
			require.Equal(t, before+1, within, name)
		}
	}
	lost = errors.New("the device is lost")
	for name, call := range names {
		require.Equal(t, lost, call(c), name)
	}
	require.NoError(t, c.Abort(), "without the context")
	_, err = l.Join(id, 0, 1, with)
	require.Equal(t, lost, err)
	require.Zero(t, fake.Live())
}

// TestFinalizeTwice: the second one, and Destroy after it, call NCCL no more. The fake would report
// that as a violated rule.
func TestFinalizeTwice(t *testing.T) {
	l, fake := onFake(t)
	comms := join(t, l, 2)
	for range 3 {
		each(t, comms, func(_ int, c *nccl.Comm) error { return c.Finalize() })
	}
	each(t, comms, func(_ int, c *nccl.Comm) error { return c.Destroy() })
	require.Equal(t, 2, fake.Calls("ncclCommFinalize"))

	c := join(t, l, 1)[0]
	fake.Fail("ncclCommFinalize", 1, 3)
	first := c.Finalize()
	isOnly(t, first, nccl.ErrFailed)
	require.Equal(t, first, c.Finalize())
	require.Equal(t, 3, fake.Calls("ncclCommFinalize"))
	require.NoError(t, c.Abort())
	isOnly(t, c.Finalize(), driver.ErrClosed)
}

func TestRunAllocatesNothing(t *testing.T) {
	l, _ := onFake(t)
	c := join(t, l, 1)[0]
	_, p := memory(t, make([]int8, 1)...)
	calls := make([]nccl.Call, 16)
	for i := range calls {
		calls[i] = nccl.Call{Operation: nccl.AllReduce, Src: p, Dst: p, Count: 1}
	}
	require.Zero(t, testing.AllocsPerRun(20, func() {
		if err := c.Run(0, calls); err != nil {
			t.Error(err)
		}
	}))
	leave(t, []*nccl.Comm{c})
}

func TestOldVersions(t *testing.T) {
	l, _ := onFake(t, fakenccl.Version(21800)...)
	require.Equal(t, 21800, l.Version())
	c := join(t, l, 1)[0]
	_, err := c.Register(8, 8)
	_, windowErr := c.RegisterWindow(8, 8)
	for _, err := range []error{err, windowErr, c.Deregister(1), c.DeregisterWindow(1)} {
		isOnly(t, err, driver.ErrNotSupported)
		require.ErrorContains(t, err, "NCCL 2.18.0 does not have it")
	}
	leave(t, []*nccl.Comm{c})
	l, _ = onFake(t, fakenccl.Version(21900)...)
	c = join(t, l, 1)[0]
	_, err = c.Register(8, 8)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(l.String(), "2.19"))
	_, err = c.RegisterWindow(8, 8)
	isOnly(t, err, driver.ErrNotSupported)
	leave(t, []*nccl.Comm{c})
}
