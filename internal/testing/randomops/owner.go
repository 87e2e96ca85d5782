package randomops

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

// owner has a range of its own, and a slice with the bytes that must be in it.
type owner struct {
	*run
	random *rand.Rand
	d      *vmm.Device
	peer   *vmm.Device // nil where there is one device
	s      *vmm.Stream
	uses   bool // UsedBy(s) was called for the range
	g      *vmm.Range
	follow *registry                 // of g
	shown  atomic.Pointer[vmm.Range] // g, for guests
	p      vmm.Ptr
	want   []byte
	noise  []byte // random bytes; every write takes some of them
	broken int    // failed growths in a row
}

func (r *run) newOwner(i int) *owner {
	o := &owner{run: r, random: rand.New(rand.NewPCG(r.Seed, uint64(i))), d: r.devs[i%len(r.devs)], uses: i%2 == 1}
	if len(r.devs) > 1 {
		o.peer = r.devs[(i+1)%len(r.devs)]
	}
	o.noise = make([]byte, 3*r.Granule)
	_, _ = rand.NewChaCha8([32]byte{byte(i), byte(r.Seed)}).Read(o.noise) // never fails
	o.until("make a stream", func() (err error) {
		o.s, err = o.d.NewStream()
		return err
	})
	o.open()
	return o
}

// failed is refused for calls on the range. Meddlers may have put it to sleep, and then
// failed wakes it.
func (o *owner) failed(doing string, err error, also ...error) bool {
	if o.Meddlers > 0 {
		also = append(also, vmm.ErrAsleep, vmm.ErrBusy)
	}
	if errors.Is(err, vmm.ErrAsleep) {
		o.refused("wake", vmm.Wake(o.g), also...)
	}
	return o.refused(doing, err, also...)
}

// insist repeats a call on the range until it works.
func (o *owner) insist(doing string, call func() error) {
	var last error
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ; ctx.Err() == nil; runtime.Gosched() {
		if last = call(); !o.failed(doing, last) {
			return
		}
	}
	o.wrong("%s does not work: %v", doing, last)
}

// open makes the range.
func (o *owner) open() {
	options := vmm.RangeOptions{Max: uint64(16 * o.Granule)}
	if o.random.IntN(2) == 0 {
		options.Chunk = uint64(o.Granule)
	}
	if o.random.IntN(2) == 0 {
		options.GrowAhead = uint64(2 * o.Granule)
	}
	o.until("make a range", func() (err error) {
		o.g, err = o.d.NewRange(options)
		return err
	})
	o.p, o.want, o.broken = o.g.Ptr(), nil, 0
	follow, err := o.watch(o.g)
	if err != nil {
		o.wrong("watch: %v", err)
	}
	o.follow = follow
	o.shown.Store(o.g)
	if o.uses {
		o.insist("use a stream", func() error { return o.g.UsedBy(o.s) })
	}
}

// close closes the range and the stream.
func (o *owner) close() {
	o.insist("close", o.g.Close)
	o.follow.end()
	o.until("close a stream", o.s.Close)
}

func (o *owner) work() {
	for !o.stop.Load() {
		o.ops.Add(1)
		o.step()
		if n := o.g.Len(); n != uint64(len(o.want)) {
			o.wrong("the length is %d and was %d", n, len(o.want))
		}
		if o.g.Ptr() != o.p {
			o.wrong("the range has moved from %v to %v", o.p, o.g.Ptr())
		}
		if o.broken > 20 || o.g.Stats().Quarantined > 0 && o.random.IntN(10) == 0 || o.random.IntN(1000) == 0 {
			o.check()
			o.insist("close", o.g.Close)
			o.follow.end()
			o.open()
		}
	}
}

// some is new bytes, mostly few.
func (o *owner) some(most int) []byte {
	n := o.random.IntN(5000) + 1
	if o.random.IntN(4) == 0 {
		n = o.random.IntN(o.Granule*3/2) + 1
	}
	at := o.random.IntN(o.Granule)
	return o.noise[at : at+min(n, most)]
}

// syncStream waits for the stream, because a write is not ordered after its work.
func (o *owner) syncStream() { o.until("sync", o.s.Sync) }

func (o *owner) step() {
	switch o.random.IntN(13) {
	case 0, 1, 2:
		o.appended(func(b []byte) error { return o.g.Append(b) })
	case 3, 4:
		o.appended(func(b []byte) error {
			err := o.g.AppendOn(o.s, b)
			if err != nil {
				o.syncStream() // the wait in AppendOn may have failed
			}
			return err
		})
	case 5:
		o.cut(o.random.IntN(len(o.want) + 1))
	case 6:
		o.overwrite()
	case 7:
		o.check()
	case 8:
		o.failed("clip", o.g.Clip())
	case 9:
		o.sleep()
	case 10:
		o.grant()
	case 11:
		o.hold()
	case 12:
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		n, err := o.g.WaitWritten(ctx)
		cancel()
		if !o.failed("written", err) && n != uint64(len(o.want)) {
			o.wrong("%d bytes are written of %d", n, len(o.want))
		}
		o.failed("grow", o.g.Grow(uint64(o.random.IntN(2*o.Granule))), vmm.ErrFull)
	}
}

func (o *owner) appended(how func([]byte) error) {
	b := o.some(len(o.noise))
	err := how(b)
	switch {
	case err == nil:
		o.want, o.broken = append(o.want, b...), 0
	case errors.Is(err, vmm.ErrFull):
		o.cut(len(o.want) / 4)
	default:
		o.failed("append", err)
		o.broken++
	}
}

func (o *owner) cut(n int) {
	o.syncStream()
	if !o.failed("set length", o.g.SetLen(uint64(n))) {
		o.want = o.want[:n]
	}
}

func (o *owner) overwrite() {
	if len(o.want) == 0 {
		return
	}
	o.syncStream()
	at := o.random.IntN(len(o.want))
	b := o.some(len(o.want) - at)
	o.insist("write", func() error { // a write that failed may have written a part
		_, err := o.g.WriteAt(b, int64(at))
		return err
	})
	copy(o.want[at:], b)
}

// check reads everything.
func (o *owner) check() {
	got := make([]byte, len(o.want))
	n, err := o.g.ReadAt(got, 0)
	if !o.failed("read", err) {
		o.compare("the range", got[:n])
	}
}

func (o *owner) compare(what string, got []byte) {
	if bytes.Equal(got, o.want) {
		return
	}
	at := 0
	for at < min(len(got), len(o.want)) && got[at] == o.want[at] {
		at++
	}
	o.wrong("%s has %d bytes and not %d, and others from %d on", what, len(got), len(o.want), at)
}

func (o *owner) sleep() {
	mode := vmm.SleepKeep
	if o.random.IntN(3) == 0 {
		mode = vmm.SleepDrop
	}
	if o.failed("sleep", vmm.Sleep(mode, o.g)) {
		o.check()
		return
	}
	if mode == vmm.SleepDrop {
		o.want = o.want[:0]
	}
	// A guest wakes a range on which its grant cannot be revoked; see guestReads.
	if o.Meddlers == 0 && (o.uses || len(o.Guests) == 0) {
		if err := o.g.Append([]byte{1}); !errors.Is(err, vmm.ErrAsleep) {
			o.wrong("append to a range that sleeps: %v", err)
		}
	}
	o.insist("wake", func() error { return vmm.Wake(o.g) })
	o.check()
}

// grant grants a peer access, and reads by it.
func (o *owner) grant() {
	if o.peer == nil {
		return
	}
	if o.random.IntN(2) == 0 {
		o.failed("revoke", o.g.Revoke(o.peer))
		return
	}
	access := vmm.AccessRead
	if o.random.IntN(2) == 0 {
		access = vmm.AccessReadWrite
	}
	if o.failed("grant", o.g.Grant(access, o.peer)) || o.uses {
		return // a range with UsedBy waits only for that stream, not for the peer's copy
	}
	o.syncStream()
	got := make([]byte, len(o.want))
	err := o.peer.CopyOut(got, o.p)
	if o.Meddlers > 0 && err != nil { // its access may be gone by now
		o.refused("read from a peer", err, vmm.ErrPermission, vmm.ErrBounds, vmm.ErrAsleep, vmm.ErrBusy)
	} else if !o.refused("read from a peer", err) {
		o.compare("the peer", got)
	}
}

func (o *owner) hold() {
	release, err := o.g.Hold(0, uint64(len(o.want)))
	if o.failed("hold", err) {
		return
	}
	defer release()
	if o.Meddlers > 0 {
		return
	}
	if len(o.want) > 0 {
		if err := o.g.SetLen(uint64(len(o.want) - 1)); !errors.Is(err, vmm.ErrBusy) {
			o.wrong("set length of what is held: %v", err)
		}
	}
	if err := o.g.Close(); !errors.Is(err, vmm.ErrBusy) {
		o.wrong("close what is held: %v", err)
	}
}
