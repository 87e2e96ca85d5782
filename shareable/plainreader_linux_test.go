package shareable

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		play(role) // a process of a test's own
	}
	// The runtime's poller opens descriptors at its first use, and some tests count them.
	r, w, err := os.Pipe()
	if err := errors.Join(err, r.Close(), w.Close()); err != nil {
		log.Fatal(err)
	}
	if err := flag.Set("test.parallel", "4"); err != nil { // they wait more than they compute
		log.Fatal(err)
	}
	goleak.VerifyTestMain(m)
}

// plainReader is a reader made of nothing but frames and mmap, as one in another
// language would be.
type plainReader struct {
	t       *testing.T
	c       *wire.Conn
	o       wire.Object
	tracker *wire.Tracker
	page    []byte
	maps    [][]byte
	lazy    bool // acknowledges nothing
}

func dial(t *testing.T, path string) *wire.Conn {
	t.Helper()
	raw, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	c, err := wire.NewConn(raw)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetReadDeadline(time.Now().Add(inTime)))
	return c
}

// greeted is a connection after the handshake.
func greeted(t *testing.T, path string) *wire.Conn {
	t.Helper()
	c := dial(t, path)
	require.NoError(t, c.Write(wire.TypeHello, 0, 0, wire.Hello{Backend: wire.BackendHost, PID: 1, Granularity: 4096}.Append(nil)))
	f, err := c.Read()
	require.NoError(t, err)
	require.Equal(t, wire.TypeHello, f.Type)
	return c
}

func attachPlain(t *testing.T, path, name string) *plainReader {
	t.Helper()
	p := &plainReader{t: t, c: greeted(t, path)}
	require.NoError(t, p.c.Write(wire.TypeAttach, 7, 0, wire.Attach{Access: wire.AccessRead, Name: name}.Append(nil)))
	f, err := p.c.Read()
	require.NoError(t, err)
	require.Equal(t, wire.TypeObject, f.Type, string(f.Payload))
	require.Equal(t, uint32(7), f.Request)
	require.Len(t, f.FDs, 2)
	p.o, err = wire.DecodeObject(f.Payload)
	require.NoError(t, err)
	p.page, err = unix.Mmap(f.FDs[0].Int(), 0, pageBytes, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	t.Cleanup(func() {
		require.NoError(t, unix.Munmap(p.page))
		p.drop(0)
	})
	p.tracker, err = wire.NewTracker(p.o, wire.Limits{Granularity: 4096})
	require.NoError(t, err)
	return p
}

func (p *plainReader) drop(keep int) {
	for _, m := range p.maps[keep:] {
		require.NoError(p.t, unix.Munmap(m))
	}
	p.maps = p.maps[:keep]
}

// step takes one frame and gives its type.
func (p *plainReader) step() wire.Type {
	p.t.Helper()
	require.NoError(p.t, p.c.SetReadDeadline(time.Now().Add(inTime)))
	f, err := p.c.Read()
	require.NoError(p.t, err)
	defer f.Close() //nolint:errcheck // in a test
	switch f.Type {
	case wire.TypeChunks:
		m, err := wire.DecodeChunks(f.Payload)
		require.NoError(p.t, err)
		fresh, skip, err := p.tracker.Chunks(m)
		require.NoError(p.t, err)
		for i, c := range fresh {
			b, err := unix.Mmap(f.FDs[skip+i].Int(), 0, int(c.Size), unix.PROT_READ, unix.MAP_SHARED)
			require.NoError(p.t, err)
			p.maps = append(p.maps, b)
		}
		p.tracker.Mapped(len(fresh))
	case wire.TypeRetire:
		m, err := wire.DecodeRetire(f.Payload)
		require.NoError(p.t, err)
		keep, _, err := p.tracker.Retire(m)
		require.NoError(p.t, err)
		p.drop(keep)
	default:
		return f.Type
	}
	if !p.lazy {
		p.ack()
	}
	return f.Type
}

func (p *plainReader) ack() {
	p.t.Helper()
	require.NoError(p.t, p.c.Write(wire.TypeAck, 0, 0, wire.Ack{Object: p.o.ID, Chunk: p.tracker.LastID(), Generation: p.tracker.Generation()}.Append(nil)))
}

// length is what the reader may look at.
func (p *plainReader) length() uint64 {
	done := word(p.page, atDone).Load()
	if word(p.page, atGeneration).Load() != p.tracker.Generation() {
		return 0
	}
	return min(done, p.tracker.End())
}

// until takes frames until there are n bytes, and gives them.
func (p *plainReader) until(n uint64) []byte {
	p.t.Helper()
	for p.length() < n {
		if p.tracker.End() >= n && word(p.page, atGeneration).Load() == p.tracker.Generation() {
			runtime.Gosched() // the page moves by itself
			continue
		}
		p.step()
	}
	all := bytes.Join(p.maps, nil)
	return all[:n]
}

func pattern(from, n int) []byte {
	if first := firstPattern(); from+n <= len(first) {
		return bytes.Clone(first[from : from+n])
	}
	return makePattern(from, n)
}

// firstPattern is the pattern of what most tests write.
var firstPattern = sync.OnceValue(func() []byte { return makePattern(0, 8<<20) })

func makePattern(from, n int) []byte {
	const step = 2654435761
	b, x := make([]byte, n), uint32(from)*step
	for i := range b {
		b[i] = byte(x >> 24)
		x += step
	}
	return b
}

// stage is a server with one range published as "x".
func stage(t *testing.T, o Options, po PublishOptions) (*Server, *Publication, *vmm.Range) {
	t.Helper()
	return stageOn(t, vmmtest.Device(t), o, po)
}

// stageOn is stage on a device.
func stageOn(t *testing.T, dev *vmm.Device, o Options, po PublishOptions) (*Server, *Publication, *vmm.Range) {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	g, err := dev.NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: 64 << 20, Chunk: 2 << 20})
	require.NoError(t, err)
	s, err := Listen(dev, filepath.Join(t.TempDir(), "s"), o)
	require.NoError(t, err)
	p, err := s.Publish("x", g, po)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, p.Close())
		require.NoError(t, g.Close())
	})
	return s, p, g
}

func TestPlainReaderFollows(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	r := attachPlain(t, s.Path(), "x")
	require.Equal(t, pattern(0, 100), r.until(100))
	for n := 100; n < 9<<20; n += 3 << 20 {
		require.NoError(t, g.Append(pattern(n, 3<<20)))
		require.Equal(t, pattern(0, n+3<<20), r.until(uint64(n+3<<20)))
	}
	require.ErrorIs(t, g.SetLen(5), vmm.ErrBusy)
	require.ErrorIs(t, g.Close(), vmm.ErrBusy)

	// Room above what is published can go and come again.
	require.NoError(t, g.Grow(8<<20))
	end := p.Len()
	require.NoError(t, p.Flush(t.Context()))
	require.NoError(t, g.Clip())
	require.NoError(t, g.Append(pattern(int(end), 7<<20)))
	require.Equal(t, pattern(0, int(end)+7<<20), r.until(end+7<<20))
	require.Positive(t, p.Generation())

	// Retiring waits for the reader.
	done := make(chan error, 1)
	go func() { done <- p.Retire(t.Context(), 5<<20) }()
	for r.step() != wire.TypeRetire {
	}
	require.NoError(t, <-done)
	require.Equal(t, uint64(5<<20), g.Len())
	require.NoError(t, g.Clip())
	require.NoError(t, g.Append(pattern(7, 4<<20)))
	require.Equal(t, append(pattern(0, 5<<20), pattern(7, 4<<20)...), r.until(9<<20))

	require.NoError(t, p.Seal(t.Context(), SealOptions{Digest: true}))
	for r.step() != wire.TypeSealed {
	}
	require.Error(t, g.Append([]byte{1}))
	require.NoError(t, p.Close())
	for r.step() != wire.TypeDeleted {
	}
	require.NoError(t, s.Close())
	require.Equal(t, wire.TypeClosing, r.step())
}

func TestQueued(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	r := attachPlain(t, s.Path(), "x")
	require.NoError(t, g.Grow(1<<20))
	st, err := g.Device().NewStream()
	require.NoError(t, err)
	require.NoError(t, st.Fill(g.Ptr(), 0x5a, 1, 1<<20))
	e, err := st.Record()
	require.NoError(t, err)
	require.NoError(t, p.PublishAfter(1<<20, e))
	require.Equal(t, bytes.Repeat([]byte{0x5a}, 1<<20), r.until(1<<20))
	require.Equal(t, uint64(1<<20), g.Len())
	require.NoError(t, st.Close())
}

func TestFDsGoBack(t *testing.T) {
	count := func() int {
		l, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(l)
	}
	before := count()
	t.Run("scene", func(t *testing.T) {
		s, _, g := stage(t, Options{KeepFDs: 3}, PublishOptions{})
		require.NoError(t, g.Append(pattern(0, 30<<20)))
		r := attachPlain(t, s.Path(), "x")
		require.Equal(t, pattern(0, 30<<20), r.until(30<<20))
		require.Eventually(t, func() bool { return s.Stats().KeptFDs <= 3 }, inTime, time.Millisecond)
	})
	require.LessOrEqual(t, count(), before)
}

func TestSendNeedsAContext(t *testing.T) {
	t.Parallel()
	_, _, g := stage(t, Options{}, PublishOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	near, _ := pair(t)
	require.ErrorIs(t, Send(ctx, near, g), context.Canceled)
}
