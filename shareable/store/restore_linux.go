package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/shareable/internal/ledger"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// entryState is an entry in what the keeper has.
type entryState struct {
	ID, Max            uint64
	Has                []uint64 // of the ledger's kinds
	UID, Flags, Device uint32
	Created            int64
	Prop               vmm.Prop
	Labels             []wire.Label
	Names              []string
	Lease              string // clientToken of who has it
	PID                int32  // of that, or of who had it, if Fenced; 0: it has none here
	Began              uint64 // when that process has
	Started            bool
	Fenced, Sealed     bool
}

// stateLocked is an entry for the keeper. Requires mu.
func (s *Server) stateLocked(e *entry) entryState {
	st := entryState{
		ID: e.id, Max: e.max, Has: slices.Clone(e.has[:]), UID: e.uid, Flags: e.flags.Load(), Device: e.device, Created: e.created, Prop: e.prop,
		Labels: e.labels, Names: e.names, Started: e.started, Fenced: e.fenced != nil, Sealed: e.sealed,
	}
	if x := s.clients[e.lease]; x != nil && e.mapped { // else the client asks for it anew
		st.Lease, st.PID, st.Began = x.token, e.lease.Cred().PID, x.began
	} else if e.fenced != nil {
		st.PID, st.Began = e.fenced.pid, e.fenced.began
	}
	return st
}

// isRestorable reports whether a server that begins continues with an object.
func (st *entryState) isRestorable() bool {
	return st.Sealed || st.Started && (st.Flags&wire.StoreDurable != 0 || st.Lease != "")
}

// checkKept returns an error if what a keeper has is of another device, or of a newer program.
func checkKept(dev *vmm.Device, k *keptObjects) error {
	if k.server == nil {
		return nil
	}
	var text serverText
	if err := json.Unmarshal(k.server, &text); err != nil {
		return protocolError(err)
	}
	if text.Version > textVersion {
		return fmt.Errorf("%w: a newer program has written what there is, in version %d and not %d", vmm.ErrNotSupported, text.Version, textVersion)
	}
	// Objects of another device, or of other sizes of pages, could not be mapped.
	h := text.Hello
	gran, err := granularity(dev)
	if err == nil && (dev.Info().UUID != h.UUID || gran != h.Granularity) {
		err = fmt.Errorf("%w: the store has memory of device %x in multiples of %d bytes, this process of %x in %d",
			vmm.ErrNotSupported, h.UUID, h.Granularity, dev.Info().UUID, gran)
	}
	return err
}

// restore makes a server of what a keeper has, and takes the descriptors. It returns the ids of the
// objects that have not come back: they have ended with their connections.
func restore(dev *vmm.Device, o Options, k *keptObjects) (s *Server, ids uint64, gone []uint64, err error) {
	defer k.close() // what is left
	var text serverText
	if err := json.Unmarshal(k.server, &text); err != nil {
		return nil, 0, nil, protocolError(err)
	}
	var entries []entryState
	var objects []serve.Recorded
	states := k.states()
	for _, id := range slices.Sorted(maps.Keys(k.objects)) {
		e, kept := states[id], k.objects[id]
		if e == nil {
			gone = append(gone, id)
			continue
		}
		_, state, _ := bytes.Cut(kept.text, []byte{'\n'})
		rec := serve.Recorded{State: state, Chunks: kept.fds, Page: -1}
		if fd, has := kept.fds[pageKey]; has {
			rec.Page = fd
			delete(kept.fds, pageKey)
			e.Fenced = e.Fenced || e.Lease == "" // its writer may run on, and cannot come back
		}
		objects, entries = append(objects, rec), append(entries, *e)
		delete(k.objects, id)
	}
	if s, err = bareServer(dev, o); err != nil {
		return nil, 0, nil, err
	}
	var all []serve.Object
	if s.conns, s.objects, all, err = sharing.Restore(dev, o.server(), handler{s}, text.Hello.Instance, text.IDs, objects); err != nil {
		return nil, 0, nil, err
	}
	s.connected()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, st := range entries {
		if all[i] == nil {
			gone = append(gone, st.ID)
			continue
		}
		s.restoreEntryLocked(all[i], st)
	}
	s.evictFrom = time.Now().Add(readersTime)
	return s, text.IDs, gone, nil
}

// states are those of the objects that a server that begins continues with. A name is that of the
// object that got it last; one that has lost all of its names has gone.
func (k *keptObjects) states() map[uint64]*entryState {
	all := map[uint64]*entryState{}
	last := map[string]uint64{}
	for id, kept := range k.objects {
		var e entryState
		head, _, _ := bytes.Cut(kept.text, []byte{'\n'})
		if json.Unmarshal(head, &e) != nil || !e.isRestorable() { // the first: its first reply was not sent
			continue
		}
		all[id] = &e
		for _, name := range e.Names {
			last[name] = max(last[name], id)
		}
	}
	for id, e := range all {
		had := len(e.Names)
		e.Names = slices.DeleteFunc(e.Names, func(n string) bool { return last[n] != id })
		if had > 0 && len(e.Names) == 0 {
			delete(all, id)
		}
	}
	return all
}

// readersTime is how long nothing is evicted after a server has begun, for readers to come back.
const readersTime = time.Second

// restoreEntryLocked makes an entry of its state. Requires mu.
func (s *Server) restoreEntryLocked(obj serve.Object, st entryState) {
	e := &entry{
		obj: obj, id: st.ID, uid: st.UID, device: st.Device, created: st.Created, prop: st.Prop, max: st.Max, labels: st.Labels,
		started: st.Started, sealed: st.Sealed,
	}
	if st.Fenced {
		e.fenced = &process{st.PID, st.Began}
	}
	e.flags.Store(st.Flags)

	s.addLocked(e)
	_, _, e.inherited, _ = obj.State()
	s.inherited += e.inherited
	s.countLocked()
	copy(e.has[:], st.Has)
	for _, name := range st.Names {
		s.byName[name] = e
		e.names = append(e.names, name)
	}
	if e.sealed { // as seal has it
		n, _ := obj.Chunks()
		_, _, capacity, _ := obj.State()
		e.has[ledger.Bytes], e.has[ledger.Descriptors] = capacity, s.descriptorsOf(uint64(n))
	}
	s.ledger.Add(e.uid, e.has)
	s.usedLocked(e) // when it was used last is not known
	switch {
	case st.Lease != "":
		e.mapped = true
		s.awaitLocked(e, st)
	case !e.sealed:
		e.obj.EndLease() // its writer may run on, and publishes nothing any more
	}
}

// awaited has the leases of a client that is to come back.
type awaited struct {
	cred  wire.Cred
	began uint64
}

var _ serve.Conn = (*awaited)(nil)

func (a *awaited) Cred() wire.Cred                               { return a.cred }
func (a *awaited) Reply(wire.Type, uint32, []byte, ...int) error { return nil }
func (a *awaited) Refuse(uint32, error) error                    { return nil }
func (a *awaited) Close(error)                                   {}

// PeerPIDFD is of the process that had the leases, and of no other that has its number now.
func (a *awaited) PeerPIDFD() (int, error) { return processes.PIDFD(int(a.cred.PID), a.began) }

// awaitLocked has the lease of an object wait for a client. Requires mu.
func (s *Server) awaitLocked(e *entry, st entryState) {
	a := s.awaited[st.Lease]
	if a == nil {
		a = &awaited{wire.Cred{UID: e.uid, PID: st.PID}, st.Began}
		s.awaited[st.Lease] = a
		x := s.clientLocked(a)
		x.token, x.began = st.Lease, st.Began
		s.tokens[st.Lease]++
	}
	e.lease, e.beatSeen = a, s.looks
	s.clientLocked(a).leases[e.id] = e
}

// returnTime is how long leases stand still for clients that are to come back. It is a variable for
// tests.
var returnTime = 10 * time.Second

// endAwaited ends the leases of clients that have not come back: at once where the process has
// ended.
func (s *Server) endAwaited() {
	t := time.NewTicker(awaitedPause)
	defer t.Stop()
	for range returnTime / awaitedPause { // looks, as watchLeases has it
		s.endExited()
		select {
		case <-t.C:
		case <-s.stop:
			return
		}
	}
	s.mu.Lock()
	late := s.awaited
	s.awaited = nil
	s.mu.Unlock()
	for _, a := range late {
		handler{s}.End(a)
	}
	s.clientsGone(s.absentClients()...)
}

// awaitedPause is between two looks at whether processes have ended that are to come back.
const awaitedPause = 50 * time.Millisecond

// endExited ends the leases of clients whose processes have ended.
func (s *Server) endExited() {
	s.mu.Lock()
	all := maps.Clone(s.awaited)
	s.mu.Unlock()
	for token, a := range all {
		if a.cred.PID == 0 || !hasExited(a.PeerPIDFD) {
			continue
		}
		s.mu.Lock()
		_, awaits := s.awaited[token]
		delete(s.awaited, token)
		s.mu.Unlock()
		if awaits {
			handler{s}.End(a)
		}
	}
}

// clientToken is a client's token as servers and the keeper have it: it is of no use to another
// user.
func clientToken(t [16]byte, uid uint32) string { return fmt.Sprintf("%x:%d", t, uid) }

// resume handles RESUME: what a client of a server before this one had is the connection's.
func (s *Server) resume(c serve.Conn, f wire.Frame, q wire.Resume) error {
	token := clientToken(q.Token, c.Cred().UID)
	began := processes.StartOf(int(c.Cred().PID))
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.clientLocked(c)
	if x.token != "" {
		return &wire.ProtocolError{What: "a second RESUME"}
	}
	x.token, x.began = token, began
	s.tokens[token]++
	a := s.awaited[token]
	if a == nil {
		return nil
	}
	for id, e := range s.clients[a].leases {
		e.lease, e.beatSeen, x.leases[id] = c, s.looks, e
	}
	delete(s.clients, a)
	delete(s.awaited, token)
	s.tokens[token]--
	return nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		closeFD(fd)
	}
}
