package vmm

import (
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/bank"
)

// inside is what the other packages of the module may ask for: see door.VMM.
type inside struct{}

var _ = door.Open[door.VMM[*Device, *Range, *Reservation, *Chunk, *Stream]](inside{})

var _ = door.Open[door.DLPack[*MemoryArg, *Device, *Mirror, *Reservation, *Stream]](inside{})

func (inside) Samples(d *Device) *memsample.Owner { return nonnil.Of(d).samples }

func (inside) HistoryLog(d *Device) *history.Log { return &nonnil.Of(d).history }

func (inside) KeepOpen(d *Device, kind string) (release func(), err error) { return d.keepOpen(kind) }

func (inside) Discard(d *Device, cause error, close func() error) error {
	return d.discard(cause, close)
}

func (inside) CreatePart(d *Device, size uint64, p Prop, from *memsample.Source) (*Chunk, error) {
	return d.createPart(size, p, from, forCaller)
}

func (inside) TryCreatePart(d *Device, size uint64, p Prop, from *memsample.Source) (*Chunk, error) {
	return d.createPart(size, p, from, forGrowAhead)
}

func (inside) ImportMade(d *Device, fd int, size uint64, p Prop, made []uintptr) (*Chunk, error) {
	return d.importMade(fd, size, p, made)
}

func (inside) Created(d *Device) (bytes, changes uint64) {
	if d == nil || d.state == nil {
		return 0, 0
	}
	return d.state.bank.Created()
}

func (inside) Lend(d *Device, l door.Lender) (door.Lease, error) {
	release, err := d.keepOpen("lease")
	if err != nil {
		return nil, err
	}
	if !d.state.bank.Lend(l) {
		release()
		return nil, d.wrap("lend", 0, 0, fmt.Errorf("%w: the process has a lease of this device already", ErrBusy))
	}
	return &lease{d.state.bank, d, release}, nil
}

// lease is a door.Lease.
type lease struct {
	*bank.Bank
	dev     *Device
	release func()
}

func (l *lease) Give(target uint64, until time.Time) (given uint64, busy bool) {
	return l.Bank.Give(target, until, l.dev.giving("another process needs memory"))
}

// giving makes the error that functions of OnPressure get when another process or the system needs memory.
func (d *Device) giving(why string) func(size uint64) error {
	return func(size uint64) error {
		return d.opError("give", "", 0, size, fmt.Errorf("%w: %s", ErrOutOfMemory, why))
	}
}

func (inside) SetAround(d *Device, bytes uint64, limit string) (old uint64) {
	return d.state.bank.SetAround(bytes, limit)
}

func (inside) Relieve(d *Device, target uint64, until time.Time) (busy bool) {
	return d.state.bank.Relieve(target, until, d.giving("a limit of the system is near"))
}

func (l *lease) End() error {
	if !l.Unlend() {
		return l.dev.wrap("end lease", 0, 0, fmt.Errorf("%w: a function of OnPressure runs", ErrBusy))
	}
	l.release()
	return nil
}

func (inside) Unmapped(d *Device) (n uint64) {
	d = nonnil.Of(d)
	d.mu.Lock()
	defer d.mu.Unlock()
	for thing := range d.unclosed {
		if c, ok := thing.(*Chunk); ok && c.mem.Created && c.mem.Refs() == 1 {
			n += c.mem.Size
		}
	}
	return n
}

func (inside) CopyName(name string) (string, error) { return copyName(name) }

func (inside) WithMemory(d *Device, op, name string, size uint64, f func() error) error {
	return d.withMemory(op, name, size, f)
}

func (inside) Counted(d *Device) door.Counted { return d.state.bank.Counted() }

func (inside) Outside(d *Device, p driver.Pool, read func() (reserved, used uint64, err error)) door.Outside {
	return d.state.bank.Outside(p, read)
}

func (inside) NoteAllocation(d *Device, at Ptr, n uint64) door.Allocation {
	return d.noteAllocation(at, n)
}

func (inside) GrowAhead(g *Range, n uint64) (giveBack func(keep uint64, s *Stream)) {
	return g.growAheadBy(n)
}

func (inside) StreamNumber(s *Stream) uint64 { return uint64(nonnil.Of(s).handle) }

func (inside) OnGraphLaunch(s *Stream, f func(on *Stream) (launched func(), err error)) error {
	return s.onGraphLaunch(f)
}

func (inside) StopWork(s *Stream, err error) (end func()) { return s.stopWork(err) }

func (inside) Stops(s *Stream) (stopped func() error) {
	if s == nil || s.dev == nil {
		return func() error { return nil }
	}
	ended := s.dev.state.parent.stops.ended.Load()
	return func() error { return s.stopped(ended) }
}

func (inside) HoldRange(g *Range, what string, off, n uint64) (release func(), err error) {
	return g.holdFor(what, off, n)
}

func (inside) HoldReservation(r *Reservation, what string, off, n uint64) (release func(), err error) {
	return r.holdFor(what, off, n)
}

func (inside) HoldLen(g *Range, what string, raised func(uint64) bool, changed func()) (door.LenHold, error) {
	h, err := g.holdLen(what, raised, changed)
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (inside) ReservationOf(m *MemoryArg) *Reservation { return m.in }

func (inside) HoldIn(r *Reservation, what string, off, n uint64) (release func(), err error) {
	r.mu.Lock()
	g, ok := r.owner.(*Range)
	ok = ok && r.inRange // a program's reservation may name a range of its own as its owner
	r.mu.Unlock()
	if ok {
		return g.holdFor(what, off, n)
	}
	if release, err = r.holdFor(what, off, n); err != nil {
		return nil, err
	}
	if err = r.checkSpan(Span{Addr: r.ptr + Ptr(off), Size: n, Access: AccessRead}, r.dev.state, nil); err != nil {
		release()
	}
	return release, err
}

func (inside) HoldMirror(m *Mirror, what string) (d *Device, pinned, readOnly bool, release func(), err error) {
	if release, err = m.holdOpen(what); err != nil {
		return nil, false, false, nil, err
	}
	return m.dev, m.pinned != 0, !m.write, release, nil
}

func (inside) UsersOf(r *Reservation) []*Stream {
	_, streams := r.usersNow()
	return streams
}

func (inside) ForgetStream(s *Stream) error {
	if err := s.beginClose(); err != nil {
		return err
	}
	return s.endClose(nil)
}
