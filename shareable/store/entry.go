package store

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// entry is an object as the store knows it.
type entry struct {
	// Immutable.
	obj    serve.Object
	id     uint64
	uid    uint32 // who made it
	flags  uint32
	device uint32
	prop   vmm.Prop
	max    uint64 // bytes of memory at most
	labels []wire.Label

	// Guarded by Server.mu.
	names   []string
	lease   serve.Conn // the client that may write; nil: none
	waiting []wait     // for the lease
	started bool       // a writer has mapped its page once
	sealed  bool
	deleted bool // it has no name any more, and goes with its last reader
	dropped bool
	bytes   uint64        // of memory
	memory  []*vmm.Chunk  // all of it, unless another process has created it; see createMemory
	unused  *list.Element // of Server.unused; nil: not in it
}

func (e *entry) durable() bool  { return e.flags&wire.StoreDurable != 0 }
func (e *entry) growable() bool { return e.flags&wire.StoreGrowable != 0 }

// name is what the object is called: a name of its own, or its id.
func (e *entry) nameLocked() string {
	if len(e.names) > 0 {
		return e.names[0]
	}
	return shareable.IDName(e.id)
}

// granularity is the unit of memory that is shared.
func granularity(dev *vmm.Device) (uint64, error) {
	return dev.Driver().Granularity(deviceProp(dev))
}

func deviceProp(dev *vmm.Device) vmm.Prop {
	return vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice, ID: dev.Info().Ordinal}, Share: vmm.ShareFD}
}

// maxObject is the largest object, so that no sum of sizes overflows.
const maxObject = 1 << 46

// create makes an object and leases it.
func (s *Server) create(c serve.Conn, f wire.Frame) error {
	q, err := wire.DecodeCreate(f.Payload)
	if err != nil {
		return err
	}
	e, err := s.newEntry(c, q)
	if err != nil {
		return err
	}
	// Memory comes before the name: who finds the object finds all of it.
	if !e.growable() {
		if err := s.addMemory(e, e.max); err != nil {
			s.drop(e)
			return err
		}
	}
	if err := s.enterEntry(c, e, q.Name); err != nil {
		s.drop(e)
		return err
	}
	s.counts.created.Add(1)
	s.emit(wire.EventCreated, e, 0)
	if err := s.sendLease(c, f.Request, e); err != nil {
		s.endLease(e, c, true)
		return err
	}
	return nil
}

// newEntry makes an object without memory that has no name yet.
func (s *Server) newEntry(c serve.Conn, q wire.Create) (*entry, error) {
	size := q.Size
	if size == 0 && q.Flags&wire.StoreGrowable != 0 {
		size = s.dev.Info().Memory / s.gran * s.gran
	}
	switch {
	case size == 0 || size > maxObject:
		return nil, fmt.Errorf("%w: an object of %d bytes", vmm.ErrInvalid, size)
	case strings.HasPrefix(q.Name, "@"):
		return nil, fmt.Errorf("%w: %q is the form of an id", vmm.ErrInvalid, q.Name)
	}
	e := &entry{
		uid: c.Cred().UID, flags: q.Flags, device: q.Device, prop: deviceProp(s.dev), labels: q.Labels,
		max: (size + s.gran - 1) / s.gran * s.gran,
	}
	if q.Flags&wire.StoreHost != 0 {
		e.prop.Location = vmm.Location{Kind: driver.LocationHostNUMA, ID: int(min(q.Device, math.MaxInt32))}
		if err := s.dev.Supports(vmm.FeatureHostNUMA); err != nil {
			return nil, err
		}
	}
	e.obj = s.objects.NewObject(serve.Spec{Max: e.max, Layout: layoutOf(q), Meta: q.Meta})
	e.id = e.obj.ID()
	if err := s.listEntry(e); err != nil {
		_ = e.obj.Close()
		return nil, err
	}
	return e, nil
}

// listEntry lists an object that no client finds yet.
func (s *Server) listEntry(e *entry) error {
	defer s.closeEvicted()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("%w: store", vmm.ErrClosed)
	case len(s.order) >= s.opts.MaxObjects:
		excess := len(s.order) - s.opts.MaxObjects
		if err := s.evictLocked(anyEntry, func(n int, _ uint64) bool { return n > excess }); err != nil {
			return fmt.Errorf("%w: %d objects", vmm.ErrLimit, len(s.order))
		}
	}
	s.byID[e.id] = e
	i, _ := slices.BinarySearchFunc(s.order, e.id, (*entry).byID)
	s.order = slices.Insert(s.order, i, e)
	e.deleted = true // until it has its memory
	return nil
}

func (e *entry) byID(id uint64) int { return cmp.Compare(e.id, id) }

// layoutOf is the layout of a CREATE.
func layoutOf(q wire.Create) vmm.Layout {
	l := vmm.Layout{Kind: vmm.ElemKind(q.Elem.Kind), Bits: int(q.Elem.Bits), Size: q.Elem.Size, Hash: q.Elem.Hash, Pitch: q.Pitch}
	for _, n := range q.Shape {
		l.Shape = append(l.Shape, int(n))
	}
	return l
}

// enterEntry gives an object its name and its first lease.
func (s *Server) enterEntry(c serve.Conn, e *entry, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("%w: store", vmm.ErrClosed)
	}
	if name != "" {
		if s.byName[name] != nil {
			return fmt.Errorf("%w: the name %q is taken", vmm.ErrBusy, name)
		}
		s.byName[name] = e
		e.names = append(e.names, name)
	}
	e.deleted = false
	e.lease = c
	s.clientLocked(c).leases[e.id] = e
	s.counts.leases.Add(1)
	s.objects.Listed(e.obj, e.nameLocked())
	return nil
}

// chunk sizes: a fixed object has one chunk if it can, a growable one doubles.
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

// drop ends an object: its memory goes with the last process that has mapped it. Twice is
// fine.
func (s *Server) drop(e *entry) {
	s.mu.Lock()
	again := e.dropped
	if !again {
		s.forgetLocked(e)
	}
	s.mu.Unlock()
	if !again {
		_ = e.obj.Close()
		s.freeMemory(e, math.MaxUint64)
	}
}

// forgetLocked takes an object out of all lists, before its Close. Requires mu.
func (s *Server) forgetLocked(e *entry) {
	invariants.Held(&s.mu)
	e.dropped, e.deleted = true, true
	s.usedLocked(e)
	s.unnameLocked(e)
	delete(s.byID, e.id)
	if i, ok := slices.BinarySearchFunc(s.order, e.id, (*entry).byID); ok {
		s.order = slices.Delete(s.order, i, i+1)
	}
	s.refundLocked(e, e.bytes)
}

// allNamesLocked returns what requests can call an object: its id, too. Requires Server.mu.
func (e *entry) allNamesLocked() []string {
	return append([]string{shareable.IDName(e.id)}, e.names...)
}

// unnameLocked takes all names of an object. Requires mu.
func (s *Server) unnameLocked(e *entry) {
	invariants.Held(&s.mu)
	for _, name := range e.names {
		delete(s.byName, name)
	}
	e.names = nil
}

// delete removes an object and its names.
func (s *Server) delete(c serve.Conn, f wire.Frame) error {
	q, err := wire.DecodeDelete(f.Payload)
	if err != nil {
		return err
	}
	s.mu.Lock()
	e := s.findLocked(q.Name)
	if e == nil {
		err = shareable.ErrNotFound
	} else {
		err = s.mayChange(c, e)
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	name, names := e.nameLocked(), e.allNamesLocked()
	s.unnameLocked(e)
	e.deleted = true
	s.usedLocked(e)
	writer, sealed := e.lease, e.sealed
	s.mu.Unlock()
	s.counts.deleted.Add(1)
	s.emitAs(wire.EventDeleted, e, name, 0)
	if writer != nil {
		s.endLease(e, writer, true)
		gone := wire.Deleted{Object: e.id}.Append(nil)
		s.replies.Go(func() { _ = writer.Reply(wire.TypeDeleted, 0, gone) }) // an error ends the connection
	}
	if !sealed {
		s.refuseWaits(names)
	}
	if q.Force {
		s.forceDelete(c, f.Request, e, s.timeout(q.Timeout))
		return nil
	}
	// Without readers it goes now, else with the last.
	if _, _, _, readers := e.obj.State(); readers == 0 {
		s.drop(e)
	}
	return done(c, f.Request)
}

// forceDelete has readers unmap a deleted object, drops it, and replies. It takes as long as
// readers do, so it does not hold up other requests of the connection, or a handover.
func (s *Server) forceDelete(c serve.Conn, request uint32, e *entry, limit time.Duration) {
	over := make(chan struct{})
	s.mu.Lock()
	s.forced[e] = over
	s.mu.Unlock()
	s.replies.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		e.obj.Retire(ctx)
		s.drop(e)
		_ = done(c, request) // an error ends the connection
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.forced, e)
		close(over)
	})
}

// mayChange is nil if the user at a connection may delete an object, or change its names:
// who made it, the server's user and root.
func (s *Server) mayChange(c serve.Conn, e *entry) error {
	if uid := c.Cred().UID; uid != e.uid && uid != 0 && uid != uint32(os.Getuid()) {
		return fmt.Errorf("%w: user %d has made it", vmm.ErrPermission, e.uid)
	}
	return nil
}

// link adds a name.
func (s *Server) link(c serve.Conn, f wire.Frame) error {
	q, err := wire.DecodeLink(f.Payload)
	if err != nil {
		return err
	}
	s.mu.Lock()
	e := s.findLocked(q.Name)
	switch {
	case e == nil:
		err = shareable.ErrNotFound
	case s.mayChange(c, e) != nil:
		err = s.mayChange(c, e)
	case strings.HasPrefix(q.As, "@"):
		err = fmt.Errorf("%w: %q is the form of an id", vmm.ErrInvalid, q.As)
	case s.byName[q.As] != nil:
		err = fmt.Errorf("%w: the name %q is taken", vmm.ErrBusy, q.As)
	case len(e.names) >= wire.MaxNames:
		err = fmt.Errorf("%w: %d names", vmm.ErrLimit, len(e.names))
	default:
		s.byName[q.As] = e
		e.names = append(e.names, q.As)
		s.objects.Listed(e.obj, e.nameLocked())
	}
	sealed := e != nil && e.sealed
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if sealed {
		s.replyWaits(e, q.As)
	}
	return done(c, f.Request)
}

// unlink removes a name.
func (s *Server) unlink(c serve.Conn, f wire.Frame) error {
	q, err := wire.DecodeUnlink(f.Payload)
	if err != nil {
		return err
	}
	s.mu.Lock()
	e := s.byName[q.Name]
	if e == nil {
		err = shareable.ErrNotFound
	} else if err = s.mayChange(c, e); err == nil {
		delete(s.byName, q.Name)
		// The old slice may be on its way to a client: infoLocked has returned it.
		e.names = slices.DeleteFunc(slices.Clone(e.names), func(n string) bool { return n == q.Name })
		s.objects.Listed(e.obj, e.nameLocked())
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return done(c, f.Request)
}

// query lists objects.
func (s *Server) query(c serve.Conn, f wire.Frame) error {
	q, err := wire.DecodeQuery(f.Payload)
	if err != nil {
		return err
	}
	const maxBytes = 16 << 10 // a client with a small buffer takes that, too
	var found wire.Found
	size := 0
	for after, more := q.After, true; more && !found.More; {
		s.mu.Lock()
		some := s.someAfterLocked(after)
		for _, e := range some {
			after = e.id
			if e.deleted || !e.matchesLocked(q) {
				continue
			}
			info := e.infoLocked()
			if size += info.Size(); size > maxBytes && len(found.Entries) > 0 {
				found.More = true
				break
			}
			found.Entries = append(found.Entries, info)
		}
		s.mu.Unlock()
		more = len(some) == queryStep
	}
	return reply(c, wire.TypeFound, f.Request, found.Append(nil))
}

// queryStep is how many objects QUERY looks at before others get a turn.
const queryStep = 256

// someAfterLocked returns up to queryStep objects with ids above after, by id. They are
// valid as long as mu is held. Requires mu.
func (s *Server) someAfterLocked(after uint64) []*entry {
	invariants.Held(&s.mu)
	i, found := slices.BinarySearchFunc(s.order, after, (*entry).byID)
	if found {
		i++
	}
	return s.order[i:min(len(s.order), i+queryStep)]
}

// matchesLocked reports whether a QUERY asks for the object. Requires Server.mu.
func (e *entry) matchesLocked(q wire.Query) bool {
	named := q.Prefix == "" || slices.ContainsFunc(e.names, func(n string) bool { return strings.HasPrefix(n, q.Prefix) })
	if !named {
		return false
	}
	for _, want := range q.Labels {
		has := slices.ContainsFunc(e.labels, func(l wire.Label) bool {
			return l.Key == want.Key && (want.Value == "" || l.Value == want.Value)
		})
		if !has {
			return false
		}
	}
	return true
}

// infoLocked describes the object. Requires Server.mu.
func (e *entry) infoLocked() wire.Info {
	state, length, capacity, readers := e.obj.State()
	info := wire.Info{
		ID: e.id, State: state, Flags: e.flags, Device: e.device, Readers: uint32(readers),
		Length: length, Capacity: capacity, Max: e.max, Names: e.names, Labels: e.labels,
	}
	if e.lease != nil {
		info.Flags |= wire.StoreLeased
	}
	return info
}
