package vmm

import (
	"cmp"
	"fmt"
	"slices"
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
	// Streams that have closed are left out: their work was waited for.
	r.users.Name(slices.DeleteFunc(slices.Clone(streams), func(s *Stream) bool { return !s.addWaitedForBy(r) })...)
	return nil
}

// usersNow is what may be using the memory after UsedBy. The devices are those whose
// work may use the memory: of each, the library's own stream counts. The streams are those
//
//   - that UsedBy has named
//   - on which an AppendOn may not have run yet
//
// UsedBy promises that there is no other work.
func (r *Reservation) usersNow() ([]*deviceState, []*Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.users.Devices(), r.users.Streams()
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
