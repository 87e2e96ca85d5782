package store

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// recorder tells the keeper what there is.
type recorder struct {
	mu    sync.Mutex // before Server.mu, and held while something is sent: so that what is sent last is the newest
	conn  *net.UnixConn
	known map[uint64]uint64   // the last chunk that the keeper has, by object
	done  map[string]uint32   // the last request that was done, by clientToken
	gone  map[string][]string // clients of done that have gone, by user, the first ones first
	ids   uint64              // no object has had a higher id, as the keeper knows
	over  atomic.Bool         // what ends from here on ends in this process alone
}

// idsAtOnce is how many ids are said to have been used before they are.
const idsAtOnce = 1000

// stop ends what is told: what ends with this process is there for the next one.
func (r *recorder) stop() {
	if r != nil {
		r.over.Store(true)
	}
}

// serverText is the text of a server.
type serverText struct {
	Version int // of all texts
	Hello   wire.Hello
	IDs     uint64
}

// textVersion is that of the texts that this program writes. It can read those of lower ones.
const textVersion = 1

// startRecording has the server tell the keeper from here on. What is kept the keeper has.
func (s *Server) startRecording(conn *net.UnixConn, k *keptObjects, ids uint64) {
	r := &recorder{conn: conn, known: map[uint64]uint64{}, done: map[string]uint32{}, gone: map[string][]string{}, ids: ids}
	maps.Copy(r.done, k.clients)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.order {
		_, r.known[e.id] = e.obj.Chunks()
	}
	s.recorder = r
}

// record tells the keeper an object's state. by is the request that has caused it. No reply may be
// sent before record returns, and readers get the object's memory then.
func (s *Server) record(e *entry, by requestID) error {
	_, last := e.obj.Chunks()
	if r := s.recorder; r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if err := s.tell(r, e, by, nil); err != nil {
			return err
		}
	}
	e.obj.Show(last)
	return nil
}

// recordSeal tells the keeper of an object that is about to be sealed, and then calls apply:
// nothing else is told of it between, and no reader sees it sealed before.
func (s *Server) recordSeal(e *entry, by requestID, seal serve.Seal, apply func(serve.Seal) error) error {
	r := s.recorder
	if r == nil {
		return apply(seal)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := s.tell(r, e, by, &seal); err != nil {
		return err
	}
	seal.Told = true
	return apply(seal)
}

// tell tells the keeper of an object, with seal as it is about to be. Requires r.mu.
func (s *Server) tell(r *recorder, e *entry, by requestID, seal *serve.Seal) error {
	if err := s.recordID(r, e.id); err != nil {
		return err
	}
	s.mu.Lock()
	gone := e.dropped || e.deleted
	st, name := s.stateLocked(e), e.nameLocked()
	s.mu.Unlock()
	switch {
	case r.over.Load(): // the next server does not know of it
		return fmt.Errorf("%w: store", vmm.ErrClosed)
	case gone: // forget has come before, or comes next
		return nil
	}
	if seal != nil {
		st.Sealed, st.Lease = true, ""
	}
	o, release, err := e.obj.Record(r.known[e.id], name, seal)
	if err != nil {
		return err
	}
	defer release()
	text, err := json.Marshal(st)
	if err != nil {
		return err
	}
	m := keptMessage{ID: e.id, Keys: slices.Clone(o.Chunks), Last: o.Last, Text: append(append(text, '\n'), o.State...)}
	m.Client, m.Request = by.client, by.number
	if o.Page {
		m.Keys = append(m.Keys, pageKey)
	}
	s.step()
	if err := writeObject(r.conn, m, o.FDs); err != nil {
		return err
	}
	s.step()
	r.known[e.id] = o.Seen
	r.didLocked(by)
	return nil
}

// didLocked remembers that a request was done. Requires mu.
func (r *recorder) didLocked(by requestID) {
	if by.client != "" {
		r.done[by.client] = max(r.done[by.client], by.number)
	}
}

// recordID tells the keeper that an id is used. Requires r.mu.
func (s *Server) recordID(r *recorder, id uint64) error {
	if id <= r.ids {
		return nil
	}
	gran, err := granularity(s.dev)
	if err != nil {
		return err
	}
	h := wire.Hello{Instance: s.conns.Instance(), UUID: s.dev.Info().UUID, Granularity: gran}
	text, err := json.Marshal(serverText{textVersion, h, id + idsAtOnce})
	if err == nil {
		err = writeKept(r.conn, keptMessage{Op: opServer, Text: text})
	}
	if err == nil {
		r.ids = id + idsAtOnce
	}
	return err
}

// recordFirst tells the keeper of the server before it has any object.
func (s *Server) recordFirst() error {
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	return s.recordID(s.recorder, 1)
}

// keepMember has the keeper keep what a server after this one has to know of a member of a budget, or forget it.
func (r *recorder) keepMember(token string, record []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over.Load() {
		return fmt.Errorf("%w: store", vmm.ErrClosed)
	}
	return writeKept(r.conn, keptMessage{Op: opMember, Member: token, Text: record})
}

// forget tells the keeper that an object is gone, as a request has it.
func (s *Server) forget(e *entry, by requestID) error {
	r := s.recorder
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over.Load() {
		return fmt.Errorf("%w: store", vmm.ErrClosed)
	}
	if _, known := r.known[e.id]; !known {
		return nil
	}
	delete(r.known, e.id)
	m := keptMessage{Op: opForget, ID: e.id, Client: by.client, Request: by.number}
	s.step()
	if err := writeKept(r.conn, m); err != nil {
		return err
	}
	s.step()
	r.didLocked(by)
	return nil
}

// isDone reports whether a server before this one has done a request, and could not say so.
func (s *Server) isDone(by requestID) bool {
	r := s.recorder
	if r == nil || by.client == "" || s.opts.hooks.forget {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return by.number <= r.done[by.client]
}

// clientsKept is how many clients of a user that have gone are remembered: one may come back that
// was cut off.
const clientsKept = 1000

// clientsGone has clients forgotten, later: those that have no connection.
func (s *Server) clientsGone(clients ...string) {
	r := s.recorder
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range clients {
		_, user, _ := strings.Cut(c, ":")
		for _, c := range []string{c, c + forcedSuffix} {
			if _, known := r.done[c]; known && !slices.Contains(r.gone[user], c) {
				r.gone[user] = append(r.gone[user], c)
			}
		}
		for len(r.gone[user]) > clientsKept {
			first := r.gone[user][0]
			r.gone[user] = r.gone[user][1:]
			if s.isConnected(strings.TrimSuffix(first, forcedSuffix)) { // it has come back
				continue
			}
			delete(r.done, first)
			_ = writeKept(r.conn, keptMessage{Op: opClient, Client: first})
		}
	}
}

// absentClients are those that an earlier server knew and that have not come back.
func (s *Server) absentClients() (all []string) {
	if s.recorder == nil {
		return nil
	}
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	for c := range s.recorder.done {
		if c = strings.TrimSuffix(c, forcedSuffix); !s.isConnected(c) {
			all = append(all, c)
		}
	}
	return all
}

// isConnected reports whether a client has a connection.
func (s *Server) isConnected(client string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens[client] > 0
}
