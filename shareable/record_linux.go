package shareable

import (
	"encoding/json"
	"fmt"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
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

// RestoredState is for package store. It makes a state for TakeOver, without sessions and socket, and the
// descriptors in its order. All of them are those of objects; nextID is the highest id so far.
func RestoredState(instance [16]byte, nextID uint64, objects []Recorded) (state []byte, fds []int, err error) {
	x := serverState{Instance: instance, NextID: nextID}
	for _, r := range objects {
		var o objectState
		if err := json.Unmarshal(r.State, &o); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		for _, c := range o.Chunks {
			fd, has := r.Chunks[c.ID]
			if !has {
				return nil, nil, fmt.Errorf("%w: no descriptor of chunk %d of object %d", ErrProtocol, c.ID, o.ID)
			}
			o.FDs = append(o.FDs, len(fds))
			fds = append(fds, fd)
		}
		if r.Page >= 0 {
			i := len(fds)
			o.Page, fds = &i, append(fds, r.Page)
		}
		x.Objects = append(x.Objects, o)
	}
	state, err = json.Marshal(x)
	return state, fds, err
}
