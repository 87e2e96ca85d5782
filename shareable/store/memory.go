package store

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/shareable/internal/ledger"
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

// addMemory creates memory until the object has n bytes at least. If it fails nothing has changed.
func (s *Server) addMemory(e *entry, n uint64) error {
	_, _, have, _ := e.obj.State()
	if have >= n {
		return nil
	}
	need := s.roundUp(n - have)
	// More than that, so that an object that grows has few chunks, but at no one's cost; have and max are multiples
	// of the granularity.
	for more := min(max(need, min(have, maxGrowChunk)), e.max-have); more > need; more = s.roundUp(more / 2) {
		if !s.hasRoom(e, s.chunksOf(more)) {
			continue
		}
		err := s.addBytes(e, more, s.tryCreate)
		if !errors.Is(err, vmm.ErrLimit) && !errors.Is(err, vmm.ErrOutOfMemory) {
			return err
		}
	}
	return s.addBytes(e, need, s.createAll)
}

func (s *Server) roundUp(n uint64) uint64 { return (n + s.gran - 1) / s.gran * s.gran }

// chunksOf is what n bytes of memory count. A chunk is a descriptor, and on the host another one:
// the driver has one of its own.
func (s *Server) chunksOf(n uint64) ledger.Amounts {
	return ledger.Amounts{ledger.Bytes: n, ledger.Descriptors: s.descriptorsOf((n + maxChunk - 1) / maxChunk)}
}

func (s *Server) descriptorsOf(chunks uint64) uint64 {
	if s.dev.Driver().Name() == "host" {
		return 2 * chunks
	}
	return chunks
}

// hasRoom reports whether so much more can be reserved for an object without evicting another one.
func (s *Server) hasRoom(e *entry, a ledger.Amounts) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Plan(e.uid, a).Err() == nil
}

// addBytes adds n bytes of memory, which create makes.
func (s *Server) addBytes(e *entry, n uint64, create func(*entry, uint64) ([]newMemory, error)) error {
	if err := s.reserve(e, s.chunksOf(n)); err != nil {
		return err
	}
	return s.fill(e, n, create)
}

// fill adds n bytes of memory that are reserved. If it fails they are not.
func (s *Server) fill(e *entry, n uint64, create func(*entry, uint64) ([]newMemory, error)) error {
	all, err := create(e, n)
	for len(all) > 0 && err == nil {
		m := all[0]
		if err = e.obj.AddChunk(m.chunk.Size(), m.fd); err != nil { // it has the descriptor all the same
			err = errors.Join(err, m.chunk.Close())
			n, all = n-m.chunk.Size(), all[1:]
			s.refund(e, s.chunksOf(m.chunk.Size()))
			break
		}
		s.mu.Lock()
		e.memory = append(e.memory, m.chunk)
		gone := e.dropped
		s.mu.Unlock()
		n, all = n-m.chunk.Size(), all[1:]
		if gone { // drop has not seen the chunk
			s.freeMemory(e, 0)
		}
	}
	for _, m := range all {
		m.close()
	}
	if n > 0 {
		s.refund(e, s.chunksOf(n))
	}
	return err
}

// newMemory is a chunk that no object has yet.
type newMemory struct {
	chunk *vmm.Chunk
	fd    int
}

func (m newMemory) close() {
	closeFD(m.fd)
	_ = m.chunk.Close()
}

// createAll creates n bytes of memory, or none. It asks for all of them at once.
func (s *Server) createAll(e *entry, n uint64) (all []newMemory, err error) {
	defer errtext.Wrapf(&err, "in the store's process") // errors of memory speak of this process
	for {
		err = inside.VMM.WithMemory(s.dev, "create memory", wire.IDName(e.id), n, func() (err error) {
			all, err = s.tryCreate(e, n)
			return err
		})
		if !errors.Is(err, vmm.ErrLimit) || !s.evictFor(e, n) { // where memory lacks give has evicted
			return all, err
		}
	}
}

// tryCreate is createAll with what there is now.
func (s *Server) tryCreate(e *entry, n uint64) (all []newMemory, err error) {
	reserved := inside.VMM.Counted(s.dev)
	if err := reserved.Charge(n); err != nil {
		return nil, err
	}
	defer reserved.Set(0)
	for n > 0 {
		size := min(n, maxChunk)
		n -= size
		reserved.Set(n)
		chunk, fd, err := s.createMemory(e, size)
		if err != nil {
			for _, m := range all {
				m.close()
			}
			return nil, err
		}
		all = append(all, newMemory{chunk, fd})
	}
	return all, nil
}

// createMemory creates memory that is free, and exports it. What is sent is the descriptor: an imported
// handle cannot be exported again, so in the next server there is nothing else. The
// chunk is kept for its Close, after that of the descriptor: only so the host's driver
// knows at once that the memory is free.
func (s *Server) createMemory(e *entry, size uint64) (chunk *vmm.Chunk, fd int, err error) {
	from := &memsample.Source{Kind: memsample.Chunk, Name: wire.IDName(e.id)} // by which give knows it
	if chunk, err = inside.VMM.TryCreatePart(s.dev, size, e.prop, from); err != nil {
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

// freeMemory closes the chunks beyond the first keep bytes, whose descriptors are closed. Those that a server before
// this one has created come first, and are not in e.memory.
func (s *Server) freeMemory(e *entry, keep uint64) {
	s.mu.Lock()
	has := e.inherited
	for _, c := range e.memory {
		has += c.Size()
	}
	i := len(e.memory)
	for i > 0 && has-e.memory[i-1].Size() >= keep {
		i--
		has -= e.memory[i].Size()
	}
	chunks := e.memory[i:]
	e.memory = e.memory[:i:i]
	gone := e.inherited - min(e.inherited, keep)
	e.inherited -= gone
	s.inherited -= gone
	s.countLocked()
	s.mu.Unlock()
	_, _, _, readers := e.obj.State()
	for _, c := range chunks {
		s.closeChunk(e.uid, c, readers == 0)
	}
}

// reserve counts more for an object, and evicts others for it.
func (s *Server) reserve(e *entry, a ledger.Amounts) error {
	for {
		s.mu.Lock()
		err := s.reserveLocked(e, a)
		s.mu.Unlock()
		s.closeEvicted()
		if !errors.Is(err, vmm.ErrLimit) || !s.freeHeld(e.uid) && !s.waitReaders() {
			return err
		}
	}
}

// reserveLocked is reserve. Requires mu; the caller calls closeEvicted without it.
func (s *Server) reserveLocked(e *entry, a ledger.Amounts) error {
	invariants.Held(&s.mu)
	if e.dropped {
		return fmt.Errorf("%w: object %d", vmm.ErrClosed, e.id)
	}
	if err := s.makeRoomLocked(e, a); err != nil {
		return err
	}
	s.ledger.Add(e.uid, a)
	e.has = e.has.Plus(a)
	return nil
}

// refund counts less for an object. One that was dropped counts nothing any more.
func (s *Server) refund(e *entry, a ledger.Amounts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !e.dropped {
		s.refundLocked(e, a)
	}
}

func (s *Server) refundLocked(e *entry, a ledger.Amounts) {
	invariants.Held(&s.mu)
	e.has = e.has.Minus(a)
	s.ledger.Return(e.uid, a)
}

// closeFD closes a descriptor of memory.
func closeFD(fd int) { _ = wire.NewFD(fd).Close() }
