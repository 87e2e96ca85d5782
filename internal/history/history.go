// Package history keeps what last happened to the memory of a device: packages vmm and pool add
// to it, and vmm.Device.History reads it.
package history

import (
	"errors"
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Kind is what happened.
type Kind uint8

// The kinds. What their addresses and sizes are stands at vmm.HistoryEvent.
const (
	Reserve Kind = iota
	Close
	Create
	Import
	Unimport
	Release
	Map
	Unmap
	Grow
	Clip
	Sleep
	Wake
	Export
	Move
	Pressure
	Refused
	Lend
	Give
	Alloc
	Free
	Resize
)

var names = [...]string{
	"reserve", "close", "create", "import", "unimport", "release", "map", "unmap", "grow", "clip", "sleep", "wake", "export", "move", "pressure",
	"refused", "lend", "give", "alloc", "free", "resize",
}

func (k Kind) String() string { return names[k] }

// Event is one thing that happened.
type Event struct {
	Seq        uint64 // 1 for the first one of a device
	Time       time.Time
	Kind       Kind
	Addr, Size uint64
	Stream     uint64
	Name       string    // of the range or pool
	Stack      []uintptr // the innermost caller first
}

// Options are what a Log keeps: nothing if Events is 0.
type Options struct {
	Events   int
	Blocks   bool // also Alloc, Free and Resize
	NoStacks bool
}

// Log is the last events of a device. Its zero value keeps none.
type Log struct {
	events, blocks, hasStacks atomic.Bool // what is kept

	mu     sync.Mutex // nothing else is locked while it is held
	seq    uint64     // of the newest event, ever
	first  uint64     // of the oldest one that ring has had
	ring   []entry    // the event seq is at seq % len
	stacks []stack    // of the same events; nil: none
	began  time.Time  // when the ring was made
}

// entry is an Event without its stack.
type entry struct {
	at                 time.Duration // since Log.began
	addr, size, stream uint64
	name               string
	kind               Kind
}

// stack ends at the first 0.
type stack [32]uintptr

// MostEvents is how many events a Log keeps at most.
const MostEvents = 1_000_000

// Set says what is kept from now on, and forgets what there was.
func (l *Log) Set(o Options) {
	var ring []entry // made without the lock, for which calls wait
	var stacks []stack
	if o.Events = min(o.Events, MostEvents); o.Events > 0 {
		ring = make([]entry, o.Events)
		if !o.NoStacks {
			stacks = make([]stack, o.Events)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring, l.stacks = ring, stacks
	l.first, l.began = l.seq+1, time.Now()
	l.events.Store(o.Events > 0)
	l.blocks.Store(o.Events > 0 && o.Blocks)
	l.hasStacks.Store(l.stacks != nil)
}

// Add adds an event of memory.
func (l *Log) Add(k Kind, addr, size, stream uint64, name string) {
	if l.events.Load() {
		l.add(k, addr, size, stream, name)
	}
}

// AddBlock adds an event of a block of a pool.
func (l *Log) AddBlock(k Kind, addr, size, stream uint64, name string) {
	if l.blocks.Load() {
		l.add(k, addr, size, stream, name)
	}
}

// KeepsBlocks reports whether AddBlock does anything.
func (l *Log) KeepsBlocks() bool { return l.blocks.Load() }

// Refused adds that a call was out of memory, and has err say once where to look. Other errors it
// returns as they are.
func (l *Log) Refused(addr, size uint64, name string, err error) error {
	if !l.events.Load() || !errors.Is(err, driver.ErrOutOfMemory) {
		return err
	}
	l.add(Refused, addr, size, 0, name)
	var said hint
	if errors.As(err, &said) {
		return err
	}
	return hint{err}
}

// hint is an error that says where to look.
type hint struct{ err error }

func (h hint) Error() string { return h.err.Error() + " (Device.History has what happened before)" }

func (h hint) Unwrap() error { return h.err }

// AddMadeAt is Add with the stack that made returns, which ends at a 0: for what the library does by
// itself.
func (l *Log) AddMadeAt(k Kind, addr, size uint64, name string, made func() []uintptr) {
	if l.events.Load() {
		var s stack
		copy(s[:], made())
		l.put(k, addr, size, 0, name, &s)
	}
}

func (l *Log) add(k Kind, addr, size, stream uint64, name string) {
	var s stack
	if l.hasStacks.Load() {
		runtime.Callers(3, s[:]) // without the lock: it takes longer than all else
	}
	l.put(k, addr, size, stream, name, &s)
}

func (l *Log) put(k Kind, addr, size, stream uint64, name string, s *stack) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := uint64(len(l.ring))
	if n == 0 { // it was switched off meanwhile
		return
	}
	l.seq++
	i := l.seq % n
	l.ring[i] = entry{time.Since(l.began), addr, size, stream, name, k}
	if l.stacks != nil {
		l.stacks[i] = *s
	}
}

// Keeps reports whether events are kept.
func (l *Log) Keeps() bool { return l.events.Load() }

// Newest is the number of the newest event, ever.
func (l *Log) Newest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// After are the events that are kept with numbers above seq, up to the newest one when the iteration
// begins, the oldest first. What is overwritten meanwhile is left out.
func (l *Log) After(seq uint64) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		var b block
		for newest := l.Newest(); seq < newest; seq = b.from + uint64(b.n) - 1 {
			if l.read(&b, seq+1, newest); b.n == 0 {
				return
			}
			for i := range b.n {
				if !yield(b.event(i)) {
					return
				}
			}
		}
	}
}

// block is some events that were copied while the lock was held: few, for which a call can wait.
type block struct {
	entries [256]entry
	stacks  [256]stack
	from    uint64 // the number of the first one
	n       int
	began   time.Time
	stacked bool
}

// read copies the first events from a number on, up to another one.
func (l *Log) read(b *block, from, to uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := uint64(len(l.ring))
	b.n = 0
	if n == 0 {
		return
	}
	from = max(from, l.first, l.seq+1-min(n, l.seq))
	b.from, b.began, b.stacked = from, l.began, l.stacks != nil
	for at := from; at <= to && b.n < len(b.entries); at++ {
		b.entries[b.n] = l.ring[at%n]
		if b.stacked {
			b.stacks[b.n] = l.stacks[at%n]
		}
		b.n++
	}
}

func (b *block) event(i int) Event {
	e := &b.entries[i]
	event := Event{b.from + uint64(i), b.began.Add(e.at), e.kind, e.addr, e.size, e.stream, e.name, nil} //nolint:gosec // not negative
	if b.stacked {
		s := b.stacks[i][:]
		if end := slices.Index(s, 0); end >= 0 {
			s = s[:end]
		}
		event.Stack = slices.Clone(s)
	}
	return event
}
