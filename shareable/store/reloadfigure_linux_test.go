package store

import (
	"fmt"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// TestFigureReload measures the longest call of clients while the server is replaced, 20 times (twice in the quick suite),
// beside three readers that are stopped, a connection that says nothing, and one that does not
// read.
func TestFigureReload(t *testing.T) {
	const objects = 100
	dev, _ := measured(t)
	path := socketAt(t)
	k := spawn(t, "keeper", path)
	k.expect("ready")
	c, err := Connect(t.Context(), path, dev, ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	for i := range objects {
		sealed(t, c, fmt.Sprint("s", i), waveAt(0, 1000))
	}
	var stopped []*child
	for range 3 {
		r := spawn(t, "holder", path, "read", "s0")
		r.expect("ready")
		require.NoError(t, syscall.Kill(r.pid(), syscall.SIGSTOP))
		stopped = append(stopped, r)
	}
	dial := func() *net.UnixConn {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	w, err := c.Create(t.Context(), "w", CreateOptions{Size: 64 << 20, Growable: true, Durable: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	var longest []time.Duration
	for range testgate.Effort(2, 20, 20) {
		dial()
		deaf, err := wire.NewConn(dial())
		require.NoError(t, err)
		require.NoError(t, deaf.Write(wire.TypeHello, 0, 0, wire.Hello{Backend: wire.BackendHost, Granularity: 4096}.Append(nil)))
		require.NoError(t, deaf.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
		for n := uint32(1); deaf.Write(wire.TypeQuery, n, 0, wire.Query{}.Append(nil)) == nil; n++ {
		}
		over := make(chan struct{})
		go func() { k.ask("reload"); close(over) }()
		var most time.Duration
		timed := func(f func() error) {
			begun := time.Now()
			require.NoError(t, f())
			most = max(most, time.Since(begun))
		}
		for done := false; !done; {
			select {
			case <-over:
				done = true // once more
			default:
			}
			timed(func() error { _, err := c.Stat(t.Context(), "s1"); return err })
			timed(func() error {
				b, err := c.Get(t.Context(), "s2", GetOptions{})
				if err == nil {
					err = b.Close()
				}
				return err
			})
			timed(func() error {
				if err := w.Append(waveAt(w.Len(), 1000)); err != nil {
					return err
				}
				return w.Flush(t.Context())
			})
		}
		longest = append(longest, most)
	}
	slices.Sort(longest)
	t.Logf("the longest call beside a reload: p50 %v, at most %v, %d times", longest[len(longest)/2], longest[len(longest)-1], len(longest))
	for _, r := range stopped {
		require.NoError(t, syscall.Kill(r.pid(), syscall.SIGCONT))
	}
	k.ask("close")
}
