package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Get maps an object, and returns once all of it can be read: up to the length that it has,
// if it is not sealed. If there is no such object it returns shareable.ErrNotFound, and if
// it is not sealed shareable.ErrNotSealed; see GetOptions. If it waits and the Writer gives
// the object up, it returns shareable.ErrAborted. Memory of a sealed object cannot be had
// for writing: vmm.ErrPermission. While the View is open the store keeps the object's memory, also if
// the object is deleted, unless that is forced. Where another server continues with the object, the
// View does too. The caller must Close it.
func (c *Client) Get(ctx context.Context, name string, o GetOptions) (_ *shareable.View, err error) {
	defer errtext.Wrapf(&err, "get %q", name)
	return c.get(ctx, name, o)
}

func (c *Client) get(ctx context.Context, name string, o GetOptions) (_ *shareable.View, err error) {
	t, err := c.target(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case o.Write && !o.Unsafe:
		return nil, fmt.Errorf("%w: Write without Unsafe", vmm.ErrInvalid)
	}
	sub, cancel := c.both(ctx)
	defer cancel()
	defer func() { err = c.why(ctx, err) }()
	v, err := c.attach(sub, t, o)
	if o.Wait && (errors.Is(err, shareable.ErrNotFound) || errors.Is(err, shareable.ErrNotSealed)) {
		if t, err = c.waitFor(sub, t, o.Unsafe); err == nil {
			v, err = c.attach(sub, t, o)
		}
	}
	if err != nil {
		return nil, err
	}
	sharing.SetName(v, name)
	return v, nil
}

// attach makes a View of an object as it is, and returns it when all of that is mapped. If the
// object goes meanwhile, the server is asked again: it has another one by now, or none.
func (c *Client) attach(ctx context.Context, t target, o GetOptions) (*shareable.View, error) {
	for {
		v, err := c.attachOnce(ctx, t, o)
		if err != nil {
			return nil, err
		}
		if v.Sealed() {
			err = v.WaitSealed(ctx)
		} else {
			err = v.Wait(ctx, v.Published())
		}
		if err == nil {
			return v, nil
		}
		if failed := v.Close(); failed != nil || !errors.Is(err, shareable.ErrOwnerGone) {
			return nil, errors.Join(err, failed)
		}
	}
}

// attachOnce makes a View, of which nothing need be mapped yet.
func (c *Client) attachOnce(ctx context.Context, t target, o GetOptions) (v *shareable.View, err error) {
	if spare := c.takeSpare(); spare != nil {
		v, err = spare.Attach(ctx, t.name, o.Unsafe, o.Write)
	}
	if v == nil && (err == nil || errors.Is(err, shareable.ErrOwnerGone)) { // another server may be there by now
		v, err = c.attachAnew(ctx, t, o)
	}
	if err != nil {
		return nil, err
	}
	if err := t.check(v.Instance()); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	c.makeSpare()
	return v, nil
}

// attachAnew is attach over a new connection, to whatever instance is there.
func (c *Client) attachAnew(ctx context.Context, t target, o GetOptions) (*shareable.View, error) {
	with := c.opts.attach()
	with.Unsealed, with.Write = o.Unsafe, o.Write
	if c.dial == nil {
		return shareable.Attach(ctx, c.path, t.name, c.dev, with)
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	return shareable.AttachConn(ctx, conn, t.name, c.dev, with)
}

// takeSpare returns the connection that was made for the next Get; nil if there is none.
func (c *Client) takeSpare() serve.Spare[*shareable.View] {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.spare
	c.spare = nil
	return s
}

// makeSpare has a connection made for the next Get, which does not have to connect then. If
// that fails, the next Get finds out why.
func (c *Client) makeSpare() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil || c.spare != nil || c.isMaking {
		return
	}
	c.isMaking = true
	c.tasks.Go(func() {
		s, err := c.dialSpare()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.isMaking = false
		switch {
		case err != nil:
		case c.ctx.Err() != nil:
			s.Close()
		default:
			c.spare = s
			time.AfterFunc(spareTime, func() { c.dropSpare(s) })
		}
	})
}

// spareTime is how long a connection stays ready for the next Get: each is a descriptor of the
// server's. It is a variable for tests.
var spareTime = 100 * time.Millisecond

// dropSpare ends a connection that no Get has taken.
func (c *Client) dropSpare(s serve.Spare[*shareable.View]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spare == s {
		c.spare = nil
		s.Close()
	}
}

func (c *Client) dialSpare() (serve.Spare[*shareable.View], error) {
	if c.dial == nil {
		return sharing.DialSpare(c.ctx, c.path, c.dev, c.opts.attach())
	}
	conn, err := c.dial(c.ctx)
	if err != nil {
		return nil, err
	}
	return sharing.DialSpareConn(c.ctx, conn, c.dev, c.opts.attach())
}

// waitFor waits until an object is there, and sealed unless it need not be, and returns its ID: its
// name can be another object's soon. The wait has a connection of its own, with which it ends at
// the server.
func (c *Client) waitFor(ctx context.Context, t target, unsealed bool) (target, error) {
	conn, err := c.connect(ctx, serve.Notified{Event: unasked})
	if err != nil {
		return t, err
	}
	defer conn.Close()
	if err := t.check(conn.Hello().Instance); err != nil {
		return t, err
	}
	var obj wire.Object
	err = conn.Call(ctx, wire.TypeWait, wire.Wait{Unsealed: unsealed, Name: t.name}.Append(nil), wire.TypeObject, into(&obj, wire.DecodeObject))
	return target{name: wire.IDName(obj.ID), instance: conn.Hello().Instance}, err
}

// getsAtOnce is how many objects GetAll attaches to at a time.
const getsAtOnce = 8

// GetAll is Get for several objects at a time. It returns all of them, in the order of the
// names, or an error and none. The caller must Close each View.
func (c *Client) GetAll(ctx context.Context, names []string, o GetOptions) ([]*shareable.View, error) {
	if err := c.check(ctx); err != nil {
		return nil, fmt.Errorf("get %d objects: %w", len(names), err)
	}
	sub, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		all   = make([]*shareable.View, len(names))
		next  = make(chan int)
		tasks sync.WaitGroup
		once  sync.Once
		first error // the one that ended the others
	)
	for range min(getsAtOnce, len(names)) {
		tasks.Go(func() {
			for i := range next {
				b, err := c.Get(sub, names[i], o)
				if all[i] = b; err != nil {
					once.Do(func() { first = err; cancel() })
				}
			}
		})
	}
	for i := range names {
		next <- i
	}
	close(next)
	tasks.Wait()
	if first == nil {
		return all, nil
	}
	for _, b := range all {
		first = errors.Join(first, b.Close())
	}
	return nil, first
}
