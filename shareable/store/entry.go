package store

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/ledger"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// entry is an object as the store knows it.
type entry struct {
	// Immutable.
	obj     serve.Object
	id      uint64
	uid     uint32 // who made it
	created int64  // Unix time in ns
	device  uint32
	prop    vmm.Prop
	max     uint64 // bytes of memory at most
	labels  []wire.Label

	flags atomic.Uint32 // those of CREATE; Revoke makes an object durable

	// Guarded by Server.mu.
	names     []string
	lease     serve.Conn // the client that may write; nil: none
	waiting   []wait     // for the lease
	mapped    bool       // its writer has said so
	beat      uint64     // the last sign of life of the writer that was looked at
	beatSeen  uint64     // the look of Server.looks at which that has changed, or the lease was given
	fenced    *process   // may write to the memory without a lease, until it ends: see fence.go; nil: none
	started   bool       // a writer has mapped its page once
	sealed    bool
	deleted   bool // it has no name any more, and goes with its last reader
	dropped   bool
	was       string         // its name when it was evicted
	has       ledger.Amounts // of what users can have, counted for uid
	memory    []*vmm.Chunk   // all of it, unless a server before this one has created it; see createMemory
	inherited uint64         // bytes that a server before this one has created
	unused    *list.Element  // of Server.unused; nil: not in it
}

func (e *entry) durable() bool  { return e.flags.Load()&wire.StoreDurable != 0 }
func (e *entry) growable() bool { return e.flags.Load()&wire.StoreGrowable != 0 }

// nameLocked is what the object is called: a name of its own, or its id. Requires Server.mu.
func (e *entry) nameLocked() string {
	if len(e.names) > 0 {
		return e.names[0]
	}
	return wire.IDName(e.id)
}

// maxObject is the largest object, so that no sum of sizes overflows.
const maxObject = 1 << 46

// create makes an object and leases it.
func (s *Server) create(c serve.Conn, f wire.Frame, q wire.Create) error {
	e, err := s.newEntry(c, q)
	if err != nil {
		return err
	}
	// Memory comes before the name: a client that finds the object finds all of it.
	if !e.growable() {
		err = s.fill(e, e.max, s.createAll)
	}
	if err == nil {
		err = s.enterEntry(c, e, q.Name)
	}
	if err == nil {
		err = s.record(e, requestID{})
	}
	if err != nil {
		s.drop(e)
		return err
	}
	s.counts.created.Add(1)
	s.emit(wire.EventCreated, e, 0)
	if err := s.sendLease(c, f.Request, e); err != nil {
		s.endLease(e, c, leaseEnd{abort: true})
		return err
	}
	s.replyWaits(e, q.Name)
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
		uid: c.Cred().UID, device: q.Device, created: time.Now().UnixNano(), prop: deviceProp(s.dev), labels: q.Labels,
		max: s.roundUp(size),
	}
	e.flags.Store(q.Flags)

	if q.Flags&wire.StoreHost != 0 {
		e.prop.Location = vmm.Location{Kind: driver.LocationHostNUMA, ID: int(min(q.Device, math.MaxInt32))}
		if err := s.dev.Supports(vmm.FeatureHostNUMA); err != nil {
			return nil, err
		}
	}
	e.obj = s.objects.NewObject(serve.Spec{Max: e.max, Layout: layoutOf(q), Meta: q.Meta})
	e.id = e.obj.ID()
	has := recordsOf(q)
	if !e.growable() {
		has = has.Plus(s.chunksOf(e.max))
	}
	err := s.reserve(e, has)
	if err == nil {
		err = s.listEntry(e)
	}
	if err != nil {
		_ = e.obj.Close()
		return nil, err
	}
	return e, nil
}

// What counts of an object beside its memory: bytes of the server's own memory for it, and for each
// of its names and labels; and until it is sealed the descriptors of its pages.
const (
	recordOfObject = 1 << 10
	recordOfName   = 256
	pagesOfObject  = 2
)

// recordsOf is what an object counts beside its memory, without its names.
func recordsOf(q wire.Create) ledger.Amounts {
	n := recordOfObject + len(q.Meta) + len(q.Elem.Dtype) + 8*len(q.Shape)
	for _, l := range q.Labels {
		n += recordOfName + len(l.Key) + len(l.Value)
	}
	return ledger.Amounts{ledger.Objects: 1, ledger.Descriptors: pagesOfObject, ledger.Records: uint64(n)}
}

// recordsOfName is what a name counts, also one that a request waits for.
func recordsOfName(name string) ledger.Amounts {
	return ledger.Amounts{ledger.Records: recordOfName + uint64(len(name))}
}

// listEntry lists an object that no client finds yet. What it is to have is reserved, and is not if
// this fails.
func (s *Server) listEntry(e *entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.refundLocked(e, e.has)
		return fmt.Errorf("%w: store", vmm.ErrClosed)
	}
	s.addLocked(e)
	e.deleted = true // until it has its memory
	return nil
}

// addLocked adds an object to those that ids find. Requires mu.
func (s *Server) addLocked(e *entry) {
	invariants.Held(&s.mu)
	s.byID[e.id] = e
	i, _ := slices.BinarySearchFunc(s.order, e.id, (*entry).byID)
	s.order = slices.Insert(s.order, i, e)
}

func (e *entry) byID(id uint64) int { return cmp.Compare(e.id, id) }

// layoutOf is the layout of a CREATE.
func layoutOf(q wire.Create) vmm.Layout {
	l := vmm.Layout{Kind: vmm.ElemKind(q.Elem.Kind), Bits: int(q.Elem.Bits), Size: q.Elem.Size, Hash: q.Elem.Hash, Dtype: q.Elem.Dtype, Pitch: q.Pitch}
	for _, n := range q.Shape {
		l.Shape = append(l.Shape, int(n))
	}
	return l
}

// enterEntry gives an object its name and its first lease.
func (s *Server) enterEntry(c serve.Conn, e *entry, name string) error {
	defer s.closeEvicted()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("%w: store", vmm.ErrClosed)
	}
	if name != "" {
		if err := s.addNameLocked(e, name); err != nil {
			return err
		}
	}
	e.deleted = false
	s.leaseLocked(e, c)
	s.objects.Listed(e.obj, e.nameLocked())
	return nil
}

// addNameLocked gives an object another name. The caller has it listed anew, and calls closeEvicted
// without the lock. Requires mu.
func (s *Server) addNameLocked(e *entry, name string) error {
	invariants.Held(&s.mu)
	switch {
	case s.byName[name] != nil:
		return fmt.Errorf("%w: the name %q is taken", vmm.ErrBusy, name)
	case len(e.names) >= wire.MaxNames:
		return fmt.Errorf("%w: %d names", vmm.ErrLimit, len(e.names))
	}
	if err := s.reserveLocked(e, recordsOfName(name)); err != nil {
		return err
	}
	s.byName[name] = e
	e.names = append(e.names, name)
	return nil
}

// drop ends an object: its memory goes with the last process that has mapped it. Twice is
// fine.
func (s *Server) drop(e *entry) {
	s.mu.Lock()
	wasDropped := e.dropped
	if !wasDropped {
		s.forgetLocked(e)
	}
	s.mu.Unlock()
	if !wasDropped {
		_ = s.forget(e, requestID{}) // without a keeper the process ends
		_ = e.obj.Close()
		s.freeMemory(e, 0)
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
	s.refundLocked(e, e.has)
}

// allNamesLocked returns what requests can call an object: its id, too. Requires Server.mu.
func (e *entry) allNamesLocked() []string {
	return append([]string{wire.IDName(e.id)}, e.names...)
}

// unnameLocked takes all names of an object. Requires mu.
func (s *Server) unnameLocked(e *entry) {
	invariants.Held(&s.mu)
	for _, name := range e.names {
		delete(s.byName, name)
		s.refundLocked(e, recordsOfName(name))
	}
	e.names = nil
}

// delete removes an object and its names.
func (s *Server) delete(c serve.Conn, f wire.Frame, q wire.Delete) error {
	by := s.requestOf(c, f)
	if q.Force && by.client != "" { // others of the connection may be done meanwhile
		by.client += forcedSuffix
	}
	if s.isDone(by) {
		return done(c, f.Request)
	}
	s.mu.Lock()
	e := s.findLocked(q.Name)
	err := s.mayChange(c, e)
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
	if !q.Force { // else it is not promised before readers have unmapped it
		err = s.forget(e, by)
	}
	s.counts.deleted.Add(1)
	s.emitAs(wire.EventDeleted, e, name, 0)
	if writer != nil {
		s.dropLease(e, writer)
		gone := wire.Deleted{Object: e.id}.Append(nil)
		go func() { _ = writer.Reply(wire.TypeDeleted, 0, gone) }() // an error ends the connection
	}
	if !sealed {
		s.refuseWaits(names)
	}
	if q.Force {
		s.forceDelete(c, f.Request, by, e, s.forceLimit(q.Timeout))
		return nil
	}
	// Without readers it goes now, else with the last.
	if _, _, _, readers := e.obj.State(); readers == 0 || !sealed { // what is not sealed has no one who would go on
		s.drop(e)
	}
	if err != nil {
		return err
	}
	return done(c, f.Request)
}

// maxForce is the longest that a forced Delete waits for readers.
const maxForce = time.Minute

// forceLimit is how long a forced Delete waits for readers if the client asks for so many
// milliseconds; 0 is the server's time limit.
func (s *Server) forceLimit(ms uint32) time.Duration {
	if ms == 0 {
		return s.opts.Timeout
	}
	return min(time.Duration(ms)*time.Millisecond, maxForce)
}

// forceDelete has readers unmap a deleted object, drops it, and replies. It takes as long as
// readers do, so it does not hold up other requests of the connection.
func (s *Server) forceDelete(c serve.Conn, number uint32, by requestID, e *entry, limit time.Duration) {
	s.mu.Lock()
	s.forced++
	s.mu.Unlock()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		e.obj.Retire(ctx)
		err := s.forget(e, by)
		s.drop(e)
		if err == nil {
			_ = done(c, number) // an error ends the connection
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forced--
	}()
}

// mayChange is nil if the user at a connection may delete an object, or change its names:
// who made it, the server's user and root. Without an object it is ErrNotFound.
func (s *Server) mayChange(c serve.Conn, e *entry) error {
	if e == nil {
		return shareable.ErrNotFound
	}
	if uid := c.Cred().UID; uid != e.uid && uid != 0 && !wire.IsOwn(uid) {
		return fmt.Errorf("%w: user %d has made it", vmm.ErrPermission, e.uid)
	}
	return nil
}

// link adds a name.
func (s *Server) link(c serve.Conn, f wire.Frame, q wire.Link) error {
	e, err := s.addName(c, q)
	if err == nil {
		err = s.record(e, s.requestOf(c, f))
	}
	if err != nil {
		return err
	}
	s.replyWaits(e, q.As)
	return done(c, f.Request)
}

// addName does what LINK requests.
func (s *Server) addName(c serve.Conn, q wire.Link) (e *entry, err error) {
	defer s.closeEvicted()
	s.mu.Lock()
	defer s.mu.Unlock()
	e = s.findLocked(q.Name)
	if err := s.mayChange(c, e); err != nil {
		return nil, err
	}
	if strings.HasPrefix(q.As, "@") {
		return nil, fmt.Errorf("%w: %q is the form of an id", vmm.ErrInvalid, q.As)
	}
	if err := s.addNameLocked(e, q.As); err != nil {
		return nil, err
	}
	s.objects.Listed(e.obj, e.nameLocked())
	return e, nil
}

// unlink removes a name.
func (s *Server) unlink(c serve.Conn, f wire.Frame, q wire.Unlink) error {
	s.mu.Lock()
	e := s.byName[q.Name]
	err := s.mayChange(c, e)
	if err == nil {
		delete(s.byName, q.Name)
		s.refundLocked(e, recordsOfName(q.Name))
		// The old slice may be on its way to a client: infoLocked has returned it.
		e.names = slices.DeleteFunc(slices.Clone(e.names), func(n string) bool { return n == q.Name })
		s.objects.Listed(e.obj, e.nameLocked())
	}
	s.mu.Unlock()
	if err == nil {
		err = s.record(e, s.requestOf(c, f))
	}
	if err != nil {
		return err
	}
	return done(c, f.Request)
}
