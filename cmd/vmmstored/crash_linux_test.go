package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
)

// promises are what one client was told, which has to be so whatever dies.
type promises struct {
	t       *testing.T
	c       *store.Client
	name    string
	sealed  map[string][]byte
	deleted []string
	flushed int // of a durable object
	made    int // names
}

// contentsOf is what an object of that name has.
func contentsOf(name string, n int) []byte {
	return bytes.Repeat([]byte(name), n/len(name)+1)[:n]
}

// work makes, seals and deletes objects, and appends to a durable one, until ctx ends.
func (p *promises) work(ctx context.Context, random *rand.Rand) {
	for ctx.Err() == nil {
		what := random.IntN(4)
		if len(p.sealed) >= 30 { // each round checks all
			what = 2
		}
		switch what {
		case 0, 1:
			p.made++
			name := fmt.Sprintf("%s/%d", p.name, p.made)
			data := contentsOf(name, 1+random.IntN(5000))
			w, err := p.c.Create(ctx, name, store.CreateOptions{Size: uint64(len(data)), Labels: map[string]string{"of": p.name}})
			if err == nil {
				if err = w.Append(data); err == nil {
					err = w.Seal(ctx, shareable.SealOptions{})
				}
				if err == nil {
					p.sealed[name] = data
				}
				_ = w.Close()
			}
			p.fine(ctx, err)
		case 2:
			for name := range p.sealed {
				err := p.c.Delete(ctx, name, store.DeleteOptions{})
				if delete(p.sealed, name); err == nil { // else it may be so or not
					p.deleted = append(p.deleted, name)
				}
				p.fine(ctx, err)
				break
			}
		case 3:
			if p.flushed > 4<<20 {
				continue
			}
			w, err := p.c.Append(ctx, p.name, store.AppendOptions{Wait: true})
			if errors.Is(err, shareable.ErrNotFound) && p.flushed == 0 {
				w, err = p.c.Create(ctx, p.name, store.CreateOptions{Size: 64 << 20, Growable: true, Durable: true})
			}
			if err == nil {
				n := int(w.Len())
				if n < p.flushed {
					p.t.Errorf("%s: %d bytes, and %d were flushed", p.name, n, p.flushed)
				}
				more := contentsOf(p.name, n+1000)[n:]
				if err = w.Append(more); err == nil {
					err = w.Flush(ctx)
				}
				if err == nil {
					p.flushed = n + len(more)
				}
				_ = w.Close()
			}
			p.fine(ctx, err)
		}
	}
}

// fine has that no call fails, unless its context has ended.
func (p *promises) fine(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		p.t.Errorf("%s: %v", p.name, err)
	}
}

// check has what was promised.
func (p *promises) check() {
	t := p.t
	for name, data := range p.sealed {
		p.has(name, store.GetOptions{}, data)
	}
	p.deleted = p.deleted[max(0, len(p.deleted)-50):]
	for _, name := range p.deleted {
		_, err := p.c.Stat(t.Context(), name)
		require.ErrorIs(t, err, shareable.ErrNotFound, name)
	}
	if p.flushed > 0 {
		p.has(p.name, store.GetOptions{Unsafe: true}, contentsOf(p.name, p.flushed))
	}
}

func (p *promises) has(name string, o store.GetOptions, data []byte) {
	b, err := p.c.Get(p.t.Context(), name, o)
	require.NoError(p.t, err, name)
	require.GreaterOrEqual(p.t, int(b.Len()), len(data), name)
	got := make([]byte, b.Len())
	_, err = b.ReadAt(got, 0)
	require.NoError(p.t, err, name)
	require.True(p.t, bytes.Equal(got, contentsOf(name, len(got))), name)
	require.NoError(p.t, b.Close())
}

// TestServerDiesAtAnyMoment: whenever the process that serves is killed, or told to reload, what
// was promised is so afterwards. Once all is deleted neither process has more descriptors than at
// first.
func TestServerDiesAtAnyMoment(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	p := started(t, "--socket="+path)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.err.String())
		}
	})
	var all []*promises
	for i := range 4 {
		dev := testDevice(t)
		c, err := store.Connect(t.Context(), path, dev, store.ClientOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		all = append(all, &promises{t: t, c: c, name: fmt.Sprint("client", i), sealed: map[string][]byte{}})
	}
	fds := func(pid int) int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		require.NoError(t, err)
		return len(entries)
	}
	before := fds(p.cmd.Process.Pid)
	random := rand.New(rand.NewPCG(33, 0))
	least := testgate.Effort(5, 100, 1000)
	lazy := func(x *promises) bool { return x.made == 0 || x.flushed == 0 || len(x.deleted) == 0 }
	for round := 0; round < least || round < 10*least && slices.ContainsFunc(all, lazy); round++ {
		var clients sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for i, x := range all {
			own := rand.New(rand.NewPCG(uint64(round), uint64(i)))
			clients.Go(func() { x.work(ctx, own) })
		}
		<-time.After(time.Duration(random.IntN(30)) * time.Millisecond)
		if round%10 == testgate.Effort(4, 9, 9) {
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
		} else {
			require.NoError(t, syscall.Kill(p.server(t), syscall.SIGKILL))
		}
		<-time.After(time.Duration(random.IntN(5)) * time.Millisecond)
		cancel()
		clients.Wait()
		require.Eventually(t, func() bool { _, err := all[0].c.Stats(t.Context()); return err == nil }, inTime, time.Millisecond)
		for _, x := range all {
			x.check()
		}
	}
	for _, x := range all {
		require.NotZero(t, x.made)
		require.NotZero(t, x.flushed)
		require.NotEmpty(t, x.deleted)
	}
	list, err := all[0].c.List(t.Context(), store.ListOptions{})
	require.NoError(t, err)
	for _, i := range list {
		require.NoError(t, all[0].c.Delete(t.Context(), i.ID.String(), store.DeleteOptions{}))
	}
	require.Eventually(t, func() bool { return fds(p.cmd.Process.Pid) <= before }, inTime, time.Millisecond, "%d at first, %d now", before, fds(p.cmd.Process.Pid))
	x, err := all[0].c.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, x.Bytes)
}

// TestEvictsAfterADeath: what a server before has made can be evicted, the oldest first, and what
// it counts is what it counted.
func TestEvictsAfterADeath(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	p := started(t, "--socket="+path, "--max-bytes=8MiB", "--evict")
	c := clientAt(t, path)
	for i := range 4 {
		sealed(t, c, fmt.Sprint("s", i), nil)
	}
	require.NoError(t, syscall.Kill(p.server(t), syscall.SIGKILL))
	require.Eventually(t, func() bool { x, err := c.Stats(t.Context()); return err == nil && x.Objects == 4 }, inTime, time.Millisecond)
	sealed(t, c, "s4", nil)
	_, err := c.Create(t.Context(), "large", store.CreateOptions{Size: 9 << 20})
	require.ErrorIs(t, err, vmm.ErrLimit)
	list, err := c.List(t.Context(), store.ListOptions{})
	require.NoError(t, err)
	var names []string
	for _, i := range list {
		names = append(names, i.Names...)
	}
	require.Equal(t, []string{"s1", "s2", "s3", "s4"}, names)
}

// TestOperatorOfAKeptServer: beyond all limits its user may look and delete here, too.
func TestOperatorOfAKeptServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	started(t, "--socket="+path, "--max-connections=4")
	sealed(t, clientAt(t, path), "s", nil)
	var all []*store.Client
	for range 5 {
		c := clientAt(t, path)
		_, err := c.List(t.Context(), store.ListOptions{})
		require.NoError(t, err)
		all = append(all, c)
	}
	require.NoError(t, all[4].Delete(t.Context(), "s", store.DeleteOptions{}))
}

// TestServerDiesBesideAHangingOne: a program that was to take over and hangs does not keep another
// one from beginning once the one that serves has died.
func TestServerDiesBesideAHangingOne(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	path, link := filepath.Join(dir, "s"), filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(link, fmt.Appendf(nil, "#!/bin/sh\nexec %s \"$@\"\n", self), 0o700))
	p := &program{}
	k, err := store.NewKeeper(store.KeeperOptions{Path: path, Command: func() *exec.Cmd {
		cmd := exec.Command(link, deviceFlag)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		cmd.Stderr = &p.err
		return cmd
	}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- k.Run(ctx) }()
	require.Eventually(t, func() bool { return strings.Contains(p.err.String(), "msg=serving") }, inTime, time.Millisecond)
	c := clientAt(t, path)
	sealed(t, c, "s", nil)
	first := childOf(t, os.Getpid())
	require.NoError(t, os.WriteFile(link+".new", []byte("#!/bin/sh\nexec sleep 300\n"), 0o700))
	require.NoError(t, os.Rename(link+".new", link))
	reload := make(chan error, 1)
	go func() { reload <- k.Reload(t.Context()) }()
	require.Eventually(t, func() bool {
		for _, pid := range childrenOf(t, os.Getpid()) {
			if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && bytes.HasPrefix(b, []byte("sleep")) {
				return true
			}
		}
		return false
	}, inTime, time.Millisecond)
	require.NoError(t, os.WriteFile(link+".new", fmt.Appendf(nil, "#!/bin/sh\nexec %s \"$@\"\n", self), 0o700))
	require.NoError(t, os.Rename(link+".new", link))
	require.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	require.Error(t, <-reload)
	require.Eventually(t, func() bool { _, err := c.Stat(t.Context(), "s"); return err == nil }, inTime, time.Millisecond)
	cancel()
	require.NoError(t, <-over)
	require.NoError(t, k.Close())
}
