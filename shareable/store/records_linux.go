package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// What a reply promises is with the keeper before: for each object a text that only servers understand, and
// the descriptors of its chunks and of its writer's page. A server that begins after another one has died gets
// all of that, and goes on with the objects that are sealed, and with what was published of those that are
// durable. Connections, and with them leases and requests that wait, are gone.

// keptMessage is what a keeper and its server tell each other.
type keptMessage struct {
	Op   string   // one of those below
	ID   uint64   `json:",omitempty"` // of the object
	Keys []uint64 `json:",omitempty"` // of the descriptors that come with it: ids of chunks, or pageKey
	Last uint64   `json:",omitempty"` // descriptors of higher keys are given up
	Text []byte   `json:"-"`          // of the object, or of the server; it follows the rest after a line feed
}

const (
	opReady    = "ready"    // the server serves
	opServer   = "server"   // the text of the server; both ways
	opPut      = "put"      // an object, or some of its descriptors; both ways
	opForget   = "forget"   // an object is gone
	opBegin    = "begin"    // the server has all that there was
	opHandOver = "handover" // with a connection of the successor
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
		err = errors.New("the other process has ended")
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

// sendTo tells a server that begins all of it.
func (k *keptObjects) sendTo(conn *net.UnixConn) error {
	if k.server != nil {
		if err := writeKept(conn, keptMessage{Op: opServer, Text: k.server}); err != nil {
			return err
		}
	}
	for id, o := range k.objects {
		var keys []uint64
		var fds []int
		for key, fd := range o.fds {
			keys, fds = append(keys, key), append(fds, fd)
		}
		if err := writeObject(conn, id, keys, fds, math.MaxUint64, o.text); err != nil {
			return err
		}
	}
	return writeKept(conn, keptMessage{Op: opBegin})
}

// writeObject sends an object. The last message has the text, and the key of the page.
func writeObject(conn *net.UnixConn, id uint64, keys []uint64, fds []int, last uint64, text []byte) error {
	if i := slices.Index(keys, pageKey); i >= 0 {
		end := len(keys) - 1
		keys[i], keys[end], fds[i], fds[end] = keys[end], keys[i], fds[end], fds[i]
	}
	for len(keys) > maxKeptFDs {
		if err := writeKept(conn, keptMessage{Op: opPut, ID: id, Keys: keys[:maxKeptFDs]}, fds[:maxKeptFDs]...); err != nil {
			return err
		}
		keys, fds = keys[maxKeptFDs:], fds[maxKeptFDs:]
	}
	return writeKept(conn, keptMessage{Op: opPut, ID: id, Keys: keys, Last: last, Text: text}, fds...)
}

// recorder tells the keeper what there is.
type recorder struct {
	mu    sync.Mutex // before Server.mu, and held while something is sent: so that what is sent last is the newest
	conn  *net.UnixConn
	known map[uint64]uint64 // the last chunk that the keeper has, by object
	ids   atomic.Uint64     // no object has had a higher id, as the keeper knows; changed with mu
	over  atomic.Bool       // what ends from here on ends in this process alone
}

// idsAtOnce is how many ids are said to have been used before they are.
const idsAtOnce = 1000

// highest is the id that the keeper knows; 0 without one.
func (r *recorder) highest() uint64 {
	if r == nil {
		return 0
	}
	return r.ids.Load() // without mu: the caller holds Server.mu
}

// stop ends what is told: what ends with this process is there for the next one.
func (r *recorder) stop() {
	if r != nil {
		r.over.Store(true)
	}
}

// serverText is the text of a server.
type serverText struct {
	Hello wire.Hello
	IDs   uint64
}

// startRecording has the server tell the keeper from here on. What there is the keeper has.
func (s *Server) startRecording(conn *net.UnixConn) {
	r := &recorder{conn: conn, known: map[uint64]uint64{}}
	r.ids.Store(s.resumedIDs)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.order {
		_, r.known[e.id] = e.obj.Chunks()
	}
	s.recorder = r
}

// record tells the keeper of an object as it is now. Before it returns nothing of that is promised.
func (s *Server) record(e *entry) error {
	r := s.recorder
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := s.recordID(r, e.id); err != nil {
		return err
	}
	s.mu.Lock()
	gone := e.dropped || e.deleted || r.over.Load()
	st, name := e.stateLocked(), e.nameLocked()
	s.mu.Unlock()
	if gone { // forget has come before, or comes next
		return nil
	}
	o, release, err := e.obj.Record(r.known[e.id], name)
	if err != nil {
		return err
	}
	defer release()
	text, err := json.Marshal(st)
	if err != nil {
		return err
	}
	text = append(append(text, '\n'), o.State...)
	keys := slices.Clone(o.Chunks)
	if o.Page {
		keys = append(keys, pageKey)
	}
	if err := writeObject(r.conn, e.id, keys, o.FDs, o.Last, text); err != nil {
		return err
	}
	r.known[e.id] = o.Seen
	return nil
}

// recordID tells the keeper that an id is used. Requires r.mu.
func (s *Server) recordID(r *recorder, id uint64) error {
	if id <= r.ids.Load() {
		return nil
	}
	h, err := s.hello()
	if err != nil {
		return err
	}
	text, err := json.Marshal(serverText{h, id + idsAtOnce})
	if err == nil {
		err = writeKept(r.conn, keptMessage{Op: opServer, Text: text})
	}
	if err == nil {
		r.ids.Store(id + idsAtOnce)
	}
	return err
}

// hello is what a server says of itself and its memory.
func (s *Server) hello() (wire.Hello, error) {
	gran, err := granularity(s.dev)
	return wire.Hello{Instance: s.conns.Instance(), UUID: s.dev.Info().UUID, Granularity: gran}, err
}

// forget tells the keeper that an object is gone.
func (s *Server) forget(e *entry) {
	r := s.recorder
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.known[e.id]; known && !r.over.Load() {
		delete(r.known, e.id)
		_ = writeKept(r.conn, keptMessage{Op: opForget, ID: e.id}) // without a keeper the process ends
	}
}

// restore makes a server of what a keeper has, and takes the descriptors. It returns the ids of the objects that
// have not come back: they have ended with their connections.
func restore(dev *vmm.Device, o Options, k *keptObjects) (s *Server, gone []uint64, err error) {
	defer k.close() // what is left
	var text serverText
	if err := json.Unmarshal(k.server, &text); err != nil {
		return nil, nil, protocolError(err)
	}
	if err := sameMemory(dev, text.Hello); err != nil {
		return nil, nil, err
	}
	x := storeState{IDs: text.IDs}
	var objects []shareable.Recorded
	for _, id := range slices.Sorted(maps.Keys(k.objects)) {
		kept := k.objects[id]
		var e entryState
		head, state, _ := bytes.Cut(kept.text, []byte{'\n'})
		if json.Unmarshal(head, &e) != nil { // its first reply was not sent
			gone = append(gone, id)
			continue
		}
		if e.Deleted || !e.Sealed && (e.Flags&wire.StoreDurable == 0 || !e.Started) {
			gone = append(gone, id)
			continue
		}
		if e.Sealed { // when it was used last is not known
			e.Used = len(objects) + 1
		}
		rec := shareable.Recorded{State: state, Chunks: kept.fds, Page: -1}
		if fd, has := kept.fds[pageKey]; has {
			rec.Page = fd
			delete(kept.fds, pageKey)
		}
		objects, x.Entries = append(objects, rec), append(x.Entries, e)
		delete(k.objects, id)
	}
	s, start, err := resumeState(dev, o, x, func(h serve.Handler) (shareable.Resumed, error) {
		return shareable.Restore(dev, o.server(), h, text.Hello.Instance, text.IDs, objects)
	})
	if err != nil {
		return nil, nil, err
	}
	for _, e := range s.order {
		e.obj.EndLease() // its writer may run on, and publishes nothing any more
	}
	start()
	return s, gone, nil
}
