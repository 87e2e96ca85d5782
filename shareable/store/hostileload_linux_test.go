package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

const otherUser = 65534

// calls are the times of calls.
type calls struct {
	mu      sync.Mutex
	all     []time.Duration
	refused int // because of a limit
}

func (c *calls) timed(p *part, f func() error) {
	begun := time.Now()
	err := f()
	d := time.Since(begun)
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, vmm.ErrLimit) {
		c.refused++
		return
	}
	p.must(err)
	c.all = append(c.all, d)
}

// goodCalls is what a process of good clients reports.
type goodCalls struct {
	Calls, Refused  int
	P50, P999, Most time.Duration
}

// playGood is a writer and 20 readers, for as long as the third argument says.
func playGood(p *part) {
	ctx := context.Background()
	c, err := Connect(ctx, p.args[0], p.device(nil), ClientOptions{})
	p.must(err)
	limit, err := time.ParseDuration(p.args[1])
	p.must(err)
	for i := range 10 {
		w, err := c.Create(ctx, fmt.Sprint("good", i), CreateOptions{Size: 50_000})
		p.must(err)
		p.must(w.Append(waveAt(0, 50_000)))
		p.must(w.Seal(ctx, shareable.SealOptions{}))
		p.must(w.Close())
	}
	w, err := c.Create(ctx, "grows", CreateOptions{Size: 8 << 20, Durable: true})
	p.must(err)
	p.say("ready")
	p.next()
	var x calls
	var tasks sync.WaitGroup
	end := time.Now().Add(limit)
	for i := range 20 {
		tasks.Go(func() {
			for time.Now().Before(end) {
				x.timed(p, func() error {
					b, err := c.Get(ctx, fmt.Sprint("good", i%10), GetOptions{})
					if err != nil {
						return err
					}
					return errors.Join(checkWave(b, 50_000), b.Close())
				})
				<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond)
			}
		})
	}
	tasks.Go(func() {
		for time.Now().Before(end) {
			x.timed(p, func() error {
				if w.Len() > 7<<20 {
					return nil
				}
				return errors.Join(w.Append(waveAt(w.Len(), 100)), w.Flush(ctx))
			})
			<-time.After(time.Millisecond)
		}
	})
	tasks.Wait()
	p.must(checkWave(w.Range(), w.Len()))
	p.must(w.Close())
	slices.Sort(x.all)
	n := len(x.all)
	b, err := json.Marshal(goodCalls{n, x.refused, x.all[n/2], x.all[n*999/1000], x.all[n-1]})
	p.must(err)
	p.say("calls", string(b))
}

// playBad is hostile, with so many connections at a time as its second argument says, and as the
// user of the third.
func playBad(p *part) {
	many, err := strconv.Atoi(p.args[1])
	p.must(err)
	user, err := strconv.Atoi(p.args[2])
	p.must(err)
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19)
	p.must(unix.Setresuid(user, user, user))
	var stopped atomic.Bool
	var done atomic.Uint64
	var tasks sync.WaitGroup
	for range many {
		tasks.Go(func() {
			for !stopped.Load() {
				badConn(p.args[0], &stopped)
				done.Add(1)
				<-time.After(time.Duration(rand.IntN(10)) * time.Millisecond)
			}
		})
	}
	p.say("ready")
	p.next()
	stopped.Store(true)
	tasks.Wait()
	p.say("bad", done.Load())
}

// badConn does what it likes over one connection.
func badConn(path string, stopped *atomic.Bool) {
	raw, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return
	}
	c, err := wire.NewConn(raw)
	if err != nil {
		return
	}
	defer c.Close()   //nolint:errcheck // it is hostile
	defer c.Release() // what it has kept goes
	stays := func() { <-time.After(time.Duration(rand.IntN(300)) * time.Millisecond) }
	what := rand.IntN(9)
	if what == 0 { // says nothing
		stays()
		return
	}
	_, _ = c.SetReadDeadline(time.Now().Add(time.Second)), c.SetWriteDeadline(time.Now().Add(time.Second))
	n := uint32(0)
	send := func(of wire.Type, payload []byte) bool { n++; return c.Write(of, n, 0, payload) == nil }
	ask := func(of wire.Type, payload []byte) (wire.Frame, bool) {
		if !send(of, payload) {
			return wire.Frame{}, false
		}
		for {
			f, err := c.Read()
			if err != nil || f.Request == n {
				return f, err == nil
			}
		}
	}
	if c.Write(wire.TypeHello, 0, 0, wire.Hello{Backend: wire.BackendHost, Granularity: 4096}.Append(nil)) != nil {
		return
	}
	_, _ = c.Read()
	name := func() string { return fmt.Sprint("bad", rand.IntN(1000)) }
	switch what {
	case 1: // does not read
		for i := 0; i < 10_000 && send(wire.TypeQuery, wire.Query{}.Append(nil)) && !stopped.Load(); i++ {
		}
		stays()
	case 2: // keeps descriptors of what it has given up
		for range 20 {
			f, ok := ask(wire.TypeCreate, wire.Create{Size: 1 << 20}.Append(nil))
			if !ok || f.Type != wire.TypeObject {
				break
			}
			o, err := wire.DecodeObject(f.Payload)
			if err != nil {
				return
			}
			if f, ok = ask(wire.TypeGrow, wire.Grow{Object: o.ID}.Append(nil)); ok {
				for _, fd := range f.FDs {
					defer wire.NewFD(fd.Take()).Close() //nolint:errcheck,revive // later
				}
			}
			ask(wire.TypeRelease, wire.Release{Object: o.ID, Abort: true}.Append(nil))
		}
		stays()
	case 3: // empty objects with all that is said of one
		for range 200 {
			labels := []wire.Label{{Key: "k", Value: string(make([]byte, 200))}}
			if _, ok := ask(wire.TypeCreate, wire.Create{Name: name(), Size: 1, Flags: wire.StoreGrowable | wire.StoreDurable, Meta: make([]byte, 30<<10), Labels: labels}.Append(nil)); !ok {
				return
			}
		}
	case 4: // waits
		for range 900 {
			if !send(wire.TypeWait, wire.Wait{Name: name()}.Append(nil)) || !send(wire.TypeLease, wire.Lease{Name: "grows", Wait: true}.Append(nil)) {
				return
			}
		}
		stays()
	case 5: // watches, and does not read
		ask(wire.TypeWatch, wire.Watch{}.Append(nil))
		stays()
	case 6: // too much
		for range 50 {
			ask(wire.TypeCreate, wire.Create{Name: name(), Size: 1 << 40}.Append(nil))
			ask(wire.TypeGrow, wire.Grow{Object: rand.Uint64N(1000), Capacity: 1 << 40}.Append(nil))
		}
	case 7: // what is none of its business
		token := [16]byte{byte(rand.IntN(255) + 1)}
		_ = c.Write(wire.TypeResume, 0, 0, wire.Resume{Token: token}.Append(nil))
		for range 50 {
			id := rand.Uint64N(1000)
			ask(wire.TypeMapped, wire.Mapped{Object: id}.Append(nil))
			ask(wire.TypeSeal, wire.Seal{Object: id, Length: id}.Append(nil))
			ask(wire.TypeReplace, wire.Replace{Old: id, New: rand.Uint64N(1000)}.Append(nil))
			ask(wire.TypeAttach, wire.Attach{Access: wire.AccessRead, Flags: wire.AttachAgain | wire.AttachUnsealed, Name: wire.IDName(id), After: rand.Uint64N(5)}.Append(nil))
		}
	case 8: // nonsense
		b := make([]byte, rand.IntN(2000))
		for i := range b {
			b[i] = byte(rand.IntN(256))
		}
		_, _ = raw.Write(b)
		send(wire.Type(rand.IntN(100)), b)
		stays()
	}
}

// TestFigureHostile measures the calls of a writer and of 20 readers beside hostile clients of the
// same and of another user, and without them. No byte is wrong, and afterwards the server has what
// it had.
func TestFigureHostile(t *testing.T) {
	testgate.Long(t)
	if os.Getuid() != 0 {
		t.Skip("clients of another user need root")
	}
	if withCUDA {
		t.Skip("hostile clients are of the host")
	}
	limit := testgate.Effort(0, 3*time.Second, time.Minute)
	o, err := json.Marshal(Options{UIDs: []uint32{0, otherUser}, MaxBytes: 256 << 20, MaxObjects: 1000, MaxConns: 600})
	require.NoError(t, err)
	t.Setenv(optionsVar, string(o))
	path := fmt.Sprintf("@vmm-hostile-%d", os.Getpid())
	k := spawn(t, "keeper", path)
	k.expect("ready")
	c, err := Connect(t.Context(), path, testDevice(t), ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	pid, err := strconv.Atoi(k.ask("pid"))
	require.NoError(t, err)
	fds := func() int {
		l, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		require.NoError(t, err)
		return len(l)
	}
	before := fds()
	for _, hostile := range []bool{false, true} {
		good := spawn(t, "good", path, limit.String())
		good.expect("ready")
		var all []*child
		if hostile {
			all = append(all, spawn(t, "bad", path, "50", "0"), spawn(t, "bad", path, "250", strconv.Itoa(otherUser)))
			for _, b := range all {
				b.expect("ready")
			}
		}
		good.tell("on")
		var x goodCalls
		report := ""
		select {
		case report = <-good.lines:
		case <-time.After(limit + inTime):
		}
		if report == "" {
			good.kill()
			t.Fatal(good.err.String())
		}
		require.NoError(t, json.Unmarshal([]byte(report[len("calls "):]), &x), report)
		t.Logf("hostile %v: %d calls, %d refused because of a limit; p50 %v, p99.9 %v, at most %v", hostile, x.Calls, x.Refused, x.P50, x.P999, x.Most)
		for _, b := range all {
			t.Logf("%s hostile connections", b.ask("bad"))
			b.wait()
		}
		good.wait()
		list, err := c.List(t.Context(), ListOptions{})
		require.NoError(t, err)
		for _, i := range list {
			require.NoError(t, c.Delete(t.Context(), i.ID.String(), DeleteOptions{}))
		}
	}
	require.Eventually(t, func() bool { s, err := c.Stats(t.Context()); return err == nil && s.Bytes == 0 && s.Objects == 0 }, inTime, step)
	require.Eventually(t, func() bool { return fds() <= before+2 }, inTime, step)
	require.Equal(t, strconv.Itoa(pid), k.ask("pid"), "it has not died")
	k.ask("close")
}
