package memmap

import (
	"context"
	"encoding/json"
	"slices"
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
	changes []told    // the last ones, each from the snapshot of the one before
	readAt  time.Time // when everything was read
	due     time.Time // when everything may be read again

	served    []byte // what data.json is until servedDue
	servedDue time.Time
	lightDue  time.Time // when statistics, samples and events may be read again

	whole, light, serving pace // the last costs of each
}

// told is the JSON of a Change.
type told struct {
	before, seq uint64
	data        []byte
}

// pace is the last two costs of something. One that took long by itself, because the process did not run,
// does not count.
type pace [2]time.Duration

// after is how long not to do it again.
func (p *pace) after(cost, interval time.Duration) time.Duration {
	p[0], p[1] = p[1], cost
	return min(mostInterval, max(interval, costShare*min(p[0], p[1])))
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
		x.InPools = pools[i]
		m.samples[i].begin(d)
		m.samples[i].add(now, sampleOf(&x))
	}
}

// inPools is what the pools have of each device.
func (m *Map) inPools() []InPools {
	all := make([]InPools, len(m.o.Devices))
	if m.o.Pools == nil {
		return all
	}
	for _, p := range m.o.Pools() {
		for i, d := range m.o.Devices {
			if st, err := p.Stats(); err == nil && p.Device() == d {
				all[i].Reserved += st.Reserved
				all[i].Used += st.Used
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
	m.readAt, m.due = now, now.Add(m.whole.after(time.Since(begin), m.o.Interval))
	m.lightDue = now.Add(m.o.Interval)
}

// takeLightLocked reads statistics, samples and events, which costs little.
func (m *Map) takeLightLocked(now time.Time) {
	begin := time.Now()
	m.takeLocked(m.lightSnapshot(now))
	m.lightDue = now.Add(m.light.after(time.Since(begin), m.o.Interval))
}

// takeLocked makes a snapshot the last one, and the JSON of what has changed if a page needs it.
func (m *Map) takeLocked(is *Snapshot) {
	was := m.now
	if was == nil {
		m.seq, m.now = is.Seq, is
		return
	}
	c := changeOf(was, is)
	if c == nil { // nothing to tell: pages have it already
		is.Seq = was.Seq
		m.now = is
		return
	}
	if m.viewers == 0 {
		m.changes = nil
	} else {
		m.changes = append(m.changes[max(0, len(m.changes)-mostChanges):], told{was.Seq, is.Seq, encode(c)})
	}
	m.seq, m.now, m.full = is.Seq, is, nil
}

// fullLocked is the JSON of the last snapshot.
func (m *Map) fullLocked() []byte {
	if m.full == nil {
		begin := time.Now()
		m.full = encode(m.now)
		due := m.due.Add(costShare / 2 * time.Since(begin)) // pages that come are rarer than changes
		if most := m.readAt.Add(mostInterval); due.After(most) {
			due = most
		}
		m.due = due
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
		m.servedDue = now.Add(m.serving.after(time.Since(begin), m.o.Interval))
	}
	return m.served
}

func (m *Map) refreshLocked() {
	switch now := time.Now(); {
	case m.now == nil || !now.Before(m.due):
		m.takeWholeLocked(now)
	case !now.Before(m.lightDue):
		m.takeLightLocked(now)
	}
}

// next is what a page that has the snapshot seq is to be told, 0 if it has none: an event of the
// stream, empty if there is nothing. It says what the page has then, and when to ask again.
func (m *Map) next(seq uint64) (kind string, data []byte, now uint64, due time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refreshLocked()
	due = m.due
	if m.lightDue.Before(due) {
		due = m.lightDue
	}
	if seq == m.seq {
		return "", nil, seq, due
	}
	i := slices.IndexFunc(m.changes, func(c told) bool { return c.before == seq })
	if i < 0 || seq == 0 {
		return "snapshot", m.fullLocked(), m.seq, due
	}
	if i < len(m.changes)-1 { // there are more
		due = time.Now()
	}
	return "change", m.changes[i].data, m.changes[i].seq, due
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
