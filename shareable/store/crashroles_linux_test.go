package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

const fillBytes = 48 << 20

// playHolder creates an object and does not seal it, or has one mapped, and does nothing
// more.
func playHolder(p *part) {
	ctx := context.Background()
	dev := p.device(nil)
	c, err := Connect(ctx, p.args[0], dev, ClientOptions{})
	p.must(err)
	switch p.args[1] {
	case "write":
		w, err := c.Create(ctx, p.args[2], CreateOptions{Size: 8 << 20, Growable: true})
		p.must(err)
		p.must(w.Append(waveAt(0, 5<<20)))
		p.must(w.Flush(ctx))
	case "append":
		_, err := c.Append(ctx, p.args[2], AppendOptions{})
		p.must(err)
	case "fill": // the memory after what is published, with work that lasts
		w, err := c.Append(ctx, p.args[2], AppendOptions{})
		p.must(err)
		p.must(w.Grow(w.Len() + fillBytes))
		st, err := dev.NewStream()
		p.must(err)
		p.must(w.Range().UsedBy(st))
		for range 500 {
			p.must(st.Fill(w.Ptr()+vmm.Ptr(w.Len()), 0xee, 1, fillBytes))
		}
	case "read":
		b, err := c.Get(ctx, p.args[2], GetOptions{})
		p.must(err)
		p.must(checkWave(b, b.Len()))
	case "late": // one that is stopped, and goes on when it has lost the object
		w, err := c.Create(ctx, p.args[2], CreateOptions{Size: 8 << 20, Growable: true, Durable: true})
		p.must(err)
		p.must(w.Append(waveAt(0, 1000)))
		p.must(w.Flush(ctx))
		p.say("ready")
		p.next()
		p.must(dev.CopyIn(w.Ptr(), bytes.Repeat([]byte{0xee}, int(w.Cap()))))
		w.page.Publish(w.Cap())
		p.say("overwritten")
		p.eventually("it knows", func() bool { return w.Err() != nil })
		p.say(w.Err())
	}
	p.say("ready")
	p.next()
}

// clients are what a process has of a daemon that is to be killed.
type clients struct {
	p       *part
	c       *Client
	first   [16]byte // instance
	sealed  map[string]*shareable.View
	open    map[string]*shareable.View
	writers []*Writer
	waits   chan error
}

const (
	objectsOfDaemon = 100
	bytesOfObject   = 30_000
)

// playClients makes sealed objects, durable ones and others, has some of them mapped, and
// waits for more.
func playClients(p *part) {
	c, err := Connect(context.Background(), p.args[0], p.device(nil), ClientOptions{})
	p.must(err)
	x := &clients{p: p, c: c, first: c.Instance(), sealed: map[string]*shareable.View{}, open: map[string]*shareable.View{}, waits: make(chan error, 16)}
	for i := range objectsOfDaemon {
		x.make(i)
	}
	x.wait()
	p.say("ready")
	for {
		switch word, _ := p.next(); word {
		case "gone":
			x.daemonGone()
			p.say("gone")
		case "restarted":
			x.restarted()
			p.say("restarted")
		case "close":
			for _, w := range x.writers {
				p.must(w.Close())
			}
			for _, all := range []map[string]*shareable.View{x.sealed, x.open} {
				for _, b := range all {
					p.must(b.Close())
				}
			}
			p.must(c.Close())
			p.say("close")
		}
	}
}

// make makes an object: a third of them are sealed, a third durable.
func (x *clients) make(i int) {
	ctx := context.Background()
	name := fmt.Sprintf("%s/%d", []string{"sealed", "open", "durable"}[i%3], i)
	w, err := x.c.Create(ctx, name, CreateOptions{Size: 1 << 20, Growable: i%2 == 0, Durable: i%3 == 2})
	x.p.must(err)
	x.p.must(w.Append(waveAt(0, bytesOfObject)))
	x.p.must(w.Flush(ctx))
	switch {
	case i%3 == 0:
		x.p.must(w.Seal(ctx, shareable.SealOptions{}))
		x.p.must(w.Close())
	case i%3 == 2 && i%4 == 0:
		x.p.must(w.Close())
	default:
		x.writers = append(x.writers, w)
	}
	if i%5 > 1 {
		return
	}
	b, err := x.c.Get(ctx, name, GetOptions{Unsafe: true})
	x.p.must(err)
	if i%3 == 0 {
		x.sealed[name] = b
	} else {
		x.open[name] = b
	}
}

// wait starts requests that wait.
func (x *clients) wait() {
	ctx := context.Background()
	go func() { _, err := x.c.Get(ctx, "open/1", GetOptions{Wait: true}); x.waits <- err }()
	go func() { _, err := x.c.Get(ctx, "none", GetOptions{Wait: true}); x.waits <- err }()
	go func() { _, err := x.c.Append(ctx, "durable/5", AppendOptions{Wait: true}); x.waits <- err }()
	events, err := x.c.Watch(ctx, "")
	x.p.must(err)
	go func() {
		for _, err := range events {
			if err != nil {
				x.waits <- err
			}
		}
	}()
	x.p.eventually("three requests wait", func() bool { s, err := x.c.Stats(ctx); return err == nil && s.Waits == 3 })
}

func (p *part) eventually(what string, so func() bool) {
	require.Eventually(exits{}, so, inTime, step, what)
}

// daemonGone checks what everything says after the daemon was killed.
func (x *clients) daemonGone() {
	ctx, p := context.Background(), x.p
	for range 4 {
		err := <-x.waits
		p.check(errors.Is(err, shareable.ErrOwnerGone), "a wait ends with %v", err)
	}
	_, err := x.c.List(ctx, ListOptions{})
	p.check(errors.Is(err, shareable.ErrOwnerGone), "List returns %v", err)
	_, err = x.c.Create(ctx, "new", CreateOptions{Size: 1})
	p.check(errors.Is(err, shareable.ErrOwnerGone), "Create returns %v", err)
	_, err = x.c.Get(ctx, "sealed/0", GetOptions{})
	p.check(errors.Is(err, shareable.ErrOwnerGone), "Get returns %v", err)
	for _, w := range x.writers {
		p.eventually("a writer knows", func() bool { return w.Err() != nil })
		p.check(errors.Is(w.Err(), shareable.ErrOwnerGone), "a writer's Err is %v", w.Err())
		err := w.Append([]byte("more"))
		p.check(errors.Is(err, shareable.ErrOwnerGone), "Append returns %v", err)
		err = w.Seal(ctx, shareable.SealOptions{})
		p.check(errors.Is(err, shareable.ErrOwnerGone), "Seal returns %v", err)
		p.must(checkWave(w.Range(), bytesOfObject))
	}
	for name, b := range x.open {
		p.eventually("a reader knows", func() bool { return b.Err() != nil })
		p.check(errors.Is(b.Err(), shareable.ErrOwnerGone), "%s: Err is %v", name, b.Err())
		p.check(b.Len() == bytesOfObject, "%s: %d bytes", name, b.Len())
		p.must(checkWave(b, b.Len()))
	}
	for name, b := range x.sealed {
		p.check(b.Err() == nil && b.Sealed() && b.Len() == bytesOfObject, "%s: %v, %d bytes", name, b.Err(), b.Len())
		p.must(checkWave(b, b.Len()))
	}
}

// restarted checks that the same Client works with a new daemon.
func (x *clients) restarted() {
	ctx, p := context.Background(), x.p
	all, err := x.c.List(ctx, ListOptions{})
	p.must(err)
	p.check(len(all) == 0 && x.c.Instance() != x.first, "%d objects, instance %x", len(all), x.c.Instance())
	_, err = x.c.Get(ctx, "sealed/0", GetOptions{})
	p.check(errors.Is(err, shareable.ErrNotFound), "Get returns %v", err)
	w, err := x.c.Create(ctx, "sealed/0", CreateOptions{Size: 10})
	p.must(err)
	p.must(w.Append(waveAt(0, 10)))
	p.must(w.Seal(ctx, shareable.SealOptions{}))
	p.must(w.Close())
	b, err := x.c.Get(ctx, "sealed/0", GetOptions{})
	p.must(err)
	p.must(checkWave(b, 10))
	p.must(b.Close())
	_, err = x.c.Append(ctx, "durable/5", AppendOptions{})
	p.check(errors.Is(err, shareable.ErrNotFound), "Append returns %v", err)
	for name, b := range x.sealed {
		p.check(b.Err() == nil, "%s: %v", name, b.Err())
		_, err := x.c.Get(ctx, IDOf(b).String(), GetOptions{})
		p.check(errors.Is(err, shareable.ErrNotFound), "Get of an old ID returns %v", err)
	}
	_, err = x.c.Append(ctx, "sealed/0", AppendOptions{})
	p.check(errors.Is(err, shareable.ErrSealed) && !errors.Is(err, vmm.ErrBusy), "Append returns %v", err)
}
