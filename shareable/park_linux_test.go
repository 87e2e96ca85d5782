package shareable

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestParkAgain: connections that go on after one takeover stop for the next, however soon
// that comes.
func TestParkAgain(t *testing.T) {
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
