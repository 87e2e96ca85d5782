package shareable

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
)

const mib = 1 << 20

// The lines of the protocol's crash matrix, each with real processes that are
// killed or stopped, on the host, and on a GPU where VMM_TEST_DRIVER says cuda.
// A writer killed before it seals is the store's line and not here; a daemon
// that is killed is an owner that is killed.
func TestCrashMatrix(t *testing.T) {
	for _, row := range []struct {
		event string
		run   func(*testing.T)
		alone bool // it counts what the process has, or how long that has run
	}{
		{"reader killed", readerKilled, true},
		{"owner killed while live", ownerKilled, false},
		{"owner killed with frames unread", ownerKilledUnread, false},
		{"owner killed anywhere", ownerKilledAnywhere, true},
		{"owner killed with writes queued", ownerKilledQueued, false},
		{"reader stopped", readerStopped, false},
		{"reader stopped too long", readerStoppedTooLong, false},
		{"owner restarts", ownerRestarts, false},
		{"owner frees while a reader copies", ownerFrees, false},
		{"fd limit at the reader", fdLimit, false},
	} {
		t.Run(row.event, func(t *testing.T) {
			if !row.alone && !withCUDA {
				t.Parallel()
			}
			row.run(t)
		})
	}
}

// Negative controls: what the rows rely on sees what they look for.
func TestCrashMatrixControls(t *testing.T) {
	s, _, g := owning(t, Options{})
	require.NoError(t, appendWave(g, 0, 3*mib))
	v := joined(t, s.Path(), crashDevice(t), AttachOptions{})
	require.NoError(t, waitFor(v, 3*mib))
	whole(t, v)
	for _, at := range []int64{0, 2*mib - 1, 2 * mib, 3*mib - 1} {
		_, err := g.WriteAt([]byte{^wave(0, uint64(at), 1)[0]}, at)
		require.NoError(t, err)
		_, err = sound(v, 0)
		require.ErrorContains(t, err, fmt.Sprintf("byte %d ", at))
		_, err = g.WriteAt(wave(0, uint64(at), 1), at)
		require.NoError(t, err)
	}
	for chunk := range uint64(crashMax / crashChunk) {
		require.NotEqual(t, wave(0, 0, 64), wave(0, (1+chunk)*crashChunk, 64), "a chunk in the place of the first")
	}
	const span = 100 * time.Millisecond
	before := cpuTime(t)
	soon(t, "one goroutine that spins is seen", func() bool {
		for end := time.Now().Add(span); time.Now().Before(end); {
			_ = wave(0, 1, 1)
		}
		return cpuTime(t)-before > span/5
	})
}

// owning is a server of this process with one range published as "x".
func owning(t *testing.T, o Options) (*Server, *Publication, *vmm.Range) {
	t.Helper()
	dev := crashDevice(t)
	return ownerOn(t, dev, o, crashChunk, crashMax)
}

// ownerOn is a server of dev's with a range in chunks, published as "x".
func ownerOn(t *testing.T, dev *vmm.Device, o Options, chunk, size uint64) (*Server, *Publication, *vmm.Range) {
	t.Helper()
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	g, err := dev.NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: size, Chunk: chunk})
	require.NoError(t, err)
	s, err := Listen(dev, socketAt(t), o)
	require.NoError(t, err)
	p, err := s.Publish("x", g, PublishOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, p.Close())
		require.NoError(t, g.Close())
	})
	return s, p, g
}

// reader is a child that has attached to s.
func reader(t *testing.T, s *Server) *child {
	t.Helper()
	c := spawn(t, "reader", s.Path())
	c.expect("ready")
	c.tell("attach")
	require.Equal(t, "ok", c.expect("attached"))
	return c
}

// reads has a reader wait for n bytes and look at all of them.
func reads(t *testing.T, c *child, n uint64) {
	t.Helper()
	c.tell("wait", n)
	require.Equal(t, "ok", c.expect("there"))
	c.tell("verify")
	require.Equal(t, n, c.count("sound"))
}

// grownBy has the owner append n bytes and gives the length then.
func grownBy(t *testing.T, owner *child, n uint64) uint64 {
	t.Helper()
	owner.tell("append", n)
	return owner.count("published")
}

func readerKilled(t *testing.T) {
	s, p, g := owning(t, Options{})
	require.NoError(t, appendWave(g, 0, 5*mib))
	stays := reader(t, s)
	reads(t, stays, 5*mib)
	before, err := processFDs()
	require.NoError(t, err)
	kept, total, times := s.Stats().KeptFDs, uint64(5*mib), testgate.Effort(2, 4, 4)
	for i := range times {
		dies := reader(t, s)
		require.Equal(t, 2, p.Readers())
		if i%2 == 0 { // in the middle of something
			dies.tell("wait", total+1)
		} else {
			reads(t, dies, total)
		}
		killed := make(chan struct{})
		go func() {
			dies.kill()
			close(killed)
		}()
		require.NoError(t, appendWave(g, 0, 3*mib))
		total += 3 * mib
		<-killed
		soon(t, "its lease is gone", func() bool { return p.Readers() == 1 && s.Stats().Conns == 1 })
		reads(t, stays, total)
	}
	// One that owes a word: nothing waits for it once it is dead.
	owes := reader(t, s)
	reads(t, owes, total)
	owes.stop()
	retired := make(chan error, 1)
	go func() { retired <- p.Retire(t.Context(), total-mib) }()
	soon(t, "it is told", func() bool { return p.Generation() > 0 })
	require.Empty(t, retired)
	owes.kill()
	require.NoError(t, <-retired)
	require.Zero(t, s.Stats().TimedOut, "it has not waited for Options.AckTimeout")
	reads(t, stays, total-mib)
	grown := times * 3 * mib / crashChunk
	soon(t, "no descriptor is left open", func() bool {
		after, err := processFDs()
		extra := s.Stats().KeptFDs - kept
		if !withCUDA {
			extra += grown // the host driver's own
		}
		return err == nil && after <= before+extra+1
	})
	require.Zero(t, s.Stats().Violations)
}

func ownerKilled(t *testing.T) {
	path := socketAt(t)
	owner := spawn(t, "owner", path)
	owner.expect("ready")
	n := grownBy(t, owner, 7*mib)
	dev := crashDevice(t)
	v := joined(t, path, dev, AttachOptions{})
	other := spawn(t, "reader", path)
	other.expect("ready")
	other.tell("attach")
	require.Equal(t, "ok", other.expect("attached"))
	require.NoError(t, waitFor(v, n))
	reads(t, other, n)
	waits := make(chan error, 1)
	go func() { waits <- waitFor(v, n+1) }()
	other.tell("wait", n+1)

	owner.kill()
	require.ErrorIs(t, <-waits, ErrOwnerGone)
	require.Equal(t, errLost.Error(), other.expect("there"))
	orphaned(t, v)
	require.Equal(t, n, v.Len())
	require.Equal(t, n, v.Queued())
	require.Equal(t, n, whole(t, v))
	require.True(t, v.Valid(v.Snapshot()))
	other.tell("verify")
	require.Equal(t, n, other.count("sound"))
	st, err := dev.NewStream()
	require.NoError(t, err)
	require.NoError(t, v.WaitOn(st, n))
	require.ErrorIs(t, v.WaitOn(st, n+1), ErrOwnerGone)
	require.NoError(t, st.Close())
	_, err = Attach(t.Context(), path, "x", dev, AttachOptions{})
	require.ErrorIs(t, err, ErrOwnerGone)
}

// What the owner has sent before its end counts, read or not.
func ownerKilledUnread(t *testing.T) {
	path := socketAt(t)
	owner := spawn(t, "owner", path)
	owner.expect("ready")
	n := grownBy(t, owner, 2*mib)
	slow := spawn(t, "reader", path)
	slow.expect("ready")
	slow.tell("attach")
	require.Equal(t, "ok", slow.expect("attached"))
	reads(t, slow, n)
	slow.stop()
	for frames := 2; frames <= 3; frames++ {
		n = grownBy(t, owner, crashChunk)
		owner.tell("sent", frames)
		owner.expect("sent")
	}
	owner.kill()
	slow.cont()
	slow.tell("orphaned")
	require.Equal(t, errLost.Error(), slow.expect("orphaned"))
	slow.tell("verify")
	require.Equal(t, n, slow.count("sound"))
}

// The owner appends, grows, publishes and takes back without end and is killed
// somewhere in there.
func ownerKilledAnywhere(t *testing.T) {
	kills := testgate.Effort(4, 30, 1000)
	dev := crashDevice(t)
	at := socketAt(t)
	path := func(i int) string { return at + strconv.Itoa(i) }
	next := spawn(t, "owner", path(0))
	r := rand.New(rand.NewPCG(11, 12))
	var bytes, attached uint64
	var last []*View
	for i := range kills {
		owner := next
		owner.expect("ready")
		if i+1 < kills {
			next = spawn(t, "owner", path(i+1)) // which starts meanwhile
		}
		owner.tell("loop", i)
		owner.expect("looping")
		follows := drained(t, path(i))
		killed := make(chan struct{})
		kill := func() {
			defer close(killed)
			<-time.After(time.Duration(r.Int64N(int64(10 * time.Millisecond))))
			owner.kill()
		}
		if i%3 == 0 { // while the view attaches, perhaps
			go kill()
		}
		v, err := Attach(t.Context(), path(i), "x", dev, AttachOptions{})
		if i%3 != 0 {
			if err == nil {
				_ = waitFor(v, r.Uint64N(4*mib))
			}
			go kill()
		}
		if err == nil {
			require.ErrorIs(t, waitFor(v, v.Max()), ErrOwnerGone)
			orphaned(t, v)
			n := v.Len()
			require.Equal(t, n, whole(t, v))
			require.Equal(t, n, v.Len())
			bytes += n
			attached++
			if last = append(last, v); len(last) > 20 {
				require.NoError(t, last[0].Close())
				last = last[1:]
			}
		} else {
			require.ErrorIs(t, err, ErrOwnerGone)
		}
		<-killed
		require.NoError(t, <-follows)
	}
	require.NotZero(t, bytes)
	// All of these still have a dead owner's memory. None of them may be busy.
	span := testgate.Effort[time.Duration](150, 300, 300) * time.Millisecond
	before := cpuTime(t)
	<-time.After(span)
	used := cpuTime(t) - before
	t.Logf("%d kills, %d views, %d bytes verified; %d orphans used %v of CPU in %v", kills, attached, bytes, len(last), used, span)
	require.Less(t, used, span/3)
	for _, v := range last {
		require.NoError(t, v.Close())
	}
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func ownerKilledQueued(t *testing.T) {
	path := socketAt(t)
	owner := spawn(t, "owner", path)
	owner.expect("ready")
	n := grownBy(t, owner, 3*mib)
	v := joined(t, path, crashDevice(t), AttachOptions{})
	require.NoError(t, waitFor(v, n))
	owner.tell("hold", 9*mib)
	owner.expect("held")
	require.Equal(t, n+9*mib, v.Queued())
	soon(t, "room for it is mapped", func() bool { return v.Cap() >= n+9*mib })
	require.Equal(t, n, v.Len())
	owner.kill()
	orphaned(t, v)
	require.Equal(t, n, v.Len())
	require.Equal(t, n, v.Queued())
	require.Equal(t, n, whole(t, v))
}

func readerStopped(t *testing.T) {
	s, p, g := owning(t, Options{})
	still, moves := reader(t, s), reader(t, s)
	require.NoError(t, appendWave(g, 0, mib))
	reads(t, still, mib)
	still.stop()
	n, worst, times := uint64(mib), time.Duration(0), testgate.Effort(8, 20, 20)
	for range times {
		begun := time.Now()
		require.NoError(t, appendWave(g, 0, 2*mib))
		require.NoError(t, p.Flush(t.Context()))
		worst = max(worst, time.Since(begun))
		n += 2 * mib
		require.Equal(t, n, p.Len())
	}
	reads(t, moves, n)
	t.Logf("the slowest of %d times 2 MiB took %v", times, worst)
	require.Less(t, worst, 3*time.Second, "not even one deadline of the server's")
	for _, q := range queuedBytes(t, s) {
		require.LessOrEqual(t, q, 64<<10)
	}
	require.Equal(t, 2, p.Readers())
	still.cont()
	reads(t, still, n)
	require.Zero(t, s.Stats().TimedOut)
}

// queuedBytes is what the system holds for each connection.
func queuedBytes(t *testing.T, s *Server) []int {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []int
	for ses := range s.sessions {
		n, err := ses.conn.Queued()
		require.NoError(t, err)
		all = append(all, n)
	}
	return all
}

func readerStoppedTooLong(t *testing.T) {
	s, p, g := owning(t, Options{AckTimeout: 600 * time.Millisecond})
	still, moves := reader(t, s), reader(t, s)
	require.NoError(t, appendWave(g, 0, 9*mib))
	reads(t, still, 9*mib)
	reads(t, moves, 9*mib)
	still.stop()
	require.NoError(t, p.Retire(t.Context(), 3*mib), "without its word")
	soon(t, "it is cut off", func() bool { return s.Stats().TimedOut == 1 })
	require.NoError(t, g.Clip())
	require.NoError(t, appendWave(g, 0, 4*mib))
	reads(t, moves, 7*mib)
	require.Equal(t, 1, p.Readers())
	still.cont()
	still.tell("orphaned")
	require.Contains(t, still.expect("orphaned"), ErrTooSlow.Error())
	still.tell("verify") // what it keeps is still what it was
	require.LessOrEqual(t, still.count("sound"), uint64(9*mib))
	reads(t, moves, 7*mib)
}

func ownerRestarts(t *testing.T) {
	path := socketAt(t)
	dev := crashDevice(t)
	seen := map[string]bool{}
	var views []*View
	for i := range uint64(3) {
		owner := spawn(t, "owner", path)
		instance := owner.expect("ready")
		require.False(t, seen[instance])
		seen[instance] = true
		n := grownBy(t, owner, (1+i)*mib)
		v := joined(t, path, dev, AttachOptions{})
		require.Equal(t, instance, fmt.Sprintf("%x", v.Instance()))
		require.NoError(t, waitFor(v, n))
		for old, w := range views {
			require.ErrorIs(t, w.Err(), ErrOwnerGone)
			require.ErrorIs(t, waitFor(w, w.Len()+1), ErrOwnerGone)
			require.Equal(t, uint64(1+old)*mib, whole(t, w))
		}
		require.Equal(t, n, whole(t, v))
		views = append(views, v)
		owner.kill()
		orphaned(t, v)
	}
}

func ownerFrees(t *testing.T) {
	path := socketAt(t)
	owner := spawn(t, "owner", path)
	owner.expect("ready")
	const stays = 3 * mib
	times := testgate.Effort[uint64](3, 20, 20)
	n := grownBy(t, owner, 12*mib)
	dev := crashDevice(t)
	v := joined(t, path, dev, AttachOptions{})
	require.NoError(t, waitFor(v, n))

	var old []byte // as the reader that holds a slice keeps it
	var lent *View
	if !withCUDA {
		lent = joined(t, path, dev, AttachOptions{})
		require.NoError(t, waitFor(lent, n))
		var err error
		old, err = lent.Host()
		require.NoError(t, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var good atomic.Int64
	done := make(chan error, 1)
	go func() { done <- copyAll(ctx, v, stays, times, &good) }()
	for i := range times {
		before := good.Load()
		owner.tell("retire", stays)
		owner.expect("retired")
		owner.tell("seed", i+1)
		n = grownBy(t, owner, 9*mib)
		require.NoError(t, waitFor(v, n))
		soon(t, "a copy of it is good", func() bool { return good.Load() > before || len(done) > 0 })
	}
	cancel()
	require.NoError(t, <-done)
	t.Logf("%d copies were good while the owner freed the memory %d times", good.Load(), times)
	if lent != nil {
		require.ErrorIs(t, lent.Err(), ErrRetired)
		require.Equal(t, stays, differs(old[:stays], 0, 0))
		kept := old[4*mib:] // what lies before it shares a chunk with what stays
		require.Equal(t, len(kept), differs(kept, 0, 4*mib))
	}
}

// differs is where b, which stands at from, is not what the seed says; len(b) if
// it is.
func differs(b []byte, seed, from uint64) int {
	for at := 0; at < len(b); {
		want := wave(seed, from+uint64(at), uint64(len(b)-at))
		if !bytes.Equal(b[at:at+len(want)], want) {
			return at
		}
		at += len(want)
	}
	return len(b)
}

// copyAll copies what the view shows, over and over. What was current
// throughout is of one time: from stays on by one of the seeds.
func copyAll(ctx context.Context, v *View, stays, seeds uint64, good *atomic.Int64) error {
	b := make([]byte, 12*mib)
	for ctx.Err() == nil {
		snap := v.Snapshot()
		if snap.Len < stays {
			continue
		}
		if _, err := v.ReadAt(b[:snap.Len], 0); err != nil {
			if v.Valid(snap) {
				return err
			}
			continue // it is gone, and said so
		}
		if !v.Valid(snap) {
			continue
		}
		head, tail := b[:stays], b[stays:snap.Len]
		ok := false
		for seed := range seeds + 1 {
			ok = ok || differs(tail, seed, stays) == len(tail)
		}
		if !ok || differs(head, 0, 0) < len(head) {
			return fmt.Errorf("%d bytes of generation %d are of no one time", snap.Len, snap.Generation)
		}
		good.Add(1)
	}
	return nil
}

func fdLimit(t *testing.T) {
	s, p, g := owning(t, Options{})
	all := testgate.Effort[uint64](20, 40, 40) * mib
	require.NoError(t, appendWave(g, 0, all))

	// Room for a few at a time: in smaller frames all of it comes.
	c := spawn(t, "reader", s.Path(), "raise")
	c.expect("ready")
	fds := 3 // the connection and two that come with OBJECT
	if withCUDA {
		fds = 8 // the driver needs some of its own
	}
	c.tell("few", fds)
	require.Equal(t, "ok", c.expect("few"))
	c.tell("attach")
	require.Equal(t, "ok", c.expect("attached"))
	c.tell("wait", all)
	require.Equal(t, "ok", c.expect("there"))
	require.Positive(t, s.Stats().Resyncs)
	t.Logf("%d frames, %d times asked again", s.Stats().Frames, s.Stats().Resyncs)
	c.tell("enough")
	require.Equal(t, "ok", c.expect("enough"))
	reads(t, c, all) // for which a GPU's driver opens what it needs
	c.tell("close")
	require.Equal(t, "ok", c.expect("closed"))

	// Room for none: an error, and all that came is closed.
	none := spawn(t, "reader", s.Path())
	none.expect("ready")
	none.tell("attach") // once, for what the driver opens and keeps
	require.Equal(t, "ok", none.expect("attached"))
	reads(t, none, all)
	none.tell("close")
	require.Equal(t, "ok", none.expect("closed"))
	none.tell("settled")
	require.Equal(t, "ok", none.expect("settled"))
	none.tell("fds")
	before := none.count("fds")
	require.NoError(t, p.Retire(t.Context(), 0))
	require.NoError(t, g.Clip())
	require.NoError(t, p.Flush(t.Context()))
	none.tell("attach", 600)
	require.Equal(t, "ok", none.expect("attached"))
	none.tell("few", 0)
	require.Equal(t, "ok", none.expect("few"))
	require.NoError(t, appendWave(g, 0, 9*mib))
	none.tell("wait", 1)
	require.Contains(t, none.expect("there"), vmm.ErrLimit.Error())
	none.tell("enough")
	require.Equal(t, "ok", none.expect("enough"))
	none.tell("close")
	require.Equal(t, "ok", none.expect("closed"))
	soon(t, "what came is closed", func() bool {
		none.tell("fds")
		return none.count("fds") == before
	})
	none.tell("attach")
	require.Equal(t, "ok", none.expect("attached"))
	reads(t, none, 9*mib)
}
