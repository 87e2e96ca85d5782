//go:build !linux

package store

import (
	"context"
	"fmt"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

var errLinux = fmt.Errorf("%w: stores need Linux", vmm.ErrNotSupported)

// recorder tells no one.
type recorder struct{}

func (r *recorder) stop() {}

func (s *Server) record(*entry, requestID) error                   { return nil }
func (s *Server) forget(*entry, requestID) error                   { return nil }
func (s *Server) isDone(requestID) bool                            { return false }
func (r *recorder) keepMember(string, []byte) error                { return nil }
func (s *Server) clientsGone(...string)                            {}
func (s *Server) resume(serve.Conn, wire.Frame, wire.Resume) error { return errLinux }

func (s *Server) recordSeal(_ *entry, _ requestID, q serve.Seal, apply func(serve.Seal) error) error {
	return apply(q)
}

type awaited struct{}

// Keeper needs Linux.
type Keeper struct{}

// NewKeeper needs Linux.
func NewKeeper(KeeperOptions) (*Keeper, error) { return nil, errLinux }

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

// Ping needs Linux.
func Ping(context.Context, string, ClientOptions) error { return errLinux }

// FailKept returns err.
func FailKept(err error) error { return err }

// KeeperPID needs Linux.
func KeeperPID(context.Context, string, []uint32) (int, error) { return 0, errLinux }

// These are of Linux alone.
var _ = func(s *Server, x *clientState) (map[string]*awaited, bool, uint64) {
	return s.awaited, s.opts.hooks.forget || s.opts.hooks.blind, x.began
}
