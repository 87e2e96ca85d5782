package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestReloadOfAToken: whoever may signal the daemon announces a new token to it without one, hears why one
// cannot be taken, and leaves no lines of refused connections in the log.
func TestReloadOfAToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, token := filepath.Join(dir, "s"), filepath.Join(dir, "token")
	set := func(secret string) { require.NoError(t, os.WriteFile(token, []byte(secret), 0o600)) }
	set("first")
	p := started(t, "--socket="+path, "--token-file="+token)
	client := func(secret string) error {
		c, err := store.Connect(t.Context(), path, testDevice(t), store.ClientOptions{Token: []byte(secret)})
		require.NoError(t, c.Close())
		return err
	}
	set("second")
	for range 2 { // also with the token of before
		_, stderr, code := call(t, "--socket="+path, "--token-file="+token, "reload", "--wait=20s")
		require.Zero(t, code, stderr)
	}
	require.NoError(t, client("second"))
	require.ErrorIs(t, client("first"), vmm.ErrPermission)
	for wrong, why := range map[string]string{" ": "has no secret", strings.Repeat("x", 40): "a token of 40 bytes, over 32"} {
		set(wrong)
		was := p.server(t)
		_, stderr, code := call(t, "--socket="+path, "reload")
		require.Equal(t, 1, code)
		require.Contains(t, stderr, why)
		require.Equal(t, was, p.server(t))
	}
	require.NoError(t, client("second"))
	log := p.err.String()
	require.Equal(t, 4, strings.Count(log, "the server is to be replaced"), log)
	require.Equal(t, 2, strings.Count(log, "the server has been replaced"), log)
	require.Equal(t, 1, strings.Count(log, "connection refused"), log)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, p.ended(t))
	require.Contains(t, p.err.String(), `msg="the store ends" why="terminated signal received"`)
}

// TestReloadByPID: it needs no token, no device and no socket, waits until the next process serves, and says
// why it has not been replaced.
func TestReloadByPID(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, token := filepath.Join(dir, "s"), filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	p := started(t, "--socket="+path, "--token-file="+token)
	pid := fmt.Sprint("--pid=", p.cmd.Process.Pid)
	for range 3 {
		was := p.server(t)
		_, stderr, code := call(t, "reload", pid)
		require.Zero(t, code, stderr)
		require.NotEqual(t, was, p.server(t))
	}
	was := p.server(t)
	require.NoError(t, os.WriteFile(token, []byte(" "), 0o600))
	_, stderr, code := call(t, "reload", pid)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "has no secret")
	require.Equal(t, was, p.server(t))
	_, stderr, code = call(t, "reload", fmt.Sprint("--pid=", was))
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "takes no requests", "the server, and not the daemon")
}

// TestReloadFails: a program that does not begin, as with a flag that is wrong by now, changes
// nothing.
func TestReloadFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, token := filepath.Join(dir, "s"), filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	p := started(t, "--socket="+path, "--token-file="+token)
	c, err := store.Connect(t.Context(), path, testDevice(t), store.ClientOptions{Token: []byte("secret")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	sealed(t, c, "s", nil)
	was := p.server(t)
	for n, wrong := range []string{" ", strings.Repeat("x", 40)} { // none; too long
		require.NoError(t, os.WriteFile(token, []byte(wrong), 0o600))
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
		require.Eventually(t, func() bool { return strings.Count(p.err.String(), "has not been replaced") == n+1 }, inTime, time.Millisecond)
		require.Equal(t, was, p.server(t))
		_, err = c.Stat(t.Context(), "s")
		require.NoError(t, err)
	}

	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	_, stderr, code := call(t, "--socket="+path, "--token-file="+token, "reload")
	require.Zero(t, code, stderr)
	_, err = c.Stat(t.Context(), "s")
	require.NoError(t, err)
}

// TestReloadOfAnotherProgram: one that serves by itself gets no signal.
func TestReloadOfAnotherProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s, err := store.Listen(testDevice(t), path, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	_, stderr, code := call(t, "--socket="+path, "reload")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "takes no requests")
}

// TestRequestsOfOthers: who asks for nothing or for something else changes nothing, and holds no one up. A
// process that has the daemon's name is not taken for it.
func TestRequestsOfOthers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	p := started(t, "--socket="+path)
	was := p.server(t)
	for _, request := range []string{"", "relo", "restart"} {
		c, err := net.Dial("unix", controlName(p.cmd.Process.Pid))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		_, err = io.WriteString(c, request)
		require.NoError(t, err)
	}
	require.Equal(t, was, p.server(t))
	l, err := net.Listen("unix", controlName(was)) // the server has none
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	_, stderr, code := call(t, "reload", fmt.Sprint("--pid=", was))
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "in place of process")
	_, stderr, code = call(t, "--socket="+path, "reload")
	require.Zero(t, code, stderr)
	require.NotEqual(t, was, p.server(t))
}

// TestReloadOfACallerThatHasGone: a request whose connection ends while another one is done is dropped.
func TestReloadOfACallerThatHasGone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, fifo := filepath.Join(dir, "vmmstored"), filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	b, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(self, b, 0o700))
	path := filepath.Join(dir, "s")
	p := &program{self: self}
	p.start(t, &p.err, "--socket="+path)
	require.Eventually(t, func() bool { return strings.Contains(p.err.String(), "msg=serving") }, inTime, time.Millisecond)
	// The next program waits for the test.
	release, err := os.OpenFile(fifo, os.O_RDWR, 0)
	require.NoError(t, err)
	goOn := func() { _, _ = release.WriteString("go on\n") }
	t.Cleanup(func() { goOn(); _ = release.Close() })
	require.NoError(t, os.Rename(self, self+".real"))
	require.NoError(t, os.WriteFile(self, []byte(fmt.Sprintf("#!/bin/sh\nread -r x < %s\nexec %s.real \"$@\"\n", fifo, self)), 0o700))
	first := make(chan error, 1)
	go func() { first <- askReload(context.Background(), p.cmd.Process.Pid) }()
	require.Eventually(t, func() bool { return strings.Contains(p.err.String(), "is to be replaced") }, inTime, time.Millisecond)

	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: controlName(p.cmd.Process.Pid), Net: "unix"})
	require.NoError(t, err)
	defer c.Close() //nolint:errcheck // in a test
	_, err = io.WriteString(c, requestReload)
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	require.NoError(t, c.SetReadDeadline(time.Now().Add(inTime)))
	reply, err := io.ReadAll(c) // the daemon has let go of it
	require.NoError(t, err)
	require.Equal(t, context.Canceled.Error(), string(reply))

	goOn()
	require.NoError(t, <-first)
	require.Equal(t, 1, strings.Count(p.err.String(), "is to be replaced"))

	late, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, askReload(late, p.cmd.Process.Pid), context.Canceled)
}
