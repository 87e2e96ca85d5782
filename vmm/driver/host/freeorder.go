//go:build linux

package host

import "maps"

// frees is how much pool memory each stream had freed at a point: what comes after that point comes
// after so many of its frees. As on CUDA an order stays one when the work has ended.
type frees map[*stream]uint64

// frees is those that the stream's work from now on comes after. The caller holds workMu.
func (s *stream) frees() frees {
	if s.freeCount == 0 && len(s.follows) == 0 {
		return nil
	}
	all := maps.Clone(s.follows)
	if all == nil {
		all = frees{}
	}
	if s.freeCount > 0 {
		all[s] = s.freeCount
	}
	return all
}

// follow has the stream's work from now on come after frees. The caller holds workMu, and queues the wait
// if there is one.
func (s *stream) follow(all frees) {
	for x, n := range all {
		if x.freeCount == 0 || x == s { // removed, or its own
			continue
		}
		if s.follows == nil {
			s.follows = frees{}
		}
		s.follows[x] = max(s.follows[x], n)
	}
}

// forgetFrees has no stream keep the order of one that goes. The caller holds workMu.
func (s *stream) forgetFrees() {
	if s.follows = nil; s.freeCount == 0 {
		return
	}
	s.freeCount = 0
	for _, u := range s.context.d.states {
		if u.context == nil {
			continue
		}
		for x := range u.context.allStreams() {
			delete(x.follows, s)
		}
	}
}
