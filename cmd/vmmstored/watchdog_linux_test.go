package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/store"
)

// The keeper's HealthTime is a third of the watchdog's time, and it tells of itself four times in that.
const (
	healthTime   = 300 * time.Millisecond
	watchdogTime = 3 * healthTime
	looks        = 4
)

// serviceManager is a service manager in small: it hears what its service tells it, and ends it if
// that has told nothing for watchdogTime. This is a test of time, by the clocks of two processes:
// what waits in the socket counts, so that only the service can be late.
type serviceManager struct {
	path string

	mu      sync.Mutex
	told    int  // how often the watchdog was fed
	expired bool // and it ended the service
}

func newServiceManager(t *testing.T) (manager *serviceManager, watch func(*program)) {
	t.Helper()
	m := &serviceManager{path: filepath.Join(t.TempDir(), "notify")}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	require.NoError(t, err)
	return m, func(p *program) {
		over := make(chan struct{})
		t.Cleanup(func() { require.NoError(t, conn.Close()); <-over })
		go func() {
			defer close(over)
			b := make([]byte, 4096)
			for ready := false; ; {
				if ready {
					_ = conn.SetReadDeadline(time.Now().Add(watchdogTime))
				}
				n, err := conn.Read(b)
				says := string(b[:n])
				ready = ready || strings.Contains(says, "READY=1")
				m.mu.Lock()
				switch {
				case os.IsTimeout(err):
					m.expired = true
					_ = p.cmd.Process.Signal(syscall.SIGABRT)
					fallthrough
				case err != nil:
					m.mu.Unlock()
					return
				case says == "WATCHDOG=1":
					m.told++
				}
				m.mu.Unlock()
			}
		}()
	}
}

// passes waits until n periods of HealthTime have passed for the service, or the watchdog has expired.
func (m *serviceManager) passes(t *testing.T, n int) (expired bool) {
	t.Helper()
	count := func() (int, bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.told, m.expired
	}
	told, _ := count()
	last := told + looks*n
	for expired = false; told < last && !expired; told, expired = count() {
		select {
		case <-time.After(healthTime / looks):
		case <-t.Context().Done():
			return true
		}
	}
	return expired
}

// watched starts the program in dir under a service manager.
func watched(t *testing.T, dir string, args ...string) (*serviceManager, *program) {
	t.Helper()
	m, watch := newServiceManager(t)
	p := &program{self: filepath.Join(dir, "vmmstored"), env: []string{"NOTIFY_SOCKET=" + m.path, fmt.Sprint("WATCHDOG_USEC=", watchdogTime.Microseconds())}}
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Link(self, p.self))
	p.start(t, &p.err, append([]string{"--socket=" + filepath.Join(dir, "s")}, args...)...)
	watch(p)
	require.Eventually(t, func() bool { return strings.Contains(p.err.String(), "msg=serving") || len(p.ends) > 0 }, inTime, time.Millisecond)
	return m, p
}

// TestWatchdogEndsNoKeeperThatRuns: what keeps a client from asking, or a program from beginning, is no
// hang, and nothing is killed for it: all objects are there afterwards.
func TestWatchdogEndsNoKeeperThatRuns(t *testing.T) {
	testgate.Long(t) // on a machine with too much to do a process can be silent for a health time
	periods := testgate.Effort(5, 5, int(5*time.Minute/healthTime))
	for name, cause := range map[string]func(t *testing.T, dir string, p *program) (undo func()){
		"a new secret": func(t *testing.T, dir string, _ *program) func() {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte("another"), 0o600))
			return func() {}
		},
		"no file of the secret": func(t *testing.T, dir string, _ *program) func() {
			require.NoError(t, os.Remove(filepath.Join(dir, "token")))
			return func() {}
		},
		"too many connections": func(t *testing.T, dir string, _ *program) func() {
			// A silent connection is cut off after a while, and another one takes its place.
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for range 4 + 8 + 4 { // some of them are refused
				all.Go(func() {
					for ctx.Err() == nil {
						c, err := net.Dial("unixpacket", filepath.Join(dir, "s"))
						if err != nil {
							continue
						}
						stop := context.AfterFunc(ctx, func() { _ = c.Close() })
						for b := make([]byte, 4096); err == nil; {
							_, err = c.Read(b)
						}
						stop()
						_ = c.Close()
						select {
						case <-time.After(healthTime):
						case <-ctx.Done():
						}
					}
				})
			}
			return func() { cancel(); all.Wait() }
		},
		"a program that cannot start": func(t *testing.T, _ string, p *program) func() {
			server := p.server(t)
			require.NoError(t, os.Rename(p.self, p.self+".good"))
			require.NoError(t, os.WriteFile(p.self, []byte("#!/bin/sh\nexit 1\n"), 0o700))
			require.NoError(t, syscall.Kill(server, syscall.SIGKILL))
			return func() { require.NoError(t, os.Rename(p.self+".good", p.self)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte("secret"), 0o600))
			m, p := watched(t, dir, "--max-connections=4", "--token-file="+filepath.Join(dir, "token"))
			c, err := store.Connect(t.Context(), filepath.Join(dir, "s"), testDevice(t), store.ClientOptions{Token: []byte("secret"), Timeout: inTime})
			require.NoError(t, err)
			defer c.Close() //nolint:errcheck // before the device
			sealed(t, c, "s", nil)
			server := p.server(t)
			undo := cause(t, dir, p)
			require.False(t, m.passes(t, periods), p.err.String())
			undo()
			require.Eventually(t, func() bool { _, err := c.Stat(t.Context(), "s"); return err == nil }, inTime, time.Millisecond, p.err.String())
			require.Equal(t, name != "a program that cannot start", server == p.server(t))
			require.NotContains(t, p.err.String(), "does not reply")
		})
	}
}

// TestWatchdogEndsAKeeperThatHangs is the control of the test above: the service manager in small
// ends a keeper that is stopped.
func TestWatchdogEndsAKeeperThatHangs(t *testing.T) {
	t.Parallel()
	m, p := watched(t, t.TempDir())
	require.False(t, m.passes(t, 1))
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	require.True(t, m.passes(t, 1000))
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	require.NotZero(t, p.ended(t))
}
