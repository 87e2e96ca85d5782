package shareable

import "github.com/cuvmm/cuvmm/vmm"

// Snapshot is a prefix of a View at one moment. It does not grow, and nothing is
// copied: the owner may still write below Len if it has not sealed the object.
type Snapshot struct {
	Ptr        vmm.Ptr
	Len        uint64 // bytes
	Generation uint64
}

// Snapshot is the prefix that can be read now. After Close it is empty.
func (v *View) Snapshot() Snapshot {
	if v == nil {
		return Snapshot{}
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.closed {
		return Snapshot{}
	}
	return Snapshot{Ptr: v.res.Ptr(), Len: v.lenLocked(), Generation: v.generation}
}

// Valid says whether the bytes of s are still there: the owner has taken none
// of the object's bytes back since. Ask after reading; what was read before a
// yes is good.
func (v *View) Valid(s Snapshot) bool {
	if v == nil {
		return false
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.closed || s.Ptr != v.res.Ptr() || s.Generation != v.generation || s.Len > v.mapped {
		return false
	}
	// The owner may be further than what has arrived on the socket.
	return v.detached || v.page == nil || v.page.generation() == s.Generation
}
