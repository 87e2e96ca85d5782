package main

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
)

// ErrNoSequence is that a sequence does not exist, or not any more.
var ErrNoSequence = errors.New("no such sequence")

// Cache keeps keys and values of sequences, float16 as uint16, on a device. When memory runs out, the
// idle ones that were used least recently sleep in host memory until they are used. The limit must have
// room for those that are used at once. Safe for concurrent use. The caller must Close it.
//
// A sequence is one range, and a token one row of it, with the keys and values of all layers. A range for
// each layer would take 2 MiB each from the first token on: see docs/guides/many.md.
//
// Who has taken a sequence's token owns it, and alone may wake, use, close it or put it to sleep.
// Users wait for the token. makeRoom, which runs where memory is needed, takes one only if it is
// there: so it waits for no one, and leaves the sequence that needs the memory alone.
type Cache struct {
	dev              *vmm.Device
	width, maxTokens int
	stop             func() // of OnPressure

	mu        sync.Mutex // held for no call that needs memory or waits for a token or for work
	sequences map[uint64]*sequence
	idle      list.List // of *sequence: awake, with memory, and their token is there; the least recently used first
	closed    bool
	stats     Stats
}

// Stats is what a Cache has done.
type Stats struct {
	Slept, Woken uint64
	SleepErr     error // of the last Sleep that failed
}

type sequence struct {
	token  chan struct{} // has one element while no one owns the sequence; closed when it is dropped
	rows   *growable.Rows[uint16]
	asleep bool          // the owner's
	elem   *list.Element // in idle, or in no list; under Cache.mu
}

// NewCache makes a cache of sequences of up to maxTokens tokens, each of width elements.
func NewCache(dev *vmm.Device, width, maxTokens int) *Cache {
	c := &Cache{dev: dev, width: width, maxTokens: maxTokens, sequences: map[uint64]*sequence{}}
	c.stop = dev.OnPressure(c.makeRoom)
	return c
}

// Add makes an empty sequence, which has addresses and no memory.
func (c *Cache) Add(id uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.sequences[id] != nil {
		return fmt.Errorf("sequence %d exists, or the cache is closed", id)
	}
	rows, err := growable.NewRows[uint16](c.dev, c.width, growable.RowsOptions{
		MaxRows: c.maxTokens,
		Range:   vmm.RangeOptions{Name: fmt.Sprint("sequence ", id)}, // in errors, and in the map
	})
	if err != nil {
		return fmt.Errorf("sequence %d: %w", id, err)
	}
	s := &sequence{token: make(chan struct{}, 1), rows: rows, elem: new(list.Element)}
	s.token <- struct{}{}
	c.sequences[id] = s
	return nil
}

// Use wakes the sequence and calls f, in which the rows may be read, written and appended to, and
// work on them queued. The sequence stays awake until f returns; a later Sleep waits for that work.
// f must not keep the rows, nor use other sequences of the cache: that could wait in a circle.
func (c *Cache) Use(ctx context.Context, id uint64, f func(*growable.Rows[uint16]) error) error {
	s, err := c.take(ctx, id)
	if err != nil {
		return err
	}
	defer c.put(s)
	if s.asleep {
		if err := vmm.Wake(s.rows.Range()); err != nil { // it stays asleep, with its contents
			return fmt.Errorf("sequence %d: %w", id, err)
		}
		s.asleep = false
		c.count(func(st *Stats) { st.Woken++ })
	}
	return f(s.rows)
}

// Drop waits until the sequence is idle and gives back all that it has.
func (c *Cache) Drop(ctx context.Context, id uint64) error {
	s, err := c.take(ctx, id)
	if err != nil {
		return err
	}
	if err := s.rows.Close(); err != nil { // held, for example: it stays
		c.put(s)
		return fmt.Errorf("sequence %d: %w", id, err)
	}
	c.mu.Lock()
	delete(c.sequences, id)
	c.mu.Unlock()
	close(s.token) // who waits for it learns that it is gone
	return nil
}

// take waits for the sequence's token.
func (c *Cache) take(ctx context.Context, id uint64) (*sequence, error) {
	c.mu.Lock()
	s := c.sequences[id]
	c.mu.Unlock()
	exists := s != nil
	if exists {
		select {
		case _, exists = <-s.token:
		case <-ctx.Done():
			return nil, fmt.Errorf("sequence %d: %w", id, ctx.Err())
		}
	}
	if !exists {
		return nil, fmt.Errorf("sequence %d: %w", id, ErrNoSequence)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle.Remove(s.elem) // if it is there
	return s, nil
}

// put returns the token. The sequence is now the one that was used last.
func (c *Cache) put(s *sequence) {
	hasMemory := s.rows.Cap() > 0 // none if it sleeps or is new
	c.mu.Lock()
	defer c.mu.Unlock()
	if hasMemory {
		s.elem = c.idle.PushBack(s)
	}
	s.token <- struct{}{} // never waits: the owner has taken the only one
}

// makeRoom puts the idle sequence to sleep that was used least recently. It returns false if none
// can sleep, and then what needs memory is ErrOutOfMemory.
func (c *Cache) makeRoom(need error) (released bool) {
	s := c.takeIdle()
	if s == nil {
		return false
	}
	defer c.put(s) // not before one sleeps: else one that cannot sleep would come round again

	if err := vmm.Sleep(vmm.SleepKeep, s.rows.Range()); err != nil { // held, or the host has no memory
		c.count(func(st *Stats) { st.SleepErr = err })
		return c.makeRoom(need)
	}
	s.asleep = true
	c.count(func(st *Stats) { st.Slept++ })
	return true
}

// takeIdle takes the token of the idle sequence that was used least recently; nil if there is none.
func (c *Cache) takeIdle() *sequence {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.idle.Front(); e != nil; e = e.Next() {
		s := e.Value.(*sequence) //nolint:forcetypeassert // put has put it there
		select {
		case <-s.token:
			c.idle.Remove(e)
			return s
		default: // someone has just taken it
		}
	}
	return nil
}

// Stats returns what the cache has done so far.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

func (c *Cache) count(add func(*Stats)) { c.mu.Lock(); add(&c.stats); c.mu.Unlock() }

// Close drops all sequences, each once it is idle.
func (c *Cache) Close() (err error) {
	c.mu.Lock()
	c.closed = true
	all := maps.Clone(c.sequences)
	c.mu.Unlock()
	for id := range all {
		if e := c.Drop(context.Background(), id); !errors.Is(e, ErrNoSequence) { // someone else's Drop
			err = errors.Join(err, e)
		}
	}
	c.stop() // last: until then those who use sequences may need room
	return err
}
