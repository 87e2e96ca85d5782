//go:build !linux

package store

import (
	"context"
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

var errLinux = fmt.Errorf("%w: stores need Linux", vmm.ErrNotSupported)

type handover struct{ c serve.Conn }

func (s *Server) takeOver(serve.Conn, wire.Frame) error { return errLinux }
func (s *Server) taken(serve.Conn, wire.Frame) error    { return errLinux }
func (s *Server) decide(*handover, bool) bool           { return false }

// TakeOver needs Linux.
func TakeOver(context.Context, *vmm.Device, string, Options) (*Server, error) { return nil, errLinux }

// These are of a takeover alone.
var _ = func(o Options) (func(), func(), time.Duration) {
	return o.hooks.beforeTaken, o.hooks.earlyState, o.hooks.exitTime
}
