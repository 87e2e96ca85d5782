package shareable

import (
	"sync"
	"time"
)

// wakeReaders wakes the readers after each change of the control page, until Close. For a
// store's object it ends with the seal, after which no change needs a wake. What changes
// the page does not wait for it, and changes that come during a round share the next one.
//
// A round is followed by a pause of restRatio times as long: it leaves the processors to
// the readers, and the owner's appends. Pauses below shortestRest are saved up, because
// the runtime cannot sleep that briefly.
func (o *object) wakeReaders() {
	var restUntil time.Time
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case <-o.changed:
		case <-o.ctx.Done():
			return
		}
		begun := time.Now()
		final := o.stored != nil && o.isSealed()
		o.wakes.round()
		if final {
			return
		}
		now := time.Now()
		if restUntil.Before(now) {
			restUntil = now
		}
		restUntil = restUntil.Add(restRatio * now.Sub(begun))
		yieldProcessor()
		if left := time.Until(restUntil); left >= shortestRest {
			rest.Reset(left)
			select {
			case <-rest.C:
			case <-o.ctx.Done():
				return
			}
		}
	}
}

const (
	restRatio    = 2
	shortestRest = time.Millisecond
)

// wakeList has what wakes the readers of a publication.
type wakeList struct {
	mu      sync.Mutex // held for a round; no other lock is taken while it is held
	senders map[*attachment]*wakeSender
}

func (l *wakeList) add(a *attachment, w *wakeSender) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.senders == nil {
		l.senders = map[*attachment]*wakeSender{}
	}
	l.senders[a] = w
}

// remove returns once no round uses what wakes the reader.
func (l *wakeList) remove(a *attachment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.senders, a)
}

// round wakes every reader, and has PUBLISH sent to those that asked for it.
func (l *wakeList) round() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a, w := range l.senders {
		if a.wantsPublish {
			a.ses.wakeWriter()
		}
		// A reader that makes its wakes slow keeps no other one waiting.
		if w.slow.Load() {
			w.sendApart()
			continue
		}
		w.send()
	}
}
