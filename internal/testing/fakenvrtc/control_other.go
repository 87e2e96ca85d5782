//go:build !cgo || !linux

package fakenvrtc

// Live counts nothing: without cgo Open skips the test.
func (*Library) Live() int { return 0 }
