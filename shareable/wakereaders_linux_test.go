package shareable

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// wakes are the two ends of a wake socket.
func wakes(t *testing.T) (*wakeSender, *wakeReceiver) {
	t.Helper()
	s, err := newWakeSender()
	require.NoError(t, err)
	t.Cleanup(s.close)
	own, err := dup(s.reader)
	require.NoError(t, err)
	r, err := openWakeReceiver(wire.NewFD(own))
	require.NoError(t, err)
	t.Cleanup(r.close)
	return s, r
}

// pending is how many bytes lie in a wake socket.
func pending(t *testing.T, s *wakeSender) int {
	t.Helper()
	n, err := unix.IoctlGetInt(s.reader, unix.TIOCINQ)
	require.NoError(t, err)
	return n
}

// TestWakeSocket: a wake that comes before the wait is not lost, many are one, and
// they need not be read.
func TestWakeSocket(t *testing.T) {
	t.Parallel()
	s, r := wakes(t)
	s.send()
	require.True(t, r.wait())
	for range 1000 {
		s.send()
	}
	require.Less(t, pending(t, s), 32, "a full socket says it all")
	require.True(t, r.wait())
	require.Zero(t, pending(t, s), "a wait reads all of it")

	waiting := make(chan bool, 1)
	go func() { waiting <- r.wait() }()
	s.send()
	require.True(t, <-waiting)
	go func() { waiting <- r.wait() }()
	r.shutdown()
	require.False(t, <-waiting)
	require.False(t, r.wait())
	s.send() // there is none to be woken
}

// TestWakeSocketOneWay: the reader can put nothing into the owner's end, where the owner
// would have to close it, and cannot make the owner wait.
func TestWakeSocketOneWay(t *testing.T) {
	t.Parallel()
	s, _ := wakes(t)
	require.ErrorIs(t, unix.Sendto(s.reader, []byte{1}, unix.MSG_NOSIGNAL, nil), unix.EPIPE)
	require.ErrorIs(t, sendRaw(s.reader, []byte{1}, unix.UnixRights(nulls(t, 1)...)), unix.EPIPE)
	require.NoError(t, unix.SetNonblock(s.fd, false))
	for range 1000 {
		s.send()
	}
}

// TestWakeSocketMadeBlocking: an owner that changes the flags of the end that it passed
// cannot keep a wait from ending.
func TestWakeSocketMadeBlocking(t *testing.T) {
	t.Parallel()
	s, r := wakes(t)
	require.NoError(t, unix.SetNonblock(s.reader, false))
	waiting := make(chan bool, 1)
	go func() { waiting <- r.wait() }()
	s.send()
	require.True(t, <-waiting)
	go func() { waiting <- r.wait() }()
	r.close()
	require.False(t, <-waiting)
}

// TestSendApart: a change that comes while the last one is being sent is sent, too.
func TestSendApart(t *testing.T) {
	t.Parallel()
	s, r := wakes(t)
	for range 200 {
		s.sendApart()
		s.sendApart()
		require.True(t, r.wait())
		soon(t, "nothing is being sent", func() bool { return s.state.Load() == apartIdle })
		for pending(t, s) > 0 {
			require.True(t, r.wait())
		}
	}
	// However many change something: the last change comes after the last byte was read.
	var changes sync.WaitGroup
	for range 8 {
		changes.Go(func() {
			for range 1000 {
				s.sendApart()
			}
		})
	}
	changes.Wait()
	require.True(t, r.wait())
	soon(t, "nothing is being sent", func() bool { return s.state.Load() == apartIdle })
}

// TestSlowReaderApart: a reader whose wakes are slow is woken all the same, and by
// another goroutine than the others are.
func TestSlowReaderApart(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 10)))
	v := attached(t, s, AttachOptions{})
	wait(t, v, 10)
	p.wakes.mu.Lock()
	for _, w := range p.wakes.senders {
		w.slow.Store(true)
		w.state.Store(apartSends) // what it does takes its time
	}
	p.wakes.mu.Unlock()
	got := make(chan error, 1)
	go func() { got <- v.Wait(boundedContext(t), 20) }()
	require.NoError(t, g.Append(pattern(10, 10)))
	require.NoError(t, p.Flush(t.Context()))
	soon(t, "it is to be woken once more", func() bool {
		p.wakes.mu.Lock()
		defer p.wakes.mu.Unlock()
		for _, w := range p.wakes.senders {
			if w.state.Load() != apartAgain {
				return false
			}
		}
		return true
	})
	// Another is woken meanwhile.
	other := attached(t, s, AttachOptions{})
	wait(t, other, 20)
	require.NoError(t, g.Append(pattern(20, 10)))
	wait(t, other, 30)
	p.wakes.mu.Lock()
	for _, w := range p.wakes.senders {
		if w.slow.Load() {
			w.state.Store(apartIdle)
			w.sendApart()
		}
	}
	p.wakes.mu.Unlock()
	require.NoError(t, <-got)
}

// TestOneWakeSocketForAConnection: it wakes for each object that the connection has, and
// for none that it has detached from.
func TestOneWakeSocketForAConnection(t *testing.T) {
	t.Parallel()
	s, x, g := stage(t, Options{}, PublishOptions{})
	h, err := g.Device().NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: 8 << 20, Chunk: 2 << 20})
	require.NoError(t, err)
	y, err := s.Publish("y", h, PublishOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, h.Close()) }()
	defer func() { require.NoError(t, y.Close()) }()
	c := greeted(t, s.Path())
	var wake *wakeReceiver
	var ids []uint64
	for i, name := range []string{"x", "y"} {
		require.NoError(t, c.Write(wire.TypeAttach, uint32(1+i), 0, wire.Attach{Access: 1, Name: name}.Append(nil)))
		f, err := c.Read()
		require.NoError(t, err)
		o, err := wire.DecodeObject(f.Payload)
		require.NoError(t, err)
		ids = append(ids, o.ID)
		require.Len(t, f.FDs, 2)
		if i == 0 {
			wake, err = openWakeReceiver(f.FDs[1])
			require.NoError(t, err)
			t.Cleanup(wake.close)
		}
	}
	woken := make(chan bool, 1)
	for _, r := range []*vmm.Range{g, h} {
		go func() { woken <- wake.wait() }()
		require.NoError(t, r.Append([]byte{1}))
		require.True(t, <-woken)
		require.NoError(t, x.Flush(t.Context()))
		require.NoError(t, y.Flush(t.Context()))
	}
	require.NoError(t, c.Write(wire.TypeDetach, 3, 0, wire.Detach{Object: ids[0]}.Append(nil)))
	for {
		f, err := c.Read()
		require.NoError(t, err)
		if f.Type == wire.TypeDone {
			break
		}
	}
	x.wakes.mu.Lock()
	require.Empty(t, x.wakes.senders)
	x.wakes.mu.Unlock()
	require.NoError(t, c.Close())
	soon(t, "the other is forgotten", func() bool {
		y.wakes.mu.Lock()
		defer y.wakes.mu.Unlock()
		return len(y.wakes.senders) == 0
	})
}

// TestWakesOfStrangers: what is no wake socket is refused, and one that holds files whose
// close waits keeps no call waiting.
func TestWakesOfStrangers(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) int{
		"datagrams": func(t *testing.T) int { return socketOf(t, unix.AF_UNIX, unix.SOCK_DGRAM) },
		"packets":   func(t *testing.T) int { return socketOf(t, unix.AF_UNIX, unix.SOCK_SEQPACKET) },
		"TCP":       func(t *testing.T) int { return socketOf(t, unix.AF_INET, unix.SOCK_STREAM) },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := openWakeReceiver(wire.NewFD(open(t)))
			require.ErrorIs(t, err, ErrProtocol)
		})
	}
	dev := vmmtest.Device(t)
	before := countResources(t, dev)
	t.Run("victim", func(t *testing.T) {
		k, far := newHostileOwner(t)
		v := viewOfTwoChunks(t, k, far, dev, AttachOptions{})
		// Nothing reads it before there is a Wait, so the test's own close is not the last.
		fd, release := slowSocket(t)
		require.NoError(t, sendRaw(k.wake.fd, []byte{0}, unix.UnixRights(fd)))
		require.NoError(t, unix.Close(fd))
		got := make(chan error, 1)
		go func() { got <- v.Wait(t.Context(), v.Max()) }()
		soon(t, "watch reads that", func() bool { return pending(t, k.wake) == 0 })
		ctx, cancel := contextIn(t, 20*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, v.Wait(ctx, v.Max()), context.DeadlineExceeded)
		within(t, "Close", func() { require.NoError(t, v.Close()) })
		require.ErrorIs(t, <-got, vmm.ErrClosed)
		release()
	})
	waitReleased(t, dev, before)
}

func socketOf(t *testing.T, domain, kind int) int {
	t.Helper()
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}
