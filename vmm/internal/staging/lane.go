package staging

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/hostcopy"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
	"github.com/cuvmm/cuvmm/vmm/internal/rows"
)

// Lane is a stream with two pinned buffers: what one copier works with. It is used by one
// call at a time. After a failure it may still be copying:
//
//	eventMissing  a copy was queued, and no event could be recorded after it
//	maybeBusy     nor could the stream be waited for: the lane is never lent again, and
//	              Lanes.Sync waits once for the lane's own stream
type Lane struct {
	queue        driver.Stream
	blocks       [2]Block
	eventMissing bool
	maybeBusy    bool
}

// Block is pinned memory. From a copy on it is busy until its event is reached.
// While it is busy, the first used bytes belong to copies queued on the stream on. Only a
// later copy on that same stream may have the rest. A copy
// after which no event could be recorded leaves its lane eventMissing (see Lane).
type Block struct {
	p     driver.Ptr
	mem   []byte
	event driver.Event
	busy  bool
	on    driver.Stream // where it is busy
	used  uint64        // bytes from the front that copies on that stream use
}

// queueCopy copies between the block and the device on the lane's own stream.
func (l *Lane) queueCopy(raw *order.Device, b *Block, dst, src rows.Rows, n uint64) error {
	if err := CopyRows(raw, dst, src, n, l.queue); err != nil {
		// Of several rows some may be queued, after which no event was recorded.
		l.eventMissing = l.eventMissing || !dst.IsFlat() || !src.IsFlat()
		return err
	}
	return l.Recorded(b, l.queue, raw.RecordQueue(b.event, l.queue))
}

// Recorded makes the block busy until its event is reached, which was recorded on the stream,
// unless that failed.
func (l *Lane) Recorded(b *Block, queue driver.Stream, failed error) error {
	if failed != nil {
		l.eventMissing = true
		return failed
	}
	b.busy, b.on = true, queue
	return nil
}

// ready waits until the block is free.
func (st *Lanes) ready(b *Block) error {
	if b.busy && !st.hooks.Careless {
		if err := st.device.SyncEvent(b.event); err != nil {
			return err
		}
	}
	b.busy, b.used = false, 0
	return nil
}

// sync waits for all that the lane has on its own stream: for its events, else for the
// stream. If neither works the lane may be busy for good.
func (l *Lane) sync(raw *order.Device) (err error) {
	for i := range l.blocks {
		if b := &l.blocks[i]; b.busy && !l.eventMissing {
			if err = raw.SyncEvent(b.event); err != nil {
				l.eventMissing = true
			}
		}
	}
	if l.eventMissing {
		if second := raw.SyncStream(l.queue); second != nil {
			l.maybeBusy = true
			return errtext.Join(err, "and waiting for its stream", second)
		}
		l.eventMissing = false
	}
	for i := range l.blocks {
		l.blocks[i].busy, l.blocks[i].used = false, 0
	}
	return err
}

// newLane makes one more lane; nil if it cannot. If allocation fails, no more lanes are
// made. During a capture, which it would destroy, it is not tried.
func (st *Lanes) newLane() *Lane {
	if !st.device.Retain() {
		return nil // it would not be freed any more
	}
	defer st.device.Release()
	st.mu.Lock()
	if st.noMore != nil || len(st.idle)+len(st.unusable)+st.inUse >= st.limit() {
		st.mu.Unlock()
		return nil
	}
	st.inUse++
	st.mu.Unlock()

	var l *Lane
	var err error
	noCapture := st.device.NoneCaptured() == nil
	if noCapture {
		if l, err = makeLane(st.device, st.size()); err == nil {
			return l
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.inUse--
	if noCapture && !errors.Is(err, driver.ErrClosed) {
		st.unusable = append(st.unusable, l)
		st.noMore = err
	}
	return nil
}

// makeLane makes a lane. With an error it returns what has been made so far.
func makeLane(raw *order.Device, size uint64) (*Lane, error) {
	l := &Lane{}
	allocator, ok := order.As[driver.HostAllocator](raw)
	if !ok {
		return l, fmt.Errorf("%w: pinned memory", driver.ErrNotSupported)
	}
	for i := range l.blocks {
		b := &l.blocks[i]
		var err error
		if b.p, b.mem, err = allocator.AllocHost(size); err != nil {
			return l, err
		}
		if b.event, err = raw.NewEvent(driver.EventBlocking); err != nil {
			return l, err
		}
	}
	var err error
	l.queue, err = raw.NewStream()
	return l, err
}

// Borrow takes a lane that a copy on the stream can use without waiting for another
// stream; nil if there is none. It is an error if there is no pinned memory at all.
func (st *Lanes) Borrow(queue driver.Stream) (*Lane, error) {
	if err := st.Sync(); err != nil {
		return nil, err
	}
	l, best := st.pick(queue)
	// A lane more is better than a wait, as long as there may be one.
	if best < allFree {
		if made := st.newLane(); made != nil {
			if l != nil {
				st.PutBack(l)
			}
			return made, nil
		}
	}
	if l != nil {
		return l, nil
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if errors.Is(st.noMore, driver.ErrNotSupported) && len(st.idle)+st.inUse == 0 {
		return nil, st.noMore
	}
	return nil, nil
}

// Count is how many lanes there are, and how many of them are broken. It is for tests.
func (st *Lanes) Count() (all, broken int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return len(st.idle) + len(st.unusable) + st.inUse, len(st.unusable)
}

// IdleQueue is the stream of one of the idle lanes. It is for tests.
func (st *Lanes) IdleQueue() driver.Stream {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.idle[0].queue
}

// fit is how well a lane serves a stream.
type fit int

const (
	busyElsewhere fit = iota // on another stream
	ownBlocksFull            // busy on this stream
	allFree
	ownBlockHasRoom // a block is busy on this stream alone, and not full
)

// pick takes the idle lane that serves the stream best.
func (st *Lanes) pick(queue driver.Stream) (l *Lane, best fit) {
	st.mu.Lock()
	defer st.mu.Unlock()
	at := -1
	for i := range st.idle {
		if f := st.fitsLocked(st.idle[i], queue); f > best {
			at, best = i, f
		}
	}
	if at < 0 {
		return nil, busyElsewhere
	}
	l = st.idle[at]
	st.idle = append(st.idle[:at], st.idle[at+1:]...)
	st.inUse++
	return l, best
}

// fitsLocked returns how well the lane serves a stream. One that is busy on another stream is
// not taken, since the copy would wait for that stream. It needs st.mu.
func (st *Lanes) fitsLocked(l *Lane, queue driver.Stream) (best fit) {
	invariants.Held(&st.mu)
	for i := range l.blocks {
		b := &l.blocks[i]
		f := allFree
		if !st.blockDoneLocked(b) {
			switch {
			case b.on != queue:
				return busyElsewhere
			case b.mustWait(queue):
				f = ownBlocksFull
			default:
				f = ownBlockHasRoom
			}
		}
		best = max(best, f)
	}
	return best
}

// mustWait reports whether a copy on the stream has to wait for the block.
func (b *Block) mustWait(queue driver.Stream) bool {
	return b.busy && (b.on != queue || b.used == uint64(len(b.mem)))
}

// In copies src in the order of a stream that copies from a block's memory, by move, which queues n bytes
// from p on and has the block Recorded; off of src lie before them. It reports whether something may be queued though it failed.
func (st *Lanes) In(l *Lane, queue driver.Stream, src []byte, move func(b *Block, p driver.Ptr, off, n uint64) error) (queued bool, err error) {
	// A block is filled while the copy out of the other one runs.
	off := uint64(0)
	for k := l.firstBlock(queue); len(src) > 0; k ^= 1 {
		b := &l.blocks[k]
		if b.mustWait(queue) {
			if err := st.ready(b); err != nil {
				return queued, err
			}
		}
		at := b.used
		n := uint64(copy(b.mem[at:], src))
		b.used, queued = at+n, true
		if err := move(b, b.p+driver.Ptr(at), off, n); err != nil {
			return queued, err
		}
		off, src = off+n, src[n:]
	}
	return queued, nil
}

// Out is In the other way: move queues n bytes to p, and dst is filled when Out returns.
func (st *Lanes) Out(l *Lane, queue driver.Stream, dst []byte, move func(b *Block, p driver.Ptr, off, n uint64) error) error {
	off := uint64(0)
	return st.drain(l, l.firstBlock(queue), hostcopy.IsFresh(dst), func(b *Block) ([]byte, error) {
		n := min(uint64(len(dst))-off, st.size())
		if n == 0 {
			return nil, nil
		}
		if err := move(b, b.p, off, n); err != nil {
			return nil, err
		}
		b.used = st.size() // else an In after a failure here could write where this copy still may
		to := dst[off : off+n]
		off += n
		return to, nil
	})
}

// Event is to be recorded after a copy of the block.
func (b *Block) Event() driver.Event { return b.event }

// Synced is for a block without an event after its copy: the stream was waited for, or err says why not.
// Then the lane is never lent again: nothing tells when the copy has read its block.
func (l *Lane) Synced(b *Block, err error) {
	if err != nil {
		l.maybeBusy = true
		return
	}
	l.eventMissing = false
	b.busy, b.used = false, 0
}

// firstBlock is the block to begin with: the one that has room, of two the one
// that is in use already.
func (l *Lane) firstBlock(queue driver.Stream) int {
	first, second := &l.blocks[0], &l.blocks[1]
	if first.mustWait(queue) && !second.mustWait(queue) || !first.busy && second.busy && !second.mustWait(queue) {
		return 1
	}
	return 0
}
