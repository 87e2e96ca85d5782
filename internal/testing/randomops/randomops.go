// Package randomops is a random program on a driver. Each owner changes a range and
// compares it with a slice. Visitors make calls that concern a device. Meddlers make
// calls on the owners' ranges that change no bytes. Guests are devices that are opened
// and closed while all of them work. Driver calls may fail at random meanwhile.
// Whatever fails, no bytes, lengths or addresses change, and in the end everything can
// be freed.
package randomops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Options is how to run the program.
type Options struct {
	Driver  driver.Driver
	Devices []int // ordinals of those that are open throughout, two at least for grants
	Guests  []int // ordinals of those that come and go
	Granule int   // the unit of memory sizes

	// Meddlers is how many goroutines make calls on the owners' ranges that change no
	// bytes.
	Meddlers int

	Seed uint64
	For  time.Duration

	// Injected reports whether an error was injected; nil if none is. Fail turns failing
	// calls on and off.
	Injected func(error) bool
	Fail     func(on bool)
}

// owners is how many ranges there are.
const owners = 6

// patience is how long a call that must work may be refused, and a goroutine take to end.
const patience = time.Minute

// run is one run of the program.
type run struct {
	Options
	t    testing.TB
	devs []*vmm.Device
	stop atomic.Bool
	ops  atomic.Uint64

	mu    sync.Mutex
	found string
}

// Run runs the program and closes everything. It returns what was wrong, or an empty
// text, and how many operations there were. The devices' free memory must be the same
// afterwards, within slack bytes.
func Run(t testing.TB, o Options, slack uint64) (wrong string, operations uint64) {
	t.Helper()
	if o.Fail == nil {
		o.Fail = func(bool) {}
	}
	r := &run{Options: o, t: t}
	r.open()
	r.phase(200*time.Millisecond, false) // so that the driver takes here what it keeps
	before := r.free()
	r.phase(o.For, true)
	for i, now := range r.free() {
		if now+slack < before[i] || before[i]+slack < now {
			r.wrong("%v: %d bytes of memory are free and were %d", r.devs[i], now, before[i])
		}
	}
	for _, d := range r.devs {
		if err := d.Close(); err != nil {
			r.wrong("close %v: %v", d, err)
		}
	}
	return r.found, r.ops.Load()
}

// wrong records the first thing that is wrong, and ends the run.
func (r *run) wrong(format string, args ...any) {
	r.stop.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.found == "" {
		r.found = fmt.Sprintf(format, args...)
	}
}

// refused reports whether an operation failed. It may fail because of an injected error
// and with the errors in also. Any other error is wrong.
func (r *run) refused(doing string, err error, also ...error) bool {
	if err == nil {
		return false
	}
	if r.Injected != nil {
		also = append(also, vmm.ErrOutOfMemory, vmm.ErrAddressSpace)
	}
	injected := r.Injected != nil && r.Injected(err)
	if !injected && !slices.ContainsFunc(also, func(kind error) bool { return errors.Is(err, kind) }) {
		r.wrong("%s: %v", doing, err)
	}
	return true
}

// until repeats a call until it works.
func (r *run) until(doing string, call func() error, also ...error) {
	var last error
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ; ctx.Err() == nil; runtime.Gosched() {
		if last = call(); !r.refused(doing, last, also...) {
			return
		}
	}
	r.wrong("%s does not work: %v", doing, last)
}

// open opens the devices.
func (r *run) open() {
	r.t.Helper()
	r.devs = nil
	for _, n := range r.Devices {
		d, err := vmm.OpenDriver(r.Driver, n)
		if err != nil {
			r.t.Fatal(err)
		}
		r.devs = append(r.devs, d)
	}
}

// free checks that nothing is left on the devices, closes them, opens them again, and
// returns how much of their memory is free.
func (r *run) free() (free []uint64) {
	r.t.Helper()
	for _, d := range r.devs {
		if _, err := d.Trim(0); err != nil {
			r.wrong("trim %v: %v", d, err)
		}
		s := d.Stats()
		if s.Used+s.Cached+s.Asleep+s.Quarantined+s.Reserved+s.Committed+s.Retiring > 0 {
			r.wrong("left on %v: %v", d, s)
		}
		if err := d.Close(); err != nil {
			r.t.Fatal(err)
		}
	}
	// Closed and opened again, so that contexts do not count.
	r.open()
	for _, d := range r.devs {
		n, _, err := d.MemInfo()
		if err != nil {
			r.t.Fatal(err)
		}
		free = append(free, n)
	}
	return free
}

// phase runs all goroutines for a while, and then closes everything.
func (r *run) phase(d time.Duration, failing bool) {
	r.t.Helper()
	if r.found != "" {
		return
	}
	r.stop.Store(false)
	var all []*owner
	for i := range owners {
		all = append(all, r.newOwner(i))
	}
	r.Fail(failing)
	var work sync.WaitGroup
	for _, o := range all {
		work.Go(o.work)
	}
	for i, d := range r.devs {
		work.Go(func() { r.visit(d, rand.New(rand.NewPCG(r.Seed, uint64(1000+i)))) })
	}
	for i := range r.Meddlers {
		work.Go(func() { r.meddle(all, rand.New(rand.NewPCG(r.Seed, uint64(3000+i)))) })
	}
	for i, n := range r.Guests {
		work.Go(func() { r.guest(n, all, rand.New(rand.NewPCG(r.Seed, uint64(2000+i)))) })
	}
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	end := time.NewTimer(d)
	defer end.Stop()
	select {
	case <-done:
	case <-end.C:
	}
	r.stop.Store(true)
	// The goroutines may be waiting for a call to succeed.
	slow := time.AfterFunc(20*time.Second, func() { r.Fail(false) })
	defer slow.Stop()
	select {
	case <-done:
	case <-time.After(patience):
		text := make([]byte, 1<<20)
		r.t.Fatalf("a goroutine does not end\n%s", text[:runtime.Stack(text, true)])
	}
	r.Fail(false)
	for _, o := range all {
		o.close()
	}
}

// visit makes calls that concern a device and no owner's range.
func (r *run) visit(d *vmm.Device, random *rand.Rand) {
	defer d.SetReleaseThreshold(0)
	for !r.stop.Load() {
		r.ops.Add(1)
		switch random.IntN(5) {
		case 0:
			_, err := d.Trim(uint64(random.IntN(8) * r.Granule))
			r.refused("trim", err)
		case 1:
			d.SetReleaseThreshold(uint64(random.IntN(16) * r.Granule))
		case 2:
			r.visitAlloc(d, random)
		case 3:
			r.visitStream(d)
		case 4:
			d.Stats()
			d.Report()
		}
	}
}

func (r *run) visitAlloc(d *vmm.Device, random *rand.Rand) {
	g, err := d.Alloc(uint64(random.IntN(r.Granule) + 1))
	if r.refused("alloc", err) {
		return
	}
	b := make([]byte, g.Len())
	if _, err := g.ReadAt(b, 0); !r.refused("read what is new", err) {
		if i := slices.IndexFunc(b, func(x byte) bool { return x != 0 }); i >= 0 {
			r.wrong("byte %d of what Alloc returned is %d", i, b[i])
		}
	}
	r.until("close what Alloc returned", g.Close)
}

func (r *run) visitStream(d *vmm.Device) {
	s, err := d.NewStream()
	if r.refused("make a stream", err) {
		return
	}
	e, err := s.Record()
	if !r.refused("record", err) {
		_, err := e.Done()
		r.refused("ask an event", err)
		r.until("close an event", e.Close)
	}
	r.until("close a stream", s.Close)
}

// guest opens a device, passes its streams to an owner's range or reads the range by
// it, and closes it, again and again.
func (r *run) guest(n int, all []*owner, random *rand.Rand) {
	for !r.stop.Load() {
		r.ops.Add(1)
		d, err := vmm.OpenDriver(r.Driver, n)
		if r.refused("open a guest", err) {
			continue
		}
		o := all[random.IntN(len(all))]
		if g := o.shown.Load(); o.uses {
			r.guestStream(d, g, random)
		} else {
			r.guestReads(d, g, random)
		}
		r.until("close a guest", d.Close, vmm.ErrBusy) // a range with its grant may be closing
	}
}

func (r *run) guestStream(d *vmm.Device, g *vmm.Range, random *rand.Rand) {
	s, err := d.NewStream()
	if r.refused("make a guest's stream", err) {
		return
	}
	r.refused("use a guest's stream", g.UsedBy(s), vmm.ErrClosed, vmm.ErrAsleep)
	for range random.IntN(50) {
		runtime.Gosched()
	}
	r.until("close a guest's stream", s.Close)
}

func (r *run) guestReads(d *vmm.Device, g *vmm.Range, random *rand.Rand) {
	if r.refused("grant a guest", g.Grant(vmm.AccessRead, d), vmm.ErrClosed, vmm.ErrAsleep) {
		return
	}
	// The owner may shrink, put to sleep or close the range meanwhile.
	err := d.CopyOut(make([]byte, 1+random.IntN(100)), g.Ptr())
	r.refused("a guest's read", err, vmm.ErrBounds, vmm.ErrClosed, vmm.ErrAsleep, vmm.ErrBusy, vmm.ErrPermission)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ctx.Err() == nil { // a range that sleeps keeps its grants
		err := g.Revoke(d)
		if err == nil || errors.Is(err, vmm.ErrClosed) {
			return
		}
		r.refused("revoke a guest", err, vmm.ErrAsleep)
		r.refused("wake a guest's", vmm.Wake(g), vmm.ErrClosed)
		runtime.Gosched()
	}
	r.wrong("a guest's grant cannot be revoked")
}

// meddle makes calls on the owners' ranges that change no bytes.
func (r *run) meddle(all []*owner, random *rand.Rand) {
	// Every one of these may fail because an owner or another meddler is at work.
	anyRange := func() *vmm.Range { return all[random.IntN(len(all))].shown.Load() }
	others := []error{vmm.ErrClosed, vmm.ErrAsleep, vmm.ErrBusy, vmm.ErrFull, vmm.ErrBounds, vmm.ErrInvalid}
	for !r.stop.Load() {
		r.ops.Add(1)
		g, h, d := anyRange(), anyRange(), r.devs[random.IntN(len(r.devs))]
		both, memory := []*vmm.Range{g}, []vmm.Memory{g}
		if h != g {
			both, memory = append(both, h), append(memory, h)
		}
		switch random.IntN(13) {
		case 10, 11:
			_, err := g.ReadAt(make([]byte, 1), 0)
			r.refused("read another's", err, append(others, io.EOF)...)
		case 0:
			r.refused("grow another's", g.Grow(uint64(random.IntN(4*r.Granule))), others...)
		case 1, 2:
			r.refused("clip another's", g.Clip(), others...)
		case 3:
			if d != g.Device() {
				r.refused("grant another's", g.Grant(vmm.Access(1+random.IntN(2)), d), others...)
			}
		case 4:
			r.refused("revoke another's", g.Revoke(d), others...)
		case 5:
			r.refused("put others' to sleep", vmm.Sleep(vmm.SleepKeep, both...), others...)
		case 6, 7:
			r.refused("wake others'", vmm.Wake(both...), others...)
		case 8:
			r.refused("enable peers", vmm.EnablePeers(vmm.Access(random.IntN(3)), r.devs, memory...), others...)
		case 9:
			release, err := g.Hold(0, min(g.Len(), uint64(random.IntN(r.Granule))))
			if !r.refused("hold another's", err, others...) {
				runtime.Gosched()
				release()
			}
		case 12:
			y, err := r.watch(g)
			if !r.refused("watch another's", err, others...) {
				runtime.Gosched()
				y.end()
			}
		}
	}
}
