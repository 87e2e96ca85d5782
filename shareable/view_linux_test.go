package shareable

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

func TestViewGrows(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 8)
	v := viewed(t, s, far, AttachOptions{})
	at := v.Ptr()
	require.Zero(t, v.Len())
	require.Equal(t, s.obj.Max, v.Max())
	require.Equal(t, scriptName, v.Name())
	require.Equal(t, s.obj.Instance, v.Instance())
	require.Equal(t, []byte("meta"), v.Meta())
	require.Equal(t, uint64(1), v.Layout().Size)

	s.grow(3)
	s.done(3 * s.gran) // published before it is mapped here: not visible yet
	require.Zero(t, v.Len())
	s.chunks(0, 2)
	require.Equal(t, wire.Ack{Object: 7, Chunk: 2, Generation: 1}, s.ack())
	require.Equal(t, 2*s.gran, v.Len())
	s.chunks(2, 1)
	require.Equal(t, wire.Ack{Object: 7, Chunk: 3, Generation: 1}, s.ack())
	require.NoError(t, v.Wait(t.Context(), 3*s.gran))
	require.Equal(t, 3*s.gran, v.Len())
	require.Equal(t, 3*s.gran, v.Cap())
	require.Len(t, v.Segments(), 3)
	require.Equal(t, at, v.Ptr())

	b, err := v.Host()
	require.NoError(t, err)
	require.Len(t, b, int(3*s.gran))
	require.Equal(t, []byte{1, 2, 3}, []byte{b[0], b[s.gran], b[2*s.gran]})
	require.NoError(t, v.Err())
}

func TestViewReadAt(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 2)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(2)
	s.chunks(0, 2)
	s.ack()
	s.done(s.gran + 10)
	p := make([]byte, 20)
	n, err := v.ReadAt(p, int64(s.gran))
	require.Equal(t, 10, n)
	require.Equal(t, io.EOF, err)
	require.Equal(t, bytes.Repeat([]byte{2}, 10), p[:n])
	_, err = v.ReadAt(p, int64(s.gran+10))
	require.Equal(t, io.EOF, err)
	_, err = v.ReadAt(p, -1)
	require.ErrorIs(t, err, vmm.ErrBounds)
}

func TestViewWaitWakesByTheWord(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(2)
	s.chunks(0, 2)
	s.ack()
	got := make(chan error, 3)
	for _, n := range []uint64{1, s.gran, 2 * s.gran} {
		go func() { got <- v.Wait(context.Background(), n) }()
	}
	s.done(1)
	require.NoError(t, <-got)
	s.done(2 * s.gran)
	require.NoError(t, <-got)
	require.NoError(t, <-got)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, v.Wait(ctx, 3*s.gran), context.DeadlineExceeded)
	require.ErrorIs(t, v.Wait(t.Context(), v.Max()+1), vmm.ErrBounds)
}

func TestViewOwnerGone(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(2)
	s.chunks(0, 2)
	s.ack()
	s.done(s.gran + 5)
	got := make(chan error, 1)
	go func() { got <- v.Wait(context.Background(), 2*s.gran) }()
	require.NoError(t, s.c.Close())
	require.ErrorIs(t, <-got, ErrOwnerGone)
	require.ErrorIs(t, v.Err(), ErrOwnerGone)
	s.done(2 * s.gran) // a word of somebody who has let go of us
	require.Equal(t, s.gran+5, v.Len())
	require.NoError(t, v.Wait(t.Context(), s.gran+5))
	b, err := v.Host()
	require.NoError(t, err)
	require.Equal(t, byte(2), b[s.gran])
}

func TestViewSeal(t *testing.T) {
	t.Parallel()
	for _, hasDigest := range []bool{false, true} {
		s, far := newScriptedOwner(t, 4)
		v := viewed(t, s, far, AttachOptions{})
		s.grow(2)
		s.chunks(0, 2)
		s.ack()
		s.done(2 * s.gran)
		require.False(t, v.Sealed())
		got := make(chan error, 1)
		go func() { got <- v.Wait(context.Background(), 3*s.gran) }()
		d := [32]byte{9}
		seal := wire.Sealed{Object: 7, Length: 2 * s.gran, HasDigest: hasDigest}
		if hasDigest {
			seal.Digest = d
		}
		s.write(wire.TypeSealed, 0, seal.Append(nil))
		require.ErrorIs(t, <-got, ErrSealed)
		require.True(t, v.Sealed())
		_, ok := v.Digest()
		require.Equal(t, hasDigest, ok)
		s.write(wire.TypeDeleted, 0, wire.Deleted{Object: 7}.Append(nil))
		require.NoError(t, s.c.Close())
		require.NoError(t, v.Wait(t.Context(), 2*s.gran))
		require.ErrorIs(t, ended(t, v), ErrSealed)
		require.NoError(t, v.Err())
		require.Equal(t, 2*s.gran, v.Len())
	}
}

func TestViewRetire(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(3)
	s.chunks(0, 3)
	s.ack()
	s.done(s.gran)
	snap := v.Snapshot()
	require.Equal(t, Snapshot{Ptr: v.Ptr(), Len: s.gran, Generation: 1}, snap)
	require.True(t, v.Valid(snap))
	b, err := v.Host()
	require.NoError(t, err)

	s.generation(2)
	require.False(t, v.Valid(snap))   // the page is ahead of the socket
	require.Equal(t, s.gran, v.Len()) // and what was visible stays so
	s.write(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: 2, Capacity: s.gran}.Append(nil))
	require.Equal(t, wire.Ack{Object: 7, Chunk: 3, Generation: 2}, s.ack())
	require.Equal(t, uint64(2), v.Generation())
	require.Equal(t, s.gran, v.Cap())
	require.Len(t, v.Segments(), 1)
	require.False(t, v.Valid(snap))
	require.True(t, v.Valid(v.Snapshot()))
	require.Equal(t, byte(1), b[0]) // still there

	s.chunks(1, 2)
	require.Equal(t, wire.Ack{Object: 7, Chunk: 5, Generation: 2}, s.ack())
	s.done(3 * s.gran)
	require.NoError(t, v.Wait(t.Context(), 3*s.gran))
	require.NoError(t, v.Err())
}

func TestViewRetireBelowHost(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(2)
	s.chunks(0, 2)
	s.ack()
	s.done(2 * s.gran)
	b, err := v.Host()
	require.NoError(t, err)
	s.generation(2)
	s.write(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: 2, Capacity: s.gran}.Append(nil))
	s.gone()
	require.ErrorIs(t, ended(t, v), ErrRetired)
	require.Equal(t, byte(2), b[s.gran]) // would fault
	require.Equal(t, 2*s.gran, v.Len())
}

func TestViewLengthGoesBack(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(2)
	s.chunks(0, 2)
	s.ack()
	s.done(2 * s.gran)
	require.Equal(t, 2*s.gran, v.Len())
	s.generation(2)
	s.done(10)
	require.Equal(t, 2*s.gran, v.Len())
	s.write(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: 2, Capacity: 2 * s.gran}.Append(nil))
	s.ack()
	require.Equal(t, uint64(10), v.Len())
	s.generation(3) // and the length found before is not remembered
	require.Equal(t, uint64(10), v.Len())
}

func TestViewQueued(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	storeWord(s.page, atQueued, 100)
	require.Equal(t, uint64(100), v.Queued())
	storeWord(s.page, atQueued, 1<<63)
	require.Equal(t, v.Max(), v.Queued())
}

func TestViewClose(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(1)
	s.chunks(0, 1)
	s.ack()
	s.done(1)
	got := make(chan error, 1)
	go func() { got <- v.Wait(context.Background(), 2) }()
	snap := v.Snapshot()
	require.NoError(t, v.Close())
	require.ErrorIs(t, <-got, vmm.ErrClosed)
	require.NoError(t, v.Close())
	s.gone()
	require.Zero(t, v.Len())
	require.False(t, v.Valid(snap))
	require.ErrorIs(t, v.Err(), vmm.ErrClosed)
	_, err := v.Host()
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = v.ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, vmm.ErrClosed)
	require.ErrorIs(t, v.Wait(t.Context(), 0), vmm.ErrClosed)
}

func TestViewNil(t *testing.T) {
	t.Parallel()
	var v *View
	require.NoError(t, v.Close())
	require.Zero(t, v.Len())
	require.ErrorIs(t, v.Err(), vmm.ErrInvalid)
	require.ErrorIs(t, v.Wait(t.Context(), 1), vmm.ErrInvalid)
	require.ErrorIs(t, v.WaitOn(nil, 1), vmm.ErrInvalid)
}

func TestViewWrite(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	dev := pageDevice(t)
	got := make(chan error, 1)
	go func() {
		_, err := AttachConn(context.Background(), far, scriptName, dev, AttachOptions{Write: true})
		got <- err
	}()
	s.accept()
	require.ErrorIs(t, <-got, vmm.ErrPermission)
}

func TestViewWriteOnReadOnlyMemory(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	s.obj.Access = wire.AccessReadWrite
	v := viewed(t, s, far, AttachOptions{Write: true})
	s.grow(1)
	s.chunks(0, 1)
	s.gone()
	require.ErrorIs(t, ended(t, v), vmm.ErrPermission)
}

func TestAttachRefused(t *testing.T) {
	t.Parallel()
	dev := pageDevice(t)
	for _, test := range []struct {
		name string
		do   func(*scriptedOwner)
		o    AttachOptions
		want error
	}{
		{"permission", func(s *scriptedOwner) {
			s.write(wire.TypeError, 0, wire.Error{Code: wire.CodePermission, Text: "no"}.Append(nil))
			_ = s.c.Close()
		}, AttachOptions{}, vmm.ErrPermission},
		{"not our user", func(*scriptedOwner) {}, AttachOptions{UIDs: []uint32{12345}}, vmm.ErrPermission},
		{"other version", func(s *scriptedOwner) {
			b := wire.Header{Major: 9, Type: wire.TypeHello, Sequence: 1}.Append(nil)
			_, err := s.raw.Write(b)
			require.NoError(s.t, err)
		}, AttachOptions{}, ErrVersion},
		{"uneven max", func(s *scriptedOwner) { s.obj.Max++; s.accept() }, AttachOptions{}, ErrProtocol},
		{"object 0", func(s *scriptedOwner) { s.obj.ID = 0; s.accept() }, AttachOptions{}, ErrProtocol},
		{"a negative dimension", func(s *scriptedOwner) { s.obj.Shape = []uint64{1 << 63}; s.accept() }, AttachOptions{}, ErrProtocol},
		{"a negative dimension of nothing", func(s *scriptedOwner) {
			s.obj.Elem.Size, s.obj.Shape = 0, []uint64{1 << 63}
			s.accept()
		}, AttachOptions{}, ErrProtocol},
		{"too many dimensions of nothing", func(s *scriptedOwner) {
			s.obj.Elem.Size, s.obj.Shape = 0, []uint64{1 << 40, 1 << 40}
			s.accept()
		}, AttachOptions{}, ErrProtocol},
		{"an endless pitch", func(s *scriptedOwner) { s.obj.Pitch = 1 << 63; s.accept() }, AttachOptions{}, ErrProtocol},
		{"chunks of half a page", func(s *scriptedOwner) { s.gran /= 2; s.accept() }, AttachOptions{}, vmm.ErrNotSupported},
		{"an uneven max for the owner", func(s *scriptedOwner) { s.gran *= 4; s.accept() }, AttachOptions{}, ErrProtocol},
		{"bad token", func(*scriptedOwner) {}, AttachOptions{Token: make([]byte, tokenSize+1)}, vmm.ErrInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, far := newScriptedOwner(t, 2)
			got := make(chan error, 1)
			go func() {
				_, err := AttachConn(context.Background(), far, scriptName, dev, test.o)
				got <- err
			}()
			test.do(s)
			require.ErrorIs(t, <-got, test.want)
			_, err := far.Write([]byte{1})
			require.Error(t, err, "the connection was taken over and is closed")
		})
	}
}

func TestAttachCancelled(t *testing.T) {
	t.Parallel()
	_, far := newScriptedOwner(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	dev := pageDevice(t)
	go func() {
		_, err := AttachConn(ctx, far, scriptName, dev, AttachOptions{Timeout: time.Minute})
		got <- err
	}()
	cancel()
	require.ErrorIs(t, <-got, context.Canceled)
}

func TestAttachByPath(t *testing.T) {
	t.Parallel()
	s, _ := newScriptedOwner(t, 2)
	path := t.TempDir() + "/owner.sock"
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	dev := pageDevice(t)
	got := make(chan error, 1)
	var v *View
	go func() {
		var err error
		v, err = Attach(context.Background(), path, scriptName, dev, AttachOptions{Token: make([]byte, tokenSize)})
		got <- err
	}()
	c, err := l.AcceptUnix()
	require.NoError(t, err)
	s.c, err = wire.NewConn(c)
	require.NoError(t, err)
	s.accept()
	require.NoError(t, <-got)
	s.grow(1)
	s.done(10)
	s.chunks(0, 1)
	s.ack()
	require.NoError(t, v.Wait(t.Context(), 10))
	stream, err := dev.NewStream()
	require.NoError(t, err)
	require.NoError(t, v.UsedBy(stream))
	require.NoError(t, stream.Close())
	require.NoError(t, v.Err())
	require.NoError(t, v.Close())
	s.gone()
	require.NoError(t, s.c.Close())
}

func TestAttachWithoutServer(t *testing.T) {
	t.Parallel()
	_, err := Attach(t.Context(), t.TempDir()+"/none.sock", scriptName, pageDevice(t), AttachOptions{})
	require.ErrorIs(t, err, ErrOwnerGone)
}
