package budget

import (
	"context"

	"github.com/cuvmm/cuvmm/vmm"
)

// WithRoot is o with another place of the system's files.
func WithRoot(o FollowOptions, root string) FollowOptions {
	o.root = root
	return o
}

// LimitsIn is Limits with another place of the system's files.
func LimitsIn(dev *vmm.Device, root string) ([]Limit, error) { return newReader(dev, root).read() }

// ParseSize parses a size in a variable.
var ParseSize = parseSize

// AskUntil is an urgent ask of an operation that waits until ctx ends.
func (m *Member) AskUntil(ctx context.Context, need uint64) error { return m.ask(ctx, need, true) }
