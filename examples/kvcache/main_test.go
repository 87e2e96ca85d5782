package main

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
)

const page = 64 << 10 // of the host device: 64 tokens

func open(t *testing.T) *vmm.Device {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
	dev, err := vmm.Open("host?page=64K")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close(), "something is open") })
	return dev
}

// most fits an eighth of the sequences.
func most() load {
	n := testgate.Effort(200, 1000, 1000)
	return load{sequences: n, steps: n, workers: 4, limit: uint64(n / 8 * page)}
}

func TestMostSleep(t *testing.T) {
	dev, most := open(t), most()
	dev.SetLimit(most.limit)
	c := NewCache(dev, width, maxTokens)
	require.NoError(t, most.run(c))
	st, mem := c.Stats(), dev.Stats()
	require.NoError(t, st.SleepErr)
	require.Greater(t, st.Slept, uint64(most.sequences/2))
	require.Greater(t, st.Woken, uint64(most.sequences/2))
	require.LessOrEqual(t, mem.PeakCommitted, most.limit)
	require.NotZero(t, mem.Asleep)
	require.NoError(t, c.Close())
	require.Zero(t, dev.Stats().Committed)
	require.Zero(t, dev.Stats().HostCopies)
}

// With makeRoom off the same load runs out of memory.
func TestNoRoomIsMade(t *testing.T) {
	dev, most := open(t), most()
	dev.SetLimit(most.limit)
	c := NewCache(dev, width, maxTokens)
	c.stop()
	require.ErrorIs(t, most.run(c), vmm.ErrOutOfMemory)
	require.Zero(t, c.Stats().Slept)
	require.NoError(t, c.Close())
}

// As long as the sequences that are used at once fit, memory does not run out.
func TestLeastLimit(t *testing.T) {
	dev := open(t)
	const workers, pages = 8, 4
	dev.SetLimit(workers * pages * page)
	c := NewCache(dev, width, pages*page/2/width)
	require.NoError(t, load{sequences: 100, steps: testgate.Effort(100, 2000, 100_000), workers: workers}.run(c))
	require.LessOrEqual(t, dev.Stats().PeakCommitted, uint64(workers*pages*page))
	require.NoError(t, c.Close())
}

func TestRun(t *testing.T) {
	dev := open(t)
	var out strings.Builder
	require.NoError(t, run(&out, dev, load{sequences: 20, steps: 100, workers: 2, limit: 10 * page}))
	require.Regexp(t, `^20 sequences are right: [1-9]\d* put to sleep, [1-9]\d* woken
655360 of 655360 bytes at most, [1-9]\d* asleep in host memory
one launch has read the keys of 4 layers, and a vector of one
$`, out.String())
	require.Zero(t, dev.Stats().Limit, "the limit is as before")
}

// fill gives an empty sequence some tokens.
func fill(c *Cache, id uint64) error {
	return c.Use(context.Background(), id, func(rows *growable.Rows[uint16]) error { return grow(rows, id, new(int)) })
}

// newFilled is a cache of that many sequences with some tokens each.
func newFilled(t *testing.T, dev *vmm.Device, sequences int) *Cache {
	t.Helper()
	c := NewCache(dev, width, maxTokens)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	for id := range uint64(sequences) {
		require.NoError(t, c.Add(id))
		require.NoError(t, fill(c, id))
	}
	return c
}

func nothing(*growable.Rows[uint16]) error { return nil }

// check finds one wrong element, also after a Wake.
func TestCheck(t *testing.T) {
	dev := open(t)
	dev.SetLimit(page)
	c := newFilled(t, dev, 1)
	require.NoError(t, c.Use(t.Context(), 0, func(rows *growable.Rows[uint16]) error {
		token := slices.Repeat([]uint16{element(0, 0)}, width)
		token[width-1]++
		_, err := rows.WriteAt(token, 0)
		return err
	}))
	one := func(rows *growable.Rows[uint16]) error { return check(rows, 0, rows.Len()) }
	require.ErrorContains(t, c.Use(t.Context(), 0, one), "token 0 of sequence 0 has 1, not 0")
	require.NoError(t, c.Add(1))
	require.NoError(t, fill(c, 1))
	require.ErrorContains(t, c.Use(t.Context(), 0, one), "token 0 of sequence 0 has 1, not 0")
	require.Equal(t, uint64(1), c.Stats().Woken)
	less := func(rows *growable.Rows[uint16]) error { return check(rows, 1, rows.Len()+1) }
	require.ErrorContains(t, c.Use(t.Context(), 1, less), "sequence 1 has ")
}

// The sequence that was used least recently sleeps, and the one in use does not.
func TestLeastRecentlyUsedSleeps(t *testing.T) {
	dev := open(t)
	c := newFilled(t, dev, 3)
	require.NoError(t, c.Use(t.Context(), 0, nothing))
	dev.SetLimit(3 * page)
	require.NoError(t, c.Add(3))
	require.NoError(t, c.Use(t.Context(), 1, func(*growable.Rows[uint16]) error {
		return fill(c, 3)
	}))
	var asleep []uint64
	for id, s := range c.sequences {
		if s.asleep {
			asleep = append(asleep, id)
		}
	}
	require.Equal(t, []uint64{2}, asleep)
}

// A sequence that cannot sleep is passed over; if none can, memory is out at once and Stats say why.
func TestSleepFails(t *testing.T) {
	dev := open(t)
	c := newFilled(t, dev, 2)
	release := map[*sequence]func(){}
	for _, s := range c.sequences {
		r := s.rows.Range()
		var err error
		release[s], err = r.Hold(0, r.Len())
		require.NoError(t, err)
	}
	rounds := 0
	stop := dev.OnPressure(func(error) bool { rounds++; return false })
	defer stop()
	dev.SetLimit(2 * page)
	require.NoError(t, c.Add(2))
	require.ErrorIs(t, fill(c, 2), vmm.ErrOutOfMemory)
	require.ErrorIs(t, c.Stats().SleepErr, vmm.ErrBusy)
	require.Equal(t, 1, rounds, "makeRoom said that it had released something")
	require.ErrorIs(t, c.Drop(t.Context(), 0), vmm.ErrBusy)

	first, last := c.idle.Front().Value.(*sequence), c.idle.Back().Value.(*sequence)
	release[last]()
	require.NoError(t, fill(c, 2))
	require.True(t, last.asleep)
	require.False(t, first.asleep)
	release[first]()
}

// Who waits for a sequence can give up, and learns that it was dropped.
func TestWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := open(t)
		c := newFilled(t, dev, 1)
		end, used := make(chan struct{}), make(chan error, 1)
		go func() {
			used <- c.Use(context.Background(), 0, func(*growable.Rows[uint16]) error {
				<-end
				return errors.New("of f")
			})
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, c.Use(ctx, 0, nothing), context.Canceled)
		require.ErrorIs(t, c.Drop(ctx, 0), context.Canceled)

		drops := make(chan error, 2)
		for range 2 {
			go func() { drops <- c.Drop(context.Background(), 0) }()
		}
		synctest.Wait() // both wait for the token
		close(end)
		require.EqualError(t, <-used, "of f")
		errs := []error{<-drops, <-drops}
		require.ErrorIs(t, errors.Join(errs...), ErrNoSequence)
		require.Contains(t, errs, nil, "one has dropped it")
		require.ErrorIs(t, c.Use(t.Context(), 0, nothing), ErrNoSequence)
		require.NoError(t, c.Add(0))
		require.Error(t, c.Add(0))
		require.NoError(t, c.Close())
		require.Error(t, c.Add(1))
	})
}
