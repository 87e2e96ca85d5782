package store

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
)

// TestLateWriter: a process that is stopped while it writes loses the object to one that waits for
// it, and when it goes on it changes nothing that anyone reads from then on. As a negative control
// the next one gets the same memory.
func TestLateWriter(t *testing.T) {
	t.Parallel()
	for _, control := range []bool{false, true} {
		t.Run(fmt.Sprintf("control=%v", control), func(t *testing.T) {
			o := Options{LeaseTime: 50 * time.Millisecond}
			o.hooks.unfenced = control
			s := listeningOn(t, testDevice(t), o)
			c := clientOn(t, testDevice(t), s)
			first := spawn(t, "holder", s.Path(), "late", "k")
			first.expect("ready")
			early := got(t, c, "k", GetOptions{Unsafe: true})
			require.NoError(t, c.Link(t.Context(), "k", "k2"))
			require.NoError(t, syscall.Kill(first.pid(), syscall.SIGSTOP))
			w, err := c.Append(within(t), "k", AppendOptions{Wait: true})
			require.NoError(t, err)
			require.EqualValues(t, 1000, w.Len())
			require.ErrorContains(t, w.Range().SetLen(999), `held: writing object "k"`)
			late := got(t, c, "k2", GetOptions{Unsafe: true})
			require.NoError(t, syscall.Kill(first.pid(), syscall.SIGCONT))
			first.tell("on")
			first.expect("overwritten")
			require.Contains(t, first.expect(""), "no sign of life")
			require.NoError(t, w.Append(waveAt(1000, 1000)))
			require.NoError(t, w.Flush(within(t)))
			if control {
				require.Error(t, checkWave(got(t, c, "k", GetOptions{Unsafe: true}), 2000))
				require.NoError(t, w.Close())
				return
			}
			require.NoError(t, late.Wait(within(t), 2000))
			require.EqualValues(t, 2000, late.Len())
			require.NoError(t, checkWave(late, 2000))
			require.NoError(t, checkWave(w.Range(), 2000))
			require.NoError(t, w.Seal(within(t), shareable.SealOptions{}))
			require.NoError(t, w.Close())
			require.NoError(t, checkWave(got(t, c, "k", GetOptions{}), 2000))
			require.ErrorIs(t, early.Wait(within(t), 1001), shareable.ErrOwnerGone) // it may not have heard yet
			require.EqualValues(t, 1000, early.Len())
			info, err := c.Stat(t.Context(), "k2")
			require.NoError(t, err)
			require.Equal(t, []string{"k", "k2"}, info.Names)
		})
	}
}

// TestLateReturn: a process that is stopped while its server is replaced, and comes back too late,
// has lost the object.
func TestLateReturn(t *testing.T) {
	t.Setenv(returnVar, "50ms")
	k, path, c := kept(t)
	first := spawn(t, "holder", path, "late", "k")
	first.expect("ready")
	require.NoError(t, syscall.Kill(first.pid(), syscall.SIGSTOP))
	k.ask("kill")
	w, err := c.Append(within(t), "k", AppendOptions{Wait: true})
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(first.pid(), syscall.SIGCONT))
	first.tell("on")
	first.expect("overwritten")
	require.Contains(t, first.expect(""), shareable.ErrNotFound.Error())
	require.NoError(t, w.Append(waveAt(1000, 1000)))
	require.NoError(t, w.Flush(within(t)))
	require.NoError(t, checkWave(got(t, c, "k", GetOptions{Unsafe: true}), 2000))
	require.NoError(t, w.Close())
	k.ask("close")
}

// TestKilledWithItsServer: a writer that has ended while no server ran is not waited for, and its
// memory is the next one's.
func TestKilledWithItsServer(t *testing.T) {
	t.Setenv(returnVar, "1h")
	k, path, c := kept(t)
	first := spawn(t, "holder", path, "late", "k")
	first.expect("ready")
	info, err := c.Stat(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(first.pid(), syscall.SIGSTOP))
	k.ask("kill")
	first.kill()
	w, err := c.Append(within(t), "k", AppendOptions{Wait: true})
	require.NoError(t, err)
	require.Equal(t, info.ID, w.ID())
	require.NoError(t, w.Close())
	k.ask("close")
}

// TestLateWriterOfManyWaiting: of several that wait one makes the copy, and the others get the
// object one after the other.
func TestLateWriterOfManyWaiting(t *testing.T) {
	t.Parallel()
	// Longer than the second between two signs of life: those that wait must not be late themselves.
	s := listeningOn(t, testDevice(t), Options{LeaseTime: 2 * time.Second})
	first := spawn(t, "holder", s.Path(), "late", "k")
	first.expect("ready")
	require.NoError(t, syscall.Kill(first.pid(), syscall.SIGSTOP))
	const many = 8
	over := make(chan error, many)
	for range many {
		c := clientOn(t, testDevice(t), s)
		go func() {
			w, err := c.Append(within(t), "k", AppendOptions{Wait: true})
			if err == nil {
				err = w.Append(waveAt(w.Len(), 100))
			}
			if err == nil {
				err = w.Close()
			}
			over <- err
		}()
	}
	for range many {
		require.NoError(t, <-over)
	}
	require.NoError(t, syscall.Kill(first.pid(), syscall.SIGCONT))
	b := got(t, clientOn(t, testDevice(t), s), "k", GetOptions{Unsafe: true})
	require.EqualValues(t, 1000+many*100, b.Len())
	require.NoError(t, checkWave(b, b.Len()))
	require.Equal(t, 1, s.Stats().Objects)
}

// TestForcedDeleteOfWhatIsWritten: readers unmap it, too.
func TestForcedDeleteOfWhatIsWritten(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "w", CreateOptions{Size: 1 << 20, Durable: true})
	require.NoError(t, w.Append([]byte("hello")))
	require.NoError(t, w.Flush(within(t)))
	b := got(t, c, "w", GetOptions{Unsafe: true})
	events, err := c.Watch(t.Context(), "w")
	require.NoError(t, err)
	require.NoError(t, c.Delete(within(t), "w", DeleteOptions{Force: true}))
	require.Zero(t, b.Len())
	require.Empty(t, b.Segments())
	require.ErrorIs(t, b.Wait(within(t), 1), shareable.ErrOwnerGone)
	require.Eventually(t, func() bool { return w.Err() != nil }, inTime, step)
	require.ErrorIs(t, w.Err(), shareable.ErrNotFound)
	writer(t, c, "w", CreateOptions{Size: 1})
	var kinds []EventKind
	for e, err := range events {
		require.NoError(t, err)
		if kinds = append(kinds, e.Kind); len(kinds) == 2 {
			break
		}
	}
	require.Equal(t, []EventKind{EventDeleted, EventCreated}, kinds)
}

// TestFlushAfterAStop: a writer that was stopped and has lost the object is not told that its bytes
// are published.
func TestFlushAfterAStop(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "w", CreateOptions{Size: 1 << 20, Durable: true})
	require.NoError(t, w.Flush(within(t)))
	w.doubts.Add(1) // as after a beat that was late
	require.NoError(t, w.Append([]byte("hello")))
	require.NoError(t, w.Flush(within(t)))
	require.NotZero(t, w.confirmed.Load())
	w.doubts.Add(1)
	s.mu.Lock()
	e, conn := s.byName["w"], s.byName["w"].lease
	s.mu.Unlock()
	s.endLease(e, conn, leaseEnd{runs: &process{}}) // and it has not heard of that
	_ = w.Append([]byte("lost"))                    // it may be the first to hear
	require.Error(t, w.Flush(within(t)))
	require.Error(t, w.Close()) // once
}
