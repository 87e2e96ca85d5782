package vmm

import (
	"context"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// end is one device as Links.Measure uses it: memory to copy from and, behind
// it, memory for others to copy to.
type end struct {
	d           *Device
	g           *Range
	raw         driver.Device
	s           *Stream
	first, last driver.Event
}

func (e *end) open(drv driver.Driver, n int, size uint64) (err error) {
	if e.d, err = OpenDriver(drv, n); err != nil {
		return err
	}
	if e.raw, err = e.d.Raw(); err != nil {
		return err
	}
	if e.g, err = e.d.Alloc(2 * size); err != nil {
		return err
	}
	if e.s, err = e.d.NewStream(); err != nil {
		return err
	}
	if err = e.g.UsedBy(e.s); err != nil {
		return err
	}
	if e.first, err = e.raw.NewEvent(EventTiming); err != nil {
		return err
	}
	e.last, err = e.raw.NewEvent(EventTiming)
	return err
}

// admit lets another device's stream copy to the memory. Streams are named, so
// that a capture of somebody else's does not keep the memory from going back.
func (e *end) admit(from *end) error {
	if err := e.g.UsedBy(from.s); err != nil {
		return err
	}
	return e.g.Grant(AccessReadWrite, from.d)
}

// ranges gives the memory back, which ends the grants.
func (e *end) ranges() error { return e.g.Close() }

// close gives back the rest of what open took, as far as it came.
func (e *end) close() (failed error) {
	for _, ev := range []driver.Event{e.first, e.last} {
		if ev != 0 {
			failed = also(failed, "and", e.raw.FreeEvent(ev))
		}
	}
	failed = also(failed, "and", e.s.Close())
	return also(failed, "and", e.d.Close())
}

// way is copies from one device's memory to another's.
type way struct{ from, to *end }

// A rate is the best of this many rounds, after one to warm up; a round is this
// many copies, so that what it costs to begin one counts for little.
const rounds, copies = 3, 8

// fastest is how many bytes a second go along all ways at once.
func fastest(ctx context.Context, size uint64, ways ...way) (best float64, err error) {
	for i := range rounds + 1 {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		now, err := round(size, ways)
		if err != nil {
			return 0, err
		}
		if i > 0 {
			best = max(best, now)
		}
	}
	return best, nil
}

// round queues copies along all ways, in turn, and adds up their rates. The
// devices tell the times.
func round(size uint64, ways []way) (sum float64, err error) {
	for _, w := range ways {
		if err := w.from.raw.Record(w.from.first, w.from.s.raw); err != nil {
			return 0, err
		}
	}
	for range copies {
		for _, w := range ways {
			if err := w.from.s.Copy(w.to.g.Ptr()+Ptr(size), w.from.g.Ptr(), size); err != nil {
				return 0, err
			}
		}
	}
	for _, w := range ways {
		if err := w.from.raw.Record(w.from.last, w.from.s.raw); err != nil {
			return 0, err
		}
	}
	for _, w := range ways {
		if err := w.from.s.Sync(); err != nil {
			return 0, err
		}
		took, err := w.from.raw.Elapsed(w.from.first, w.from.last)
		if err != nil {
			return 0, err
		}
		sum += float64(copies*size) / max(took, time.Nanosecond).Seconds()
	}
	return sum, nil
}
