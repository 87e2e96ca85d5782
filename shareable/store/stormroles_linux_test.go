package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// storm is writers and readers that never pause. Each error of any ends the process.
type storm struct {
	p       *part
	c       *Client
	tag     string // of this process
	stopped atomic.Bool
	ops     atomic.Uint64
	tasks   sync.WaitGroup
}

const (
	stormSize = 64 << 20
	stormMuch = 24 << 20 // from here on an object is sealed and another one made
)

// playStorm is as many writers as its third argument says, each of an object of its own,
// which as many readers follow as the fourth says. Beside them there are calls that connect
// anew each time.
func playStorm(p *part) {
	dev := p.device(nil)
	c, err := Connect(context.Background(), p.args[0], dev, ClientOptions{Timeout: inTime})
	p.must(err)
	x := &storm{p: p, c: c, tag: p.args[1]}
	writers, err := strconv.Atoi(p.args[2])
	p.must(err)
	readers, err := strconv.Atoi(p.args[3])
	p.must(err)
	for i := range writers {
		x.tasks.Go(func() { x.write(i, readers) })
	}
	x.tasks.Go(x.call)
	p.say("ready")
	for {
		switch word, n := p.next(); word {
		case "ops": // all of these have been done since
			from := x.ops.Load()
			p.eventually("the storm goes on", func() bool { return x.ops.Load() >= from+n })
			p.say("ops")
		case "end":
			x.stopped.Store(true)
			x.tasks.Wait()
			p.must(c.Close())
			p.must(dev.Close())
			p.say("end", x.ops.Load())
		}
	}
}

// write makes one object after the other.
func (x *storm) write(i, readers int) {
	ctx, p := context.Background(), x.p
	for round := 0; !x.stopped.Load(); round++ {
		name := fmt.Sprintf("%s/%d/%d", x.tag, i, round)
		w, err := x.c.Create(ctx, name, CreateOptions{Size: stormSize, Growable: true, Durable: true})
		p.must(err)
		var following sync.WaitGroup
		for range readers {
			b, err := x.c.Get(ctx, name, GetOptions{Unsafe: true})
			p.must(err)
			following.Go(func() { x.read(b) })
		}
		for k := 1; w.Len() < stormMuch && !x.stopped.Load(); k++ {
			p.must(w.Append(waveAt(w.Len(), 1+rand.IntN(20_000))))
			if k%16 == 0 {
				p.must(w.Flush(ctx))
				x.ops.Add(1)
			}
			if k%128 == 0 { // another lease
				p.must(w.Close())
				w, err = x.c.Append(ctx, name, AppendOptions{})
				p.must(err)
				p.must(w.Err())
			}
			<-time.After(time.Duration(rand.IntN(200)) * time.Microsecond)
		}
		n := w.Len()
		p.must(w.Seal(ctx, shareable.SealOptions{}))
		p.must(w.Close())
		following.Wait()
		info, err := x.c.Stat(ctx, name)
		p.must(err)
		p.check(info.Sealed && info.Len == n, "%s: %+v", name, info)
		p.must(x.c.Delete(ctx, name, DeleteOptions{Force: round%2 == 0}))
	}
}

// read follows an object until it is sealed.
func (x *storm) read(b *shareable.View) {
	f := &follower{b: b}
	x.p.must(f.follow(context.Background()))
	x.p.check(f.seen.Load() == b.Len(), "%d of %d bytes seen", f.seen.Load(), b.Len())
	x.p.must(b.Close())
}

// call makes requests, some of them on connections of their own.
func (x *storm) call() {
	ctx, p := context.Background(), x.p
	name := x.tag + "/fixed"
	w, err := x.c.Create(ctx, name, CreateOptions{Size: 1000, Durable: true})
	p.must(err)
	p.must(w.Append(waveAt(0, 1000)))
	p.must(w.Close())
	for !x.stopped.Load() {
		b, err := x.c.Get(ctx, name, GetOptions{Unsafe: true})
		p.must(err)
		p.must(checkWave(b, 1000))
		p.must(b.Close())
		_, err = x.c.List(ctx, ListOptions{Prefix: x.tag})
		p.must(err)
		p.must(x.c.Link(ctx, name, name+"/2"))
		p.must(x.c.Unlink(ctx, name+"/2"))
		other, err := Connect(ctx, p.args[0], x.c.Device(), ClientOptions{Timeout: inTime})
		p.must(err)
		_, err = other.Create(ctx, name, CreateOptions{Size: 1})
		p.check(errors.Is(err, vmm.ErrBusy), "a second %s: %v", name, err)
		p.must(other.Close())
		x.ops.Add(1)
	}
	p.must(x.c.Delete(ctx, name, DeleteOptions{}))
}
