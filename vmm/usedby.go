package vmm

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/internal/invariants"
)

// UsedBy names the streams that use this memory. It is a promise: from the first call on, unmapping waits
// only for these streams and the library's own, not for whole devices. This package's own calls on other
// streams, for example Stream.Copy, then return ErrInvalid if they would touch the memory. Streams of
// other contexts and other libraries count, too; see Device.WrapStream. Closing a stream removes it from
// the list.
func (r *Reservation) UsedBy(streams ...*Stream) (err error) {
	defer func() { err = r.wrap("use streams", 0, 0, err) }()
	if r == nil || r.dev == nil || len(streams) == 0 {
		return fmt.Errorf("%w: no reservation, or no stream", ErrInvalid)
	}
	var unusable error
	for _, s := range streams {
		unusable = cmp.Or(unusable, s.checkUsable(r.dev.state.parent))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmp.Or(r.checkOpen(), unusable); err != nil {
		return err
	}
	if r.namedStreams == nil {
		r.namedStreams = map[*Stream]struct{}{}
	}
	r.setWaitsForLocked()
	r.namings.Add(1)
	for _, s := range streams {
		if s.addWaitedForBy(r) { // else it has closed, and its work was waited for
			r.namedStreams[s] = struct{}{}
		}
	}
	return nil
}

// setWaitsForLocked computes waitsFor anew: the devices that waitForWork waits for, so that
// it takes no lock to find them; nil after UsedBy. It needs r.mu, and is called after each
// change of the grants, of access in doubt and of copiers, and after UsedBy.
func (r *Reservation) setWaitsForLocked() {
	invariants.Held(&r.mu)
	if r.namedStreams != nil {
		r.waitsFor.Store(nil)
		return
	}
	devs := r.mayAccessLocked(nil)
	r.waitsFor.Store(&devs)
}

// mayAccessLocked appends the devices whose work may use the memory. It needs r.mu.
func (r *Reservation) mayAccessLocked(devs []*deviceState) []*deviceState {
	invariants.Held(&r.mu)
	for _, b := range r.bans {
		if b.inDoubt != nil && !slices.Contains(devs, b.deviceState) {
			devs = append(devs, b.deviceState)
		}
	}
	for _, d := range r.copiers {
		if !slices.Contains(devs, d) {
			devs = append(devs, d)
		}
	}
	for _, g := range r.grants {
		if !slices.Contains(devs, g.dev.state) {
			devs = append(devs, g.dev.state)
		}
	}
	return devs
}

// usersNow appends what may be using the memory after UsedBy. The devices are those whose
// work may use the memory: of each, the library's own stream counts. The streams are those
//
//   - that UsedBy has named
//   - on which an AppendOn may not have run yet
//
// UsedBy promises that there is no other work.
func (r *Reservation) usersNow(devs []*deviceState, streams []*Stream) ([]*deviceState, []*Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.namedStreams {
		streams = append(streams, s)
	}
	for s := range r.pendingAppends {
		if _, named := r.namedStreams[s]; !named {
			streams = append(streams, s)
		}
	}
	return r.mayAccessLocked(devs), streams
}

// addWaitedForBy notes that r waits for the stream; false if it is closed.
func (s *Stream) addWaitedForBy(r *Reservation) bool {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if s.waitedForBy == nil {
		return false
	}
	s.waitedForBy[r] = struct{}{}
	return true
}

// removeWaitedForBy undoes addWaitedForBy.
func (s *Stream) removeWaitedForBy(r *Reservation) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	delete(s.waitedForBy, r)
}
