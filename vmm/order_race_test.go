package vmm_test

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// ticker is a stream that counts in a word of memory.
type ticker struct {
	s    *vmm.Stream
	word vmm.Ptr

	mu     sync.Mutex
	points []uint64 // what Point was after it was told to write 1, 2, and so on
}

// tick queues the next number, behind a fill that takes a while.
func (c *ticker) tick(dev driver.Device) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := dev.Fill(c.word+64, 1, 1, page-64, c.s.Raw()); err != nil {
		return err
	}
	if err := dev.(driver.StreamMemOps).WriteValue(c.s.Raw(), c.word, uint64(len(c.points)+1), 8); err != nil {
		return err
	}
	c.points = append(c.points, c.s.Point())
	return nil
}

// before is the last number that comes before the stream's event n.
func (c *ticker) before(n uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, _ := slices.BinarySearch(c.points, n)
	return uint64(at)
}

// seen is what a stream has read of another one's word, which has to be at least so much.
type seen struct {
	at   vmm.Ptr
	word uint64
}

// TestOrderIsTrue: many streams work, wait for each other's events, which are recorded anew
// all the time, and for the end of work. Memory has the numbers that Finished and After
// say are written.
func TestOrderIsTrue(t *testing.T) {
	const streams, rounds = 5, 300
	w := newWorld(t, 1)
	d := w.devs[0]
	words := newRange(t, d, vmm.RangeOptions{Max: streams * page})
	require.NoError(t, words.Grow(streams*page))
	require.NoError(t, words.SetLen(streams*page))
	slots := newRange(t, d, vmm.RangeOptions{Max: streams * rounds * 8})
	require.NoError(t, slots.Grow(streams*rounds*8))
	require.NoError(t, slots.SetLen(streams*rounds*8))
	require.NoError(t, d.CopyIn(words.Ptr(), make([]byte, streams*page)))
	var all []*ticker
	var events []*vmm.Event
	for i := range streams {
		all = append(all, &ticker{s: stream(t, d), word: words.Ptr() + vmm.Ptr(i*page)})
		e, err := d.NewEvent(vmm.EventBlocking)
		require.NoError(t, err)
		events = append(events, e)
	}
	dev := raw(t, d)
	run := func(me int, reads *[]seen) error {
		random := rand.New(rand.NewPCG(uint64(me), 16))
		s := all[me].s
		for i := range rounds {
			if err := all[me].tick(dev); err != nil {
				return err
			}
			// Others tick, too, while this goroutine records on the stream.
			if err := all[(me+1+random.IntN(streams-1))%streams].tick(dev); err != nil {
				return err
			}
			e := events[random.IntN(streams)]
			var err error
			switch random.IntN(12) {
			case 0:
				err = s.Sync()
			case 1:
				err = e.Sync()
			case 2:
				_, err = e.Done()
			case 3:
				_, err = s.Done()
			case 4, 5, 6:
				err = e.Record(s)
			case 7, 8, 9:
				err = s.Wait(e)
			default:
				var f vmm.Fence
				if f, err = s.Fence(); err == nil {
					err = all[random.IntN(streams)].s.WaitFence(f)
					f.Free()
				}
			}
			if err != nil {
				return err
			}
			other := all[random.IntN(streams)]
			if ended := other.before(other.s.Finished()); ended > 0 {
				var now [8]byte
				if err := d.CopyOut(now[:], other.word); err != nil {
					return err
				}
				if n := binary.LittleEndian.Uint64(now[:]); n < ended {
					t.Errorf("Finished says that %d is written, memory has %d", ended, n)
				}
			}
			if earlier := other.before(s.After(other.s)); earlier > 0 {
				slot := slots.Ptr() + vmm.Ptr((me*rounds+i)*8)
				if err := s.Copy(slot, other.word, 8); err != nil {
					return err
				}
				*reads = append(*reads, seen{slot, earlier})
			}
		}
		return nil
	}
	reads := make([][]seen, streams)
	failed := make(chan error, streams)
	for i := range streams {
		go func() { failed <- run(i, &reads[i]) }()
	}
	for range streams {
		require.NoError(t, <-failed)
	}
	require.NoError(t, d.Sync())
	known := 0
	for _, mine := range reads {
		for _, r := range mine {
			var got [8]byte
			require.NoError(t, d.CopyOut(got[:], r.at))
			require.GreaterOrEqual(t, binary.LittleEndian.Uint64(got[:]), r.word)
			known++
		}
	}
	require.NotZero(t, known, "streams come after each other")
	for _, e := range events {
		require.NoError(t, e.Close())
	}
	for _, c := range all {
		require.Equal(t, c.s.Point(), c.s.Finished(), "the device was waited for")
		require.NoError(t, c.s.Close())
	}
	closeAll(t, words, slots)
	w.end()
}
