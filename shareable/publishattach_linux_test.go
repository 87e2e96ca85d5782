package shareable

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

func read(t *testing.T, v *View, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, err := v.ReadAt(b, 0)
	require.NoError(t, err)
	return b
}

// wait waits for n bytes, but not for ever.
func wait(t *testing.T, v *View, n uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, v.Wait(ctx, n))
}

// attached is a view of "x" by a device of its own.
func attached(t *testing.T, s *Server, o AttachOptions) *View {
	t.Helper()
	dev := vmmtest.Device(t)
	v, err := Attach(t.Context(), s.Path(), "x", dev, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v
}

func TestViewFollows(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{Meta: []byte("rows")})
	require.NoError(t, g.Append(pattern(0, 100)))
	v := attached(t, s, AttachOptions{})
	wait(t, v, 100)
	at := v.Ptr()
	require.Equal(t, pattern(0, 100), read(t, v, 100))
	require.Equal(t, []byte("rows"), v.Meta())
	const more = 2<<20 + 5000 // over a chunk
	for n := 100; n < 6*more; n += more {
		require.NoError(t, g.Append(pattern(n, more)))
		wait(t, v, uint64(n+more))
		require.True(t, bytes.Equal(pattern(0, n+more), read(t, v, n+more)))
	}
	require.Equal(t, at, v.Ptr())
	old := v.Snapshot()
	require.True(t, v.Valid(old))

	require.NoError(t, p.Retire(t.Context(), 3<<20))
	require.Equal(t, uint64(3<<20), v.Len())
	require.False(t, v.Valid(old))
	require.NoError(t, g.Clip())
	require.NoError(t, g.Append(pattern(9, 4<<20)))
	wait(t, v, 7<<20)
	require.Equal(t, append(pattern(0, 3<<20), pattern(9, 4<<20)...), read(t, v, 7<<20))

	require.NoError(t, p.Seal(t.Context(), SealOptions{Digest: true}))
	require.Eventually(t, v.Sealed, inTime, time.Millisecond)
	sum, ok := v.Digest()
	require.True(t, ok)
	require.Equal(t, sha256.Sum256(read(t, v, 7<<20)), sum)
	require.ErrorIs(t, v.Wait(t.Context(), 7<<20+1), ErrSealed)
	require.NoError(t, p.Close())
	require.NoError(t, s.Close())
	require.Eventually(t, func() bool { return v.Len() == 7<<20 && v.Err() == nil }, inTime, time.Millisecond)
}

func TestViewOutlivesItsOwner(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 5<<20)))
	v := attached(t, s, AttachOptions{})
	wait(t, v, 5<<20)
	require.NoError(t, s.Close())
	require.NoError(t, p.Close())
	require.NoError(t, g.Close())
	require.ErrorIs(t, v.Wait(t.Context(), 6<<20), ErrOwnerGone)
	require.ErrorIs(t, v.Err(), ErrOwnerGone)
	require.Equal(t, pattern(0, 5<<20), read(t, v, 5<<20))
}

func TestWaitOnAnOwner(t *testing.T) {
	t.Parallel()
	s, _, g := stage(t, Options{}, PublishOptions{})
	v := attached(t, s, AttachOptions{})
	st, err := v.Device().NewStream()
	require.NoError(t, err)
	dst, err := v.Device().Alloc(2 << 20)
	require.NoError(t, err)
	require.NoError(t, v.WaitOn(st, 1<<20))
	e, err := st.Record()
	require.NoError(t, err)
	done, err := e.Done()
	require.NoError(t, err)
	require.False(t, done)
	require.NoError(t, g.Append(pattern(0, 1<<20)))
	require.NoError(t, e.Sync())
	require.Equal(t, uint64(1<<20), v.Len())
	require.NoError(t, e.Close())
	// What never comes lets the stream go too.
	require.NoError(t, v.WaitOn(st, 2<<20))
	require.NoError(t, s.Close())
	require.NoError(t, st.Sync())
	require.ErrorIs(t, v.Err(), ErrOwnerGone)
	require.NoError(t, st.Close())
	require.NoError(t, dst.Close())
}

func TestSendAndReceive(t *testing.T) {
	t.Parallel()
	_, _, g := stage(t, Options{}, PublishOptions{})
	want := pattern(0, 23<<20)
	require.NoError(t, g.Append(want))
	a, b := pair(t)
	other := vmmtest.Device(t)
	for range 2 { // the connection can be used again
		sent := make(chan error, 1)
		go func() { sent <- Send(t.Context(), a, g) }()
		v, err := Receive(t.Context(), b, other, AttachOptions{})
		require.NoError(t, err)
		require.NoError(t, <-sent)
		require.Equal(t, uint64(len(want)), v.Len())
		require.Equal(t, want, read(t, v, len(want)))
		require.NoError(t, v.Err())
		require.NoError(t, v.Close())
	}
}

func TestManyReaders(t *testing.T) {
	t.Parallel()
	s, _, g := stage(t, Options{}, PublishOptions{})
	views := make([]*View, 8)
	for i := range views {
		views[i] = attached(t, s, AttachOptions{})
	}
	const step = 777_777
	n := 0
	for range testgate.Effort(10, 40, 40) {
		require.NoError(t, g.Append(pattern(n, step)))
		n += step
	}
	for _, v := range views {
		wait(t, v, uint64(n))
		require.Equal(t, pattern(0, n), read(t, v, n))
	}
}

func TestPublishBadInput(t *testing.T) {
	t.Parallel()
	s, _, g := stage(t, Options{MaxObjects: 2}, PublishOptions{})
	for _, name := range []string{"", "a b", "..", "x/../y", string(make([]byte, 300))} {
		_, err := s.Publish(name, g, PublishOptions{})
		require.ErrorIs(t, err, vmm.ErrInvalid, "%q", name)
	}
	_, err := s.Publish("x", g, PublishOptions{})
	require.ErrorIs(t, err, vmm.ErrBusy)
	_, err = s.Publish("y", nil, PublishOptions{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	private, err := g.Device().NewRange(vmm.RangeOptions{Max: 4 << 20})
	require.NoError(t, err)
	_, err = s.Publish("y", private, PublishOptions{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, private.Close())
	p, err := s.Publish("y", g, PublishOptions{})
	require.NoError(t, err)
	_, err = s.Publish("z", g, PublishOptions{})
	require.ErrorIs(t, err, vmm.ErrLimit)
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Flush(t.Context()), vmm.ErrClosed)
	require.ErrorIs(t, p.Retire(t.Context(), 0), vmm.ErrClosed)
	require.ErrorIs(t, p.Seal(t.Context(), SealOptions{}), vmm.ErrClosed)

	_, err = Attach(t.Context(), s.Path(), "missing", g.Device(), AttachOptions{})
	require.ErrorIs(t, err, ErrNotFound)
	_, err = Attach(t.Context(), s.Path(), "x", g.Device(), AttachOptions{Write: true})
	require.ErrorIs(t, err, vmm.ErrPermission)
	_, err = Attach(t.Context(), s.Path(), "x", g.Device(), AttachOptions{UIDs: []uint32{12345}})
	require.ErrorIs(t, err, vmm.ErrPermission)
	_, err = Listen(g.Device(), s.Path(), Options{})
	require.ErrorIs(t, err, vmm.ErrBusy)
}

func TestList(t *testing.T) {
	t.Parallel()
	s, x, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 77)))
	want := []Listing{{Name: "x", Len: 77}}
	for i := range 900 { // more than a frame holds
		name := fmt.Sprintf("%s/%03d", strings.Repeat("n", 40), i)
		p, err := s.Publish(name, g, PublishOptions{})
		require.NoError(t, err)
		require.NoError(t, p.Flush(t.Context()))
		want = append(want, Listing{Name: name, Len: 77})
	}
	require.NoError(t, x.Seal(t.Context(), SealOptions{}))
	want[0].Sealed = true
	got, err := List(t.Context(), s.Path(), g.Device(), AttachOptions{})
	require.NoError(t, err)
	require.Equal(t, want, got)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = List(ctx, s.Path(), g.Device(), AttachOptions{})
	require.ErrorIs(t, err, context.Canceled)
	_, err = List(t.Context(), s.Path()+"x", g.Device(), AttachOptions{})
	require.ErrorIs(t, err, ErrOwnerGone)
}

// TestListGoesOnWithTheNextServer: a server that ends without a reply is none.
func TestListGoesOnWithTheNextServer(t *testing.T) {
	t.Parallel()
	s, _, g := stage(t, Options{}, PublishOptions{})
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socketAt(t), Net: "unixpacket"})
	require.NoError(t, err)
	defer l.Close() //nolint:errcheck // in a test
	go func() {
		for n := 1; n <= firstTries; n++ {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			if n < firstTries {
				_ = conn.Close()
			} else {
				_ = s.ServeConn(conn)
			}
		}
	}()
	all, err := List(t.Context(), l.Addr().String(), g.Device(), AttachOptions{})
	require.NoError(t, err)
	require.Len(t, all, 1)
}

// registrar is a library that registers memory chunk by chunk, as NCCL and
// network cards do. It looks at Generation to know what is stale.
type registrar struct {
	v          *View
	generation uint64
	known      map[vmm.Ptr]uint64
}

// cover registers what is new, and all of it after memory was replaced; it gives
// how many bytes from the front are registered then.
func (r *registrar) cover() uint64 {
	if now := r.v.Generation(); r.known == nil || now != r.generation {
		r.generation, r.known = now, map[vmm.Ptr]uint64{}
	}
	end := r.v.Ptr()
	for _, s := range r.v.Segments() {
		r.known[s.Addr] = s.Size
		if s.Addr == end {
			end += vmm.Ptr(s.Size)
		}
	}
	return uint64(end - r.v.Ptr())
}

// TestRegistrations: every chunk that can be read is among Segments, never the
// first alone, and Generation says when what was registered is of no use.
func TestRegistrations(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	v := attached(t, s, AttachOptions{})
	r := &registrar{v: v}
	for n := uint64(0); n < 20<<20; n += 3 << 20 {
		require.NoError(t, g.Append(pattern(int(n), 3<<20)))
		wait(t, v, n+3<<20)
		require.GreaterOrEqual(t, r.cover(), v.Len())
	}
	many := len(r.known)
	require.Greater(t, many, 5)
	require.Zero(t, r.generation)
	require.NoError(t, p.Retire(t.Context(), 3<<20))
	require.NoError(t, g.Clip())
	// Until Clip the range still had the chunks, so the view may have mapped them
	// again; then it unmaps them when it hears of Clip.
	require.Eventually(t, func() bool {
		return r.cover() >= v.Len() && r.generation > 0 && len(r.known) < many
	}, inTime, time.Millisecond)
	require.NoError(t, g.Append(pattern(1, 9<<20)))
	wait(t, v, 12<<20)
	require.GreaterOrEqual(t, r.cover(), v.Len())
}

// TestReaderThatWrites: where both sides have said so, a reader's bytes are the
// owner's, in every chunk, also after growth.
func TestReaderThatWrites(t *testing.T) {
	t.Parallel()
	s, _, g := stage(t, Options{}, PublishOptions{Write: true})
	v := attached(t, s, AttachOptions{Write: true})
	reads := attached(t, s, AttachOptions{})
	for n := uint64(3 << 20); n <= 9<<20; n += 3 << 20 {
		require.NoError(t, g.Append(make([]byte, 3<<20)))
		wait(t, v, n)
		wait(t, reads, n)
		for off := uint64(0); off < n; off += 1 << 20 {
			require.NoError(t, v.Device().CopyIn(v.Ptr()+vmm.Ptr(off), pattern(int(off+n), 100)))
			got := make([]byte, 100)
			_, err := g.ReadAt(got, int64(off))
			require.NoError(t, err)
			require.Equal(t, pattern(int(off+n), 100), got)
			_, err = reads.ReadAt(got, int64(off))
			require.NoError(t, err)
			require.Equal(t, pattern(int(off+n), 100), got)
		}
	}
	require.Error(t, reads.Device().CopyIn(reads.Ptr(), []byte{1}), "it asked for reading")
}
