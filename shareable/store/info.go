package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Info describes an object as it was when the server replied.
type Info struct {
	ID       ID                `json:"id"`
	Names    []string          `json:"names,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Len      uint64            `json:"len"` // bytes published
	Cap      uint64            `json:"cap"` // bytes of memory
	Max      uint64            `json:"max"` // bytes that it can have
	Host     bool              `json:"host"`
	Node     int               `json:"node"` // of memory on the host; else the device's ordinal where the object was made
	Sealed   bool              `json:"sealed"`
	Growable bool              `json:"growable"`
	Durable  bool              `json:"durable"`
	Leased   bool              `json:"leased"`  // it has a Writer
	Readers  int               `json:"readers"` // connections that have it mapped
	Owner    uint32            `json:"owner"`   // the user who made it
	Waiting  int               `json:"waiting"` // calls of Append that wait for it
	Created  time.Time         `json:"created"` // by the server's clock
}

// ListOptions selects what List returns; its zero value is everything.
type ListOptions struct {
	// Prefix is what a name of the object begins with.
	Prefix string
	// Labels are those that the object has; an empty value is any.
	Labels map[string]string
}

// List returns the objects that the options select, in the order in which they were made.
func (c *Client) List(ctx context.Context, o ListOptions) (all []Info, err error) {
	defer errtext.Wrapf(&err, "list objects")
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	q := wire.Query{Prefix: o.Prefix}
	if q.Labels, err = sortedLabels(o.Labels); err != nil {
		return nil, err
	}
	switch {
	case len(q.Labels) > wire.MaxLabels:
		return nil, fmt.Errorf("%w: %d labels, over %d", vmm.ErrInvalid, len(q.Labels), wire.MaxLabels)
	case o.Prefix != "":
		if err := checkName(o.Prefix); err != nil {
			return nil, err
		}
	}
	// A reply holds as many objects as a frame does, so each request asks for those after
	// the last.
	var about target
	for more := true; more; {
		found, instance, err := c.query(ctx, about, q)
		if err != nil {
			return nil, err
		}
		about.instance = instance // the rest of the list is of the same server
		for _, e := range found.Entries {
			if e.ID <= q.After { // else a server could keep this loop running
				return nil, fmt.Errorf("%w: object %d is listed after %d", shareable.ErrProtocol, e.ID, q.After)
			}
			q.After = e.ID
			all = append(all, infoOf(instance, e))
		}
		more = found.More
	}
	return all, nil
}

// query sends one QUERY. instance is that of the server that has replied.
func (c *Client) query(ctx context.Context, about target, q wire.Query) (found wire.Found, instance [16]byte, err error) {
	instance, err = c.read(ctx, about, wire.TypeQuery, q.Append(nil), wire.TypeFound, into(&found, wire.DecodeFound))
	return found, instance, err
}

func infoOf(instance [16]byte, e wire.Info) Info {
	i := Info{
		ID: ID{Instance: instance, Number: e.ID}, Names: e.Names, Len: e.Length, Cap: e.Capacity, Max: e.Max,
		Host: e.Flags&wire.StoreHost != 0, Node: int(e.Device), Sealed: e.State == wire.StateSealed,
		Growable: e.Flags&wire.StoreGrowable != 0, Durable: e.Flags&wire.StoreDurable != 0, Leased: e.Flags&wire.StoreLeased != 0,
		Readers: int(e.Readers), Owner: e.UID, Waiting: int(e.Waiting), Created: time.Unix(0, int64(min(e.Created, math.MaxInt64))),
	}
	for _, l := range e.Labels {
		if i.Labels == nil {
			i.Labels = map[string]string{}
		}
		i.Labels[l.Key] = l.Value
	}
	return i
}

// Stat describes one object. If there is none, it returns shareable.ErrNotFound.
func (c *Client) Stat(ctx context.Context, name string) (_ Info, err error) {
	defer errtext.Wrapf(&err, "stat %q", name)
	return c.stat(ctx, name)
}

func (c *Client) stat(ctx context.Context, name string) (Info, error) {
	t, err := c.target(ctx, name)
	if err != nil {
		return Info{}, err
	}
	var obj wire.Object
	instance, err := c.read(ctx, t, wire.TypeStat, wire.Stat{Name: t.name}.Append(nil), wire.TypeObject, into(&obj, wire.DecodeObject))
	if err != nil {
		return Info{}, err
	}
	t.instance = instance
	q := wire.Query{After: obj.ID - 1}
	if id := wire.IDName(obj.ID); t.name != id {
		q.Prefix = t.name // that keeps the reply short
	}
	found, _, err := c.query(ctx, t, q)
	if err == nil && (len(found.Entries) == 0 || found.Entries[0].ID != obj.ID) {
		err = shareable.ErrNotFound // it has gone meanwhile
	}
	if err != nil {
		return Info{}, err
	}
	return infoOf(instance, found.Entries[0]), nil
}

// Link gives an object another name, up to 16 (vmm.ErrLimit). It returns vmm.ErrBusy if the
// name is taken, and vmm.ErrPermission if another user has made the object.
func (c *Client) Link(ctx context.Context, name, as string) (err error) {
	defer errtext.Wrapf(&err, "link %q as %q", name, as)
	if err := checkName(as); err != nil {
		return err
	}
	return c.change(ctx, name, wire.TypeLink, func(name string) []byte { return wire.Link{Name: name, As: as}.Append(nil) })
}

// Unlink takes a name from its object, which stays: its ID finds it. It returns
// vmm.ErrPermission if another user has made the object.
func (c *Client) Unlink(ctx context.Context, name string) (err error) {
	defer errtext.Wrapf(&err, "unlink %q", name)
	if err := checkName(name); err != nil {
		return err
	}
	return c.change(ctx, name, wire.TypeUnlink, func(name string) []byte { return wire.Unlink{Name: name}.Append(nil) })
}

// change sends a request that changes something about an object.
func (c *Client) change(ctx context.Context, name string, t wire.Type, payload func(name string) []byte) error {
	about, err := c.target(ctx, name)
	if err != nil {
		return err
	}
	_, err = c.request(ctx, about, t, payload(about.name), wire.TypeDone, ignore)
	return err
}

// defaultForce is how long a forced Delete waits for readers.
const defaultForce = 5 * time.Second

// Delete removes an object and all its names at once. Its memory goes with the last View
// of it, or is unmapped there; see DeleteOptions. If it has a Writer, that can publish
// nothing more. Delete returns vmm.ErrPermission if another user has made the object.
func (c *Client) Delete(ctx context.Context, name string, o DeleteOptions) (err error) {
	defer errtext.Wrapf(&err, "delete %q", name)
	if o.Timeout < 0 || o.Timeout > math.MaxInt32*time.Millisecond {
		return errTimeout(o.Timeout)
	}
	q := wire.Delete{Force: o.Force}
	if !o.Force {
		return c.change(ctx, name, wire.TypeDelete, func(name string) []byte { q.Name = name; return q.Append(nil) })
	}
	t, err := c.target(ctx, name)
	if err != nil {
		return err
	}
	o.Timeout = cmp.Or(o.Timeout, defaultForce)
	q.Name, q.Timeout = t.name, uint32(max(o.Timeout.Milliseconds(), 1))
	// The reply takes its time, and others would wait for it on the same connection.
	sub, cancel := c.both(ctx)
	defer cancel()
	conn, err := c.connect(sub, serve.Notified{Event: unasked})
	if err != nil {
		return c.why(ctx, err)
	}
	defer conn.Close()
	if err := t.check(conn.Hello().Instance); err != nil {
		return err
	}
	limit := o.Timeout + c.opts.Timeout
	return c.why(ctx, call(sub, limit, conn, wire.TypeDelete, q.Append(nil), wire.TypeDone, ignore))
}

// Stats returns the server's counts as of now, without Conns.
func (c *Client) Stats(ctx context.Context) (x Stats, err error) {
	defer errtext.Wrapf(&err, "stats of store")
	var counters wire.Counters
	if _, err := c.read(ctx, target{}, wire.TypeCount, nil, wire.TypeCounters, into(&counters, wire.DecodeCounters)); err != nil {
		return Stats{}, err
	}
	x.decode(counters)
	return x, nil
}

// Report returns what the store says of itself. Of other users it tells root and the store's user
// alone.
func (c *Client) Report(ctx context.Context) (r Report, err error) {
	defer errtext.Wrapf(&err, "report of store")
	if err := c.check(ctx); err != nil {
		return Report{}, err
	}
	_, err = c.read(ctx, target{}, wire.TypeReport, nil, wire.TypeReported, into(&r, func(b []byte) (r Report, err error) {
		x, err := wire.DecodeReported(b)
		if err == nil {
			err = json.Unmarshal(x.JSON, &r)
		}
		return r, err
	}))
	if err != nil {
		return Report{}, err
	}
	return r, nil
}

// Revoke ends the lease of an object, as if its Writer had shown no sign of life: a process that
// hangs, say, keeps others from it no more. What was published stays, also of an object that was
// not Durable: the next Append has it. It returns shareable.ErrNotFound if there is no such object,
// or no Writer of it, shareable.ErrSealed, and vmm.ErrPermission if another user has made it.
func (c *Client) Revoke(ctx context.Context, name string) (err error) {
	defer errtext.Wrapf(&err, "revoke the lease of %q", name)
	return c.change(ctx, name, wire.TypeRevoke, func(name string) []byte { return wire.Revoke{Name: name}.Append(nil) })
}
