package vmm

import (
	"context"
	"fmt"
)

// owed is the AppendOns of one stream that may not have run yet, by number.
type owed struct{ first, last uint64 }

// WaitWritten is Len as it is now, once the copies that AppendOn has queued for
// bytes below it have run: what may then be shown to readers that know nothing
// of the streams. Where no AppendOn is under way it answers at once, without a
// driver call. Else it waits for all that the streams of those AppendOns have
// been told so far, and answers ErrCapturing while one of them is being
// captured. It stops waiting when ctx is done and answers ctx's error; the
// memory of a lost device answers ErrDeviceLost. Bytes that other work writes,
// a kernel's for one, are not waited for.
func (g *Range) WaitWritten(ctx context.Context) (n uint64, err error) {
	n, err = g.written(ctx)
	return n, g.fail("wait for appends", 0, 0, err)
}

func (g *Range) written(ctx context.Context) (uint64, error) {
	if err := g.live(); err != nil {
		return 0, err
	}
	if ctx == nil {
		return 0, fmt.Errorf("%w: no context", ErrInvalid)
	}
	n, turn, some, err := g.shown()
	if err != nil || !some {
		return n, err
	}
	// One waits at a time, for what all of them need: those that give up leave no
	// more than one thread behind.
	select {
	case g.await <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	err = g.r.dev.until(ctx, func() error {
		defer func() { <-g.await }()
		return g.r.collect(turn)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// shown is Len, the number of the last AppendOn, and whether some may not have
// run yet.
func (g *Range) shown() (n, turn uint64, some bool, err error) {
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	if err := g.r.live(); err != nil {
		return 0, 0, false, err
	}
	return g.len.Load(), g.r.appends, len(g.r.owed) > 0, nil
}

// owe notes an AppendOn on s. It needs r.mu.
func (r *Reservation) owe(s *Stream) {
	r.appends++
	o, ok := r.owed[s]
	if !ok {
		if !s.remember(r) {
			return // closed meanwhile, its work waited for
		}
		o.first = r.appends
		if r.owed == nil {
			r.owed = map[*Stream]owed{}
		}
	}
	o.last = r.appends
	r.owed[s] = o
}

// settled notes that the AppendOns on s up to the given one have run.
func (r *Reservation) settled(s *Stream, upTo uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o, ok := r.owed[s]
	switch {
	case !ok:
	case o.last > upTo:
		r.owed[s] = owed{max(o.first, upTo+1), o.last}
	default:
		delete(r.owed, s)
		if _, named := r.named[s]; !named {
			s.forget(r)
		}
	}
}

// tail is the end of a stream that owes, as far as the AppendOn numbered upTo.
type tail struct {
	s    *Stream
	upTo uint64
	m    mark
	err  error
}

// collect waits until the AppendOns up to the one numbered turn have run.
func (r *Reservation) collect(turn uint64) error {
	var tails []tail
	r.mu.Lock()
	for s, o := range r.owed {
		if o.first <= turn {
			tails = append(tails, tail{s: s, upTo: o.last})
		}
	}
	r.mu.Unlock()
	for i := range tails {
		if err := tails[i].s.notCapturing(); err != nil {
			return err
		}
	}
	for i := range tails {
		t := &tails[i]
		t.m, t.err = t.s.end()
	}
	var failed error
	for _, t := range tails {
		err := t.s.reach(t.m, t.err)
		if err == nil {
			r.settled(t.s, t.upTo)
		} else if failed == nil {
			failed = fmt.Errorf("wait for a stream of %v: %w", t.s.dev, err)
		}
	}
	return failed
}
