//go:build !linux

package store

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
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

// recorder tells no one.
type recorder struct{}

func (r *recorder) stop() {}

func (s *Server) record(*entry) error { return nil }
func (s *Server) forget(*entry)       {}

// TakeOver needs Linux.
func TakeOver(context.Context, *vmm.Device, *net.UnixConn, int, Options) (*Server, error) {
	return nil, errLinux
}

// HandOver needs Linux.
func (s *Server) HandOver(*net.UnixConn) error { return errLinux }

// Keeper needs Linux.
type Keeper struct{}

// NewKeeper needs Linux.
func NewKeeper(string, func() *exec.Cmd, *slog.Logger) (*Keeper, error) { return nil, errLinux }

// Path is empty.
func (k *Keeper) Path() string { return "" }

// Run needs Linux.
func (k *Keeper) Run(context.Context) error { return errLinux }

// Reload needs Linux.
func (k *Keeper) Reload(context.Context) error { return errLinux }

// Close does nothing.
func (k *Keeper) Close() error { return nil }

// IsKept is false.
func IsKept() bool { return false }

// ServeKept needs Linux.
func ServeKept(context.Context, *vmm.Device, Options, func(*Server)) error { return errLinux }

// Replace needs Linux.
func (c *Client) Replace(context.Context) error { return errLinux }

// These are of a takeover alone.
var _ = func(o Options, s *Server) (func(), func(), time.Duration, bool, uint64) {
	return o.hooks.beforeTaken, o.hooks.earlyState, o.hooks.exitTime, o.hooks.anyTakesOver, s.resumedIDs
}
