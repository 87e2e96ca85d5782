package shareable

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/socket"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// A store's server continues with what another process had. The state of an object is JSON, because
// the two processes are of different versions of the program: a field that one of them does not
// know keeps its zero value.

// objectState is a storeObject.
type objectState struct {
	ID, Max    uint64
	Name       string // in LIST
	Layout     vmm.Layout
	Meta       []byte
	State      uint32
	Generation uint64
	Published  uint64
	Sealed     bool
	Digest     *[32]byte
	LastID     uint64
	Chunks     []wire.Chunk
}

// stateLocked is the object without descriptors. Requires mu.
func (o *storeObject) stateLocked() objectState {
	invariants.Held(&o.mu)
	x := objectState{
		ID: o.id, Max: o.max, Layout: o.layout, Meta: o.meta, State: o.state, Generation: o.generation,
		Published: o.lenLocked(), Sealed: o.sealed, Digest: o.digest, LastID: o.lastID,
	}
	for _, c := range o.chunks {
		x.Chunks = append(x.Chunks, c.Chunk)
	}
	return x
}

// Record describes the object for another process.
func (o *storeObject) Record(after uint64, name string, seal *serve.Seal) (r serve.Record, release func(), err error) {
	var used []*cachedFD
	page := -1
	giveBack := func() {
		for _, d := range used {
			o.srv.fds.release(d)
		}
		if page >= 0 {
			_ = closeFD(page)
		}
	}
	defer func() {
		if err != nil {
			giveBack()
		}
	}()
	o.mu.Lock()
	defer o.mu.Unlock()
	x := o.stateLocked()
	x.Name = name
	if seal != nil {
		if err := o.checkSealLocked(*seal); err != nil {
			return r, nil, err
		}
		i := o.chunksBelowLocked(seal.Length)
		if i < len(x.Chunks) {
			x.Generation++
		}
		x.State, x.Sealed, x.Published, x.Digest, x.Chunks = wire.StateSealed, true, seal.Length, seal.Digest, x.Chunks[:i]
	}
	for _, c := range o.chunks[:len(x.Chunks)] {
		if c.ID <= after {
			continue
		}
		d, err := o.srv.fds.acquireChunk(c) // a store's server has it
		if err != nil {
			return r, nil, err
		}
		used = append(used, d)
		r.Chunks, r.FDs = append(r.Chunks, c.ID), append(r.FDs, d.fd)
	}
	if n := len(x.Chunks); n > 0 {
		r.Last = o.chunks[n-1].ID
	}
	r.Seen = o.lastID
	if r.Page = o.page != nil && o.page.foreign != nil && seal == nil; r.Page {
		if page, err = dup(o.page.fd); err != nil {
			return r, nil, err
		}
		r.FDs = append(r.FDs, page)
	}
	r.State, err = json.Marshal(x)
	return r, giveBack, err
}

// closeRecorded closes the descriptors that no object has.
func closeRecorded(r serve.Recorded) {
	for _, fd := range r.Chunks {
		_ = closeFD(fd)
	}
	if r.Page >= 0 {
		_ = closeFD(r.Page)
	}
}

// Restore makes a server of what Record described, without a socket, and takes the descriptors.
// Objects come in the order of those; one that cannot be made is nil. nextID is the highest id so
// far.
func (x forStore) Restore(dev *vmm.Device, o Options, h serve.Handler, instance [16]byte, nextID uint64, all []serve.Recorded) (s *Server, seam serve.Server, objects []serve.Object, err error) {
	left := all
	defer func() {
		for _, r := range left {
			closeRecorded(r)
		}
		if err != nil && s != nil {
			for _, o := range objects { // Close of the server does not know those without a name
				if o != nil {
					err = errors.Join(err, o.Close())
				}
			}
			err = errors.Join(err, s.Close())
		}
	}()
	if s, seam, err = x.NewStore(dev, o, h); err != nil {
		return nil, nil, nil, err
	}
	s.hello.Instance, s.nextID = instance, nextID
	for _, r := range all {
		left = left[1:]
		var st objectState
		err := json.Unmarshal(r.State, &st)
		x, restoreErr := s.restore(st, r)
		if err = errors.Join(err, restoreErr); err != nil { // it costs no other object anything
			err = errors.Join(err, x.Close())
			s.opts.Logger.Error("an object is lost", "object", x.id, "name", st.Name, "error", err)
			objects = append(objects, nil)
			continue
		}
		objects = append(objects, x)
		seam.Listed(x, st.Name)
		x.mu.Lock()
		x.startWakesLocked()
		x.mu.Unlock()
	}
	return s, seam, objects, nil
}

// restore makes an object of its state, and takes the descriptors. It returns the object also after
// an error.
func (s *Server) restore(st objectState, r serve.Recorded) (*storeObject, error) {
	o := &storeObject{}
	o.init(s)
	o.id, o.max, o.write, o.layout, o.meta = st.ID, st.Max, true, st.Layout, st.Meta
	o.stored, o.close = o, o.Close
	o.state, o.generation, o.published, o.sealed, o.digest, o.lastID = st.State, st.Generation, st.Published, st.Sealed, st.Digest, st.LastID
	defer func() { closeRecorded(r) }() // what no chunk has
	for _, c := range st.Chunks {
		fd, has := r.Chunks[c.ID]
		if !has {
			return o, fmt.Errorf("%w: no descriptor of chunk %d", ErrProtocol, c.ID)
		}
		delete(r.Chunks, c.ID)
		o.chunks = append(o.chunks, publishedChunk{Chunk: c, own: &cachedFD{fd: fd, users: 1}})
	}
	o.shown = o.lastID
	var err error
	switch {
	case r.Page >= 0:
		// The writer can have changed all words of it, so none is compared.
		if o.page, err = mapForeignPage(r.Page); err == nil {
			r.Page = -1
		}
	case o.state == wire.StateLive:
		o.page, err = o.newPage(o.published)
	}
	return o, err
}

// Adopt has the server accept connections at a listener that another process keeps.
func (s storeServer) Adopt(path string, listener, lock int, serves func() error) error {
	l, err := socket.Adopt(os.NewFile(uintptr(listener), "listener"), path, lock)
	if err != nil {
		return err
	}
	if err := serves(); err != nil {
		return errors.Join(err, l.Close())
	}
	s.Server.path, s.Server.socket = path, l
	s.hello.Features |= wire.FeatureKept
	s.tasks.Go(s.acceptLoop)
	return nil
}

// Health returns what checks that the accept loop turns and that a session replies to COUNT. The
// session is a new one each time, so that neither Options.Rate nor a time limit ends it.
func (s storeServer) Health(near, far *net.UnixConn) (check func() error, err error) {
	reply, err := wire.NewOwnerConn(near)
	if err != nil {
		return nil, err
	}
	request, err := wire.NewOwnerConn(far)
	return func() error {
		select {
		case <-s.turned: // before
		default:
		}
		if err := s.socket.SetDeadline(time.Unix(1, 0)); err != nil {
			return err
		}
		select {
		case <-s.turned:
		case <-s.stop:
			return fmt.Errorf("%w: server", vmm.ErrClosed)
		}
		ses := newSession(s.Server, request, wire.Cred{PID: int32(os.Getpid()), UID: uint32(os.Getuid())})
		if err := ses.handle(wire.Frame{Header: wire.Header{Type: wire.TypeCount, Request: 1}}); err != nil {
			return err
		}
		f, err := reply.Read()
		if err == nil && f.Type != wire.TypeCounters {
			err = fmt.Errorf("%w: %v", ErrProtocol, f.Type)
		}
		return err
	}, err
}
