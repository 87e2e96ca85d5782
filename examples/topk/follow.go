package main

import (
	"context"
	"encoding/hex"
	"errors"
	"log"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// follower is the store of a process that reads the owner's memory.
type follower struct {
	dev  *vmm.Device
	path string

	mu   sync.RWMutex // held for reading while a query uses view and rows
	view *shareable.View
	rows *growable.RowsReader[float32]
}

// follow serves the owner's vectors until ctx ends.
func follow(ctx context.Context, dev *vmm.Device, o options) error {
	ctx, cancel := context.WithCancel(ctx)
	s := &follower{dev: dev, path: o.path}
	var attaching sync.WaitGroup
	attaching.Go(func() { s.keepAttached(ctx) })
	err := serve(ctx, o.addr, handler(s))
	cancel()
	attaching.Wait()
	return errors.Join(err, s.view.Close())
}

// keepAttached attaches to the owner as soon as there is one, and again after each restart
// of it. Between two owners the vectors of the first stay: they are mapped here.
func (s *follower) keepAttached(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := s.attach(ctx); err != nil && !noOwner(err) && ctx.Err() == nil {
			log.Print(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// noOwner tells the errors that only say that there is no owner yet.
func noOwner(err error) bool {
	return errors.Is(err, shareable.ErrOwnerGone) || errors.Is(err, shareable.ErrNotFound)
}

// attach replaces the view if it no longer follows an owner. Only one goroutine calls it, so
// it reads s.view without the lock.
func (s *follower) attach(ctx context.Context) (err error) {
	view, fresh := s.view, false
	if view == nil {
		view, err = shareable.Attach(ctx, s.path, published, s.dev, shareable.AttachOptions{})
		fresh = err == nil
	} else {
		view, fresh, err = shareable.Reattach(ctx, view)
	}
	if !fresh {
		return err
	}
	rows, err := growable.NewRowsReader[float32](view, 0) // 0: the width is the owner's
	if err == nil {
		err = view.Wait(ctx, view.Queued()) // the memory arrives after the view
	}
	if err != nil {
		return errors.Join(err, view.Close())
	}
	s.mu.Lock()
	old := s.view
	s.view, s.rows = view, rows
	s.mu.Unlock()
	return old.Close() // which a nil View allows
}

func (s *follower) use(f func(table) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.view == nil {
		return shareable.ErrOwnerGone
	}
	return f(s.rows)
}

func (s *follower) stats() any {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.view == nil {
		return map[string]any{"following": false, "device": s.dev.Stats()}
	}
	owner := s.view.Instance()
	return map[string]any{
		"rows": s.rows.Len(), "width": s.rows.Width(), "following": s.view.Err() == nil,
		"owner": hex.EncodeToString(owner[:]), "view": s.view.Stats(), "device": s.dev.Stats(),
	}
}
