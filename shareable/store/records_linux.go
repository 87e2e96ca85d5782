package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// What a reply promises is with the keeper before: for each object a text that only servers understand, and
// the descriptors of its chunks and of its writer's page; for each client the last request that was done. A server
// that begins gets all of that, and goes on with the objects that are sealed, with what was published of those that
// are durable, and with those whose writers come back.

// keptMessage is what a keeper and its server tell each other.
type keptMessage struct {
	Op      string   // one of those below
	ID      uint64   `json:",omitempty"` // of the object
	Keys    []uint64 `json:",omitempty"` // of the descriptors that come with it: ids of chunks, or pageKey
	Last    uint64   `json:",omitempty"` // descriptors of higher keys are given up
	Client  string   `json:",omitempty"` // whose request it is; see clientToken
	Request uint32   `json:",omitempty"` // the number of that; 0: what is known of the client is of no use any more
	Count   uint64   `json:",omitempty"` // how many servers there were before
	Text    []byte   `json:"-"`          // of the object, or of the server; it follows the rest after a line feed
}

const (
	opBegin   = "begin"   // the server wants all that there is; the keeper: that was all, and what changes comes next
	opReady   = "ready"   // the server can go on with that
	opGo      = "go"      // it is to: the one before has ended
	opServing = "serving" // it does
	opServer  = "server"  // the text of the server; both ways
	opPut     = "put"     // an object, or some of its descriptors; both ways
	opForget  = "forget"  // an object is gone; both ways
	opClient  = "client"  // what is known of a client; both ways
)

// pageKey is the key of the page that a writer has.
const pageKey = 0

// The most of one message.
const (
	maxKeptFDs  = 200
	maxKeptText = 190 << 10 // below what the kernel takes at once
)

// writeKept sends a message. It does not take the descriptors.
func writeKept(conn *net.UnixConn, m keptMessage, fds ...int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if m.Text != nil {
		b = append(append(b, '\n'), m.Text...)
	}
	if len(b) > maxKeptText {
		return fmt.Errorf("%w: %d bytes to keep of an object", vmm.ErrLimit, len(b))
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err = conn.WriteMsgUnix(b, rights, nil); err != nil {
		return fmt.Errorf("tell the keeper: %w", err)
	}
	return nil
}

// keptReader reads messages.
type keptReader struct {
	conn *net.UnixConn
	b    []byte
	oob  []byte
}

func newKeptReader(conn *net.UnixConn) *keptReader {
	return &keptReader{conn: conn, b: make([]byte, maxKeptText+1), oob: make([]byte, unix.CmsgSpace(4*maxKeptFDs))}
}

// next returns the next message. The caller closes the descriptors.
func (r *keptReader) next() (m keptMessage, fds []int, err error) {
	n, oobn, flags, _, err := r.conn.ReadMsgUnix(r.b, r.oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return m, nil, err
	}
	all, err := unix.ParseSocketControlMessage(r.oob[:oobn])
	for _, c := range all {
		if got, rightsErr := unix.ParseUnixRights(&c); rightsErr == nil {
			fds = append(fds, got...)
		}
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("%w: a message that was cut: no descriptor is free, or it is too long", vmm.ErrLimit)
	}
	if err == nil {
		head, text, has := bytes.Cut(r.b[:n], []byte{'\n'})
		if err = json.Unmarshal(head, &m); has {
			m.Text = bytes.Clone(text)
		}
	}
	if err == nil && m.Op == opPut && len(fds) != len(m.Keys) {
		err = fmt.Errorf("%w: %d descriptors for %d keys", shareable.ErrProtocol, len(fds), len(m.Keys))
	}
	if err != nil {
		closeFDs(fds)
		return m, nil, err
	}
	return m, fds, nil
}

// keptObject is what is kept of an object.
type keptObject struct {
	text []byte
	fds  map[uint64]int
}

// keptObjects is all that is kept. It needs a lock where two goroutines use it.
type keptObjects struct {
	server  []byte
	objects map[uint64]*keptObject
	clients map[string]uint32 // the number of the last request that was done, by clientToken
}

// apply does what a message says, and takes its descriptors.
func (k *keptObjects) apply(m keptMessage, fds []int) {
	switch m.Op {
	case opPut:
		k.put(m, fds)
		fds = nil
	case opForget:
		k.forget(m.ID)
	case opServer:
		k.server = m.Text
	}
	closeFDs(fds)
	switch {
	case m.Client == "":
	case m.Request == 0:
		delete(k.clients, m.Client)
	default:
		if k.clients == nil {
			k.clients = map[string]uint32{}
		}
		k.clients[m.Client] = m.Request
	}
}

// put takes the descriptors of a message.
func (k *keptObjects) put(m keptMessage, fds []int) {
	o := k.objects[m.ID]
	if o == nil {
		if k.objects == nil {
			k.objects = map[uint64]*keptObject{}
		}
		o = &keptObject{fds: map[uint64]int{}}
		k.objects[m.ID] = o
	}
	for i, key := range m.Keys {
		if old, has := o.fds[key]; has {
			closeFD(old)
		}
		o.fds[key] = fds[i]
	}
	if m.Text == nil { // more comes
		return
	}
	o.text = m.Text
	for key, fd := range o.fds {
		if key > m.Last || key == pageKey && !slices.Contains(m.Keys, pageKey) {
			closeFD(fd)
			delete(o.fds, key)
		}
	}
}

// forget gives up what is kept of an object.
func (k *keptObjects) forget(id uint64) {
	if o := k.objects[id]; o != nil {
		for _, fd := range o.fds {
			closeFD(fd)
		}
		delete(k.objects, id)
	}
}

func (k *keptObjects) close() {
	for id := range k.objects {
		k.forget(id)
	}
}

// sendTo tells a server that begins all of it, and how many there were before.
func (k *keptObjects) sendTo(conn *net.UnixConn, servers uint64) error {
	if k.server != nil {
		if err := writeKept(conn, keptMessage{Op: opServer, Text: k.server}); err != nil {
			return err
		}
	}
	for client, request := range k.clients {
		if err := writeKept(conn, keptMessage{Op: opClient, Client: client, Request: request}); err != nil {
			return err
		}
	}
	for id, o := range k.objects {
		var keys []uint64
		var fds []int
		for key, fd := range o.fds {
			keys, fds = append(keys, key), append(fds, fd)
		}
		if err := writeObject(conn, keptMessage{ID: id, Keys: keys, Last: math.MaxUint64, Text: o.text}, fds); err != nil {
			return err
		}
	}
	return writeKept(conn, keptMessage{Op: opBegin, Count: servers})
}

// writeObject sends an object. The last message has the text, and the key of the page.
func writeObject(conn *net.UnixConn, m keptMessage, fds []int) error {
	m.Op = opPut
	if i := slices.Index(m.Keys, pageKey); i >= 0 {
		end := len(m.Keys) - 1
		m.Keys[i], m.Keys[end], fds[i], fds[end] = m.Keys[end], m.Keys[i], fds[end], fds[i]
	}
	for len(m.Keys) > maxKeptFDs {
		if err := writeKept(conn, keptMessage{Op: opPut, ID: m.ID, Keys: m.Keys[:maxKeptFDs]}, fds[:maxKeptFDs]...); err != nil {
			return err
		}
		m.Keys, fds = m.Keys[maxKeptFDs:], fds[maxKeptFDs:]
	}
	return writeKept(conn, m, fds...)
}

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

// record tells the keeper an object's state. by is the request that has caused it. No reply may be sent before record
// returns, and readers get the object's memory then.
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

// recordSeal tells the keeper of an object that is about to be sealed, and then calls apply: nothing else is told of it
// between, and no reader sees it sealed before.
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
	h, err := s.hello()
	if err != nil {
		return err
	}
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

// hello is what a server says of itself and its memory.
func (s *Server) hello() (wire.Hello, error) {
	gran, err := granularity(s.dev)
	return wire.Hello{Instance: s.conns.Instance(), UUID: s.dev.Info().UUID, Granularity: gran}, err
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

// clientsKept is how many clients of a user that have gone are remembered: one may come back that was cut off.
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
