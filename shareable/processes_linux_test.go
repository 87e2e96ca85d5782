package shareable

import (
	"bytes"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// restful is a stream of dev and a function that waits until all it was told is
// done.
func restful(t *testing.T, dev *vmm.Device) (st *vmm.Stream, rests func()) {
	t.Helper()
	st, err := dev.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	return st, func() {
		t.Helper()
		e, err := st.Record()
		require.NoError(t, err)
		soon(t, "the stream goes on", func() bool {
			done, err := e.Done()
			require.NoError(t, err)
			return done
		})
		require.NoError(t, e.Close())
	}
}

// busy reports whether a stream has work that has not ended.
func busy(t *testing.T, st *vmm.Stream) bool {
	t.Helper()
	e, err := st.Record()
	require.NoError(t, err)
	done, err := e.Done()
	require.NoError(t, err)
	require.NoError(t, e.Close())
	return !done
}

// The owner dies while a stream here waits for what it would have published.
func TestNoStreamWaitsForAnotherProcess(t *testing.T) {
	if !withCUDA { // a GPU's context has the streams of all tests
		t.Parallel()
	}
	times := testgate.Effort(4, 100, 100)
	if withCUDA && !testgate.Soak() {
		times = min(times, 20)
	}
	dev := crashDevice(t)
	st, rests := restful(t, dev)
	at := socketAt(t)
	path := func(i int) string { return at + strconv.Itoa(i) }
	next := spawn(t, "owner", path(0))
	var slowest time.Duration
	for i := range times {
		owner := next
		owner.expect("ready")
		if i+1 < times {
			next = spawn(t, "owner", path(i+1))
		}
		n := grownBy(t, owner, 1000)
		v, err := Attach(t.Context(), path(i), "x", dev, AttachOptions{})
		require.NoError(t, err)
		require.NoError(t, waitFor(v, n))
		require.NoError(t, v.WaitOn(st, n+1))
		require.True(t, busy(t, st))
		require.NoError(t, v.Err())
		owner.kill()
		begun := time.Now()
		rests()
		slowest = max(slowest, time.Since(begun))
		require.ErrorIs(t, v.Err(), ErrOwnerGone)
		require.Equal(t, n, whole(t, v))
		require.NoError(t, v.Close())
	}
	t.Logf("%d streams went on, %v at most after its owner's end", times, slowest)
}

// Negative control: a stream that waits for a word in the other process's memory
// waits on when that process is dead.
func TestStreamThatWaitsForAnotherProcess(t *testing.T) {
	t.Parallel()
	if withCUDA {
		t.Skip("needs the host driver: a GPU's context would hang with the stream")
	}
	dev := crashDevice(t)
	st, rests := restful(t, dev)
	other, err := dev.NewStream()
	require.NoError(t, err)
	path := socketAt(t)
	owner := spawn(t, "owner", path)
	owner.expect("ready")
	n := grownBy(t, owner, crashChunk)
	v := joined(t, path, dev, AttachOptions{Write: true})
	require.NoError(t, waitFor(v, n))
	raw, err := dev.Raw()
	require.NoError(t, err)
	values := raw.(driver.StreamMemOps)
	require.NoError(t, values.WriteValue(other.Raw(), v.Ptr(), 0, 8))
	require.NoError(t, other.Sync())
	require.NoError(t, values.WaitValue(st.Raw(), v.Ptr(), 1, 8))
	owner.kill()
	orphaned(t, v)
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		require.True(t, busy(t, st))
	}
	require.NoError(t, values.WriteValue(other.Raw(), v.Ptr(), 1, 8)) // by hand
	rests()
	require.NoError(t, other.Close())
}

// smallOwner is an owner in this process of a range of small chunks.
func smallOwner(t *testing.T, o Options, chunk, size uint64) (*Server, *Publication, *vmm.Range) {
	t.Helper()
	dev, err := vmm.OpenDriver(host.New(host.Config{Granularity: 4096}), 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return ownerOn(t, dev, o, chunk, size)
}

// Four processes with 25 readers each see nothing but prefixes of what the
// owner writes.
func TestManyProcesses(t *testing.T) {
	t.Parallel()
	const chunk = 64 << 10
	processes, readers := testgate.Effort(2, 4, 4), testgate.Effort(10, 25, 25)
	publishes := testgate.Effort(300, 10_000, 10_000)
	var files unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	chunks := min(testgate.Effort[uint64](40, 200, 200), (files.Cur-300)/uint64(readers)) // each view's keeps a descriptor
	step := chunks * chunk / uint64(publishes)
	last := step * uint64(publishes)
	s, p, g := smallOwner(t, Options{MaxConns: 200, MaxConnsPerUID: 200}, chunk, chunks*chunk)
	var crowd []*child
	for i := range processes {
		c := spawn(t, "crowd", s.Path(), strconv.Itoa(readers), strconv.FormatUint(last, 10), strconv.Itoa(i))
		crowd = append(crowd, c)
	}
	for _, c := range crowd {
		c.expect("ready")
	}
	require.Equal(t, processes*readers, p.Readers())
	begun := time.Now()
	for range publishes {
		require.NoError(t, appendWave(g, 0, step))
		require.NoError(t, p.Flush(t.Context()))
	}
	took := time.Since(begun)
	looks := uint64(0)
	for _, c := range crowd {
		looks += c.count("looks")
	}
	t.Logf("%d publishes to %d readers in %v, %d chunks; the readers saw and checked %d lengths; %d frames, %d asked again",
		publishes, processes*readers, took.Round(time.Millisecond), len(g.Segments()), looks, s.Stats().Frames, s.Stats().Resyncs)
	require.Zero(t, s.Stats().TimedOut)
	require.Zero(t, s.Stats().Violations)
}

// Of ten readers in processes of their own one stands still. The owner does not
// notice, and what is kept for that one is bounded.
func TestStoppedReader(t *testing.T) {
	rounds, appends, readers := testgate.Effort(3, 6, 40), testgate.Effort(50, 200, 1000), testgate.Effort(4, 10, 10)
	const step = 512
	size := uint64(2*(rounds+1)*appends*step+1<<20) &^ 0xffff
	s, p, g := smallOwner(t, Options{AckTimeout: time.Hour, RequestTimeout: time.Hour}, 64<<10, size)
	var all []*child
	for range readers {
		all = append(all, spawn(t, "crowd", s.Path(), "1", strconv.FormatUint(size, 10), "1"))
	}
	for _, c := range all {
		c.expect("ready")
	}
	// And one asks to be told of every length, and never listens.
	deaf := greeted(t, s.Path())
	ask := wire.Attach{Access: wire.AccessRead, Flags: wire.AttachPublish, Name: "x"}
	require.NoError(t, deaf.Write(wire.TypeAttach, 1, 0, ask.Append(nil)))
	soon(t, "it is attached", func() bool { return p.Readers() == readers+1 })
	most := 0
	latency := func() time.Duration {
		var took []time.Duration
		for range appends {
			begun := time.Now()
			require.NoError(t, appendWave(g, 0, step))
			for p.Len() < g.Len() {
				runtime.Gosched()
			}
			took = append(took, time.Since(begun))
		}
		for _, q := range queuedBytes(t, s) {
			most = max(most, q)
		}
		slices.Sort(took)
		return took[len(took)*99/100]
	}
	still := func() time.Duration {
		all[0].stop()
		defer all[0].cont()
		return latency()
	}
	took := versus.Rounds(rounds, still, latency)
	low, high := versus.Interval(took[0], took[1])
	t.Logf("p99 of an append until it is published: %v with one of %d readers stopped, %v without, ratio %.2f to %.2f; at most %d bytes wait for a reader",
		time.Duration(versus.Median(took[0])), readers, time.Duration(versus.Median(took[1])), low, high, most)
	require.LessOrEqual(t, most, 64<<10)
	if testgate.Soak() {
		require.LessOrEqual(t, low, 1.1)
	}
	require.NoError(t, appendWave(g, 0, size-g.Len()))
	for _, c := range all {
		require.NotZero(t, c.count("looks")) // all of it is there, and right
	}
}

// ends is what this process could have left open. A test that counts it is not parallel.
type ends struct {
	fds, goroutines, maps, kept int
	committed, charged          uint64
}

func tally(t *testing.T, s *Server, dev *vmm.Device) ends {
	t.Helper()
	runtime.GC()
	fds, err := processFDs()
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	shared := bytes.Count(maps, []byte("memfd:")) + bytes.Count(maps, []byte("/dev/nvidia"))
	charged := uint64(0)
	s.mu.Lock()
	for _, n := range s.bytesByUID {
		charged += n
	}
	s.mu.Unlock()
	return ends{fds, runtime.NumGoroutine(), shared, s.Stats().KeptFDs, dev.Stats().Committed + dev.Stats().Imported, charged}
}

// isAsBefore waits until there is no more than there was.
func isAsBefore(t *testing.T, s *Server, dev *vmm.Device, before ends) (now ends) {
	t.Helper()
	soon(t, "%+v before, %+v now", func() bool {
		now = tally(t, s, dev)
		// Fewer is no leak: memory of earlier tests may be freed meanwhile.
		now.goroutines, now.fds = max(now.goroutines, before.goroutines), max(now.fds, before.fds)
		return now == before
	}, before, &now)
	return now
}

// Connections are made and their processes killed, at whatever stage they are.
func TestConnectAndKill(t *testing.T) {
	const each = 50
	cycles := testgate.Effort[uint64](100, 200, 10_000)
	s, _, g := owning(t, Options{MaxConns: 4 * each, MaxConnsPerUID: 4 * each})
	require.NoError(t, appendWave(g, 0, 9*mib))
	batch := func(seed int, c *child) {
		c.expect("ready")
		c.tell("go")
		soon(t, "it connects", func() bool { return s.Stats().Conns > 0 })
		if seed%2 == 0 { // all of them are there; else in the middle of it
			c.expect("up")
		}
		c.kill()
		soon(t, "they are all gone", func() bool { return s.Stats().Conns == 0 })
	}
	storm := func(seed int) *child {
		return spawn(t, "storm", s.Path(), strconv.Itoa(each), strconv.Itoa(seed))
	}
	for seed := range 2 { // what is made once is there then
		batch(seed, storm(seed))
	}
	before := tally(t, s, g.Device())
	start := s.Stats()
	killed := 0
	for next := storm(2); s.Stats().Accepted-start.Accepted < cycles; killed++ {
		c := next
		next = storm(3 + killed) // which starts meanwhile, and connects when it is told
		batch(2+killed, c)
		if s.Stats().Accepted-start.Accepted >= cycles {
			next.kill()
		}
	}
	after := isAsBefore(t, s, g.Device(), before)
	end := s.Stats()
	t.Logf("%d connections of %d killed processes, %d violations, %d cut off: before %+v, after %+v",
		end.Accepted-start.Accepted, killed, end.Violations-start.Violations, end.TimedOut-start.TimedOut, before, after)
	v := joined(t, s.Path(), crashDevice(t), AttachOptions{})
	require.NoError(t, waitFor(v, 9*mib))
	require.Equal(t, uint64(9*mib), whole(t, v))
}

// What an owner sent before its end counts, also where it has left words of the
// reader's unread, for which the system resets the connection.
func TestResetWithFramesUnread(t *testing.T) {
	dev := crashDevice(t)
	g, err := dev.NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: crashMax, Chunk: crashChunk})
	require.NoError(t, err)
	require.NoError(t, appendWave(g, 0, 3*crashChunk))
	near, far := pair(t)
	c, err := wire.NewConn(near)
	require.NoError(t, err)
	o := wire.Object{ID: 1, Max: crashMax, State: wire.StateLive, Access: wire.AccessRead, Instance: [16]byte{7}, Name: "x"}
	h, err := localHello(dev)
	require.NoError(t, err)
	h.Instance = o.Instance
	pg, err := newOwnerPage(o.Instance, o.ID)
	require.NoError(t, err)
	defer pg.close()
	wake, err := newWakeSender()
	require.NoError(t, err)
	defer wake.close()
	pg.published.Store(3 * crashChunk)
	require.NoError(t, c.Write(wire.TypeHello, 0, 0, h.Append(nil)))
	require.NoError(t, c.Write(wire.TypeObject, attachRequest, 0, o.Append(nil), pg.fd, wake.reader))
	v, err := AttachConn(t.Context(), far, "x", dev, AttachOptions{})
	require.NoError(t, err)
	var fds []int
	for _, seg := range g.Segments() {
		fd, err := export(seg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
		fds = append(fds, fd)
	}
	chunk := func(i uint64) {
		m := wire.Chunks{Object: 1, Records: []wire.Chunk{{ID: 1 + i, Offset: i * crashChunk, Size: crashChunk}}}
		require.NoError(t, c.Write(wire.TypeChunks, 0, 0, m.Append(nil), fds[i]))
	}
	for range 2 { // HELLO and ATTACH, but no acknowledgement
		_, err := c.Read()
		require.NoError(t, err)
	}
	chunk(0)
	soon(t, "an acknowledgement lies unread", func() bool {
		raw, err := near.SyscallConn()
		require.NoError(t, err)
		n := 0
		require.NoError(t, raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }))
		return err == nil && n > 0
	})
	v.mu.RLock() // the view cannot go on meanwhile, and then reads before it writes
	require.NoError(t, c.Write(wire.TypeSealed, 0, 0, wire.Sealed{Object: 1, Length: 4 * crashChunk}.Append(nil)))
	chunk(1)
	chunk(2)
	require.NoError(t, c.Close())
	v.mu.RUnlock()
	orphaned(t, v)
	require.Equal(t, uint64(3*crashChunk), whole(t, v))
	require.NoError(t, v.Close())
	require.NoError(t, g.Close())
}
