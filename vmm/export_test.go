package vmm

// SetNoFence turns every fence of the device's driver off: the negative control
// of the tests that prove fences.
func SetNoFence(d *Device, off bool) { d.port.sys.noFence = off }

// Ladder is ladder.
var Ladder = ladder

// SizeText is sizeText.
var SizeText = sizeText

// Named is how many streams the range's Use has named.
func Named(g *Range) int {
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	return len(g.r.named)
}
