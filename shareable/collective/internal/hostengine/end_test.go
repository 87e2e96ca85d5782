package hostengine

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

func sum(count uint64) nccl.Call {
	return nccl.Call{Operation: nccl.AllReduce, Kind: nccl.Float32, Dst: 4096, Count: count}
}

func send(to int, count uint64) nccl.Call {
	return nccl.Call{Operation: nccl.Send, Kind: nccl.Float32, Peer: to, Count: count}
}

func recv(from int, count uint64) nccl.Call {
	return nccl.Call{Operation: nccl.Recv, Kind: nccl.Float32, Peer: from, Dst: 4096, Count: count}
}

// TestMembersThatDisagree: all learn of it, also those that have called nothing, with both
// calls in the text, and their streams are free once they abort. The tests of misuse in package
// collective have more of such calls.
func TestMembersThatDisagree(t *testing.T) {
	for name, c := range map[string]struct {
		a, b  nccl.Call
		texts []string
	}{
		"counts":       {sum(4), sum(5), []string{"of 4 float32", "of 5 float32"}},
		"messages":     {send(1, 4), recv(0, 5), []string{"Send of 4 float32 to 1", "Recv of 5 float32 from 0"}},
		"two receives": {recv(1, 4), recv(0, 4), []string{"Recv of 4 float32 from 1", "Recv of 4 float32 from 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := group(t, 3, Options{})
			require.NoError(t, ranks[0].queue(c.a))
			require.NoError(t, ranks[1].queue(c.b))
			require.ErrorIs(t, ranks[0].sync(), nccl.ErrFailed)
			for _, r := range ranks {
				err := r.Err()
				require.ErrorIs(t, err, nccl.ErrFailed)
				require.ErrorContains(t, err, "rank 0")
				require.ErrorContains(t, err, "rank 1")
				for _, text := range c.texts {
					require.ErrorContains(t, err, text)
				}
				require.ErrorIs(t, r.queue(sum(1)), nccl.ErrFailed)
				done, err := r.st.Done()
				require.NoError(t, err)
				require.Equal(t, r.rank == 2, done, "calls that are not made do not look as if they were")
				require.NoError(t, r.Abort())
				require.NoError(t, r.st.Sync())
			}
		})
	}
}

// TestAbort: the others learn who has ended, their kernels wait until they abort too, and the
// streams of all are free then.
func TestAbort(t *testing.T) {
	ranks := group(t, 3, Options{})
	for _, r := range ranks[:2] {
		require.NoError(t, r.queue(sum(4)))
		require.NoError(t, r.Err())
	}
	require.NoError(t, ranks[1].Abort())
	require.NoError(t, ranks[1].Abort())
	require.NoError(t, ranks[1].st.Sync())
	require.ErrorIs(t, ranks[1].Err(), nccl.ErrFailed)
	require.ErrorIs(t, ranks[1].queue(sum(4)), nccl.ErrFailed)
	require.ErrorIs(t, ranks[1].Close(), nccl.ErrFailed)
	require.NoError(t, ranks[1].Free())
	for _, r := range []*rank{ranks[0], ranks[2]} {
		err := r.Err()
		require.ErrorIs(t, err, nccl.ErrPeerGone)
		require.ErrorContains(t, err, "rank 1")
	}
	done, err := ranks[0].st.Done()
	require.NoError(t, err)
	require.False(t, done, "it waits for the member that is gone")
	for _, r := range []*rank{ranks[0], ranks[2]} {
		require.NoError(t, r.Abort())
		require.NoError(t, r.st.Sync())
		require.NoError(t, r.Free())
	}
}

// TestSilent: no one learns of a member that has ended.
func TestSilent(t *testing.T) {
	ranks := group(t, 2, Options{Silent: true})
	require.NoError(t, ranks[0].queue(sum(4)))
	require.NoError(t, ranks[1].Abort())
	require.NoError(t, ranks[0].Err())
	closed := ranks[0].closing(t)
	require.NoError(t, ranks[0].Abort())
	require.ErrorIs(t, <-closed, nccl.ErrFailed, "it waits until then")
	require.NoError(t, ranks[0].st.Sync())
}

// TestClose: a member that has closed is gone for those that wait for it, and for no others.
func TestClose(t *testing.T) {
	ranks := group(t, 3, Options{})
	closed := ranks[0].closing(t)
	require.NoError(t, ranks[1].Err(), "it waits for no one")
	require.NoError(t, ranks[1].queue(send(2, 1)))
	require.NoError(t, ranks[2].queue(recv(1, 1)))
	require.NoError(t, ranks[1].sync())
	require.NoError(t, ranks[2].sync())
	require.NoError(t, ranks[1].queue(sum(1)))
	err := ranks[1].sync()
	require.ErrorIs(t, err, nccl.ErrPeerGone)
	require.ErrorContains(t, err, "rank 0")
	require.NoError(t, ranks[1].Abort())
	require.ErrorIs(t, <-closed, nccl.ErrPeerGone)
}

// closing begins Close, and returns once the others know.
func (r *rank) closing(t *testing.T) <-chan error {
	t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- r.Close() }()
	require.Eventually(t, func() bool {
		r.w.mu.Lock()
		defer r.w.mu.Unlock()
		return r.Member.closing
	}, 10*time.Second, time.Millisecond)
	return closed
}

// TestCloseWaitsForWhatIsQueued.
func TestCloseWaitsForWhatIsQueued(t *testing.T) {
	ranks := group(t, 2, Options{})
	require.NoError(t, ranks[0].queue(send(1, 1)))
	closed := ranks[0].closing(t)
	require.NoError(t, ranks[1].queue(recv(0, 1)))
	require.NoError(t, ranks[1].sync(), "what was queued before Close is not gone")
	require.NoError(t, ranks[1].Close())
	require.NoError(t, <-closed)
	for _, r := range ranks {
		require.NoError(t, r.Free())
	}
}

// TestAbortAtAnyPoint: members that are aborted while all make calls leave every stream free
// and no goroutine.
func TestAbortAtAnyPoint(t *testing.T) {
	for round := range testgate.Effort(30, 300, 300) {
		random := rand.New(rand.NewPCG(uint64(round), 1))
		size := 2 + round%4
		ranks := group(t, size, Options{})
		victim, at := random.IntN(size), random.IntN(20)
		reached, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			<-reached
			ended <- ranks[victim].Abort()
		}()
		together(ranks, func(r *rank) {
			for i := range 20 {
				if r.rank == victim && i == at {
					close(reached)
				}
				err := r.queue(sum(256), send((r.rank+1)%size, 8), recv((r.rank+size-1)%size, 8))
				if err == nil && i%3 == 0 {
					err = r.sync()
				}
				if err != nil {
					if !errors.Is(err, nccl.ErrPeerGone) && (r.rank != victim || !errors.Is(err, nccl.ErrFailed)) {
						t.Errorf("rank %d: %v", r.rank, err)
					}
					break
				}
			}
			if err := r.Abort(); err != nil {
				t.Error(err)
			}
			if err := r.st.Sync(); err != nil {
				t.Error(err)
			}
			if err := r.Free(); err != nil {
				t.Error(err)
			}
		})
		select {
		case <-reached:
		default:
			close(reached)
		}
		require.NoError(t, <-ended)
	}
}

// TestCaptureIsRefused, and the group goes on.
func TestCaptureIsRefused(t *testing.T) {
	ranks := group(t, 1, Options{})
	r := ranks[0]
	require.NoError(t, r.st.BeginCapture())
	require.ErrorIs(t, r.queue(sum(1)), vmm.ErrNotSupported)
	g, err := r.st.EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.NoError(t, r.queue(sum(1)))
	require.NoError(t, r.sync())
	end(t, ranks)
}

// TestBadCalls are refused and change nothing.
func TestBadCalls(t *testing.T) {
	_, err := NewWorld(0, Options{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = NewWorld(MaxMembers+1, Options{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	ranks := group(t, 2, Options{})
	_, err = ranks[0].w.Join(2, ranks[0].dev)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = ranks[0].w.Join(0, ranks[0].dev)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	for name, c := range map[string]nccl.Call{
		"operation":      {Operation: nccl.Recv + 1, Count: 1},
		"kind":           {Kind: nccl.Float8E5M2 + 1, Count: 1},
		"reduction":      {Reduction: nccl.Mean + 1, Count: 1},
		"root":           {Operation: nccl.Broadcast, Peer: 2, Count: 1},
		"no rank":        {Operation: nccl.Send, Peer: -1, Count: 1},
		"too many":       {Kind: nccl.Float64, Count: 1 << 62},
		"beyond its end": {Kind: nccl.Uint8, Count: memorySize + 1},
		"gather beyond":  {Operation: nccl.AllGather, Kind: nccl.Uint8, Count: memorySize/2 + 1},
		"scatter beyond": {Operation: nccl.ReduceScatter, Kind: nccl.Uint8, Count: memorySize/2 + 1},
		"before":         {Kind: nccl.Uint8, Src: 1<<64 - 1, Count: 1},
	} {
		require.ErrorIs(t, ranks[0].queue(c), vmm.ErrInvalid, name)
	}
	st, _, release, err := ranks[0].st.Hold()
	require.NoError(t, err)
	spans := ranks[0].all()
	spans[0].Access = driver.AccessRead
	c := sum(1)
	c.Src, c.Dst = ranks[0].base, ranks[0].base
	require.ErrorIs(t, ranks[0].Run(st, spans, []nccl.Call{c}), vmm.ErrInvalid, "it is written")
	require.ErrorIs(t, ranks[0].Run(st, []driver.Span{{Addr: 1 << 20, Size: 1 << 20, Access: driver.AccessReadWrite}},
		[]nccl.Call{{Operation: nccl.AllReduce, Src: 1 << 20, Dst: 1 << 20, Count: 1}}), vmm.ErrInvalid, "it is not mapped")
	release()
	together(ranks, func(r *rank) {
		if err := errors.Join(r.queue(sum(1)), r.sync()); err != nil {
			t.Errorf("rank %d: %v", r.rank, err)
		}
	})
	end(t, ranks)
}

// TestFaultsOfTheDriver: what fails leaves nothing behind, and can be done again.
func TestFaultsOfTheDriver(t *testing.T) {
	for _, name := range []string{"LoadModule", "Function"} {
		dev := vmmtest.Device(t, drivertest.FailNth(name, 1, vmm.ErrOutOfMemory))
		w, err := NewWorld(1, Options{Report: t.Errorf})
		require.NoError(t, err)
		_, err = w.Join(0, dev)
		require.ErrorIs(t, err, vmm.ErrOutOfMemory, name)
		m, err := w.Join(0, dev)
		require.NoError(t, err)
		require.NoError(t, m.Abort())
		require.NoError(t, m.Free())
	}
	for _, name := range []string{"Launch", "Capturing"} {
		w, err := NewWorld(1, Options{Report: t.Errorf})
		require.NoError(t, err)
		armed := drivertest.FailNth(name, 1, vmm.ErrOutOfMemory)
		r := newRank(t, w, 0, vmmtest.Device(t, armed))
		require.ErrorIs(t, r.queue(sum(1)), vmm.ErrOutOfMemory, name)
		require.NoError(t, r.queue(sum(1)))
		require.NoError(t, r.sync())
	}
	w, err := NewWorld(1, Options{Report: t.Errorf})
	require.NoError(t, err)
	r := newRank(t, w, 0, vmmtest.Device(t, drivertest.FailNth("HostBytes", 1, vmm.ErrInvalid)))
	require.NoError(t, r.queue(sum(1)))
	require.ErrorIs(t, r.sync(), nccl.ErrFailed)
}

// TestFaultInATransfer: memory that one member takes away while calls use it costs the device
// that runs them, and the others learn of it.
func TestFaultInATransfer(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	ranks := group(t, 2, Options{})
	tr := newTransfer(1)
	tr.sides[0] = &side{call: nccl.Call{Operation: nccl.ReduceScatter, Kind: nccl.Uint8, Count: 8}} // it panics
	tr.missing, tr.running = 0, true
	func() {
		defer func() { require.NotNil(t, recover()) }()
		ranks[0].runTransfer(tr)
	}()
	<-tr.done
	require.ErrorContains(t, ranks[1].Err(), "fault in ReduceScatter")
}
