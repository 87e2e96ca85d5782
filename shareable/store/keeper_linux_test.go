package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/socket"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestServerThatEndsServed: a process that has said that it serves, and has ended by the time that
// its keeper looks, has served.
func TestServerThatEndsServed(t *testing.T) {
	t.Parallel()
	cause := errors.New("killed")
	for range 100 { // of two cases of a select that are ready either may be taken
		p := &keptProcess{serving: make(chan struct{}), ended: make(chan struct{}), err: cause}
		close(p.ended)
		require.ErrorIs(t, p.reaches(t.Context(), p.serving, nil), cause)
		close(p.serving)
		require.NoError(t, p.reaches(t.Context(), p.serving, nil))
	}
}

// TestServesIsSaidFirst: no client is served before the keeper can know that the server serves, and
// none if it cannot.
func TestServesIsSaidFirst(t *testing.T) {
	t.Parallel()
	kept, err := socket.Keep(socketAt(t), socket.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, kept.Close()) })
	s, err := newServer(vmmtest.Device(t), Options{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	reply := make(chan error, 1)
	go func() { reply <- Ping(ctx, kept.Path, ClientOptions{}) }()
	gone := errors.New("the keeper has gone")
	listener, err := unix.Dup(int(kept.Files[0].Fd()))
	require.NoError(t, err)
	require.ErrorIs(t, s.objects.Adopt(kept.Path, listener, -1, func() error {
		select {
		case err := <-reply:
			t.Errorf("a reply before: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		return gone
	}), gone)
	require.NoError(t, s.Close())
	require.Zero(t, s.conns.Stats().Accepted)
	cancel()
	require.ErrorIs(t, <-reply, context.Canceled)
}

// TestKeeperThatDoesNotBegin: Run returns why no server has begun, and asks no
// server how it is then: that may be another one's.
func TestKeeperThatDoesNotBegin(t *testing.T) {
	t.Parallel()
	var states []KeeperState
	k, err := NewKeeper(KeeperOptions{
		Path: socketAt(t), Command: func() *exec.Cmd { return exec.Command("false") }, HealthTime: time.Millisecond,
		Changed: func(s KeeperState) { states = append(states, s) }, // by Run alone, as the race detector sees
	})
	require.NoError(t, err)
	require.ErrorContains(t, k.Run(t.Context()), "exit status 1")
	require.NoError(t, k.Close())
	other, err := Listen(vmmtest.Device(t), k.Path(), Options{})
	require.NoError(t, err)
	<-time.After(20 * time.Millisecond) // many times HealthTime
	require.Zero(t, other.conns.Stats().Accepted)
	require.NoError(t, other.Close())
	require.Equal(t, []KeeperState{KeeperEnds}, states)
}

// TestKeeperIsOver: Run is called once, and Reload waits for no Run that has ended.
func TestKeeperIsOver(t *testing.T) {
	t.Parallel()
	k, err := NewKeeper(KeeperOptions{Path: socketAt(t), Command: func() *exec.Cmd { return exec.Command("false") }})
	require.NoError(t, err)
	require.Error(t, k.Run(t.Context()))
	require.ErrorIs(t, k.Reload(context.Background()), vmm.ErrClosed)
	require.ErrorIs(t, k.Run(t.Context()), vmm.ErrInvalid)
	require.NoError(t, k.Close())
}

// TestSuccessorThatLeavesAProcess: what a program has started, and that has its descriptors, holds the Keeper up
// neither when the program ends nor when it is killed.
func TestSuccessorThatLeavesAProcess(t *testing.T) {
	t.Parallel()
	for _, ends := range []string{"exit 3", "wait"} {
		t.Run(ends, func(t *testing.T) {
			t.Parallel()
			left := filepath.Join(t.TempDir(), "pid")
			script := fmt.Sprintf("sleep 1000 & echo $! > %s.new; mv %s.new %s; %s", left, left, left, ends)
			var said bytes.Buffer // a pipe, which the process that is left has, too
			k, err := NewKeeper(KeeperOptions{Path: socketAt(t), Command: func() *exec.Cmd {
				cmd := exec.Command("sh", "-c", script)
				cmd.Stderr = &said
				return cmd
			}})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			over := make(chan error, 1)
			go func() { over <- k.Run(ctx) }()
			var pid int
			require.Eventually(t, func() bool {
				b, _ := os.ReadFile(left)
				pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
				return err == nil
			}, inTime, step)
			defer syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it may have ended
			if ends == "wait" {
				cancel()
			}
			select {
			case err := <-over:
				require.Equal(t, ends == "wait", err == nil, "%v", err)
			case <-time.After(inTime):
				t.Fatal("it hangs")
			}
			require.NoError(t, k.Close())
		})
	}
}

// TestReloadOfNoOne: a call whose context has ended starts nothing.
func TestReloadOfNoOne(t *testing.T) {
	t.Parallel()
	var states []KeeperState
	k, err := NewKeeper(KeeperOptions{
		Path: socketAt(t), Command: func() *exec.Cmd { return exec.Command("false") }, HealthTime: time.Hour,
		Changed: func(s KeeperState) { states = append(states, s) },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		k.keep(ctx, &keptProcess{cmd: &exec.Cmd{Process: &os.Process{Pid: -1}}, ended: make(chan struct{})})
	}()
	gone, cancelGone := context.WithCancel(t.Context())
	cancelGone()
	for range 2 { // the second one comes after the keeper has waited for one
		require.ErrorContains(t, k.Reload(t.Context()), "exit status 1")
		for range 1000 { // of two cases of a select that are ready either may be taken
			require.ErrorIs(t, k.Reload(gone), context.Canceled)
			runtime.Gosched()
		}
	}
	cancel()
	<-over
	require.Equal(t, []KeeperState{KeeperReplaces, KeeperServes, KeeperReplaces, KeeperServes}, states)
	require.NoError(t, k.Close())
}
