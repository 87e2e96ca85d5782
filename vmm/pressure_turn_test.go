package vmm_test

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// What one operation that is short of memory keeps from others, and for how long.

// TestPressureKeepsOthersWaiting for ten seconds: who needs no more than is free gets it then,
// though another operation's function still runs. Growth ahead does without meanwhile.
func TestPressureKeepsOthersWaiting(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		d.SetLimit(d.Stats().Committed + 4*page)
		hog := chunk(t, w.world, 2*page)
		g := newRange(t, d, vmm.RangeOptions{Max: 4 * page, Chunk: page})
		let := make(chan struct{})
		stop := d.OnPressure(func(error) bool {
			<-let
			c, err := d.Create(page, vmm.Prop{})
			require.NoError(t, err, "a function has what is free")
			return errors.Join(c.Close(), hog.Close()) == nil
		})
		var large *vmm.Chunk
		first := begun(func() (err error) {
			large, err = d.Create(3*page, vmm.Prop{})
			return err
		})
		pass(time.Second)
		began := time.Now()
		second := begun(func() error { return g.Append(make([]byte, page)) })
		pass(9 * time.Second)
		require.Empty(t, second)
		require.NoError(t, <-second)
		require.Equal(t, 10*time.Second, time.Since(began))
		third := newRange(t, d, vmm.RangeOptions{Max: 4 * page, GrowAhead: page})
		pass(time.Second)
		require.Zero(t, third.Cap())
		require.NotZero(t, d.Stats().GrowAheadFailures)
		require.NoError(t, third.Close())
		close(let)
		require.NoError(t, <-first)
		stop()
		require.NoError(t, errors.Join(large.Close(), g.Close()))
	})
}

// TestPressureOfAFunctionThatDoesNotReturn: it panics, or ends its goroutine. Others get memory as
// before.
func TestPressureOfAFunctionThatDoesNotReturn(t *testing.T) {
	for _, end := range []func(){runtime.Goexit, func() { panic(errInjected) }} {
		w := newWorld(t, 1)
		d := w.devs[0]
		hog := spent(t, w)
		calls := 0
		stop := d.OnPressure(func(error) bool {
			if calls++; calls == 1 {
				end()
			}
			return hog.Close() == nil
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			_, _ = d.Create(page, vmm.Prop{})
		}()
		<-done
		returns(t, func() {
			c, err := d.Create(page, vmm.Prop{})
			require.NoError(t, err)
			require.NoError(t, c.Close())
		})
		require.Equal(t, 2, calls)
		stop()
		w.end()
	}
}

// TestPressureOfTwoDevices: an operation that is short of memory of one does not keep others from
// that of another one, where it has been short before.
func TestPressureOfTwoDevices(t *testing.T) {
	w := newWorld(t, 2)
	d, peer := w.devs[0], w.devs[1]
	h := newRange(t, peer, vmm.RangeOptions{Max: page})
	require.NoError(t, h.Append(pattern(page, 1)))
	g := ranged(t, w, page)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, h, g))
	hog, hogPeer := spentOn(t, d), spentOn(t, peer)
	stopPeer := peer.OnPressure(func(error) bool { return hogPeer.Close() == nil })
	stop := d.OnPressure(func(error) bool {
		returns(t, func() { // in another goroutine
			c, err := peer.Create(page, vmm.Prop{})
			require.NoError(t, err)
			require.NoError(t, c.Close())
		})
		return hog.Close() == nil
	})
	returns(t, func() { require.NoError(t, vmm.Wake(h, g)) })
	stop()
	stopPeer()
	require.NoError(t, errors.Join(g.Close(), h.Close()))
	w.end()
}

// TestPressureWhoseFunctionIsRemoved: who waits for it is tried again, though there is none left.
func TestPressureWhoseFunctionIsRemoved(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetLimit(d.Stats().Committed + 4*page)
	hog := chunk(t, w, 2*page)
	var stop func()
	var small, stopped func() error
	stop = d.OnPressure(func(error) bool {
		stopped = parked(func() error { stop(); return nil })
		small = parked(func() error {
			c, err := d.Create(page, vmm.Prop{})
			return errors.Join(err, c.Close())
		})
		return false
	})
	_, err := d.Create(3*page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.NoError(t, errors.Join(small(), stopped(), hog.Close()))
	w.end()
}

// TestPressureOfAnAppendThatCopies: once it has its memory, others get theirs.
func TestPressureOfAnAppendThatCopies(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetLimit(3 * page)
	hog := chunk(t, w, 2*page)
	g := newRange(t, d, vmm.RangeOptions{Max: 4 * page, Chunk: 2 * page})
	stop := d.OnPressure(func(error) bool { return hog.Close() == nil })
	copies, let := make(chan struct{}), make(chan struct{})
	w.before = once("CopyIn", func() {
		close(copies)
		<-let
	})
	appended := begun(func() error { return g.Append(make([]byte, page)) })
	<-copies
	returns(t, func() {
		c, err := d.Create(page, vmm.Prop{})
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
	close(let)
	require.NoError(t, <-appended)
	stop()
	require.NoError(t, g.Close())
	w.end()
}
