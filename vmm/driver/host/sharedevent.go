//go:build linux

package host

import (
	"time"

	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// sharedEvent is what an event with EventInterprocess shares with other processes: a page
// of words, each of which is changed in one piece.
//
//	word 0           the last record: its number, and in the lowest byte who made it
//	words 1 to 127   the processes that have the event open, each by its id
//	words 128 to 503 which records have ended: record n has when word n modulo 376 is n or more
//	words 504 to 511 the event's handle
//
// Records are numbered from 1. A process that dies leaves its word in the second part. The
// others see that it has ended, and then so have its records. Before they can see it, they wait.
type sharedEvent struct {
	page   uint64       // its address
	fd     int          // of the page's file; -1 where another process made it
	name   [64]byte     // the handle; zero before the first EventHandle
	self   processes.ID // this process; all others are of its pid namespace
	member uint64       // this process's word in the second part
	uses   int          // the event, and what is queued; guarded by Driver.workMu
}

const (
	eventMembers = 127
	eventEnds    = 504 - (eventMembers + 1)
	eventName    = 504 * 8 // offset of the handle
)

func (s *sharedEvent) word(i uint64) uint64 { return s.page + 8*i }

func (s *sharedEvent) end(n uint64) uint64 { return s.word(eventMembers + 1 + n%eventEnds) }

// mapEvent maps the page of an event and joins its processes.
func (d *Driver) mapEvent(verb string, fd int) (*sharedEvent, error) {
	self, err := d.self()
	if err != nil {
		return nil, err
	}
	if !process.takeMappings(1, forMore) {
		return nil, refuse(verb, driver.ErrLimit, "the process has no mappings left (vm.max_map_count is %d)", maxMapCount())
	}
	page, err := mmap(0, markSize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, fd, 0)
	if err != nil {
		process.returnMappings(1)
		return nil, d.fail("mmap", driver.ErrOutOfMemory, err)
	}
	s := &sharedEvent{page: page, fd: -1, self: self, uses: 1}
	if !s.join() {
		s.unmap()
		return nil, refuse(verb, driver.ErrLimit, "%d processes have the event open", eventMembers)
	}
	return s, nil
}

// newSharedEvent makes the page of an event.
func (d *Driver) newSharedEvent(verb string) (*sharedEvent, error) {
	fd, _, err := d.memfd(markSize(), unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL, private)
	if err != nil {
		return nil, err
	}
	s, err := d.mapEvent(verb, fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	s.fd = fd
	return s, nil
}

// join takes a free word of the second part, or that of a process that has ended.
func (s *sharedEvent) join() bool {
	self := wordOf(s.self)
	for i := uint64(1); i <= eventMembers; i++ {
		if swap(s.word(i), 0, self) {
			s.member = i
			return true
		}
	}
	for i := uint64(1); i <= eventMembers; i++ {
		old := load(s.word(i), 8)
		if old != 0 && !s.dead(old) {
			continue
		}
		// Its last record has ended with it, which the word does not show any more.
		if last := load(s.word(0), 8); last&0xff == i {
			s.markEnded(last >> 8)
		}
		if swap(s.word(i), old, self) {
			s.member = i
			return true
		}
	}
	return false
}

// release ends one use. After the last one the page goes. The caller holds workMu.
func (s *sharedEvent) release() {
	if s.uses--; s.uses > 0 {
		return
	}
	swap(s.word(s.member), wordOf(s.self), 0)
	s.unmap()
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
	}
}

// dead reports whether the process of a word is known to have ended.
func (s *sharedEvent) dead(word uint64) bool { return ended(word, s.self.Namespace) }

func (s *sharedEvent) unmap() {
	_ = munmap(s.page, markSize())
	process.returnMappings(1)
}

// begin makes a record, which ends with markEnded.
func (s *sharedEvent) begin() (n uint64) {
	for {
		last := load(s.word(0), 8)
		n := last>>8 + 1
		if swap(s.word(0), last, n<<8|s.member) {
			return n
		}
	}
}

func (s *sharedEvent) markEnded(n uint64) {
	for {
		old := load(s.end(n), 8)
		if old >= n || swap(s.end(n), old, n) {
			return
		}
	}
}

// sharedRecord is a record of any process.
type sharedRecord struct {
	event  *sharedEvent
	n      uint64 // 0: there was none
	member uint64 // who made it, and its id
	id     uint64
}

// last is the last record.
func (s *sharedEvent) last() sharedRecord {
	for {
		last := load(s.word(0), 8)
		r := sharedRecord{s, last >> 8, last & 0xff, 0}
		if r.n == 0 {
			return r
		}
		r.id = load(s.word(r.member), 8)
		if load(s.word(0), 8) == last {
			return r
		}
	}
}

// ended reports whether the record has ended. A process that has given its event up has ended
// its records before.
func (r sharedRecord) ended() bool {
	return r.n == 0 || r.id == 0 || load(r.event.end(r.n), 8) >= r.n || load(r.event.word(r.member), 8) != r.id
}

// endedOrDead is ended, which it finds out also where the process is known to have died.
func (r sharedRecord) endedOrDead() bool {
	if r.ended() {
		return true
	}
	if !r.event.dead(r.id) {
		return false
	}
	r.event.markEnded(r.n)
	return true
}

// lookForDeath is how often a wait looks whether the other process has died.
const lookForDeath = 20 * time.Millisecond

// wait waits for the record, and returns false if the context is stopped before. Nothing else
// ends the wait for a process of which nothing can be found out.
func (r sharedRecord) wait(stop <-chan struct{}) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := time.Now()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		select {
		case <-stop:
			return false
		case <-timer.C:
		}
		if r.ended() {
			return true
		}
		if now := time.Now(); now.After(next) {
			if r.endedOrDead() {
				return true
			}
			next = now.Add(lookForDeath)
		}
		timer.Reset(pause)
	}
}

// EventHandle marks the event's page with its handle.
func (v *device) EventHandle(e driver.Event) (h driver.IPCHandle, err error) {
	const verb = "EventHandle"
	err = v.onContext(verb, func(c *context) error {
		ev, err := c.d.event(verb, e)
		if err != nil {
			return err
		}
		if ev.shared == nil || ev.opened {
			return refuse(verb, driver.ErrInvalid, "event %d was made without EventInterprocess, or by another process", e)
		}
		if ev.shared.name == [64]byte{} {
			self := ipcHandle{Kind: ofEvent, Dev: uint16(ev.context.state.ordinal), FD: uint32(ev.shared.fd), Process: wordOf(ev.shared.self), Namespace: ev.shared.self.Namespace}
			name := self.name()
			if _, err := unix.Pwrite(ev.shared.fd, name[:], eventName); err != nil {
				return c.d.fail("pwrite", driver.ErrOutOfMemory, err)
			}
			ev.shared.name = name
		}
		h = ev.shared.name
		return nil
	})
	return h, err
}

// OpenEvent maps the event's page. If its maker is known to have ended, so have all its records,
// and what is returned is an event of this process alone. A maker of another pid namespace cannot
// be looked at, and its event is not opened.
func (v *device) OpenEvent(name driver.IPCHandle) (e driver.Event, err error) {
	const verb = "OpenEvent"
	err = v.onContext(verb, func(c *context) error {
		h, err := parseHandle(verb, ofEvent, name)
		if err != nil {
			return err
		}
		for _, ev := range c.d.events {
			if ev.shared != nil && ev.shared.fd == int(h.FD) && ev.shared.name == name {
				return refuse(verb, driver.ErrInvalid, "the handle is of this process, which has the event already")
			}
		}
		s, err := c.d.openEvent(verb, h, name)
		if err != nil && ended(h.Process, h.Namespace) {
			s, err = c.d.newSharedEvent(verb)
		}
		if err != nil {
			return err
		}
		e = c.d.addEvent(&event{context: c, flags: driver.EventInterprocess, shared: s, opened: true})
		return nil
	})
	return e, err
}

// openEvent maps the page that another process has made.
func (d *Driver) openEvent(verb string, h ipcHandle, name [64]byte) (*sharedEvent, error) {
	fd, err := d.openFile(verb, h)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	if !marked(fd, eventName, name) {
		return nil, refuse(verb, driver.ErrInvalid, "the event was freed, or is none")
	}
	return d.mapEvent(verb, fd)
}
