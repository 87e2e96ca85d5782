package store

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/ledger"
	"github.com/cuvmm/cuvmm/vmm"
)

// playKeeps gets an object's memory in another process, and keeps it until it is told not to.
func playKeeps(p *part) {
	dev := p.device(nil)
	c, err := Connect(context.Background(), p.args[0], dev, ClientOptions{})
	p.must(err)
	for i := 0; ; i++ {
		w, err := c.Create(context.Background(), fmt.Sprint("k", i), CreateOptions{Size: 1 << 20})
		if err != nil {
			p.say("refused", i)
			break
		}
		p.must(w.Append([]byte{1}))
		p.must(c.Delete(context.Background(), fmt.Sprint("k", i), DeleteOptions{}))
	}
	p.next()
	os.Exit(0)
}

// TestKeptMemoryCounts: memory that a client has after the object has gone counts for its user
// until that gives it up, and so do the server's descriptors of it.
func TestKeptMemoryCounts(t *testing.T) {
	if withCUDA {
		t.Skip("the driver cannot tell")
	}
	t.Parallel()
	s := listening(t, Options{MaxBytes: 16 << 20})
	c := clientOf(t, s)
	p := spawn(t, "keeps", s.Path())
	n := p.expect("refused")
	require.Equal(t, fmt.Sprint((16<<20)/max(s.gran, 1<<20)), n)
	require.Zero(t, s.Stats().Bytes)
	_, err := c.Create(t.Context(), "x", CreateOptions{Size: 1})
	require.ErrorIs(t, err, vmm.ErrLimit)
	require.Len(t, s.Report().Users, 1)
	require.NotZero(t, s.Report().Users[0].Bytes)
	p.tell("end")
	p.wait()
	require.Eventually(t, func() bool { return s.Report().Users[0].Bytes == 0 }, inTime, step, "a report asks, too")
	w := writer(t, c, "x", CreateOptions{Size: 16 << 20})
	require.NoError(t, w.Abort(t.Context()))
	for range 100 { // who gives memory up is not held to it
		w := writer(t, c, "y", CreateOptions{Size: 4 << 20})
		require.NoError(t, w.Append([]byte{1}))
		require.NoError(t, w.Abort(t.Context()))
		require.NoError(t, w.Close())
	}
	require.Eventually(t, func() bool {
		s.freeHeld(uint32(os.Getuid()))
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ledger.All()[ledger.Bytes] == 0 && len(s.held) == 0 && s.heldBytes == 0
	}, inTime, step)
}
