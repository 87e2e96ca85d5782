//go:build !linux

package store

import (
	"context"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

// Connect needs Linux.
func (s *Server) Connect(context.Context, *vmm.Device, ClientOptions) (*Client, error) {
	return nil, fmt.Errorf("connect to store: %w: sharing needs Linux", vmm.ErrNotSupported)
}
