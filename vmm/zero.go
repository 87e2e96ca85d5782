package vmm

import (
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/slots"
)

// A range that promises zeros fills memory when it enters Cap. Nothing may write there any more by
// then. So retiring memory is not taken back: before a growth its caller waits until that is unmapped
// (waitForRetired).

// retires reports whether any of [off, end) retires.
func (r *Reservation) retires(off, end uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.table.In(off, end) {
		if s.State == slots.Retiring {
			return true
		}
	}
	return false
}

// waitForRetired waits until nothing of the range retires. The caller holds no lock.
func (g *Range) waitForRetired() error {
	g.r.closeMu.Lock() // a Clip that is under way unmaps by itself
	defer g.r.closeMu.Unlock()
	if err := g.r.checkOpen(); err != nil {
		return err
	}
	if err := g.r.waitForWork(); err != nil {
		return err
	}
	return g.r.unmapEarlier()
}

// mayFill reports whether a fill may still run that could not be waited for.
func (s *deviceState) mayFill() bool {
	o := s.openDevice.Load()
	return o != nil && o.stage.MustSync()
}

// syncFills waits for fills that may still run: no fence of a retirement covers one that came
// after it.
func (s *deviceState) syncFills() error {
	lock.Waits()
	o := s.openDevice.Load()
	if !s.mayFill() || !o.Retain() {
		return nil
	}
	defer o.Release()
	if err := o.stage.Sync(); !lost(err) {
		return err
	}
	return nil
}

// zeroMemory fills memory that is mapped from off on with zeros, and waits for that. If
// that fails, mayStillFill reports whether the fill may still run. It needs r.mappingMu.
func (r *Reservation) zeroMemory(off uint64, ms []*memory, which zeroing) (mayStillFill bool, err error) {
	from := off // of a stretch to fill, which ends at off
	for _, m := range ms {
		if which == zeroRecycled && !m.Recycled {
			if mayStillFill, err = r.zero(from, off-from); err != nil {
				return mayStillFill, err
			}
			from = off + m.Size
		}
		off += m.Size
	}
	return r.zero(from, off-from)
}

// zero fills n bytes from off on with zeros, and waits for that. If that fails, mayStillFill
// reports whether the fill may still run.
func (r *Reservation) zero(off, n uint64) (mayStillFill bool, err error) {
	if n == 0 {
		return false, nil
	}
	o, err := r.dev.state.ensureOpen()
	if err != nil {
		return false, err
	}
	s := o.CopyStream()
	if err := o.Fill(r.ptr+Ptr(off), 0, 1, n, s); err != nil {
		return false, err
	}
	if err = o.SyncStream(s); err != nil && !lost(err) {
		if mayStillFill = o.SyncStream(s) != nil; mayStillFill {
			o.stage.NoteFill()
		}
	}
	return mayStillFill, err
}
