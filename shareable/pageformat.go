//go:build linux

package shareable

// The control page: one word for each thing that changes, each on a cache line
// of its own, all little-endian. docs/protocol.md says how to read it.
const (
	pageBytes   = 4096
	pageMagic   = 0x50565543 // "CUVP"
	pageVersion = 1

	atMagic      = 0
	atVersion    = 4
	atInstance   = 8
	atObject     = 24
	atQueued     = 64
	atDone       = 128
	atGeneration = 192
	atState      = 256
	atHeartbeat  = 320
	atWake       = 384
)
