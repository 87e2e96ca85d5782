package store

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
)

// TestDurableVectors: a process that appends is killed, or loses its device, and the next
// one finds each byte that was published, the layout and the metadata, and appends on. The
// daemon has no context. Readers that follow all the while see no wrong byte, and no length
// that goes back.
func TestDurableVectors(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"append", "on"} {
		for _, end := range []string{"killed", "lost"} {
			if testing.Short() && (mode == "append") != (end == "killed") {
				continue // each mode and each end once
			}
			t.Run(mode+"/"+end, func(t *testing.T) {
				t.Parallel()
				durable(t, mode, end, false)
			})
		}
	}
	t.Run("kept", func(t *testing.T) { // and servers die, too
		t.Parallel()
		durable(t, "append", "killed", true)
	})
}

func durable(t *testing.T, mode, end string, servers bool) {
	times := testgate.Effort(4, 10, 100)
	path := socketAt(t)
	daemon := spawn(t, map[bool]string{false: "daemon", true: "keeper"}[servers], path)
	daemon.expect("ready")
	c, err := Connect(t.Context(), path, testDevice(t), ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	w, err := c.Create(t.Context(), nameOfK, CreateOptions{Size: sizeOfK, Growable: true, Durable: true, Layout: layoutOfK(), Meta: []byte(metaOfK)})
	require.NoError(t, err)
	require.NoError(t, w.Close())
	readers := spawn(t, "readers", path, nameOfK, "3")
	readers.expect("ready")

	var kept uint64 // published for certain
	var took []time.Duration
	for i := range times {
		kept = max(kept, mustParse(t, readers.ask("seen")))
		begun := time.Now()
		w := spawn(t, "writer", path, nameOfK, mode)
		if i%4 == 3 { // at some moment of its start
			timer := time.AfterFunc(time.Duration(rand.IntN(int(60*time.Millisecond))), w.kill)
			kept = max(kept, lastHas(t, w, kept))
			timer.Stop()
			w.kill()
			continue
		}
		found := w.count("first")
		took = append(took, time.Since(begun))
		require.GreaterOrEqual(t, found, kept, "process %d", i)
		for range 1 + rand.IntN(4) {
			kept = w.count("has")
		}
		if servers && i%5 == 4 {
			daemon.ask([]string{"kill", "reload"}[i/5%2])
		}
		if end == "killed" {
			time.AfterFunc(time.Duration(rand.IntN(int(2*time.Millisecond))), w.kill)
		} else {
			w.tell("lose")
		}
		kept = max(kept, lastHas(t, w, kept))
		if end == "killed" {
			w.kill()
		} else {
			w.wait()
		}
		readers.ask("upto", kept)
	}
	slices.Sort(took)
	t.Logf("%d processes, %d bytes; from the start of a process to its first append: p50 %v, most %v",
		times, kept, took[len(took)/2], took[len(took)-1])

	kept = max(kept, mustParse(t, readers.ask("seen")))
	last, err := c.Append(within(t), nameOfK, AppendOptions{Wait: true})
	require.NoError(t, err)
	require.GreaterOrEqual(t, last.Len(), kept)
	require.NoError(t, checkWave(last.Range(), last.Len()))
	require.NoError(t, last.Append(waveAt(last.Len(), 12345)))
	require.NoError(t, last.Seal(t.Context(), shareable.SealOptions{}))
	n := last.Len()
	require.NoError(t, last.Close())
	readers.ask("sealed", n)
	if !servers {
		require.Equal(t, "0", daemon.ask("contexts"))
	}
	daemon.ask("close")
}

func mustParse(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	require.NoError(t, err)
	return n
}

// lastHas reads what a writer says until it ends, and returns the last length that it had
// published.
func lastHas(t *testing.T, w *child, n uint64) uint64 {
	t.Helper()
	for line := range w.lines {
		if s, ok := strings.CutPrefix(line, "has "); ok {
			n = mustParse(t, s)
		}
	}
	return n
}
