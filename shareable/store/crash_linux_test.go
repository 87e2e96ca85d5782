package store

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// daemonAt starts a daemon, and connects to it.
func daemonAt(t *testing.T, path string) (*child, *Client) {
	t.Helper()
	d := spawn(t, "daemon", path, "listen")
	d.expect("ready")
	c, err := Connect(t.Context(), path, testDevice(t), ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	// What a GPU's driver makes at the first use is there from now on.
	w, err := c.Create(t.Context(), "warm", CreateOptions{Size: 8 << 20, Growable: true})
	require.NoError(t, err)
	require.NoError(t, w.Append(waveAt(0, 3<<20)))
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
	b, err := c.Get(t.Context(), "warm", GetOptions{})
	require.NoError(t, err)
	require.NoError(t, checkWave(b, 3<<20))
	require.NoError(t, b.Close())
	require.NoError(t, w.Close())
	require.NoError(t, c.Delete(t.Context(), "warm", DeleteOptions{}))
	return d, c
}

// statsOf is what a daemon counts.
func statsOf(t *testing.T, d *child) (s Stats) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(d.ask("stats")), &s))
	return s
}

// TestWriterKilledBeforeSeal: an object that is not durable goes with the process that
// writes to it, and requests that wait for it return ErrAborted.
func TestWriterKilledBeforeSeal(t *testing.T) {
	d, c := daemonAt(t, socketAt(t))
	a := openAccounts(t)
	w := spawn(t, "holder", d.cmd.Args[1], "write", "n")
	w.expect("ready")
	waits := make(chan error, 2)
	go func() { _, err := c.Get(t.Context(), "n", GetOptions{Wait: true}); waits <- err }()
	go func() { _, err := c.Append(t.Context(), "n", AppendOptions{Wait: true}); waits <- err }()
	require.Eventually(t, func() bool { return statsOf(t, d).Waits == 2 }, inTime, step)
	require.GreaterOrEqual(t, a.note(d.pid()), uint64(5<<20))
	w.kill()
	for range cap(waits) {
		require.ErrorIs(t, <-waits, shareable.ErrAborted)
	}
	_, err := c.Get(t.Context(), "n", GetOptions{Unsafe: true})
	require.ErrorIs(t, err, shareable.ErrNotFound)
	require.Eventually(t, func() bool { s := statsOf(t, d); return s.Objects == 0 && s.Bytes == 0 && s.Aborted == 1 }, inTime, step)
	a.even()
}

// TestReaderKilled: the memory of a deleted object goes with the last process that has it
// mapped.
func TestReaderKilled(t *testing.T) {
	d, c := daemonAt(t, socketAt(t))
	a := openAccounts(t)
	w, err := c.Create(t.Context(), "r", CreateOptions{Size: 8 << 20})
	require.NoError(t, err)
	require.NoError(t, w.Append(waveAt(0, 8<<20)))
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
	require.NoError(t, w.Close())
	one, two := spawn(t, "holder", d.cmd.Args[1], "read", "r"), spawn(t, "holder", d.cmd.Args[1], "read", "r")
	one.expect("ready")
	two.expect("ready")
	require.NoError(t, c.Delete(t.Context(), "r", DeleteOptions{}))
	require.GreaterOrEqual(t, a.note(d.pid()), uint64(8<<20))
	one.kill()
	require.Eventually(t, func() bool { return statsOf(t, d).Clients == 3 }, inTime, step)
	require.Equal(t, uint64(8<<20), statsOf(t, d).Bytes)
	two.kill()
	require.Eventually(t, func() bool { s := statsOf(t, d); return s.Bytes == 0 && s.Objects == 0 }, inTime, step)
	a.even()
}

// TestDaemonKilled: after SIGKILL of a daemon with 100 objects its clients say so, keep what
// they have mapped, and work with the next one. All memory is back once they close it.
func TestDaemonKilled(t *testing.T) {
	a := openAccounts(t)
	path := socketAt(t)
	d := spawn(t, "daemon", path, "listen")
	d.expect("ready")
	x := spawn(t, "clients", path)
	x.expect("ready")
	require.Equal(t, objectsOfDaemon, statsOf(t, d).Objects)
	require.GreaterOrEqual(t, a.note(d.pid()), uint64(objectsOfDaemon*bytesOfObject))
	d.kill()
	x.ask("gone")
	next := spawn(t, "daemon", path, "listen")
	next.expect("ready")
	x.ask("restarted")
	x.ask("close")
	x.wait()
	next.ask("close")
	next.wait()
	a.even()
}

// TestDaemonKilledAlone: without clients that have anything mapped, the memory is back at
// once.
func TestDaemonKilledAlone(t *testing.T) {
	a := openAccounts(t)
	path := socketAt(t)
	d := spawn(t, "daemon", path, "listen")
	d.expect("ready")
	x := spawn(t, "clients", path)
	x.expect("ready")
	a.note(d.pid())
	x.kill()
	require.Eventually(t, func() bool { return statsOf(t, d).Clients == 0 }, inTime, step)
	s := statsOf(t, d)
	require.Equal(t, 34+33, s.Objects, "those that are sealed or durable")
	require.NotZero(t, s.Bytes)
	d.kill()
	a.even()
}

// TestTwoWriters: the second process is refused or waits, as it asks, and gets the lease when
// the first is killed.
func TestTwoWriters(t *testing.T) {
	path := socketAt(t)
	d, c := daemonAt(t, path)
	w, err := c.Create(t.Context(), nameOfK, CreateOptions{Size: sizeOfK, Growable: true, Durable: true, Layout: layoutOfK(), Meta: []byte(metaOfK)})
	require.NoError(t, err)
	require.NoError(t, w.Close())
	first := spawn(t, "writer", path, nameOfK, "append")
	first.expect("first")
	_, err = c.Append(t.Context(), nameOfK, AppendOptions{})
	require.ErrorIs(t, err, vmm.ErrBusy)
	second := spawn(t, "writer", path, nameOfK, "on")
	require.Eventually(t, func() bool { return statsOf(t, d).Waits == 1 }, inTime, step)
	kept := first.count("has")
	require.Equal(t, 1, statsOf(t, d).Leases)
	first.kill()
	kept = lastHas(t, first, kept)
	require.GreaterOrEqual(t, second.count("first"), kept)
	third := spawn(t, "holder", path, "append", nameOfK)
	_ = lastHas(t, third, 0) // it is refused, and ends
	third.kill()
	require.Contains(t, third.err.String(), vmm.ErrBusy.Error())
	second.kill()
	last, err := c.Append(within(t), nameOfK, AppendOptions{Wait: true})
	require.NoError(t, err)
	require.NoError(t, checkWave(last.Range(), last.Len()))
	require.NoError(t, last.Close())
}

// TestKilledWithWorkQueued: work that a killed writer had queued, beyond what is published,
// does not write over bytes of the next writer, which has waited for the lease.
func TestKilledWithWorkQueued(t *testing.T) {
	path := socketAt(t)
	d, c := daemonAt(t, path)
	w, err := c.Create(t.Context(), nameOfK, CreateOptions{Size: 2 * fillBytes, Growable: true, Durable: true})
	require.NoError(t, err)
	require.NoError(t, w.Close())
	for range 3 {
		dead := spawn(t, "holder", path, "fill", nameOfK)
		dead.expect("ready")
		next := make(chan *Writer, 1)
		go func() {
			w, err := c.Append(within(t), nameOfK, AppendOptions{Wait: true})
			if err == nil {
				err = w.Append(waveAt(w.Len(), 1<<20))
			}
			if err != nil {
				t.Error(err)
			}
			next <- w
		}()
		require.Eventually(t, func() bool { return statsOf(t, d).Waits == 1 }, inTime, step)
		dead.kill()
		w := <-next
		require.NotNil(t, w)
		require.NoError(t, checkWave(w.Range(), w.Len()))
		require.NoError(t, w.Close())
	}
}

// TestWaitExit: a process that runs is not waited for, and one that has ended is not missed.
func TestWaitExit(t *testing.T) {
	t.Parallel()
	p := spawn(t, "memory")
	p.expect("free")
	require.False(t, processes.IsExiting(os.Getpid()))
	of := func(pid int) func() (int, error) {
		return func() (int, error) { return unix.PidfdOpen(pid, 0) }
	}
	require.False(t, waitExit(os.Getpid(), of(os.Getpid())))
	require.True(t, waitExit(0, of(0)))
	require.True(t, waitExit(-1, of(-1)))
	for range p.lines { // until it ends; it was not waited for, so its number stays
	}
	require.Eventually(t, func() bool { return processes.IsExiting(p.pid()) }, inTime, step)
	require.True(t, waitExit(p.pid(), of(p.pid())))
	p.wait()
	require.False(t, processes.IsExiting(p.pid()))

	// One in another namespace has no number here.
	other, _ := daemonAt(t, socketAt(t))
	gone := make(chan struct{})
	start := time.Now()
	go func() { waitExit(0, of(other.pid())); close(gone) }()
	select {
	case <-gone:
		require.Fail(t, "it was not waited for")
	case <-time.After(20 * time.Millisecond):
	}
	other.kill()
	<-gone
	require.Less(t, time.Since(start), exitTime)
}
