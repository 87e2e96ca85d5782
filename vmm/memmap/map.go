package memmap

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// Map shows where the memory of devices is. It is an http.Handler. Safe for concurrent use. It has
// no goroutine of its own.
type Map struct {
	o      Options
	closed chan struct{}
	close  func()

	mu      sync.Mutex
	viewers int
	samples []sampleList // of each device
	events  []eventList  // the same
	seq     uint64
	now     *Snapshot // the last one; nil: none was taken
	full    []byte    // its JSON; nil: not made yet
	change  []byte    // the JSON of what differs from the snapshot before; nil: there is none
	before  uint64    // the Seq of that snapshot
	due     time.Time // when everything may be read again

	served    []byte // what data.json is until servedDue
	servedDue time.Time
	lightDue  time.Time // when what costs little may be read again
	costs     [2]time.Duration
}

// New makes a map. It takes no memory and starts nothing; Close ends the pages that watch it.
func New(o Options) *Map {
	o.resolve()
	m := &Map{o: o, closed: make(chan struct{})}
	m.close = sync.OnceFunc(func() { close(m.closed) })
	for range o.Devices {
		m.samples = append(m.samples, sampleList{Samples: newSamples(), most: o.Samples})
		m.events = append(m.events, eventList{})
	}
	return m
}

// Close ends what the map sends to pages, so that http.Server.Shutdown need not wait for them; see
// http.Server.RegisterOnShutdown. WriteHTML works after Close. It returns nil.
func (m *Map) Close() error {
	if m != nil && m.close != nil {
		m.close()
	}
	return nil
}

// Record notes how much memory there is every interval, at least a millisecond, until ctx is done
// or the map is closed: the growth over time then begins before a page looks. It reads counters,
// and asks the driver for the free memory. It returns the context's error, nil after Close.
func (m *Map) Record(ctx context.Context, interval time.Duration) error {
	t := time.NewTicker(max(interval, time.Millisecond))
	defer t.Stop()
	for {
		m.record()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.closed:
			return nil
		case <-t.C:
		}
	}
}

func (m *Map) record() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now() // with the lock, so that rows come in order
	pools := m.inPools()
	for i, d := range m.o.Devices {
		x := summary(d)
		m.samples[i].begin(d)
		m.samples[i].add(now, sampleOf(&x, pools[i].used))
	}
}

// inPools is what the pools have of each device.
func (m *Map) inPools() []inPools {
	all := make([]inPools, len(m.o.Devices))
	if m.o.Pools == nil {
		return all
	}
	for _, p := range m.o.Pools() {
		for i, d := range m.o.Devices {
			if st, err := p.Stats(); err == nil && p.Device() == d {
				all[i].reserved += st.Reserved
				all[i].used += st.Used
			}
		}
	}
	return all
}

// Snapshot takes a snapshot now. The caller must not change it.
func (m *Map) Snapshot() *Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.takeWholeLocked(time.Now())
	return m.now
}

// takeWholeLocked reads everything.
func (m *Map) takeWholeLocked(now time.Time) {
	begin := time.Now()
	m.takeLocked(m.snapshot(now))
	m.paceLocked(now, time.Since(begin))
}

// takeLocked makes a snapshot the last one, and the JSON of what has changed if a page needs it.
func (m *Map) takeLocked(is *Snapshot) {
	was := m.now
	var change []byte
	if was != nil {
		c := changeOf(was, is)
		if c == nil { // nothing to tell: pages have it already
			is.Seq = was.Seq
			m.now, m.full = is, nil
			return
		}
		if m.viewers > 0 {
			change = encode(c)
		}
		m.before = was.Seq
	}
	m.seq, m.now, m.change, m.full = is.Seq, is, change, nil
}

// paceLocked sets when everything may be read again, and what costs little. One that took long by
// itself, because the process did not run, does not count.
func (m *Map) paceLocked(now time.Time, cost time.Duration) {
	m.costs[0], m.costs[1] = m.costs[1], cost
	m.due, m.lightDue = now.Add(m.interval(min(m.costs[0], m.costs[1]))), now.Add(m.o.Interval)
}

// interval is how long not to read again what costs so much.
func (m *Map) interval(cost time.Duration) time.Duration {
	return min(mostInterval, max(m.o.Interval, costShare*cost))
}

// fullLocked is the JSON of the last snapshot.
func (m *Map) fullLocked() []byte {
	if m.full == nil {
		begin := time.Now()
		m.full = encode(m.now)
		m.due = m.due.Add(costShare / 2 * time.Since(begin)) // pages that come are rarer than changes
	}
	return m.full
}

// current is the JSON of a snapshot. It is made each interval at most, less often if it is long.
func (m *Map) current() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := time.Now(); !now.Before(m.servedDue) {
		m.refreshLocked()
		begin := time.Now()
		m.served = m.fullLocked()
		m.servedDue = now.Add(m.interval(time.Since(begin)))
	}
	return m.served
}

func (m *Map) refreshLocked() {
	switch now := time.Now(); {
	case m.now == nil || !now.Before(m.due):
		m.takeWholeLocked(now)
	case !now.Before(m.lightDue):
		m.takeLocked(m.light(now))
		m.lightDue = now.Add(m.o.Interval)
	}
}

// next is what a page that has the snapshot seq is to be told, 0 if it has none: an event of the
// stream, empty if there is nothing. It says what the page has then, and when to ask again.
func (m *Map) next(seq uint64) (kind string, data []byte, now uint64, due time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refreshLocked()
	switch {
	case seq == m.seq:
	case seq != 0 && seq == m.before && m.change != nil:
		kind, data = "change", m.change
	default:
		kind, data = "snapshot", m.fullLocked()
	}
	if m.lightDue.Before(m.due) {
		return kind, data, m.seq, m.lightDue
	}
	return kind, data, m.seq, m.due
}

// watch counts a page; false if there are too many.
func (m *Map) watch() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.viewers >= mostViewers {
		return false
	}
	m.viewers++
	return true
}

func (m *Map) unwatch() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.viewers--
}

// encode is JSON in which <, > and & are escaped, so that it can stand in a page.
func encode(x any) []byte {
	b, err := json.Marshal(x)
	if err != nil { // none of the types can fail
		return []byte("{}")
	}
	return b
}
