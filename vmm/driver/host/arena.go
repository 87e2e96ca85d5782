//go:build linux

package host

import (
	"cmp"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Small chunks that cannot be shared have no file of their own, or a process would run
// out of descriptors: they are parts of large, sparse memory files, the arenas. A part
// that was freed is a hole again, so its pages are back with the system and it reads
// zero. Neighbouring parts at neighbouring addresses are one mapping of the kernel.
const (
	// arenaSize is the size of an arena, which has no pages at first.
	arenaSize = 64 << 20

	// arenaChunk is the size from which a chunk has a file of its own. The kernel
	// writes and punches a file for one caller at a time, so large chunks in one file
	// would wait for each other.
	arenaChunk = 2 << 20
)

// arenas are the arenas of a Driver. Its lock is a leaf.
type arenas struct {
	mu      sync.Mutex
	nonFull []*arena // those with free parts
}

// arena is one memory file.
type arena struct {
	fd      int
	used    uint64 // bytes in parts
	free    []part // by offset; no two touch
	longest uint64 // no free part is larger
}

// part is a stretch of an arena.
type part struct {
	arena     *arena
	off, size uint64
}

func (p part) end() uint64 { return p.off + p.size }

// take returns a part that reads zero, of the first arena that has one, else of a new
// one, which newArena makes.
func (s *arenas) take(size uint64, newArena func(uint64) (*arena, error)) (part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.nonFull {
		if p, ok := s.takeFrom(a, size); ok {
			return p, nil
		}
	}
	a, err := newArena(size)
	if err != nil {
		return part{}, err
	}
	s.nonFull = append(s.nonFull, a)
	p, _ := s.takeFrom(a, size)
	return p, nil
}

// takeFrom takes a part of a, at the lowest offset where one fits. The caller
// holds mu.
func (s *arenas) takeFrom(a *arena, size uint64) (part, bool) {
	if a.longest < size {
		return part{}, false
	}
	var longest uint64
	for i := range a.free {
		f := &a.free[i]
		if f.size < size {
			longest = max(longest, f.size)
			continue
		}
		p := part{a, f.off, size}
		f.off += size
		f.size -= size
		if f.size == 0 {
			a.free = slices.Delete(a.free, i, i+1)
		}
		if len(a.free) == 0 {
			s.nonFull = slices.DeleteFunc(s.nonFull, func(b *arena) bool { return b == a })
		}
		a.used += size
		return p, true
	}
	a.longest = longest
	return part{}, false
}

// give frees the pages of a part, and then the part, or the arena if it was the last.
func (s *arenas) give(p part) {
	if s.remove(p) {
		return
	}
	// The part belongs to no one until the lock is taken again, and its arena cannot
	// be closed.
	mode := uint32(unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE)
	err := unix.Fallocate(p.arena.fd, mode, int64(p.off), int64(p.size))
	s.mu.Lock()
	defer s.mu.Unlock()
	a := p.arena
	a.used -= p.size
	if a.used == 0 {
		s.close(a)
		return
	}
	if err != nil {
		return // it does not read zero, so it is never used again
	}
	if len(a.free) == 0 {
		s.nonFull = append(s.nonFull, a)
	}
	a.insert(p)
}

// remove closes the arena of p if it has no other part.
func (s *arenas) remove(p part) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.arena.used > p.size {
		return false
	}
	s.close(p.arena)
	return true
}

// close closes an arena, from which nothing can be taken any more. The caller holds mu.
func (s *arenas) close(a *arena) {
	s.nonFull = slices.DeleteFunc(s.nonFull, func(b *arena) bool { return b == a })
	_ = unix.Close(a.fd)
}

// insert makes a part free and joins it with its neighbours.
func (a *arena) insert(p part) {
	i, _ := slices.BinarySearchFunc(a.free, p.off, func(f part, off uint64) int { return cmp.Compare(f.off, off) })
	if i < len(a.free) && p.end() == a.free[i].off {
		p.size += a.free[i].size
		a.free = slices.Delete(a.free, i, i+1)
	}
	if i > 0 && a.free[i-1].end() == p.off {
		a.free[i-1].size += p.size
		p = a.free[i-1]
	} else {
		a.free = slices.Insert(a.free, i, p)
	}
	a.longest = max(a.longest, p.size)
}

// newArena makes an arena for a chunk of size bytes and more, as large as the process
// may have a file.
func (d *Driver) newArena(size uint64) (*arena, error) {
	size = max(size, largestFile(arenaSize)/d.granularity*d.granularity)
	fd, _, err := d.memfd(size, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL, private)
	if err != nil {
		return nil, err
	}
	a := &arena{fd: fd, longest: size}
	a.free = []part{{a, 0, size}}
	return a, nil
}
