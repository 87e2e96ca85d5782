package shareable

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/exp/stats"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// playWaiters attaches to "x" as often as it is told, and waits with each View for every
// byte. On "last n" it says when the last of them saw n bytes.
func playWaiters(p *part) {
	readers, err := strconv.Atoi(p.args[1])
	p.must(err)
	dev := p.device(host.Config{})
	var mu sync.Mutex
	saw, last := map[uint64]int{}, map[uint64]int64{} // by length: how many have seen it, and when the last one did
	moved := sync.NewCond(&mu)
	for range readers {
		v, err := Attach(context.Background(), p.args[0], "x", dev, AttachOptions{Timeout: time.Minute})
		p.must(err)
		go func() {
			for n := uint64(1); ; {
				p.must(v.Wait(context.Background(), n))
				now, at := v.Len(), clock()
				mu.Lock()
				for ; n <= now; n++ {
					saw[n]++
					last[n] = max(last[n], at)
				}
				mu.Unlock()
				moved.Broadcast()
			}
		}()
	}
	p.say("ready")
	for {
		_, n := p.next()
		mu.Lock()
		for saw[n] < readers {
			moved.Wait()
		}
		p.say("last", last[n])
		mu.Unlock()
	}
}

// clock is the time in nanoseconds, the same for all processes.
func clock() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

// cpuSeconds is how long a process has run, in seconds.
func cpuSeconds(t *testing.T, pid int) float64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+2:])
	var sum float64
	for _, f := range fields[11:13] { // utime and stime
		n, err := strconv.ParseFloat(string(f), 64)
		require.NoError(t, err)
		sum += n
	}
	return sum / 100
}

// TestManyWaitingReaders measures what readers that wait cost the owner, how late the
// last of them is, and what they use while nothing happens.
func TestManyWaitingReaders(t *testing.T) {
	crowd, rounds := testgate.Effort(16, 40, 1000), testgate.Effort(10, 50, 300)
	rest := testgate.Effort(50*time.Millisecond, 200*time.Millisecond, 10*time.Second)
	dev := crashDevice(t)
	g, err := dev.NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: 2 << 20, Chunk: 2 << 20})
	require.NoError(t, err)
	s, err := Listen(dev, socketAt(t), Options{MaxConns: 2 * crowd, MaxConnsPerUID: 2 * crowd})
	require.NoError(t, err)
	p, err := s.Publish("x", g, PublishOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	defer func() { require.NoError(t, s.Close()) }()

	pace := time.NewTicker(3 * time.Millisecond)
	defer pace.Stop()
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	appends := func() float64 {
		took := make([]float64, rounds)
		for i := range took {
			<-pace.C
			begun := time.Now()
			require.NoError(t, g.Append([]byte{1}))
			require.NoError(t, p.Flush(t.Context()))
			took[i] = time.Since(begun).Seconds() * 1e6
		}
		return stats.Quantiles(took, 0.5)[0]
	}
	require.NoError(t, g.Append([]byte{1}))
	alone := appends()
	processes := testgate.Effort(2, 8, 8)
	all := make([]*child, processes)
	for i := range all {
		all[i] = spawn(t, "waiters", s.Path(), strconv.Itoa(crowd/processes))
	}
	for _, c := range all {
		c.expect("ready")
	}
	last := func() float64 {
		<-pause.C // it comes by itself
		from := clock()
		require.NoError(t, g.Append([]byte{1}))
		to := from
		for _, c := range all {
			c.tell("last", g.Len())
		}
		for _, c := range all {
			at, err := strconv.ParseInt(c.expect("last"), 10, 64)
			require.NoError(t, err)
			to = max(to, at)
		}
		return float64(to-from) / 1e6
	}
	last() // all have begun to wait
	among := appends()
	var late []float64
	for range rounds / 5 {
		late = append(late, last())
	}
	q := stats.Quantiles(late, 0.5, 1)
	used := func() (owner, readers float64) {
		for _, c := range all {
			readers += cpuSeconds(t, c.cmd.Process.Pid)
		}
		return cpuSeconds(t, os.Getpid()), readers
	}
	owner, readers := used()
	<-time.After(rest)
	ownerAfter, readersAfter := used()
	t.Logf("%d waiting readers: Append and Flush p50 %.1f us, %.1f us with none; the last sees an append after p50 %.2f ms, at most %.2f ms; in %v of rest the owner uses %.2f %% of a core, all readers %.2f %%",
		crowd, among, alone, q[0], q[1], rest, (ownerAfter-owner)/rest.Seconds()*100, (readersAfter-readers)/rest.Seconds()*100)
}
