//go:build cgo && linux

package failcuda_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/failcuda"
	"github.com/cuvmm/cuvmm/internal/fakecuda"
	"github.com/cuvmm/cuvmm/internal/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// TestRandomFailuresOnFake and TestRandomFailuresOnGPU: while driver calls fail
// at random, nobody's bytes, lengths or addresses change, and when they work
// again everything goes back. VMM_FAIL_SECONDS is how long each rate runs,
// VMM_FAIL_SEED what the random numbers begin with.
func TestRandomFailuresOnFake(t *testing.T) {
	for _, rate := range []uint32{0, 100, 1000} {
		t.Run(fmt.Sprintf("rate=%d", rate), func(t *testing.T) {
			real := fakecuda.Build(t)
			fake := fakecuda.Open(t, real)
			fake.Configure(2, 4<<30)
			randomFailures(t, real, rate)
			fake.Clean()
		})
	}
}

func TestRandomFailuresOnGPU(t *testing.T) {
	d, err := vmm.Open("cuda:0")
	testgate.Require(t, "cuda", err)
	require.NoError(t, d.Close())
	for _, rate := range []uint32{0, 100, 1000} {
		t.Run(fmt.Sprintf("rate=%d", rate), func(t *testing.T) { randomFailures(t, "", rate) })
	}
}

// number is an environment variable's value.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 0, 64)
	require.NoError(t, err, name)
	return n
}

// trial is one run at one rate.
type trial struct {
	t    *testing.T
	fail *failcuda.Library
	rate uint32
	seed uint64
	drv  driver.Driver
	devs []*vmm.Device
	stop atomic.Bool
	ops  atomic.Uint64

	expected bool // that something is wrong
	found    string
}

// wrong fails the test, unless it expects that, and ends the run.
func (r *trial) wrong(format string, args ...any) {
	if r.stop.Swap(true) {
		return
	}
	if r.expected {
		r.found = fmt.Sprintf(format, args...)
	} else {
		r.t.Errorf(format, args...)
	}
}

// forgetful is a driver whose devices leave out a copy now and then.
type forgetful struct{ driver.Driver }

func (d *forgetful) Open(n int) (driver.Device, error) {
	v, err := d.Driver.Open(n)
	if err != nil {
		return nil, err
	}
	return &forgetfulDevice{Device: v, Pinner: v.(driver.Pinner)}, nil
}

type forgetfulDevice struct {
	driver.Device
	driver.Pinner
	copies atomic.Uint64
}

func (v *forgetfulDevice) CopyIn(dst driver.Ptr, src []byte) error {
	if v.copies.Add(1)%100 == 0 {
		return nil
	}
	return v.Device.CopyIn(dst, src)
}

// TestWrongBytesAreFound: the owners notice a copy that is left out.
func TestWrongBytesAreFound(t *testing.T) {
	real := fakecuda.Build(t)
	fake := fakecuda.Open(t, real)
	fake.Configure(2, 4<<30)
	drv, err := cuda.Load(real)
	require.NoError(t, err)
	r := &trial{t: t, fail: failcuda.New(t, failcuda.Options{Real: real}), drv: &forgetful{drv}, expected: true}
	r.open()
	r.run(0, 10*time.Second)
	require.Contains(t, r.found, "others from")
	for _, d := range r.devs {
		require.NoError(t, d.Close())
	}
	fake.Clean()
}

const owners = 6

func randomFailures(t *testing.T, real string, rate uint32) {
	short := uint64(2)
	if os.Getenv("VMM_SOAK") != "" {
		short = 30
	}
	seconds := number(t, "VMM_FAIL_SECONDS", short)
	seed := number(t, "VMM_FAIL_SEED", uint64(time.Now().UnixNano()))
	t.Logf("VMM_FAIL_SEED=%d", seed)
	r := &trial{t: t, fail: failcuda.New(t, failcuda.Options{Real: real, Seed: seed}), rate: rate, seed: seed}
	var err error
	r.drv, err = cuda.Load(r.fail.Path)
	require.NoError(t, err)
	r.open()

	// Without failures first: what the driver takes once and keeps is taken here.
	r.run(0, 200*time.Millisecond)
	r.trim()
	before := r.reopen()
	r.run(rate, time.Duration(seconds)*time.Second)
	calls, failed := r.fail.Calls()
	t.Logf("%d operations, %d of %d driver calls failed", r.ops.Load(), failed, calls)
	require.Equal(t, rate > 0, failed > 0)
	r.trim()
	for i, now := range r.reopen() {
		if real == "" { // the card's driver keeps some for itself
			require.InDelta(t, float64(before[i]), float64(now), 64<<20, "free memory of device %d", i)
		} else {
			require.Equal(t, before[i], now, "free memory of device %d", i)
		}
	}
	for _, d := range r.devs {
		require.NoError(t, d.Close())
	}
}

// open opens two devices, or the only one.
func (r *trial) open() {
	r.t.Helper()
	r.devs = nil
	all, err := r.drv.Devices()
	require.NoError(r.t, err)
	for i := range min(len(all), 2) {
		d, err := vmm.OpenDriver(r.drv, i)
		require.NoError(r.t, err)
		r.devs = append(r.devs, d)
	}
}

// reopen closes the devices, opens them again, and returns their free memory.
func (r *trial) reopen() (free []uint64) {
	r.t.Helper()
	for _, d := range r.devs {
		require.NoError(r.t, d.Close())
	}
	r.open()
	for _, d := range r.devs {
		n, _, err := d.MemInfo()
		require.NoError(r.t, err)
		free = append(free, n)
	}
	return free
}

// trimTakesAll says that Trim offers the driver once more what it would not take
// back. Where it does not, Device.Close does.
const trimTakesAll = true

// trim holds the books to nothing.
func (r *trial) trim() {
	r.t.Helper()
	for _, d := range r.devs {
		_, err := d.Trim(0)
		require.NoError(r.t, err)
		s := d.Stats()
		require.Zero(r.t, s.Used+s.Cached+s.Asleep, "%v: %v", d, s)
		if trimTakesAll || r.rate == 0 {
			require.Zero(r.t, s.Stuck, "stuck on %v", d)
			require.Zero(r.t, s.Reserved+s.Committed+s.Pending, "%v: %v", d, s)
		} else if s.Stuck+s.Reserved > 0 {
			r.t.Logf("%v: %d bytes are stuck, %d of addresses reserved", d, s.Stuck, s.Reserved)
		}
	}
}

// run has everybody at work for a while, and then everything closed.
func (r *trial) run(rate uint32, d time.Duration) {
	r.t.Helper()
	r.stop.Store(r.t.Failed())
	var all []*owner
	for i := range owners {
		all = append(all, newOwner(r, i))
	}
	var work sync.WaitGroup
	r.fail.SetRate(rate)
	for _, o := range all {
		work.Go(o.work)
	}
	for i, d := range r.devs {
		work.Go(func() { r.visit(d, rand.New(rand.NewPCG(r.seed, uint64(1000+i)))) })
	}
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	end := time.NewTimer(d)
	defer end.Stop()
	select {
	case <-done:
	case <-end.C:
	}
	r.stop.Store(true)
	// What is waited for below may be waiting for success.
	slow := time.AfterFunc(20*time.Second, func() { r.fail.SetRate(0) })
	defer slow.Stop()
	select {
	case <-done:
	case <-time.After(time.Minute):
		all := make([]byte, 1<<20)
		r.t.Fatalf("somebody is stuck\n%s", all[:runtime.Stack(all, true)])
	}
	r.fail.SetRate(0)
	for _, o := range all {
		o.close()
	}
	if r.t.Failed() {
		r.t.FailNow()
	}
}

// visit does what concerns a device and no owner's range.
func (r *trial) visit(d *vmm.Device, random *rand.Rand) {
	defer d.SetThreshold(0)
	for !r.stop.Load() {
		r.ops.Add(1)
		switch random.IntN(4) {
		case 0:
			_, err := d.Trim(uint64(random.IntN(8)) * granule)
			r.refused("trim", err)
		case 1:
			d.SetThreshold(uint64(random.IntN(16)) * granule)
		case 2:
			g, err := d.Alloc(uint64(random.IntN(granule) + 1))
			if r.refused("alloc", err) {
				continue
			}
			b := make([]byte, g.Len())
			if _, err := g.ReadAt(b, 0); !r.refused("read what is new", err) {
				for i, x := range b {
					if x != 0 {
						r.wrong("byte %d of what Alloc gave is %d", i, x)
						break
					}
				}
			}
			r.until("close what Alloc gave", g.Close)
		case 3:
			s, err := d.NewStream()
			if r.refused("make a stream", err) {
				continue
			}
			e, err := s.Record()
			if !r.refused("record", err) {
				_, err := e.Done()
				r.refused("ask an event", err)
				r.until("close an event", e.Close)
			}
			r.until("close a stream", s.Close)
		}
	}
}
