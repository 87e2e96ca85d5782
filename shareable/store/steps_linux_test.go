package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// everyRequest makes each kind of request, and checks that each was done once.
func everyRequest(ctx context.Context, t require.TestingT, path string, dev *vmm.Device) {
	c, err := Connect(ctx, path, dev, ClientOptions{Timeout: inTime})
	require.NoError(t, err)
	defer c.Close() //nolint:errcheck // it makes no more requests
	w, err := c.Create(ctx, "grows", CreateOptions{Size: 64 << 20, Growable: true, Durable: true})
	require.NoError(t, err)
	require.NoError(t, w.Append(waveAt(0, 1000)))
	require.NoError(t, w.Flush(ctx))
	follows, err := c.Get(ctx, "grows", GetOptions{Unsafe: true})
	require.NoError(t, err)
	require.NoError(t, w.Append(waveAt(1000, 2<<20)))
	require.NoError(t, w.Close())
	w, err = c.Append(ctx, "grows", AppendOptions{Wait: true})
	require.NoError(t, err)
	require.EqualValues(t, 1000+2<<20, w.Len())
	require.NoError(t, c.Link(ctx, "grows", "another"))
	require.NoError(t, c.Unlink(ctx, "another"))
	require.NoError(t, w.Append(waveAt(1000+2<<20, 2<<20)))
	require.NoError(t, w.Seal(ctx, shareable.SealOptions{Digest: true}))
	require.NoError(t, w.Close())
	const all = 1000 + 2<<20 + 2<<20
	require.NoError(t, follows.WaitSealed(ctx))
	require.NoError(t, checkWave(follows, all))
	require.NoError(t, follows.Close())

	again, err := c.Create(ctx, "again", CreateOptions{Size: 100})
	require.NoError(t, err)
	require.NoError(t, again.Append(waveAt(0, 100)))
	require.NoError(t, again.Seal(ctx, shareable.SealOptions{}))
	require.NoError(t, again.Close())
	require.NoError(t, c.Delete(ctx, "again", DeleteOptions{}))
	aborted, err := c.Create(ctx, "aborted", CreateOptions{Size: 100})
	require.NoError(t, err)
	require.NoError(t, aborted.Abort(ctx))
	forced, err := c.Create(ctx, "forced", CreateOptions{Size: 100, Durable: true})
	require.NoError(t, err)
	require.NoError(t, forced.Close())
	require.NoError(t, c.Delete(ctx, "forced", DeleteOptions{Force: true}))
	late, err := c.Create(ctx, "late", CreateOptions{Size: 100, Durable: true})
	require.NoError(t, err)
	require.NoError(t, late.Append(waveAt(0, 50)))
	require.NoError(t, late.Flush(ctx))
	late.conn.Close() // and its process runs: the next one makes a copy
	next, err := c.Append(ctx, "late", AppendOptions{Wait: true})
	require.NoError(t, err)
	require.NotEqual(t, late.ID(), next.ID())
	require.NoError(t, next.Append(waveAt(50, 50)))
	require.NoError(t, next.Seal(ctx, shareable.SealOptions{}))
	require.NoError(t, errors.Join(next.Close(), late.Close()))
	copied, err := c.Get(ctx, "late", GetOptions{})
	require.NoError(t, err)
	require.NoError(t, checkWave(copied, 100))
	require.NoError(t, copied.Close())
	require.NoError(t, c.Delete(ctx, "late", DeleteOptions{}))
	list, err := c.List(ctx, ListOptions{})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, []string{"grows"}, list[0].Names)
	b, err := c.Get(ctx, "grows", GetOptions{})
	require.NoError(t, err)
	require.NoError(t, checkWave(b, all))
	require.NoError(t, b.Close())
	require.NoError(t, c.Delete(ctx, "grows", DeleteOptions{}))
	require.Eventually(t, func() bool { // its Views are closed, and the server hears of that later
		s, err := c.Stats(ctx)
		return err != nil || s.Bytes == 0 && s.Objects == 0 && s.Leases == 0
	}, inTime, step)
	_, err = c.Stats(ctx)
	require.NoError(t, err)
}

// TestServerDiesAtEachStep: whichever step of whichever request a server dies at, the client gets
// what it would have got. As a negative control the next server knows nothing of what was done:
// then something is done twice.
func TestServerDiesAtEachStep(t *testing.T) {
	t.Parallel()
	for step := 1; ; step += testgate.Effort(41, 1, 1) {
		path := socketAt(t)
		k := spawnWith(t, returnVar+"=5s", "keeper", path, strconv.Itoa(step))
		k.expect("ready")
		first := k.ask("pid")
		everyRequest(within(t), t, path, testDevice(t))
		died := k.ask("pid") != first
		k.ask("close")
		if t.Failed() {
			t.Fatalf("step %d", step)
		}
		if !died {
			t.Logf("%d steps", step-1)
			return
		}
	}
}

// exits is a test that ends its process when it fails.
type exits struct{}

func (exits) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format, args...) }
func (exits) FailNow()                          { os.Exit(1) }

// playRequests makes each kind of request.
func playRequests(p *part) {
	ctx, cancel := context.WithTimeout(context.Background(), inTime)
	defer cancel()
	everyRequest(ctx, exits{}, p.args[0], p.device(nil))
}

func TestServerDiesAtEachStepControl(t *testing.T) {
	t.Parallel()
	for step := 51; ; step++ { // before that nothing is done that could be done twice
		path := socketAt(t)
		k := spawnWith(t, forgetVar+"=1", "keeper", path, strconv.Itoa(step))
		k.expect("ready")
		first := k.ask("pid")
		c := spawn(t, "requests", path)
		var err error
		c.end.Do(func() {
			err = c.cmd.Wait()
			_ = c.in.Close()
		})
		if err != nil {
			t.Logf("step %d: %s", step, c.err.String())
			return
		}
		require.NotEqual(t, first, k.ask("pid"), "no step at which it fails")
		k.ask("close")
	}
}

// TestServerThatHangs: one that does not reply is killed, and clients go on with the next one.
func TestServerThatHangs(t *testing.T) {
	t.Parallel()
	k, path, c := kept(t)
	w, err := c.Create(t.Context(), "w", CreateOptions{Size: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, Ping(t.Context(), path, ClientOptions{}))
	was := k.ask("pid")
	pid, err := strconv.Atoi(was)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // if it was not killed: then it sees that its keeper has gone
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && bytes.Contains(b, []byte(") T "))
	}, inTime, step)
	_, err = c.Stat(t.Context(), "w")
	require.NoError(t, err)
	require.NotEqual(t, was, k.ask("pid"))
	require.NoError(t, w.Append([]byte{1}))
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
	require.NoError(t, w.Close())
	k.ask("close")
}

// TestPingNeedsTheLock: a server whose lock is held does not reply.
func TestPingNeedsTheLock(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	require.NoError(t, Ping(within(t), s.Path(), ClientOptions{}))
	s.mu.Lock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := Ping(ctx, s.Path(), ClientOptions{})
	s.mu.Unlock()
	require.Error(t, err)
	require.NoError(t, Ping(within(t), s.Path(), ClientOptions{}))
	require.ErrorIs(t, Ping(within(t), s.Path(), ClientOptions{UIDs: []uint32{1}}), vmm.ErrPermission)
	require.ErrorIs(t, Ping(within(t), s.Path()+"none", ClientOptions{}), shareable.ErrOwnerGone)
}
