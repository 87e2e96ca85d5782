package shareable

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestReclaimedWhileListed: an Append takes back a chunk that a Clip has given up, and publishes a
// length in it, just when the publication has found the chunk gone. Readers keep the bytes.
func TestReclaimedWhileListed(t *testing.T) {
	t.Parallel()
	const chunk, begin = 2 << 20, 2<<20 - 10
	dev := vmmtest.Device(t)
	s, err := Listen(dev, t.TempDir()+"/s", Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	g, err := dev.NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: 8 * chunk, Chunk: chunk})
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	require.NoError(t, g.Append(make([]byte, begin)))
	p, err := s.Publish("x", g, PublishOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	uses, end := gate(t, dev)
	defer end()
	for range testgate.Effort(10, 50, 200) {
		writes, written := gate(t, dev)
		require.NoError(t, g.UsedBy(uses, writes))
		require.NoError(t, g.Grow(chunk))
		require.NoError(t, p.Flush(t.Context()))
		require.NoError(t, g.AppendOn(writes, make([]byte, 1))) // the publication waits for it
		require.NoError(t, g.Clip())                            // it waits for uses
		p.mu.Lock()
		written()
		require.NoError(t, writes.Sync())
		time.Sleep(2 * time.Millisecond) //nolint:forbidigo // nothing tells when the publication waits for the lock
		p.mu.Unlock()
		require.NoError(t, g.Append(make([]byte, 20)))
		p.mu.Lock()
		shown, generation := p.published, p.generation
		p.mu.Unlock()
		require.NoError(t, p.Flush(t.Context()))
		if shown > chunk {
			require.Equal(t, generation, p.Generation(), "published bytes were taken back")
		}
		require.NoError(t, p.Retire(t.Context(), begin))
	}
}
