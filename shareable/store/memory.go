package store

import (
	"errors"
	"fmt"
	"math"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// granularity is the unit of memory that is shared.
func granularity(dev *vmm.Device) (uint64, error) {
	return dev.Driver().Granularity(deviceProp(dev))
}

func deviceProp(dev *vmm.Device) vmm.Prop {
	return vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice, ID: dev.Info().Ordinal}, Share: vmm.ShareFD}
}

// The most bytes of one chunk. An object of fixed size has few chunks, a growable one doubles.
const (
	maxChunk     = 1 << 30
	maxGrowChunk = 256 << 20
)

// addMemory creates memory until the object has n bytes.
func (s *Server) addMemory(e *entry, n uint64) error {
	if limit := min(s.opts.MaxBytes, s.opts.MaxBytesPerUID); n > limit { // else its first chunks evict in vain
		return fmt.Errorf("%w: an object of %d bytes, over %d", vmm.ErrLimit, n, limit)
	}
	for {
		_, _, have, _ := e.obj.State()
		if have >= n {
			return nil
		}
		need := (min(n-have, maxChunk) + s.gran - 1) / s.gran * s.gran
		size := need
		if e.growable() { // have and max are multiples of the granularity
			size = min(max(need, min(have, maxGrowChunk)), e.max-have)
		}
		err := s.addChunk(e, size)
		if size > need && (errors.Is(err, vmm.ErrLimit) || errors.Is(err, vmm.ErrOutOfMemory)) {
			err = s.addChunk(e, need)
		}
		if err != nil {
			return err
		}
	}
}

// addChunk creates one chunk. Memory counts before it is there.
func (s *Server) addChunk(e *entry, size uint64) error {
	if err := s.charge(e, size); err != nil {
		return err
	}
	chunk, fd, err := s.createMemory(e.prop, size)
	for (errors.Is(err, vmm.ErrOutOfMemory) || errors.Is(err, vmm.ErrLimit)) && s.evictFor(size) {
		chunk, fd, err = s.createMemory(e.prop, size)
	}
	if err == nil {
		if err = e.obj.AddChunk(size, fd); err != nil {
			_ = chunk.Close()
		}
	}
	s.mu.Lock()
	gone := e.dropped // then the memory counts no more
	switch {
	case err == nil:
		e.memory = append(e.memory, chunk)
	case !gone:
		s.refundLocked(e, size)
	}
	s.mu.Unlock()
	if gone { // drop has not seen the chunk
		s.freeMemory(e, math.MaxUint64)
	}
	return err
}

// createMemory creates memory and exports it. What is sent is the descriptor: an imported
// handle cannot be exported again, so after a change of servers there is nothing else. The
// chunk is kept for its Close, after that of the descriptor: only so the host's driver
// knows at once that the memory is free.
func (s *Server) createMemory(p vmm.Prop, size uint64) (chunk *vmm.Chunk, fd int, err error) {
	if chunk, err = s.dev.Create(size, p); err != nil {
		return nil, -1, err
	}
	if fd, err = chunk.Export(); err == nil {
		if err = s.checkFD(fd); err == nil {
			return chunk, fd, nil
		}
		closeFD(fd)
	}
	return nil, -1, errors.Join(err, chunk.Close())
}

// checkFD returns an error for a descriptor that objects must not have: the last sixteenth of
// the process's limit is left to connections. The system gives the lowest free number, so one
// from there means that all below are in use.
func (s *Server) checkFD(fd int) error {
	if limit := s.objects.FileLimit(); fd >= limit-limit/16 {
		return fmt.Errorf("%w: %d of %d descriptors are open (RLIMIT_NOFILE)", vmm.ErrLimit, fd, limit)
	}
	return nil
}

// freeMemory closes the chunks of the last n bytes, whose descriptors are closed. It counts
// from the end: after a takeover the first chunks are not in e.memory.
func (s *Server) freeMemory(e *entry, n uint64) {
	s.mu.Lock()
	i := len(e.memory)
	for i > 0 && e.memory[i-1].Size() <= n {
		i--
		n -= e.memory[i].Size()
	}
	chunks := e.memory[i:]
	e.memory = e.memory[:i:i]
	s.mu.Unlock()
	for _, c := range chunks {
		_ = c.Close()
	}
}

// charge counts memory for its user.
func (s *Server) charge(e *entry, n uint64) error {
	defer s.closeEvicted()
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.dropped {
		return fmt.Errorf("%w: object %d", vmm.ErrClosed, e.id)
	}
	// Where one user's limit is reached, nothing of others goes. That comes first: it makes
	// room for all.
	err := s.makeRoomLocked(n, s.bytesOf[e.uid], s.opts.MaxBytesPerUID, func(x *entry) bool { return x.uid == e.uid })
	if err == nil {
		err = s.makeRoomLocked(n, s.bytes, s.opts.MaxBytes, anyEntry)
	}
	if err != nil {
		return fmt.Errorf("%w: %d bytes more than %d, %d of user %d", vmm.ErrLimit, n, s.bytes, s.bytesOf[e.uid], e.uid)
	}
	s.bytes += n
	s.bytesOf[e.uid] += n
	e.bytes += n
	return nil
}

// makeRoomLocked evicts what may go until n bytes fit beside those in use. Requires mu.
func (s *Server) makeRoomLocked(n, used, limit uint64, may func(*entry) bool) error {
	switch {
	case n > limit:
		return errNothingToEvict
	case n <= limit-min(used, limit):
		return nil
	}
	return s.evictLocked(may, func(_ int, bytes uint64) bool { return bytes >= used-(limit-n) })
}

func (s *Server) refundLocked(e *entry, n uint64) {
	invariants.Held(&s.mu)
	s.bytes -= n
	e.bytes -= n
	if s.bytesOf[e.uid] -= n; s.bytesOf[e.uid] == 0 {
		delete(s.bytesOf, e.uid)
	}
}

// closeFD closes a descriptor of memory.
func closeFD(fd int) { _ = wire.NewFD(fd).Close() }
