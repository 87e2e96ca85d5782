package collective

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

const (
	reachTimeout  = 5 * time.Second // to be admitted by another member
	reachTries    = 3               // that end without a reply, before the other one counts as busy
	probeInterval = 500 * time.Millisecond
)

// reached is what was found out about another member.
type reached int

const (
	alive     reached = iota
	dead              // proven
	unreached         // it may live
	elsewhere         // alive, but follows another leader now, or is not ready
)

var (
	errAgain   = errors.New("no leader was found")
	errRecount = errors.New("a member has ended")
	errLeft    = fmt.Errorf("%w: the connections with the other members", vmm.ErrClosed)
)

// shrink makes a circle of the members that live. Each of them has to call it. It returns the old
// ranks of the members, in ascending order; the new rank of each is its index there. The lowest one
// leads, and its newID makes the identity. After that c is used up. After an error shrink may be
// called again, or leave.
//
// A member is proven dead if its host refuses the connection to where it listened, or if another
// program or another group listens there. A member that does not reply, or cannot be reached, may
// live, on the other side of a network that has split. So the members that have come together go
// on only if they are more than those that may live elsewhere, or as many and the lowest rank is
// among them. Of several sides at most one goes on, and a side that must not has ErrPeerGone, as
// has a member that the others went on without. The proof fails where a firewall refuses
// connections for hosts that live, with a reset: then two sides may go on. Firewalls between the
// members must drop packets, or let them pass.
//
// Before the leader decides, each member that has come accepts it, and from then on follows no
// other leader until that one withdraws or is proven dead. So no member counts on two sides.
//
// For a lower rank that lives and does not lead the others wait until half of the time to the
// deadline of ctx has passed, and for members that live and do not come the leader waits until
// three quarters have; then they count as unreached. Without a deadline they wait until ctx ends.
// One attempt to reach a member takes an eighth of the time, 5 seconds at most.
func (c *circle) shrink(ctx context.Context, newID func() (ID, error)) (next *circle, survivors []int, id ID, err error) {
	c.shrinking.Lock()
	defer c.shrinking.Unlock()
	c.hangUp(nil)
	c.mu.Lock()
	used := c.used
	c.mu.Unlock()
	if used {
		return nil, nil, id, errLeft
	}
	patience := ctx
	c.limit, c.late = reachTimeout, map[int]bool{}
	began := time.Now()
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		patience, cancel = context.WithTimeout(ctx, time.Until(end)*3/4)
		defer cancel()
		c.limit = min(reachTimeout, time.Until(end)/8)
	}
	for {
		var w *welcome
		var links map[int]*link
		leader, l, err := c.findLeader(ctx, patience)
		switch {
		case err != nil:
		case l == nil:
			w, links, err = c.leadShrink(ctx, patience, newID)
		default:
			links = map[int]*link{0: l}
			w, err = c.followShrink(ctx, began, leader, l)
		}
		if err == nil {
			next, err := c.renew(w, links)
			return next, w.Ranks, ID(w.ID), err
		}
		if c.own != nil { // those that wait here are to look again
			c.own.dismiss(refusal{code: codeElsewhere})
		}
		if ctx.Err() != nil {
			return nil, nil, id, fmt.Errorf("go on with those that live: %w: %w", ctx.Err(), err)
		}
		if !errors.Is(err, errAgain) {
			return nil, nil, id, err
		}
		pause(ctx, meetRetry)
	}
}

// renew makes the next circle, which takes over the listener.
func (c *circle) renew(w *welcome, links map[int]*link) (*circle, error) {
	m, rank := c.meeting, slices.Index(w.Ranks, c.rank)
	m.size = len(w.Ranks)
	if c.own != nil {
		c.own.renew(w.Generation, rank, m.size)
	}
	next := newCircle(m, rank, c.own, w.Addresses, links)
	next.dial = c.dial
	c.mu.Lock()
	left := c.used
	c.used = true
	c.mu.Unlock()
	if left { // meanwhile
		next.leave()
		return nil, errLeft
	}
	return next, nil
}

// hello is this member's to another one.
func (c *circle) hello(probe uint32) hello {
	c.own.mu.Lock()
	defer c.own.mu.Unlock()
	p, _ := strconv.Atoi(c.own.tcpPort()) // made by net
	return hello{Job: c.own.job, Generation: c.own.generation, Rank: uint32(c.rank), Size: uint32(c.size), TCPPort: uint32(p), Probe: probe}
}

// reach connects to another member, to follow it or with probe 1 to see whether it lives. The
// link is nil unless it is alive.
func (c *circle) reach(ctx context.Context, rank int, probe uint32) (l *link, found reached, err error) {
	for range reachTries {
		l, err = c.call(ctx, c.dial, c.addresses[rank], c.hello(probe), c.limit)
		var r refusal
		switch {
		case err == nil:
			return l, alive, nil
		case ctx.Err() != nil:
			return nil, unreached, ctx.Err()
		case errors.As(err, &r) && r.code == codeLeftOut:
			return nil, alive, r
		case errors.As(err, &r) && r.code == codeElsewhere:
			return nil, elsewhere, nil
		case errors.As(err, &r) && r.code == codeTwice: // the end of this one's last link is not seen yet
		case errors.As(err, &r), errors.Is(err, errStranger), errors.Is(err, vmm.ErrPermission), errors.Is(err, syscall.ECONNREFUSED):
			return nil, dead, nil
		case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, syscall.ECONNRESET):
			return nil, unreached, nil
		}
		pause(ctx, meetRetry) // it is about to end, or has too many connections
	}
	return nil, elsewhere, nil
}

// findLeader returns a link to the lowest rank below this one's that lives, or nil if this member
// is to lead. A member that has accepted a leader looks for no other until that one has withdrawn
// or is dead: it is counted there.
func (c *circle) findLeader(ctx, patience context.Context) (leader int, l *link, err error) {
	for rank := range c.rank {
		if c.dead[rank] || c.late[rank] || c.promised >= 0 && c.promised != rank {
			continue
		}
		l, found, err := c.reach(ctx, rank, 0)
		switch {
		case err != nil:
			return 0, nil, err
		case found == alive:
			return rank, l, nil
		case found == dead:
			c.dead[rank] = true
		}
		promised := c.promised == rank
		if found == elsewhere && !promised && patience.Err() != nil {
			c.late[rank] = true
			continue
		}
		if promised && found != unreached {
			c.promised = -1
		}
		if promised || found == elsewhere {
			return 0, nil, errAgain
		}
	}
	return 0, nil, nil
}

// followShrink waits for what the leader decides. The first one that does not lead when half of the
// time is over is late; the next ranks have a little more, to lead then.
func (c *circle) followShrink(ctx context.Context, began time.Time, leader int, l *link) (w *welcome, err error) {
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	c.own.follow(refusal{code: codeElsewhere})
	var notLeading <-chan time.Time
	if end, ok := ctx.Deadline(); ok {
		all := end.Sub(began)
		t := time.NewTimer(time.Until(began.Add(all/2 + all/4*time.Duration(len(c.late))/time.Duration(c.size))))
		defer t.Stop()
		notLeading = t.C
	}
	for {
		select {
		case <-notLeading:
			c.late[leader] = true
			return nil, errAgain
		case f, ok := <-l.in:
			switch {
			case !ok:
				return nil, errAgain
			case f.Type == frameLeads:
				notLeading = nil
			case f.Type == framePropose:
				notLeading = nil
				c.promised = leader
				_ = l.write(frame{Type: frameAccept}) // an error ends the link
			case f.Type == frameRefused:
				c.promised = -1
				if f.Code == codeElsewhere {
					return nil, errAgain
				}
				return nil, refusal{f.Code, f.Rank, f.Text}
			case f.Type == frameWelcome && f.Welcome.makes(c.rank):
				return f.Welcome, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// makes reports whether a shrink has this member in its next circle.
func (w *welcome) makes(rank int) bool {
	return w != nil && w.fits(len(w.Ranks)) && slices.Contains(w.Ranks, rank)
}

// leadShrink waits until each other member has come, is dead or cannot be reached, and decides.
// patience ends before ctx, and with it the wait for those that live and do not come.
func (c *circle) leadShrink(ctx, patience context.Context, newID func() (ID, error)) (*welcome, map[int]*link, error) {
	if c.own == nil {
		id, err := newID()
		return &welcome{ID: id[:], Ranks: []int{c.rank}}, nil, err
	}
	for {
		c.tellFollowers(frameLeads)
		looked, _ := c.own.missing()
		found, err := c.probe(ctx, looked)
		if err != nil {
			return nil, nil, err
		}
		absent, changed := c.own.missing()
		c.tellFollowers(frameLeads) // those that have come meanwhile, too
		for rank := range c.size {  // a member that came is not dead, whatever a probe found
			if !slices.Contains(absent, rank) {
				delete(c.dead, rank)
			}
		}
		var may []int // those that may live, and are not here
		wait := false
		for _, rank := range absent {
			s, probed := found[rank]
			switch {
			case c.dead[rank]:
				continue
			case rank < c.rank && probed && s != unreached && !c.late[rank]:
				return nil, nil, errAgain // it is to lead
			case !probed || s != unreached:
				wait = true
			}
			may = append(may, rank)
		}
		if wait && patience.Err() == nil {
			t := time.NewTimer(probeInterval)
			select {
			case <-changed:
			case <-t.C:
			case <-patience.Done():
			}
			t.Stop()
			continue
		}
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		if n := c.size - len(c.dead) - len(may); n < len(may) || n == len(may) && may[0] < c.rank {
			r := refusal{code: codeMinority, text: fmt.Sprintf("this side is not the larger part of those that may live: ranks %s cannot be reached or did not come", list(may))}
			c.own.dismiss(r)
			return nil, nil, r
		}
		w, links, err := c.decide(ctx, may, newID)
		if !errors.Is(err, errRecount) {
			return w, links, err
		}
	}
}

// tellFollowers sends a frame to those that have come.
func (c *circle) tellFollowers(frameType int) {
	for _, l := range c.own.there() {
		_ = l.write(frame{Type: frameType}) // an error ends the link
	}
}

// probe finds out about the members of the ranks, but for those that are known to be dead.
func (c *circle) probe(ctx context.Context, ranks []int) (map[int]reached, error) {
	var mu sync.Mutex
	var tasks sync.WaitGroup
	var failed error
	all := map[int]reached{}
	for _, rank := range ranks {
		if c.dead[rank] {
			continue
		}
		tasks.Go(func() {
			l, found, err := c.reach(ctx, rank, 1)
			if l != nil {
				l.close()
			}
			mu.Lock()
			defer mu.Unlock()
			all[rank] = found
			if err != nil {
				failed = err
			}
		})
	}
	tasks.Wait()
	for rank, found := range all {
		if found == dead {
			c.dead[rank] = true
		}
	}
	return all, failed
}

// decide asks those that have come to accept this leader, so that none of them counts for another
// one, too, and then tells them of the next circle. absent are the others that may live.
func (c *circle) decide(ctx context.Context, absent []int, newID func() (ID, error)) (*welcome, map[int]*link, error) {
	w := &welcome{Generation: newNumber()}
	for rank := range c.size {
		if !c.dead[rank] && !slices.Contains(absent, rank) {
			w.Ranks = append(w.Ranks, rank)
			w.Addresses = append(w.Addresses, c.addresses[rank])
		}
	}
	links := c.own.there()
	if len(links) != len(w.Ranks)-1 {
		return nil, nil, errRecount
	}
	limited, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	for _, l := range links {
		_ = l.write(frame{Type: framePropose}) // an error ends the link
	}
	for _, l := range links {
		var f frame // of no type, if the link or the time ends
		select {
		case f = <-l.in:
		case <-limited.Done():
		}
		if f.Type != frameAccept {
			l.close()
			<-l.ended
			return nil, nil, errRecount
		}
	}
	id, err := newID()
	if err != nil {
		c.own.dismiss(refusal{code: codeFailed, text: err.Error()})
		return nil, nil, err
	}
	w.ID = id[:]
	next := map[int]*link{}
	for rank, l := range c.own.take(slices.Collect(maps.Keys(links))) {
		next[slices.Index(w.Ranks, rank)] = l
		_ = l.write(frame{Type: frameWelcome, Welcome: w}) // without it a member is gone from the next circle
	}
	return w, next, nil
}
