package shareable

import (
	"sync"
	"time"
)

// wakeReaders wakes the readers after each change of the control page, until Close.
// Those who change the page do not wait for it, and changes that come during a round
// share the next one.
func (p *Publication) wakeReaders() {
	// What has been spent on rounds runs ahead of the clock. Pauses below shortestPause
	// are saved up: the runtime cannot sleep that briefly.
	var spent time.Time
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-p.page.changed:
		case <-p.ctx.Done():
			return
		}
		visited, woken := p.wakes.round()
		now := time.Now()
		if spent.Before(now) {
			spent = now
		}
		spent = spent.Add(time.Duration(visited)*visitCost + time.Duration(woken)*wakeCost)
		if wait := spent.Sub(now); wait >= shortestPause {
			pause.Reset(wait)
			select {
			case <-pause.C:
			case <-p.ctx.Done():
				return
			}
		}
	}
}

// What a round may cost: a pause of this length follows for each reader. A wake costs the
// machine some 10 us, most of them in the reader, which has the processors during the
// pause. So 1,000 readers that wait are awake within 20 ms, and an owner that appends all
// the time keeps most of its own.
const (
	visitCost     = time.Microsecond
	wakeCost      = 10 * time.Microsecond
	shortestPause = time.Millisecond
)

// wakeList has the wake pages of a publication's readers.
type wakeList struct {
	mu    sync.Mutex // held for a round; no other lock is taken while it is held
	pages map[*attachment]*wakePage
}

func (l *wakeList) add(a *attachment, page *wakePage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pages == nil {
		l.pages = map[*attachment]*wakePage{}
	}
	l.pages[a] = page
}

// remove returns once nothing of the page is used.
func (l *wakeList) remove(a *attachment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pages, a)
}

// round wakes every reader, and returns how many there are and how many slept.
func (l *wakeList) round() (visited, woken int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, page := range l.pages {
		if page.wakeReader() {
			woken++
		}
	}
	return len(l.pages), woken
}
