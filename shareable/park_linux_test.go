package shareable

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestParkLate: a connection that does not stop in time costs the takeover, which can be tried
// again, and nothing else.
func TestParkLate(t *testing.T) {
	t.Parallel()
	s, err := Listen(vmmtest.Device(t), t.TempDir()+"/s.sock", Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	silent, err := net.Dial("unixpacket", s.Path())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.Stats().Conns == 1 }, inTime, time.Millisecond)
	require.ErrorIs(t, s.park(time.Millisecond, nil), vmm.ErrBusy)
	require.NoError(t, silent.Close())
	require.NoError(t, s.park(inTime, nil))
	s.decide(false)
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
