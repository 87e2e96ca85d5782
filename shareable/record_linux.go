package shareable

import (
	"encoding/json"
	"fmt"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/vmm"
)

// Record describes the object for another process.
func (o *storeObject) Record(after uint64, name string) (r serve.Record, release func(), err error) {
	l := &fdList{}
	o.mu.Lock()
	x := o.stateLocked()
	for _, c := range o.chunks {
		if c.ID > after {
			r.Chunks = append(r.Chunks, c.ID)
			l.addChunk(o.srv.fds, c)
		}
	}
	if n := len(o.chunks); n > 0 {
		r.Last = o.chunks[n-1].ID
	}
	r.Seen = o.lastID
	if r.Page = o.page != nil && o.page.foreign; r.Page {
		l.add(o.page.fd)
	}
	o.mu.Unlock()
	x.Name, x.Listed = name, true
	if err = l.err; err == nil {
		r.State, err = json.Marshal(x)
	}
	if err != nil {
		l.close()
		return r, nil, err
	}
	r.FDs = l.fds
	return r, l.close, nil
}

// Recorded is for package store: what Record described, with the descriptors of all its chunks by their
// ids, and that of the page, or -1.
type Recorded struct {
	State  []byte
	Chunks map[uint64]int
	Page   int
}

// Restore is for package store. It makes a server of what Record described, without sessions and socket, and takes
// the descriptors. nextID is the highest id so far.
func Restore(dev *vmm.Device, o Options, h serve.Handler, instance [16]byte, nextID uint64, objects []Recorded) (Resumed, error) {
	x := serverState{Instance: instance, NextID: nextID}
	t := &takeover{}
	for _, r := range objects {
		for _, fd := range r.Chunks {
			t.fds = append(t.fds, fd)
		}
		if r.Page >= 0 {
			t.fds = append(t.fds, r.Page)
		}
	}
	index := make(map[int]int, len(t.fds))
	for i, fd := range t.fds {
		index[fd] = i
	}
	for _, r := range objects {
		var o objectState
		if err := json.Unmarshal(r.State, &o); err != nil {
			t.closeLeft()
			return Resumed{}, fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		for _, c := range o.Chunks {
			i := -1 // without one, take returns an error
			if fd, has := r.Chunks[c.ID]; has {
				i = index[fd]
			}
			o.FDs = append(o.FDs, i)
		}
		if r.Page >= 0 {
			i := index[r.Page]
			o.Page = &i
		}
		x.Objects = append(x.Objects, o)
	}
	return t.make(dev, o, h, x)
}
