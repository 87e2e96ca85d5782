package store

import (
	"cmp"
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
	lease   serve.Conn // who may write; nil: nobody
	waiting []wait     // for the lease
	sealed  bool
	deleted bool // it has no name any more, and goes with its last reader
	dropped bool
	bytes   uint64 // of memory
	used    uint64 // Server.clock at the last use
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

// listEntry lists an object that nobody finds yet.
func (s *Server) listEntry(e *entry) error {
	defer s.closeEvicted()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("%w: store", vmm.ErrClosed)
	case len(s.order) >= s.opts.MaxObjects:
		if err := s.evictLocked(func() bool { return len(s.order) < s.opts.MaxObjects }); err != nil {
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
	s.clock++
	e.used = s.clock
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
	for {
		_, _, have, _ := e.obj.State()
		if have >= n {
			return nil
		}
		size := min(n-have, maxChunk)
		if e.growable() {
			size = min(max(size, min(have, maxGrowChunk)), e.max-have)
		}
		size = (size + s.gran - 1) / s.gran * s.gran
		if err := s.addChunk(e, size); err != nil {
			return err
		}
	}
}

// addChunk creates one chunk. Memory counts before it is there.
func (s *Server) addChunk(e *entry, size uint64) error {
	if err := s.charge(e, size); err != nil {
		return err
	}
	fd, err := s.createMemory(e.prop, size)
	for errors.Is(err, vmm.ErrOutOfMemory) && s.evictFor(size) {
		fd, err = s.createMemory(e.prop, size)
	}
	if err == nil {
		err = e.obj.AddChunk(size, fd)
	}
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refundLocked(e, size)
	}
	return err
}

// createMemory creates memory and keeps a descriptor of it alone: an imported handle cannot
// be exported again, so after a change of servers there is nothing else.
func (s *Server) createMemory(p vmm.Prop, size uint64) (fd int, err error) {
	chunk, err := s.dev.Create(size, p)
	if err != nil {
		return -1, err
	}
	fd, err = chunk.Export()
	if closed := chunk.Close(); err == nil && closed != nil {
		closeFD(fd)
		fd, err = -1, closed
	}
	return fd, err
}

// charge counts memory for its user.
func (s *Server) charge(e *entry, n uint64) error {
	defer s.closeEvicted()
	s.mu.Lock()
	defer s.mu.Unlock()
	fits := func() bool {
		return n <= s.opts.MaxBytes-min(s.bytes, s.opts.MaxBytes) && n <= s.opts.MaxBytesPerUID-min(s.bytesOf[e.uid], s.opts.MaxBytesPerUID)
	}
	if !fits() {
		if err := s.evictLocked(fits); err != nil {
			return fmt.Errorf("%w: %d bytes more than %d, %d of user %d", vmm.ErrLimit, n, s.bytes, s.bytesOf[e.uid], e.uid)
		}
	}
	s.bytes += n
	s.bytesOf[e.uid] += n
	e.bytes += n
	return nil
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
	}
}

// forgetLocked takes an object out of all lists, before its Close. Requires mu.
func (s *Server) forgetLocked(e *entry) {
	invariants.Held(&s.mu)
	e.dropped, e.deleted = true, true
	s.unnameLocked(e)
	delete(s.byID, e.id)
	if i, ok := slices.BinarySearchFunc(s.order, e.id, (*entry).byID); ok {
		s.order = slices.Delete(s.order, i, i+1)
	}
	s.refundLocked(e, e.bytes)
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
	name := e.nameLocked()
	s.unnameLocked(e)
	e.deleted = true
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
		s.refuseWaits(e, name)
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

// forcedDelete is closed when a forced delete that runs now is over; nil: none runs.
func (s *Server) forcedDelete() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, over := range s.forced {
		return over
	}
	return nil
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
		e.names = slices.DeleteFunc(e.names, func(n string) bool { return n == q.Name })
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
	s.mu.Lock()
	i, ok := slices.BinarySearchFunc(s.order, q.After, (*entry).byID)
	if ok {
		i++
	}
	for _, e := range s.order[i:] {
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
	return reply(c, wire.TypeFound, f.Request, found.Append(nil))
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
