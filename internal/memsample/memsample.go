// Package memsample samples who has device memory, by the stack that asked for it, for package
// memprof. As in Go's heap profile, memory is sampled by its bytes, and what is sampled stands for
// what is not: its weight is the inverse of its chance.
package memsample

import (
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Kind is what memory is for.
type Kind uint8

// The kinds of memory.
const (
	Range    Kind = iota // in a Range
	Chunk                // in a Chunk that the program made
	Import               // of another process
	Pool                 // that a pool has, in blocks or not
	Block                // of a pool; part of Pool
	HostCopy             // of the host, for contents of a Range that sleeps
	Leaving              // on its way back to the driver
)

// DefaultRate is what the rate is at first, in bytes.
const DefaultRate = 512 << 20

// rate is read by atomic.LoadInt64, since of an atomic.Int64 Due would not be inlined.
var rate int64 = DefaultRate

// SetRate has one sample taken for each n bytes on average, all memory for 1 and none for 0, and
// returns the old rate. What was sampled before stays.
func SetRate(n int64) (old int64) { return atomic.SwapInt64(&rate, max(n, 0)) }

// Rate is the rate now.
func Rate() int64 { return atomic.LoadInt64(&rate) }

// Owner is a device whose memory is sampled.
type Owner struct {
	Name string
	// Moment calls read while no sample of the device's memory begins or ends, and returns what its
	// Stats are at that moment.
	Moment func(read func()) Totals
}

// Totals are numbers of a device, in bytes. What is pinned belongs to all owners with the same PinnedOf.
type Totals struct {
	Committed, Cached, HostCopies, Pinned uint64
	PinnedOf                              any
}

var (
	ownersMu sync.Mutex
	owners   []*Owner
)

// Add lists a device until Remove.
func Add(o *Owner) {
	ownersMu.Lock()
	defer ownersMu.Unlock()
	owners = append(owners, o)
}

// Remove ends Add, and forgets the device's memory.
func Remove(o *Owner) {
	ownersMu.Lock()
	owners = slices.DeleteFunc(owners, func(x *Owner) bool { return x == o })
	ownersMu.Unlock()
	buckets.Lock()
	defer buckets.Unlock()
	maps.DeleteFunc(buckets.of, func(k key, _ *bucket) bool { return k.owner == o })
}

// Owners are the devices that are listed.
func Owners() []*Owner {
	ownersMu.Lock()
	defer ownersMu.Unlock()
	return slices.Clone(owners)
}

// Stack is where memory was asked for, the innermost caller first; unused places are 0.
type Stack [48]uintptr

// Numbers are how much there was, estimated: objects and bytes.
type Numbers struct{ AllocObjects, AllocBytes, FreeObjects, FreeBytes float64 }

// InUse is an estimate of the objects and bytes in use.
type InUse struct{ Objects, Bytes float64 }

// bucket is what one stack has of one kind.
type bucket struct {
	key
	Numbers
	named map[string]*named // by their names
}

// named counts the memory of one name in a bucket. It goes with the last of it: a program may use any number
// of names, one after the other.
type named struct {
	InUse
	samples int
}

type key struct {
	owner *Owner
	kind  Kind
	stack Stack
}

// buckets are all there are, as long as the process runs: what was freed counts as allocated, too.
var buckets struct {
	sync.Mutex
	of map[key]*bucket
}

// Sample is memory that was sampled. A nil Sample is memory that was not: its methods do nothing.
type Sample struct {
	bucket *bucket
	name   string
	begun  bool // counted as allocated, and not as freed
	weight float64
	bytes  float64
}

// Source is what memory is asked for, and by whom. Several pieces of one call share it: finding a
// stack takes longer than all else. One goroutine uses it at a time.
type Source struct {
	Kind Kind
	Name string    // of the range or pool
	Made []uintptr // who it is for; nil: the caller

	stack Stack // once it is known
	known bool
}

// findStack finds the stack, of the caller without so many frames.
func (s *Source) findStack(skip int) {
	switch {
	case s.known:
	case s.Made != nil:
		copy(s.stack[:], s.Made)
	default:
		runtime.Callers(skip+2, s.stack[:])
	}
	s.known = true
}

// Of decides whether memory is sampled, and if so finds the stack, of the caller without so many
// frames. Begin counts it.
func Of(o *Owner, from *Source, size uint64, skip int) *Sample {
	r := Rate()
	if r == 0 || float64(size) < float64(r)*64 && rand.Float64() >= chance(size, r) {
		return nil
	}
	return taken(o, from, size, r, skip+1)
}

// chance is how likely memory of a size is sampled.
func chance(size uint64, rate int64) float64 { return -math.Expm1(-float64(size) / float64(rate)) }

func taken(o *Owner, from *Source, size uint64, rate int64, skip int) *Sample {
	from.findStack(skip + 1)
	s := &Sample{bucket: find(key{owner: o, kind: from.Kind, stack: from.stack}), name: from.Name, weight: 1}
	if rate > 1 {
		s.weight = 1 / chance(size, rate)
	}
	s.bytes = s.weight * float64(size)
	return s
}

// Begin counts the memory as allocated.
func (s *Sample) Begin() {
	if s == nil {
		return
	}
	buckets.Lock()
	defer buckets.Unlock()
	s.begun = true
	s.bucket.AllocObjects += s.weight
	s.bucket.AllocBytes += s.bytes
	s.countName(1)
}

// countName counts a sample that has a name as in use, by 1, or no longer, by -1. It needs buckets.
func (s *Sample) countName(by int) {
	if s.name == "" {
		return
	}
	n := s.bucket.named[s.name]
	if n == nil {
		if s.bucket.named == nil {
			s.bucket.named = map[string]*named{}
		}
		n = &named{}
		s.bucket.named[s.name] = n
	}
	n.samples += by
	n.Objects += float64(by) * s.weight
	n.Bytes += float64(by) * s.bytes
	if n.samples == 0 {
		delete(s.bucket.named, s.name)
	}
}

// find finds the bucket, or makes it.
func find(k key) *bucket {
	buckets.Lock()
	defer buckets.Unlock()
	b := buckets.of[k]
	if b == nil {
		if buckets.of == nil {
			buckets.of = map[key]*bucket{}
		}
		b = &bucket{key: k}
		buckets.of[k] = b
	}
	return b
}

// End counts the memory as freed. A second End does nothing.
func (s *Sample) End() {
	if s == nil {
		return
	}
	buckets.Lock()
	defer buckets.Unlock()
	if !s.begun {
		return
	}
	s.begun = false
	s.bucket.FreeObjects += s.weight
	s.bucket.FreeBytes += s.bytes
	s.countName(-1)
}

// Countdown samples many small pieces for little: it draws only how many bytes come before the
// next sample. Its zero value is ready to use. One goroutine uses it at a time.
type Countdown struct {
	left  int64 // a piece of more bytes is sampled
	drawn int64 // the rate that left was drawn with
}

// Due reports whether a piece of so many bytes is to be sampled, by Sample. It is short, to be inlined.
func (c *Countdown) Due(size uint64) bool {
	c.left -= int64(size) //nolint:gosec // no piece is as large
	return (c.left < 0 || c.drawn != atomic.LoadInt64(&rate)) && c.due(size)
}

// due is Due where something may have to be drawn; left is without the piece already.
func (c *Countdown) due(size uint64) bool {
	if r := Rate(); r != c.drawn {
		c.drawn = r
		c.draw()
		c.left -= int64(size) //nolint:gosec // as in Due
	}
	if c.left >= 0 {
		return false
	}
	c.draw()
	return c.drawn != 0
}

func (c *Countdown) draw() {
	switch c.drawn {
	case 0:
		c.left = math.MaxInt64
	case 1:
		c.left = 0
	default:
		c.left = int64(min(rand.ExpFloat64()*float64(c.drawn), 1<<63-1024)) // the largest float64 below 1<<63
	}
}

// Sample is a Sample that has begun, of a piece that was due just now.
func (c *Countdown) Sample(o *Owner, from *Source, size uint64) *Sample {
	s := taken(o, from, size, max(c.drawn, 1), 1)
	s.Begin()
	return s
}

// Record is what one stack has of one kind.
type Record struct {
	Kind  Kind
	Stack Stack
	Numbers
	Named map[string]InUse // the part that is in use and has a name
}

// Records are what a device's stacks have, and had. Call it in Owner.Moment to have it of one moment.
func (o *Owner) Records() (all []Record) {
	buckets.Lock()
	defer buckets.Unlock()
	for _, b := range buckets.of {
		if b.owner == o {
			r := Record{Kind: b.kind, Stack: b.stack, Numbers: b.Numbers}
			for name, n := range b.named {
				if r.Named == nil {
					r.Named = map[string]InUse{}
				}
				r.Named[name] = n.InUse
			}
			all = append(all, r)
		}
	}
	return all
}
