//go:build !cgo || !linux

package fakecuda

// Configure does nothing: without cgo Open skips the test.
func (*Library) Configure(int, uint64) {}

// Last says nothing.
func (*Library) Last(string) string { return "" }

// Live counts nothing.
func (*Library) Live() Live { return Live{} }

// Lose does nothing.
func (*Library) Lose() {}

// Pause does nothing.
func (*Library) Pause(string) error { return nil }

// Paused counts nothing.
func (*Library) Paused() int { return 0 }

// Link does nothing.
func (*Library) Link(_, _ int, _ Link) {}

func (*Library) foreign(int, uint64, *Foreign) int { return -1 }

// End does nothing.
func (*Library) End() {}
