package vmm

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Device is one GPU, or a share of host memory that stands in for one. It makes
// reservations, chunks, ranges and streams, knows which of them are open and
// where they were made, and closes only when none is. Opening a device twice
// gives two Devices that share one context. Safe for concurrent use.
type Device struct {
	state    *deviceState
	name     string
	info     Info
	counters counters

	mu          sync.Mutex
	closed      bool
	open        map[any]opened
	closing     bool           // Close is giving back what is open of the driver's device
	deferred    []func() error // what the driver would not take back; Close tries again
	quarantined []*memory      // nor this; Trim, and growth out of memory, try too
	background  int            // what Close waits for: mostly closes that their callers gave up on
	wakeup      *sync.Cond     // on mu: background fell, the goroutine ended, or something was opened
	worker      worker
	noWorker    bool // tests only: no goroutine is started
	worked      atomic.Int64

	sweepMu    sync.Mutex                // held while retirements come to their end
	retiringMu sync.Mutex                // a leaf
	retiring   map[*Reservation]struct{} // have retirements that the goroutine ends

	cache cache

	hostMu sync.Mutex
	host   *Device // where the contents of sleeping ranges wait; nil before that
}

// opened says what the user has open and where it was made.
type opened struct {
	kind string
	made [8]uintptr
}

func newDevice(drv driver.Driver, info Info) *Device {
	d := &Device{
		name: fmt.Sprintf("%s:%d", drv.Name(), info.Ordinal),
		info: info,
		open: map[any]opened{},

		retiring: map[*Reservation]struct{}{},
	}
	d.wakeup = sync.NewCond(&d.mu)
	d.worker.kicked = make(chan struct{}, 1)
	d.counters.init()
	d.state = acquireState(drv, info.Ordinal, d)
	return d
}

// String is the device's name, "cuda:0".
func (d *Device) String() string {
	if d == nil {
		return ""
	}
	return d.name
}

// Info describes the device. It costs no driver call.
func (d *Device) Info() Info {
	if d == nil {
		return Info{}
	}
	return d.info
}

// Driver is the driver below, for packages beside this one; nil for a nil Device.
func (d *Device) Driver() driver.Driver {
	if d == nil {
		return nil
	}
	return d.drv()
}

func (d *Device) drv() driver.Driver { return d.state.parent.drv }

// live is nil while the device is open.
func (d *Device) live() error {
	if d == nil {
		return fmt.Errorf("%w: no device", ErrInvalid)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.liveLocked()
}

// liveLocked is live for those who hold d.mu.
func (d *Device) liveLocked() error {
	if d.closed || d.closing {
		return fmt.Errorf("%w: device %s", ErrClosed, d.name)
	}
	return nil
}

// raw is the driver's device, opened at the first call that needs it.
func (d *Device) ensureOpen() (*openDevice, error) {
	if err := d.live(); err != nil {
		return nil, err
	}
	return d.state.ensureOpen()
}

// Raw is the driver's device, for packages beside this one. It makes the
// context if there is none yet. Closing it is the Device's business.
func (d *Device) Raw() (driver.Device, error) {
	o, err := d.ensureOpen()
	if err != nil {
		return nil, d.fail("open context", 0, 0, err)
	}
	return o.Device, nil
}

// home is where memory of this device lives.
func (d *Device) location() Location { return Location{Kind: LocationDevice, ID: d.state.n} }

// resolve replaces LocationOwner by this device.
func (d *Device) resolve(p Prop) Prop {
	if p.Location.Kind == LocationOwner {
		p.Location = d.location()
	}
	return p
}

// granularity also answers ErrDeviceLost, so no state of that kind is kept here.
func (d *Device) granularity(p Prop) (uint64, error) {
	if err := d.live(); err != nil {
		return 0, err
	}
	return d.drv().Granularity(p)
}

// Supports answers nil, ErrNotSupported, or an error that settles nothing. It
// tries rather than reads attributes.
func (d *Device) Supports(f Feature) error {
	if err := d.live(); err != nil {
		return d.fail("probe "+f.String(), 0, 0, err)
	}
	return d.fail("probe "+f.String(), 0, 0, d.drv().Supports(d.state.n, f))
}

// MemInfo is the device's free and total memory in bytes, by the driver's count.
func (d *Device) MemInfo() (free, total uint64, err error) {
	raw, err := d.ensureOpen()
	if err == nil {
		free, total, err = raw.MemInfo()
	}
	return free, total, d.fail("read memory info", 0, 0, err)
}

// Sync waits for all work of the device's context. While a stream of it is
// being captured it answers ErrCapturing and leaves the capture alone.
func (d *Device) Sync() error {
	raw, err := d.ensureOpen()
	if err == nil {
		err = d.state.notCapturing()
	}
	if err == nil {
		err = raw.Sync()
	}
	return d.fail("synchronise", 0, 0, err)
}

// Do runs f on a locked thread with the device's context current, for the
// caller's own calls into CUDA.
func (d *Device) Do(f func() error) error {
	raw, err := d.ensureOpen()
	if err != nil {
		return d.fail("run in context", 0, 0, err)
	}
	if f == nil {
		return d.fail("run in context", 0, 0, fmt.Errorf("%w: no function", ErrInvalid))
	}
	var own error
	err = raw.Do(func() error {
		own = f()
		return own
	})
	if err == nil || own != nil {
		return own
	}
	return d.fail("run in context", 0, 0, err)
}

// Lookup says whose address p is: the reservation it lies in, on any device of
// the same driver, and the offset in it. The reservation inside a Range answers
// ErrBusy to Map, Unmap and Close.
func (d *Device) Lookup(p Ptr) (r *Reservation, off uint64, ok bool) {
	if d == nil {
		return nil, 0, false
	}
	r = d.state.parent.find(p)
	if r == nil {
		return nil, 0, false
	}
	return r, uint64(p - r.ptr), true
}

// track notes that thing is open, or about to be; Close names it.
func (d *Device) track(thing any, kind string) error {
	if d == nil {
		return fmt.Errorf("%w: no device", ErrInvalid)
	}
	o := opened{kind: kind}
	runtime.Callers(2, o.made[:])
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.liveLocked(); err != nil {
		return err
	}
	d.open[thing] = o
	d.wakeup.Broadcast() // a Close that waits need not
	return nil
}

// rename says what a thing is that is no longer what it was opened as.
func (d *Device) rename(thing any, kind string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o, ok := d.open[thing]; ok {
		o.kind = kind
		d.open[thing] = o
	}
}

// untrack undoes track.
func (d *Device) untrack(thing any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, thing)
}

// describe is the kind, with an address and a size for what has them.
func (o opened) describe(thing any) string {
	switch t := thing.(type) {
	case *Reservation:
		return fmt.Sprintf("%s at %v of %s", o.kind, t.ptr, sizeText(t.size))
	case *Chunk:
		return fmt.Sprintf("%s of %s", o.kind, sizeText(t.mem.size))
	case grantKey:
		return fmt.Sprintf("%s of memory of %v at %v", o.kind, t.r.dev, t.r.ptr)
	case legacyKey:
		return fmt.Sprintf("%s of %v to memory of %v", o.kind, t.from, t.to)
	}
	return o.kind
}

// where is the first line outside this module's own packages, the caller's.
func (o opened) where() string {
	n := slices.Index(o.made[:], 0)
	if n < 0 {
		n = len(o.made)
	}
	frames := runtime.CallersFrames(o.made[:n])
	for {
		f, more := frames.Next()
		ours := strings.HasPrefix(f.Function, "github.com/cuvmm/cuvmm/vmm.") ||
			strings.HasPrefix(f.Function, "github.com/cuvmm/cuvmm/growable.")
		if !ours || strings.HasSuffix(f.File, "_test.go") || !more {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
	}
}

// strand keeps a way to give back what the driver would not take.
func (d *Device) deferRelease(again func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deferred = append(d.deferred, again)
}

// unstrand tries once more.
func (d *Device) retryReleases() error {
	d.mu.Lock()
	all := d.deferred
	d.deferred = nil
	d.mu.Unlock()
	var failed error
	for _, again := range all {
		if err := again(); err != nil {
			failed = also(failed, "and", err)
			d.deferRelease(again)
		}
	}
	return failed
}

// goOn runs f in the background; Close waits for it.
func (d *Device) runInBackground(f func()) {
	d.mu.Lock()
	d.background++
	d.mu.Unlock()
	go func() {
		f()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.background--
		d.wakeup.Broadcast()
	}()
}

// Close closes the device, after joining closes that were given up on. While
// something is open it answers ErrBusy, names it, and closes nothing. Memory
// that the driver would not take back is offered once more; if it still will
// not, Close answers its error and can be called again. Twice is fine, and so
// is a nil Device.
func (d *Device) Close() error {
	if d == nil {
		return nil
	}
	return d.fail("close device", 0, 0, d.close())
}

func (d *Device) close() error {
	d.waitForCloses()
	kept := d.retryReleases()
	if err := d.stopWorker(); err != nil {
		return also(kept, "and", err) // why it is still open, where that is known
	}
	err := also(kept, "and", d.trim(0))
	err = also(err, "and", d.closeHostDevice())
	err = also(err, "and", d.state.parent.closeUnfinished())
	if err != nil {
		return err
	}
	d.state.closeMu.Lock()
	defer d.state.closeMu.Unlock()
	again, err := d.beginClose()
	if err != nil || again {
		return err
	}
	err = d.state.closeDevice(d)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closing = false
	if err == nil {
		d.closed = true
		d.state.releaseState(d)
	}
	return err
}

// beginClose lets nobody open anything any more; again is that the device is
// closed.
func (d *Device) beginClose() (again bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return true, nil
	}
	if err := d.checkUnusedLocked(); err != nil {
		return false, err
	}
	if n := d.counters.committedNow(); n > 0 {
		return false, fmt.Errorf("%w: %s of its memory are mapped in reservations of other devices, or on their way back", ErrBusy, sizeText(n))
	}
	d.closing = true
	return false, nil
}

// unused is nil if nothing is open. It needs d.mu.
func (d *Device) checkUnusedLocked() error {
	if len(d.open) > 0 {
		return fmt.Errorf("%w: %s", ErrBusy, strings.Join(d.openNamesLocked(), "; "))
	}
	return nil
}

// join waits for the closes that their callers stopped waiting for, unless a
// reservation is open besides, so that Close will not come to its end anyway.
func (d *Device) waitForCloses() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.background > 0 && !d.staysOpenLocked() {
		d.wakeup.Wait()
	}
}

// kept says whether a reservation is open that is not closing. It needs d.mu.
func (d *Device) staysOpenLocked() bool {
	for thing := range d.open {
		if r, ok := thing.(*Reservation); ok && r.phase.Load() < isClosing && r.closesRunning.Load() == 0 {
			return true
		}
	}
	return false
}

// quiet waits for the device's goroutine, which has nothing to do once nothing
// is open.
func (d *Device) stopWorker() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if err := d.checkUnusedLocked(); err != nil {
			return err
		}
		if !d.worker.running {
			return nil
		}
		d.worker.kick()
		d.wakeup.Wait()
	}
}

// names says what is open and where it was made, in a stable order, the first
// few if there are many. d.mu is held.
func (d *Device) openNamesLocked() []string {
	const most = 8
	var all []string
	for thing, o := range d.open {
		all = append(all, fmt.Sprintf("%s made at %s", o.describe(thing), o.where()))
	}
	slices.Sort(all)
	if n := len(all); n > most {
		all = append(all[:most], fmt.Sprintf("and %d more", n-most))
	}
	return all
}
