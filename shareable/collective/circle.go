package collective

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// goneTimeout is how long a member that was told of another one's end has to reply to a ping.
const goneTimeout = time.Minute

// circle is a member's connections to the others, once they have met: of rank 0 one to each, and
// of the others one to rank 0. Rank 0 tells the others which members have ended. That of members
// that did not meet is nil.
type circle struct {
	meeting
	rank      int
	own       *acceptor // nil in a circle of one
	addresses []string  // at which the members listen
	links     map[int]*link
	dial      dialer // a variable for tests

	mu      sync.Mutex
	watcher func(err error)
	gone    map[int]frame // of those that have ended, as the others are told
	over    bool          // this side has closed the links, so their ends are not reported
	used    bool          // the listener is closed, or another circle's

	// Of shrink, which runs once at a time.
	shrinking sync.Mutex
	dead      map[int]bool  // proven
	late      map[int]bool  // of lower ranks: they do not lead, though they may live
	limit     time.Duration // for reaching one member
	promised  int           // the leader that this member has accepted, or -1
}

func newCircle(m meeting, rank int, own *acceptor, addresses []string, links map[int]*link) *circle {
	c := &circle{meeting: m, rank: rank, own: own, addresses: addresses, links: links, dial: m.dialer(), gone: map[int]frame{}, dead: map[int]bool{}, promised: -1}
	for rank, l := range links {
		go c.receive(rank, l)
	}
	return c
}

// receive takes what the member of the rank says, until its connection ends.
func (c *circle) receive(rank int, l *link) {
	left := false
	for f := range l.in {
		switch f.Type {
		case frameGone:
			if c.rank == 0 { // of others than itself only rank 0 tells
				f.Rank = rank
			}
			c.report(f)
		case frameGoodbye:
			left = true
		}
	}
	if !left {
		c.report(frame{Type: frameGone, Rank: rank})
	}
}

// report notes that a member has ended, and tells the others and the watcher.
func (c *circle) report(f frame) {
	rank := f.Rank
	c.mu.Lock()
	if _, known := c.gone[rank]; c.over || known || rank < 0 || rank >= c.size || rank == c.rank {
		c.mu.Unlock()
		return
	}
	watcher := c.watcher
	if len(c.gone) > 0 && f.Text != "" { // it has ended its group because of the one that was gone before
		watcher = nil
	}
	c.gone[rank] = f
	c.mu.Unlock()
	if c.rank == 0 {
		for to, l := range c.links {
			if to == rank || l.write(f) != nil {
				continue
			}
			go func() { // keepalive does not see the end of a host that has not acknowledged this frame
				if !l.isThere(context.Background(), goneTimeout) {
					l.close()
				}
			}()
		}
	}
	if watcher != nil {
		watcher(f.goneError())
	}
}

// goneError is the error for the member that the frame is about: that of its group, if it has said
// why it ended that.
func (f frame) goneError() error {
	switch {
	case f.Text == "":
		return fmt.Errorf("%w: rank %d", ErrPeerGone, f.Rank)
	case f.Code == codeLate:
		return fmt.Errorf("%w: rank %d says %q", os.ErrDeadlineExceeded, f.Rank, f.Text)
	case f.Code == codeFailed:
		return fmt.Errorf("%w: rank %d says %q", ErrFailed, f.Rank, f.Text)
	}
	return fmt.Errorf("%w: rank %d has ended the group: %q", ErrPeerGone, f.Rank, f.Text)
}

// watch calls gone, once for each, for members that have said that they end, or whose connection
// has closed without a goodbye, now or before. Other goroutines call it. It is not called for what
// ends after leave or hangUp; a call that has begun may still run then. If rank 0 has ended, or has
// left, nothing more is heard of the others.
func (c *circle) watch(gone func(err error)) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watcher = gone
	var errs []error // deaths first: others may have ended their group because of them
	for _, f := range c.gone {
		if f.Text == "" {
			errs = slices.Insert(errs, 0, f.goneError())
		} else {
			errs = append(errs, f.goneError())
		}
	}
	go func() {
		for _, err := range errs {
			gone(err)
		}
	}()
}

// leave says goodbye and closes everything. The others do not count this member as gone.
func (c *circle) leave() {
	if c == nil {
		return
	}
	c.mu.Lock()
	over, used := c.over, c.used
	c.over, c.used = true, true
	c.mu.Unlock()
	if !over {
		for _, l := range c.links {
			_ = l.write(frame{Type: frameGoodbye}) // one that has ended needs none
			l.close()
		}
	}
	if !used && c.own != nil {
		c.own.close()
	}
}

// hangUp closes the connections, so that the others learn at once that this member has ended, and
// the cause if that is not nil. The listener stays, for shrink.
func (c *circle) hangUp(cause error) {
	if c == nil {
		return
	}
	c.mu.Lock()
	over := c.over
	c.over = true
	c.mu.Unlock()
	if !over {
		for _, l := range c.links {
			if f := (frame{Type: frameGone, Rank: c.rank}); cause != nil {
				f.Text = cause.Error()
				switch {
				case errors.Is(cause, ErrPeerGone):
				case errors.Is(cause, ErrFailed):
					f.Code = codeFailed
				case errors.Is(cause, os.ErrDeadlineExceeded): // a member is late, and lives
					f.Code = codeLate
				}
				_ = l.write(f) // an error ends the link
			}
			l.close()
		}
	}
}
