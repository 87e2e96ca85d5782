//go:build !cgo || !linux

package fakenccl

// Polls does nothing: without cgo Open skips the test.
func (*Library) Polls(int) {}

// Kill ends nothing.
func (*Library) Kill(int, int) int { return 0 }

// Log says nothing.
func (*Library) Log() string { return "" }

// Live counts nothing.
func (*Library) Live() Live { return Live{} }
