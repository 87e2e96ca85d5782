package pool_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// onCUDA reports whether the tests that can run on the machine's GPU do so.
var onCUDA = os.Getenv("VMM_TEST_DRIVER") == "cuda"

// stress is goroutines, each with a stream, that share a pool. Each block gets a stamp by work
// that is queued on a stream, and is read by work that is queued later. Streams run late: on
// the host they wait at gates, on a GPU they have much to do first.
type stress struct {
	t     *testing.T
	w     *world
	p     *pool.Pool
	lanes []*runner
	late  func(r *runner) (open func())
	stamp atomic.Uint32
	big   *vmm.Range // copied to make streams of a GPU late

	mu    sync.Mutex
	opens []func() // of this round
}

// runner is a goroutine and its stream.
type runner struct {
	*stress
	s     *vmm.Stream
	dev   int
	l     *ledger
	rnd   *rand.Rand
	mine  []stamped
	mu    sync.Mutex
	given []stamped // by other runners
}

// stamped is a block whose words are all the stamp once the stream has come there.
type stamped struct {
	b     pool.Block
	stamp uint32
	after *vmm.Event // nil: by work of the runner's own stream
}

const (
	roundOps  = 60
	ledgerLen = 8192
)

func newStress(t *testing.T, devs []int, seed uint64) *stress {
	t.Helper()
	x := &stress{t: t}
	o := pool.Options{Max: 8 * mib, ReleaseThreshold: 4 * mib}
	if onCUDA {
		x.w = oneDevice(t, 0)
		o = pool.Options{Max: 256 * mib, ChunkSize: 2 * mib}
		devs = []int{0, 0, 0, 0}
	} else {
		x.w = newWorld(t, 2, 64*mib)
	}
	x.p = x.w.pool(o)
	if len(x.w.devs) > 1 {
		require.NoError(t, x.p.Grant(vmm.AccessReadWrite, x.w.devs[1]))
	}
	x.late = x.lateness()
	for i, dev := range devs {
		s, err := x.w.devs[dev].NewStream()
		require.NoError(t, err)
		x.lanes = append(x.lanes, &runner{stress: x, s: s, dev: dev, l: newLedger(t, x.w.devs[dev], ledgerLen),
			rnd: rand.New(rand.NewPCG(seed, uint64(i)))})
	}
	// Where the pool waits for work, the gates in front of that must open.
	x.w.watch(func(c drivertest.Call) error {
		if c.Name == "SyncEvent" && calledBy("(*search).await") {
			x.open()
		}
		return nil
	})
	return x
}

// calledBy reports whether a function of that name has called this one.
func calledBy(name string) bool {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, name) {
			return true
		}
		if !more {
			return false
		}
	}
}

// lateness returns what makes the later work of a runner's stream late.
func (x *stress) lateness() func(r *runner) (open func()) {
	if !onCUDA {
		var all []*gates
		for i := range x.w.devs {
			all = append(all, x.w.gates(i))
		}
		return func(r *runner) func() { return all[r.dev].hold(r.s) }
	}
	const much = 512 * mib
	big, err := x.w.devs[0].Alloc(much)
	require.NoError(x.t, err)
	x.big = big
	return func(r *runner) func() {
		for range 1 + r.rnd.IntN(8) {
			require.NoError(x.t, r.s.Copy(big.Ptr(), big.Ptr()+much/2, much/2))
		}
		return func() {}
	}
}

// open opens all gates.
func (x *stress) open() {
	x.mu.Lock()
	opens := x.opens
	x.opens = nil
	x.mu.Unlock()
	for _, f := range opens {
		f()
	}
}

// round is each runner's operations behind its gate. It returns how many foreign stamps
// were read.
func (x *stress) round() (foreign int) {
	var all sync.WaitGroup
	for _, r := range x.lanes {
		open := x.late(r)
		x.mu.Lock()
		x.opens = append(x.opens, open)
		x.mu.Unlock()
	}
	for _, r := range x.lanes {
		all.Go(r.run)
	}
	all.Wait()
	for _, r := range x.lanes {
		r.take()
		for len(r.mine) > 0 {
			r.readAndFree(len(r.mine) - 1)
		}
	}
	x.open()
	for _, r := range x.lanes {
		r.must(r.s.Sync())
	}
	if x.w.lost.Load() {
		return 1
	}
	for _, r := range x.lanes {
		foreign += r.l.foreign(x.t)
	}
	require.NoError(x.t, pool.Check(x.p))
	return foreign
}

func (x *stress) end() {
	x.t.Helper()
	x.w.watch(nil)
	for _, r := range x.lanes {
		closeAll(x.t, r.s, r.l.mem)
	}
	require.Zero(x.t, statsOf(x.t, x.p).Blocks)
	closeAll(x.t, x.p)
	if x.big != nil {
		closeAll(x.t, x.big)
	}
	x.w.end()
}

func (r *runner) must(err error) {
	if err != nil && !r.w.forgiven(err) && !r.w.lost.Load() {
		r.t.Error(err)
	}
}

func (r *runner) run() {
	for i := range roundOps {
		switch k := r.rnd.IntN(20); {
		case k < 9 || len(r.mine) == 0:
			r.alloc()
		case k < 13:
			r.readAndFree(r.rnd.IntN(len(r.mine)))
		case k < 15:
			r.give(r.rnd.IntN(len(r.mine)))
		case k < 17:
			r.take()
		case k < 18:
			r.resize(r.rnd.IntN(len(r.mine)))
		case k < 19:
			r.untouched()
		case i > roundOps/2 && r.rnd.IntN(4) == 0:
			r.open()
			r.must(r.s.Sync())
		default:
			_, err := r.p.TrimTo(uint64(r.rnd.IntN(8 * mib)))
			r.must(err)
		}
	}
}

// size is mostly short, sometimes long.
func (r *runner) size() uint64 {
	if r.rnd.IntN(3) > 0 {
		return entry * (1 + r.rnd.Uint64N(256))
	}
	return entry * (1 + r.rnd.Uint64N(uint64(mib)/entry/(1+r.rnd.Uint64N(8))))
}

// memory is Alloc. Without memory it opens the gates and tries once more.
func (r *runner) memory(n uint64) (pool.Block, bool) {
	b, err := r.p.Alloc(r.s, n)
	if errors.Is(err, vmm.ErrOutOfMemory) {
		r.open()
		r.must(r.s.Sync())
		b, err = r.p.Alloc(r.s, n)
	}
	if errors.Is(err, vmm.ErrOutOfMemory) {
		return b, false
	}
	r.must(err)
	return b, err == nil
}

func (r *runner) alloc() {
	b, ok := r.memory(r.size())
	if !ok {
		return
	}
	stamp := r.stamp.Add(1)
	r.must(r.s.Fill(b.Ptr(), stamp, 4, b.Size()/4))
	r.mine = append(r.mine, stamped{b: b, stamp: stamp})
}

// untouched is a block that no work ever uses, so it may be given up at once.
func (r *runner) untouched() {
	if b, ok := r.memory(r.size()); ok {
		r.must(r.p.FreeNow(b))
	}
}

func (r *runner) remove(i int) stamped {
	x := r.mine[i]
	r.mine[i] = r.mine[len(r.mine)-1]
	r.mine = r.mine[:len(r.mine)-1]
	return x
}

// read queues reads of the block's first words, its last, and some between.
func (r *runner) read(x stamped) {
	n := x.b.Size()
	for _, at := range []uint64{0, n - entry, r.rnd.Uint64N(n/entry) * entry} {
		r.must(r.l.read(r.s, x.b.Ptr()+vmm.Ptr(at), x.stamp))
	}
}

func (r *runner) readAndFree(i int) {
	x := r.remove(i)
	r.read(x)
	r.must(r.p.Free(r.s, x.b))
}

// give hands a block to another runner, which frees it in its own stream.
func (r *runner) give(i int) {
	x := r.remove(i)
	var err error
	x.after, err = r.s.Record()
	r.must(err)
	to := r.lanes[r.rnd.IntN(len(r.lanes))]
	to.mu.Lock()
	defer to.mu.Unlock()
	to.given = append(to.given, x)
}

// take makes what was given to the runner its own: its stream waits for the giver's.
func (r *runner) take() {
	r.mu.Lock()
	given := r.given
	r.given = nil
	r.mu.Unlock()
	for _, x := range given {
		r.must(r.s.Wait(x.after))
		r.must(x.after.Close())
		x.after = nil
		r.mine = append(r.mine, x)
	}
}

// resize changes the length of a block. All of it has the stamp again.
func (r *runner) resize(i int) {
	x := &r.mine[i]
	n := r.size()
	was := x.b.Size()
	b, err := r.p.Resize(r.s, x.b, n)
	if errors.Is(err, pool.ErrNoRoom) || errors.Is(err, vmm.ErrOutOfMemory) {
		return
	}
	r.must(err)
	if x.b = b; n > was {
		r.must(r.s.Fill(b.Ptr()+vmm.Ptr(was), x.stamp, 4, (n-was)/4))
	}
}

// rounds is how many rounds a stress runs.
func rounds(usual int) int { return testgate.Effort(max(usual/4, 1), usual, 100*usual) }

// TestStreamOrder: whatever the policies, no stream ever finds in its block what other work
// has written there.
func TestStreamOrder(t *testing.T) {
	for off := range pool.ReuseAll + 1 {
		t.Run(fmt.Sprintf("without=%03b", off), func(t *testing.T) {
			x := newStress(t, []int{0, 0, 0, 1}, uint64(off))
			require.NoError(t, x.p.SetReuse(pool.ReuseAll&^off))
			for range rounds(12) {
				require.Zero(t, x.round(), "foreign stamps")
			}
			st := statsOf(t, x.p)
			t.Logf("%+v", st)
			require.Positive(t, st.Allocs)
			x.end()
		})
	}
}

// TestStreamOrderIsSeen: a pool that ignores the order fails the test above. It may even
// take memory away from queued work, by which the host's device is lost, and the pool with it.
func TestStreamOrderIsSeen(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	x := newStress(t, []int{0, 0, 0, 1}, 1)
	pool.SetNoOrder(x.p)
	x.w.mayLose = true
	foreign := 0
	for i := 0; foreign == 0 && i < 200; i++ {
		foreign = x.round()
	}
	require.Positive(t, foreign)
}

// TestPoliciesChangeWhileStreamsRun: order holds whatever is switched when.
func TestPoliciesChangeWhileStreamsRun(t *testing.T) {
	x := newStress(t, []int{0, 0, 0, 1}, 7)
	rnd := rand.New(rand.NewPCG(7, 7))
	for range rounds(12) {
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for n := uint64(0); ; n++ {
				select {
				case <-stop:
					return
				default:
					_ = x.p.SetReuse(pool.ReuseAll & pool.Reuse(n))
					_ = x.p.SetReleaseThreshold(rnd.Uint64N(8 * mib))
				}
			}
		}()
		foreign := x.round()
		close(stop)
		<-stopped
		require.Zero(t, foreign)
	}
	x.end()
}
