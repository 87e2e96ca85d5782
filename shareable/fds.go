package shareable

import (
	"container/list"
	"errors"
	"sync"

	"github.com/cuvmm/cuvmm/vmm"
)

// keeper keeps the descriptors of exported chunks, since exporting one takes the
// driver 0.6 ms. Up to max stay open; those used longest ago go first. A kept
// descriptor keeps its memory, so whoever retires a chunk drops it here.
type keeper struct {
	max int

	mu    sync.Mutex
	kept  map[vmm.Segment]*descriptor
	order list.List // of *descriptor, the last one used in front
}

// descriptor is a chunk's descriptor, or the attempt to get one.
type descriptor struct {
	seg   vmm.Segment
	place *list.Element // nil once it is not kept any more
	users int
	ready chan struct{} // closed when fd and err are there
	fd    int
	err   error
}

func newKeeper(most int) *keeper {
	return &keeper{max: most, kept: map[vmm.Segment]*descriptor{}}
}

// take gives the chunk's descriptor, which stays open until give. Of several
// that ask for a new one at a time, one asks the driver.
func (k *keeper) take(seg vmm.Segment) (*descriptor, error) {
	k.mu.Lock()
	d, ok := k.kept[seg]
	if ok {
		k.order.MoveToFront(d.place)
		d.users++
		k.mu.Unlock()
		<-d.ready
	} else {
		d = &descriptor{seg: seg, users: 1, ready: make(chan struct{}), fd: -1}
		d.place = k.order.PushFront(d)
		k.kept[seg] = d
		k.mu.Unlock()
		d.fd, d.err = export(seg)
		if errors.Is(d.err, vmm.ErrLimit) && k.shrink() {
			d.fd, d.err = export(seg)
		}
		close(d.ready)
	}
	if d.err != nil {
		k.forget(d)
		k.give(d)
		return nil, d.err
	}
	return d, nil
}

func export(seg vmm.Segment) (int, error) {
	c, err := seg.Chunk()
	if err != nil {
		return -1, err
	}
	fd, err := c.Export()
	if closed := c.Close(); err == nil && closed != nil {
		_ = closeFD(fd)
		return -1, closed
	}
	return fd, err
}

// give ends a take. What is kept beyond the limit, and not in use, goes.
func (k *keeper) give(d *descriptor) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d.users--
	d.close()
	k.evict(k.max)
}

// evict forgets what was used longest ago and is not in use, until most are
// left. It needs k.mu.
func (k *keeper) evict(most int) {
	for e := k.order.Back(); e != nil && len(k.kept) > most; {
		before := e.Prev()
		if d, ok := e.Value.(*descriptor); ok && d.users == 0 {
			k.remove(d)
		}
		e = before
	}
}

// close closes a descriptor that is neither kept nor used. It needs k.mu.
func (d *descriptor) close() {
	if d.place == nil && d.users == 0 && d.fd >= 0 {
		_ = closeFD(d.fd)
		d.fd = -1
	}
}

// drop forgets a chunk that is given up.
func (k *keeper) drop(seg vmm.Segment) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if d := k.kept[seg]; d != nil {
		k.remove(d)
	}
}

// forget is drop for one that may have been replaced already.
func (k *keeper) forget(d *descriptor) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if d.place != nil {
		k.remove(d)
	}
}

// remove takes d off those that are kept. It needs k.mu.
func (k *keeper) remove(d *descriptor) {
	k.order.Remove(d.place)
	d.place = nil
	delete(k.kept, d.seg)
	d.close()
}

// shrink closes everything that is not in use, and says whether there was any.
func (k *keeper) shrink() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := len(k.kept)
	k.evict(0)
	return len(k.kept) < before
}

// has says whether the chunk's descriptor is kept, or being got.
func (k *keeper) has(seg vmm.Segment) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept[seg] != nil
}

// len is how many are kept.
func (k *keeper) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.kept)
}
