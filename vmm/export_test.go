package vmm

import "iter"

// SetNoFence turns every fence of the device's driver off: the negative control
// of the tests that prove fences.
func SetNoFence(d *Device, off bool) { d.port.sys.noFence = off }

// Ladder is wish and ladder.
func Ladder(need, committed, room, gran, most, fixed uint64) iter.Seq[uint64] {
	return ladder(wish(need, committed, room, gran, fixed), most, fixed)
}

// SetStill keeps the device's goroutine from starting; Drain does what it would
// do for what retires, if its time has come.
func SetStill(d *Device, still bool) { d.still = still }

// Drain unmaps what retired and waits no longer.
func Drain(d *Device) error {
	_, err := d.drainNow()
	return err
}

// SizeText is sizeText.
var SizeText = sizeText

// Named is how many streams the range's Use has named.
func Named(g *Range) int {
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	return len(g.r.named)
}

// Working says whether the device's goroutine is there, and how many ranges are
// on its list.
func Working(d *Device) (running bool, wanted int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.worker.running, len(d.worker.wanted)
}

// PretendPrivate makes the memory of a segment one that may be kept: the
// negative control of contract 6.
func PretendPrivate(s Segment) { s.mem.private = true }

// SetForeign makes the stream one that may be of another context.
func SetForeign(s *Stream, wrapped bool) { s.wrapped = wrapped }

// Lodge is the host memory where the contents of the device's ranges sleep.
func Lodge(d *Device) *Device {
	d.lodgeMu.Lock()
	defer d.lodgeMu.Unlock()
	return d.host
}
