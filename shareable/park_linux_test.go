package shareable

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestParkLate: a connection that does not stop in time is cut off, and costs the others nothing.
func TestParkLate(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	s, err := Listen(dev, t.TempDir()+"/s.sock", Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	silent, err := net.Dial("unixpacket", s.Path())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.Stats().Conns == 1 }, inTime, time.Millisecond)
	attached, err := DialSpare(t.Context(), s.Path(), dev, AttachOptions{})
	require.NoError(t, err)
	defer attached.Close()
	require.Eventually(t, func() bool { return s.Stats().Conns == 2 }, inTime, time.Millisecond)
	start := time.Now()
	require.NoError(t, s.park(inTime, nil))
	took := time.Since(start)
	s.decide(false)
	require.Less(t, took, inTime/2)
	require.Eventually(t, func() bool { return s.Stats().Conns == 1 }, inTime, time.Millisecond)
	_, err = silent.Read(make([]byte, 100))
	require.NoError(t, err, "its HELLO")
	_, err = silent.Read(make([]byte, 100))
	require.ErrorIs(t, err, io.EOF)
}

// TestParkAgain: connections that go on after one takeover stop for the next, however soon
// that comes.
func TestParkAgain(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	s, err := Listen(dev, t.TempDir()+"/s.sock", Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	for range 8 {
		spare, err := DialSpare(t.Context(), s.Path(), dev, AttachOptions{})
		require.NoError(t, err)
		t.Cleanup(spare.Close)
	}
	for range 300 {
		require.NoError(t, s.park(2*time.Second, nil))
		s.decide(false)
	}
}
