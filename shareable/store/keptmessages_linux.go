package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// What a reply promises is with the keeper before: for each object a text that only servers
// understand, and the descriptors of its chunks and of its writer's page; for each client the last
// request that was done. A server that begins gets all of that, and continues with the objects that
// are sealed, with what was published of those that are durable, and with those whose writers come
// back.

// keptMessage is what a keeper and its server tell each other.
type keptMessage struct {
	Op      string   // one of those below
	ID      uint64   `json:",omitempty"` // of the object
	Keys    []uint64 `json:",omitempty"` // of the descriptors that come with it: ids of chunks, or pageKey
	Last    uint64   `json:",omitempty"` // descriptors of higher keys are given up
	Client  string   `json:",omitempty"` // whose request it is; see clientToken
	Request uint32   `json:",omitempty"` // the number of that; 0: what is known of the client is of no use any more
	Member  string   `json:",omitempty"` // of opMember: its token
	Count   uint64   `json:",omitempty"` // how many servers there were before
	Health  bool     `json:",omitempty"` // of opServing: it replies to opHealth, as those of 0.1.0 do not
	Text    []byte   `json:"-"`          // of the object, or of the server; it follows the rest after a line feed
}

const (
	opBegin   = "begin"   // the server wants all that there is; the keeper: that was all, and what changes comes next
	opReady   = "ready"   // the server can go on with that
	opGo      = "go"      // it is to: the one before has ended
	opServing = "serving" // it does
	opHealth  = "health"  // the keeper: is it well?
	opHealthy = "healthy" // the server: it does not hang; a text says what is wrong
	opFailed  = "failed"  // the server: it does not begin; the text says why
	opServer  = "server"  // the text of the server; both ways
	opPut     = "put"     // an object, or some of its descriptors; both ways
	opForget  = "forget"  // an object is gone; both ways
	opClient  = "client"  // what is known of a client; both ways
	opMember  = "member"  // the text of a member of a budget; without one it has gone; both ways
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
	if errors.Is(err, unix.ECONNRESET) { // said once, of a process that has ended and left something unread: what it has sent comes next
		n, oobn, flags, _, err = r.conn.ReadMsgUnix(r.b, r.oob)
	}
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
	members map[string][]byte // of budgets, by token
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
	case opMember:
		k.keepMember(m)
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

// keepMember keeps the text of a member.
func (k *keptObjects) keepMember(m keptMessage) {
	if m.Text == nil {
		delete(k.members, m.Member)
		return
	}
	if k.members == nil {
		k.members = map[string][]byte{}
	}
	k.members[m.Member] = m.Text
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
	for token, text := range k.members {
		if err := writeKept(conn, keptMessage{Op: opMember, Member: token, Text: text}); err != nil {
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
