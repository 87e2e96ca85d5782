package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// hostile is a client that sends what it likes.
type hostile struct {
	t *testing.T
	s *Server
	c *wire.Conn
	n uint32
}

func newHostile(t *testing.T, s *Server) *hostile {
	t.Helper()
	h := newHostileAt(t, s.Path(), s.gran)
	h.s = s
	return h
}

func newHostileAt(t *testing.T, path string, gran uint64) *hostile {
	t.Helper()
	raw, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	c, err := wire.NewConn(raw)
	require.NoError(t, err)
	h := &hostile{t: t, c: c}
	t.Cleanup(h.close)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(inTime)))
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(inTime)))
	require.NoError(t, c.Write(wire.TypeHello, 0, 0, wire.Hello{Backend: wire.BackendHost, Granularity: gran}.Append(nil)))
	f, err := c.Read()
	require.NoError(t, err)
	require.Equal(t, wire.TypeHello, f.Type)
	return h
}

func (h *hostile) close() {
	h.c.Release()
	_ = h.c.Close()
}

// send sends a request; the other side may have gone.
func (h *hostile) send(of wire.Type, payload []byte) error {
	h.n++
	return h.c.Write(of, h.n, 0, payload)
}

// ask sends a request and returns the reply to it.
func (h *hostile) ask(of wire.Type, payload []byte) wire.Frame {
	h.t.Helper()
	require.NoError(h.t, h.send(of, payload))
	for {
		f, err := h.c.Read()
		require.NoError(h.t, err, "%v", of)
		if f.Request == h.n {
			return f
		}
	}
}

// refused sends a request that gets an ERROR with this code.
func (h *hostile) refused(code uint32, of wire.Type, payload []byte) {
	h.t.Helper()
	f := h.ask(of, payload)
	require.Equal(h.t, wire.TypeError, f.Type)
	e, err := wire.DecodeError(f.Payload)
	require.NoError(h.t, err)
	require.Equal(h.t, code, e.Code, e.Text)
}

// does sends a request whose reply is DONE.
func (h *hostile) does(of wire.Type, payload []byte) {
	h.t.Helper()
	require.Equal(h.t, wire.TypeDone, h.ask(of, payload).Type)
}

// create makes an object and maps its page.
func (h *hostile) create(q wire.Create) (id uint64, page []byte, fd int) {
	h.t.Helper()
	f := h.ask(wire.TypeCreate, q.Append(nil))
	require.Equal(h.t, wire.TypeObject, f.Type)
	o, err := wire.DecodeObject(f.Payload)
	require.NoError(h.t, err)
	fd, err = unix.Dup(f.FDs[0].Int())
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = unix.Close(fd) })
	page, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = unix.Munmap(page) })
	return o.ID, page, fd
}

// lost reads until the connection ends.
func (h *hostile) lost() {
	h.t.Helper()
	for {
		if _, err := h.c.Read(); err != nil {
			require.NotErrorIs(h.t, err, os.ErrDeadlineExceeded)
			return
		}
	}
}

// flood sends a request until the connection has ended.
func (h *hostile) flood(of wire.Type, payload []byte) {
	for range 100_000 {
		if h.send(of, payload) != nil {
			return
		}
	}
	h.t.Error("the flood went on")
}

const (
	survives = iota // the connection does
	isCut           // it ends, and is counted as a violation
	tooSlow         // it ends, and is counted as timed out
	ends            // it ends
)

// attack is what a client does to a store, and what comes of it.
type attack struct {
	name string
	do   func(h *hostile)
	want int
}

// whole are requests that are right, about an object of another client.
func whole(id uint64) map[wire.Type][]byte {
	return map[wire.Type][]byte{
		wire.TypeCreate: wire.Create{Name: "new", Size: 4096, Meta: []byte("m"), Labels: []wire.Label{{Key: "k", Value: "v"}}}.Append(nil),
		wire.TypeLease:  wire.Lease{Name: "open"}.Append(nil), wire.TypeMapped: wire.Mapped{Object: id}.Append(nil),
		wire.TypeGrow: wire.Grow{Object: id, Capacity: 1}.Append(nil), wire.TypeWrote: wire.Wrote{Object: id}.Append(nil),
		wire.TypeSeal: wire.Seal{Object: id, HasDigest: true}.Append(nil), wire.TypeRelease: wire.Release{Object: id, Abort: true}.Append(nil),
		wire.TypeDelete: wire.Delete{Name: "none"}.Append(nil), wire.TypeWait: wire.Wait{Name: "none"}.Append(nil),
		wire.TypeLink: wire.Link{Name: "none", As: "other"}.Append(nil), wire.TypeUnlink: wire.Unlink{Name: "none"}.Append(nil),
		wire.TypeQuery: wire.Query{Prefix: "n", Labels: []wire.Label{{Key: "k"}}}.Append(nil), wire.TypeWatch: wire.Watch{Prefix: "n"}.Append(nil),
	}
}

func attacks(id uint64) []attack {
	all := []attack{
		{"MAPPED of another's", func(h *hostile) { h.refused(wire.CodePermission, wire.TypeMapped, whole(id)[wire.TypeMapped]) }, survives},
		{"GROW of another's", func(h *hostile) { h.refused(wire.CodePermission, wire.TypeGrow, whole(id)[wire.TypeGrow]) }, survives},
		{"SEAL of another's", func(h *hostile) { h.refused(wire.CodePermission, wire.TypeSeal, whole(id)[wire.TypeSeal]) }, survives},
		{"RELEASE of another's", func(h *hostile) { h.refused(wire.CodePermission, wire.TypeRelease, whole(id)[wire.TypeRelease]) }, survives},
		{"WROTE of another's", func(h *hostile) { require.NoError(h.t, h.send(wire.TypeWrote, whole(id)[wire.TypeWrote])) }, survives},
		{"LEASE of another's", func(h *hostile) { h.refused(wire.CodeBusy, wire.TypeLease, whole(id)[wire.TypeLease]) }, survives},
		{"LEASE of what is sealed", func(h *hostile) { h.refused(wire.CodeSealed, wire.TypeLease, wire.Lease{Name: "x"}.Append(nil)) }, survives},
		{"MAPPED twice", func(h *hostile) {
			id, _, _ := h.create(wire.Create{Size: 1})
			h.does(wire.TypeMapped, wire.Mapped{Object: id}.Append(nil))
			h.does(wire.TypeMapped, wire.Mapped{Object: id}.Append(nil)) // as a client does whose server was replaced
		}, survives},
		{"GROW and SEAL before MAPPED", func(h *hostile) {
			id, _, _ := h.create(wire.Create{Size: 1, Flags: wire.StoreGrowable})
			require.Equal(h.t, wire.TypeChunks, h.ask(wire.TypeGrow, wire.Grow{Object: id, Capacity: 1}.Append(nil)).Type)
			h.does(wire.TypeSeal, wire.Seal{Object: id, Length: 1}.Append(nil))
			h.refused(wire.CodePermission, wire.TypeRelease, wire.Release{Object: id}.Append(nil))
			h.does(wire.TypeDelete, wire.Delete{Name: wire.IDName(id)}.Append(nil))
		}, survives},
		{"GROW beyond the end", func(h *hostile) {
			id, _, _ := h.create(wire.Create{Size: 1, Flags: wire.StoreGrowable})
			h.refused(wire.CodeBounds, wire.TypeGrow, wire.Grow{Object: id, Capacity: math.MaxUint64}.Append(nil))
			h.refused(wire.CodeBounds, wire.TypeGrow, wire.Grow{Object: id, After: 7}.Append(nil))
		}, survives},
		{"SEAL beyond the memory, and below what is published", func(h *hostile) {
			id, page, _ := h.create(wire.Create{Size: 1})
			h.does(wire.TypeMapped, wire.Mapped{Object: id}.Append(nil))
			h.refused(wire.CodeBounds, wire.TypeSeal, wire.Seal{Object: id, Length: h.s.gran + 1}.Append(nil))
			binary.LittleEndian.PutUint64(page[128:], 100) // published
			h.refused(wire.CodeBounds, wire.TypeSeal, wire.Seal{Object: id, Length: 99}.Append(nil))
		}, survives},
		{"nonsense on the page", func(h *hostile) {
			id, page, _ := h.create(wire.Create{Name: "mad", Size: 1})
			h.does(wire.TypeMapped, wire.Mapped{Object: id}.Append(nil))
			copy(page, bytes.Repeat([]byte{0xff}, len(page)))
			require.NoError(h.t, h.send(wire.TypeWrote, wire.Wrote{Object: id}.Append(nil)))
			o, err := wire.DecodeObject(h.ask(wire.TypeStat, wire.Stat{Name: "mad"}.Append(nil)).Payload)
			require.NoError(h.t, err)
			require.Equal(h.t, h.s.gran, o.Length)
			h.does(wire.TypeRelease, wire.Release{Object: id}.Append(nil))
		}, survives},
		{"a page of another object", func(h *hostile) {
			id, page, _ := h.create(wire.Create{Size: 1})
			copy(page, make([]byte, 64))
			_ = h.send(wire.TypeMapped, wire.Mapped{Object: id}.Append(nil))
		}, isCut},
		{"a page that cannot be sealed", func(h *hostile) {
			id, _, fd := h.create(wire.Create{Size: 1, Flags: wire.StoreDurable, Name: "tampered"})
			_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL)
			require.NoError(h.t, err)
			_ = h.send(wire.TypeMapped, wire.Mapped{Object: id}.Append(nil))
		}, isCut},
		{"sizes that no object has", func(h *hostile) {
			for _, size := range []uint64{0, math.MaxUint64, 1 << 63} {
				h.refused(wire.CodeInvalid, wire.TypeCreate, wire.Create{Size: size}.Append(nil))
			}
			h.refused(wire.CodeInvalid, wire.TypeCreate, wire.Create{Size: 1, Name: "@1"}.Append(nil))
			h.refused(wire.CodeBusy, wire.TypeCreate, wire.Create{Size: 1, Name: "x"}.Append(nil))
			h.refused(wire.CodeLimit, wire.TypeCreate, wire.Create{Size: hostileBytes + 1}.Append(nil))
		}, survives},
		{"more objects than there may be", func(h *hostile) {
			for range hostileObjects - 2 {
				require.Equal(h.t, wire.TypeObject, h.ask(wire.TypeCreate, wire.Create{Size: 1, Flags: wire.StoreGrowable}.Append(nil)).Type)
			}
			h.refused(wire.CodeLimit, wire.TypeCreate, wire.Create{Size: 1}.Append(nil))
		}, survives},
		{"more names than an object has", func(h *hostile) {
			h.create(wire.Create{Name: "n0", Size: 1})
			for i := 1; i < wire.MaxNames; i++ {
				h.does(wire.TypeLink, wire.Link{Name: "n0", As: fmt.Sprint("n", i)}.Append(nil))
			}
			h.refused(wire.CodeLimit, wire.TypeLink, wire.Link{Name: "n0", As: "last"}.Append(nil))
			h.refused(wire.CodeBusy, wire.TypeLink, wire.Link{Name: "n0", As: "n1"}.Append(nil))
			h.refused(wire.CodeInvalid, wire.TypeLink, wire.Link{Name: "n1", As: "@5"}.Append(nil))
		}, survives},
		{"more requests that wait than there may be", func(h *hostile) {
			for i := range maxWaits {
				of, b := wire.TypeWait, wire.Wait{Name: fmt.Sprint("none", i%9)}.Append(nil)
				if i%2 == 0 {
					of, b = wire.TypeLease, wire.Lease{Name: "open", Wait: true}.Append(nil)
				}
				require.NoError(h.t, h.send(of, b))
			}
			h.refused(wire.CodeLimit, wire.TypeWait, wire.Wait{Name: "none"}.Append(nil))
			h.refused(wire.CodeLimit, wire.TypeLease, wire.Lease{Name: "open", Wait: true}.Append(nil))
			require.Equal(h.t, maxWaits, h.s.Stats().Waits)
		}, survives},
		{"WATCH twice", func(h *hostile) {
			h.does(wire.TypeWatch, wire.Watch{}.Append(nil))
			h.refused(wire.CodeBusy, wire.TypeWatch, wire.Watch{}.Append(nil))
		}, survives},
		{"WATCH without reading", func(h *hostile) {
			h.does(wire.TypeWatch, wire.Watch{}.Append(nil))
			other := newHostile(h.t, h.s)
			for range 2 * maxEvents {
				id, ok := other.short()
				require.True(h.t, ok)
				other.does(wire.TypeRelease, wire.Release{Object: id, Abort: true}.Append(nil))
			}
			other.close()
		}, tooSlow},
		{"requests without reading", func(h *hostile) { h.flood(wire.TypeQuery, wire.Query{}.Append(nil)) }, tooSlow},
		{"RESUME twice", func(h *hostile) {
			for range 2 {
				require.NoError(h.t, h.send(wire.TypeResume, wire.Resume{Token: [16]byte{1}}.Append(nil)))
			}
		}, isCut},
	}
	for of, b := range whole(id) {
		all = append(all,
			attack{fmt.Sprint("half a ", of), func(h *hostile) { _ = h.send(of, b[:len(b)/2]) }, isCut},
			attack{fmt.Sprint("a ", of, " and a byte"), func(h *hostile) { _ = h.send(of, append(bytes.Clone(b), 0)) }, isCut})
		if of != wire.TypeWrote {
			continue
		}
		all = append(all, attack{fmt.Sprint("a flood of ", of), func(h *hostile) { h.flood(of, b) }, ends})
	}
	for _, of := range []wire.Type{wire.TypeObject, wire.TypeDone, wire.TypeFound, wire.TypeCounters, wire.TypeEvent, wire.TypeEvent, wire.TypePage} {
		all = append(all, attack{fmt.Sprint("a ", of), func(h *hostile) { _ = h.send(of, make([]byte, 64)) }, isCut})
	}
	return all
}

// short makes an object without mapping its page.
func (h *hostile) short() (id uint64, ok bool) {
	h.t.Helper()
	o, err := wire.DecodeObject(h.ask(wire.TypeCreate, wire.Create{Size: 1, Flags: wire.StoreGrowable}.Append(nil)).Payload)
	return o.ID, err == nil
}

// Limits of the store that is attacked.
const (
	hostileObjects = 40
	hostileBytes   = 64 << 20
)

// TestHostileClients: whatever a client sends costs it the connection and nothing else. The
// store has afterwards what it had before, and other clients notice nothing.
//
// It is not parallel: it counts the descriptors of the process.
func TestHostileClients(t *testing.T) {
	sparesFor(t, step)
	dev := vmmtest.Device(t)
	o := Options{MaxObjects: hostileObjects, MaxBytesPerUID: hostileBytes, Rate: 10_000, Timeout: 500 * time.Millisecond}
	s, err := Listen(dev, filepath.Join(t.TempDir(), "s.sock"), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	c := clientOf(t, s)
	data := bytesOf(100_000)
	sealed(t, c, "x", data)
	w := writer(t, c, "open", CreateOptions{Size: 8 << 20, Growable: true, Durable: true})
	require.NoError(t, w.Append(data))
	require.NoError(t, w.Flush(t.Context()))
	follower := got(t, c, "open", GetOptions{Unsafe: true})
	honest := func(t *testing.T) {
		t.Helper()
		require.NoError(t, w.Append([]byte{1}))
		require.NoError(t, follower.Wait(within(t), w.Len()))
		b, err := c.Get(within(t), "x", GetOptions{})
		require.NoError(t, err)
		require.Equal(t, data, contents(t, b))
		require.NoError(t, b.Close())
	}
	honest(t)
	same := func(x Stats) []int { return []int{x.Objects, x.Clients, x.Leases, x.Waits, int(x.Bytes)} }
	// One connection is being closed after the other.
	require.Eventually(t, func() bool { return s.Stats().Clients == 3 }, inTime, step)
	before, fds := same(s.Stats()), processFDs(t)
	for _, a := range attacks(w.ID().Number) {
		t.Run(a.name, func(t *testing.T) {
			was := s.Stats().Conns
			h := newHostile(t, s)
			a.do(h)
			switch a.want {
			case survives:
				require.Equal(t, wire.TypeCounters, h.ask(wire.TypeCount, nil).Type)
			case isCut:
				h.lost()
			case tooSlow:
				require.Eventually(t, func() bool { return s.Stats().Conns.TimedOut == was.TimedOut+1 }, inTime, step)
			}
			h.close()
			honest(t)
			now := was
			require.Eventually(t, func() bool {
				now = s.Stats().Conns
				return slices.Equal(before, same(s.Stats())) && (a.want != isCut || now.Violations == was.Violations+1)
			}, inTime, step, "%v", before)
			if a.want != isCut {
				require.Equal(t, was.Violations, now.Violations)
			}
			if a.want != tooSlow {
				require.Equal(t, was.TimedOut, now.TimedOut)
			}
		})
		require.Eventually(t, func() bool { return processFDs(t) <= fds }, inTime, step)
	}
	require.NoError(t, w.Err())
}
