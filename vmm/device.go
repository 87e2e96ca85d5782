package vmm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/frames"
	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/internal/said"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/internal/bank"
	"github.com/cuvmm/cuvmm/vmm/internal/count"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// Device is one GPU, or a share of host memory that stands in for one. It makes reservations, chunks,
// ranges and streams, and records which are open and where they were made. Close returns ErrBusy while
// one is open. Opening a device twice gives two Devices that share one context. Safe for concurrent use.
type Device struct {
	// Immutable.
	state    *deviceState
	drv      driver.Driver
	name     string
	info     Info
	location Location // of its memory

	counters count.Counters
	samples  *memsample.Owner // of who has the memory
	history  history.Log
	account  *bank.Account
	workTime atomic.Int64 // nanoseconds of the goroutine's work
	logger   atomic.Pointer[slog.Logger]

	mu            lock.Mutex
	wakeup        *sync.Cond // on mu: a detached call, the goroutine or a Close ended, or something was opened
	closed        bool
	closing       bool // a Close is closing the driver's device; others wait for wakeup
	unclosed      map[any]openedAt
	detachedCalls int                       // of runDetached; Close waits for them
	retiring      map[*Reservation]struct{} // have retirements that the goroutine ends
	worker        worker
}

// openedAt is what kind of object is open and where it was made.
type openedAt struct {
	kind string
	made frames.Callers
	at   time.Time
}

func newDevice(drv driver.Driver, info Info) *Device {
	d := &Device{
		drv:      drv,
		name:     info.Open,
		info:     info,
		location: Location{Kind: LocationDevice, ID: info.Ordinal},
		unclosed: map[any]openedAt{},
		retiring: map[*Reservation]struct{}{},
	}
	key := deviceCount.Add(1)
	d.mu.At(lock.Device, key)
	d.counters.At(key)
	d.wakeup = sync.NewCond(&d.mu)
	d.worker.kicked = make(chan struct{}, 1)
	d.samples = &memsample.Owner{Name: d.name, Moment: d.moment}
	acquireState(drv, info.Ordinal, d)
	memsample.Add(d.samples)
	return d
}

// deviceCount defines the order in which several Devices are locked.
var deviceCount atomic.Uint64

// String is the device's name, Info.Open, as in "cuda:0".
func (d *Device) String() string { return nonnil.Of(d).name }

// Info describes the device. It costs no driver call.
func (d *Device) Info() Info { return nonnil.Of(d).info }

// Driver is the driver below, for calls that this package does not make; nil for a nil Device.
func (d *Device) Driver() driver.Driver { return nonnil.Of(d).drv }

// checkOpen is nil while the device is open.
func (d *Device) checkOpen() error {
	if d == nil || d.state == nil {
		return fmt.Errorf("%w: no device", ErrInvalid)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.liveLocked()
}

// liveLocked is live; it needs d.mu.
func (d *Device) liveLocked() error {
	invariants.Held(&d.mu)
	if d.closed || d.closing {
		return fmt.Errorf("%w: device %s", ErrClosed, d.name)
	}
	return nil
}

// ensureOpen is the driver's device, opened at the first call that needs it.
func (d *Device) ensureOpen() (*openDevice, error) {
	if err := d.checkOpen(); err != nil {
		return nil, err
	}
	return d.state.ensureOpen()
}

// Raw is the driver's device, for calls that this package does not make, and for other libraries that
// need its context. It makes the context if there is none yet. Do not close the driver's device.
func (d *Device) Raw() (driver.Device, error) {
	o, err := d.ensureOpen()
	if err != nil {
		return nil, d.wrap("open context", 0, 0, err)
	}
	return o.Raw(), nil
}

// Supports returns nil, ErrNotSupported, or another error if it cannot tell. It tries the feature instead
// of reading attributes.
func (d *Device) Supports(f Feature) error {
	err := d.checkOpen()
	if err == nil {
		err = d.drv.Supports(d.state.n, f)
	}
	return d.wrap("probe "+f.String(), 0, 0, err)
}

// MemInfo is the device's free and total memory in bytes, by the driver's count.
func (d *Device) MemInfo() (free, total uint64, err error) {
	o, err := d.ensureOpen()
	if err == nil {
		free, total, err = o.MemInfo()
	}
	return free, total, d.wrap("read memory info", 0, 0, err)
}

// Sync waits for all work of the device's context. It returns ErrCapturing while a stream of the context
// is being captured; the capture continues.
func (d *Device) Sync() error {
	_, err := d.ensureOpen()
	if err == nil {
		err = d.state.sync()
	}
	if err == nil {
		d.state.parent.runSyncHooks()
	}
	return d.wrap("synchronise", 0, 0, err)
}

// Do runs f on a locked thread with the device's context current, for the caller's own calls into CUDA.
// No other goroutine may wait or record through this package while f begins or ends a capture;
// docs/guides/kernels.md says how to prevent that.
func (d *Device) Do(f func() error) error {
	o, err := d.ensureOpen()
	if err != nil {
		return d.wrap("run in context", 0, 0, err)
	}
	if f == nil {
		return d.wrap("run in context", 0, 0, fmt.Errorf("%w: no function", ErrInvalid))
	}
	var own error
	err = o.Do(func() error {
		own = f()
		return own
	})
	if err == nil || own != nil {
		return own
	}
	return d.wrap("run in context", 0, 0, err)
}

// track notes that thing is open, or is about to be opened. Close returns ErrBusy and names
// it until untrack.
func (d *Device) track(thing any, kind string) error { return d.trackMade(thing, kind, nil) }

// trackMade is track of what was made by a stack; nil: by the caller.
func (d *Device) trackMade(thing any, kind string, made []uintptr) error {
	if d == nil || d.state == nil {
		return fmt.Errorf("%w: no device", ErrInvalid)
	}
	o := openedAt{kind: kind, at: time.Now()}
	if copy(o.made[:], made) == 0 {
		runtime.Callers(2, o.made[:])
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.liveLocked(); err != nil {
		return err
	}
	d.unclosed[thing] = o
	d.wakeup.Broadcast() // a Close that waits returns ErrBusy instead
	return nil
}

// keepOpen is door.VMM.KeepOpen.
func (d *Device) keepOpen(kind string) (release func(), err error) {
	thing := &kind
	if err := d.track(thing, kind); err != nil {
		return nil, d.wrap("open "+kind, 0, 0, err)
	}
	return func() { d.untrack(thing) }, nil
}

// discard closes what no caller will close, as a constructor does that fails with cause. It returns
// cause, with the error of close if that fails; Trim and Close of the device then try again.
func (d *Device) discard(cause error, close func() error) error {
	var undo error
	if close != nil {
		undo = close()
	}
	if undo != nil && d != nil && d.state != nil {
		d.state.parent.refusedCalls.add(d, close)
	}
	return errtext.Join(cause, "and giving back what was made", undo)
}

// rename changes the kind under which Close and Report name a thing that is tracked.
func (d *Device) rename(thing any, kind string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o, ok := d.unclosed[thing]; ok {
		o.kind = kind
		d.unclosed[thing] = o
	}
}

// untrack undoes track.
func (d *Device) untrack(thing any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.unclosed, thing)
}

// runDetached runs f in a goroutine of its own and waits for it, but no longer than until
// ctx is done. f then runs on: Device.Close waits for it. If ctx cannot be done, f runs in
// the caller.
func (d *Device) runDetached(ctx context.Context, f func() error) error {
	if ctx.Done() == nil {
		return f()
	}
	done := make(chan error, 1)
	d.mu.Lock()
	d.detachedCalls++
	d.mu.Unlock()
	go func() {
		done <- f()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.detachedCalls--
		d.wakeup.Broadcast()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select { // both may be ready: then the result of f counts
	case err := <-done:
		return err
	default:
		return ctx.Err()
	}
}

// Close closes the device, after waiting for closes whose callers stopped waiting. If something is open,
// Close returns ErrBusy, names it, and closes nothing. Close tries again to release memory that the
// driver refused to take back. If that fails, it returns the error and can be called again. Twice is
// fine, and so is a nil Device.
func (d *Device) Close() (err error) {
	if d == nil || d.state == nil {
		return nil
	}
	defer func() { err = d.wrap("close device", 0, 0, err) }()
	d.waitForDetachedCalls()
	// What was refused comes first: until it is released it counts as open.
	refused := d.state.parent.refusedCalls.retry(d)
	if err := d.stopWorker(); err != nil {
		return errtext.Join(refused, "and", err) // a refused close is why something is still open
	}
	// After the goroutine has ended: nothing more is cached.
	err = errtext.Join(refused, "and", d.trim(0))
	err = errtext.Join(err, "and", d.state.parent.refusedCalls.retry(nil))
	err = errtext.Join(err, "and", d.state.parent.arenas.FreeEmpty())
	if err != nil {
		return err
	}
	// The driver's device last, since all that was done so far needed it. Nothing can be
	// opened from beginClose on.
	closed, err := d.beginClose()
	if err != nil || closed {
		return err
	}
	err = d.state.closeDevice(d)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closing = false
	d.wakeup.Broadcast()
	if err == nil {
		d.closed = true
		d.state.releaseState(d)
		memsample.Remove(d.samples)
	}
	return err
}

// beginClose lets nothing be opened any more, or returns ErrBusy; closed says that the
// device was closed before.
func (d *Device) beginClose() (closed bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.closing {
		d.wakeup.Wait()
	}
	if d.closed {
		return true, nil
	}
	if err := d.checkUnusedLocked(); err != nil {
		return false, err
	}
	if n := d.counters.Read(&d.counters.Committed.Now) + d.counters.Read(&d.counters.Imported.Now); n > 0 {
		return false, fmt.Errorf("%w: %s of its memory are mapped in reservations of other devices, or not yet released", ErrBusy, errtext.Size(n))
	}
	d.closing = true
	return false, nil
}

// checkUnusedLocked is nil if nothing is open. It needs d.mu.
func (d *Device) checkUnusedLocked() error {
	invariants.Held(&d.mu)
	if len(d.unclosed) > 0 {
		return fmt.Errorf("%w: %s", ErrBusy, strings.Join(d.openNamesLocked(), "; "))
	}
	return nil
}

// waitForDetachedCalls waits for closes and others whose callers may have stopped waiting,
// unless another reservation is open: then Close returns ErrBusy in any case.
func (d *Device) waitForDetachedCalls() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.detachedCalls > 0 && !d.staysOpenLocked() {
		d.wakeup.Wait()
	}
}

// staysOpenLocked reports whether a reservation is open that is not closing. It needs d.mu.
func (d *Device) staysOpenLocked() bool {
	invariants.Held(&d.mu)
	for thing := range d.unclosed {
		if r, ok := thing.(*Reservation); ok && r.phase.Load() < phaseClosing && r.closesRunning.Load() == 0 {
			return true
		}
	}
	return false
}

// stopWorker waits for the device's goroutine, which has nothing to do once nothing
// is open.
func (d *Device) stopWorker() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if err := d.checkUnusedLocked(); err != nil {
			return err
		}
		if !d.worker.running || d.worker.inLogger() { // it ends by itself, after the handler
			return nil
		}
		d.worker.kick()
		d.wakeup.Wait()
	}
}

// openNamesLocked returns what is open and where it was made, in a stable order, the first
// few if there are many. d.mu is held.
func (d *Device) openNamesLocked() []string {
	invariants.Held(&d.mu)
	var all []string
	for thing, o := range d.unclosed {
		all = append(all, fmt.Sprintf("%s made at %s", describe(thing, o.kind), o.made.Lines().Line))
	}
	slices.Sort(all)
	const most = 8
	if n := len(all); n > most {
		all = append(all[:most], fmt.Sprintf("and %d more", n-most))
	}
	return all
}

// wrap wraps err for op, once: an error that already names its operation stays
// as it is.
func (d *Device) wrap(op string, p Ptr, size uint64, err error) error {
	return d.wrapNamed(op, "", p, size, err)
}

// wrapNamed is wrap for what has a name.
func (d *Device) wrapNamed(op, name string, p Ptr, size uint64, err error) error {
	if err == nil {
		return nil
	}
	var done *OpError
	if errors.As(err, &done) {
		return err
	}
	return d.opError(op, name, p, size, nonnil.Of(d).history.Refused(uint64(p), size, name, err))
}

// opError is wrap of an error that is no refusal of what a program has asked for.
func (d *Device) opError(op, name string, p Ptr, size uint64, err error) error {
	if err == nil {
		return nil
	}
	return &OpError{Op: op, Device: d.String(), Name: name, Addr: p, Size: size, Err: err}
}

// pairFail names the pair of an error, once.
func pairFail(from, to *Device, err error) error {
	if err == nil || from == nil || to == nil {
		return err
	}
	return &PairError{From: from.name, To: to.name, Err: err}
}

// Open opens a device by name:
//
//	"auto"             the first CUDA device; the host only where there is no
//	                   CUDA driver or no device of it
//	"cuda:1"           by ordinal; "cuda" is "cuda:0"
//	"cuda:GPU-..."     by UUID, "cuda:MIG-..." a MIG instance
//	"host", "host:1"   host memory, up to "host:15"
//	"host?page=4K"     host memory whose granularity is 4 KiB instead of 2 MiB;
//	                   "host:1?page=64K"
//
// A page is a power of two, from the system's page size to 1G. Host devices of different granularities
// are devices of different drivers.
//
// Even "auto" returns an error if a CUDA driver is installed but fails, or if this program cannot use it
// because it was built without cgo or finds no libcuda. No context is made until a call needs one. Open
// returns ErrInvalid for any other name, and ErrNoDevice if there is no such device. The caller must
// Close it.
func Open(name string) (*Device, error) {
	d, err := open(name)
	if err != nil {
		return nil, &OpError{Op: "open", Device: name, Err: err}
	}
	return d, nil
}

// nvidiaDevice is there where the kernel has NVIDIA's driver. Tests change it.
var nvidiaDevice = "/dev/nvidiactl"

func open(name string) (*Device, error) {
	if name == "auto" {
		d, err := open("cuda:0")
		if errors.Is(err, ErrNoDriver) {
			if _, found := os.Stat(nvidiaDevice); found == nil {
				return nil, fmt.Errorf("%w; but %s is there: build with CGO_ENABLED=1 and a C compiler, "+
					"have libcuda.so.1 where the loader looks, or take Open(\"host\")", err, nvidiaDevice)
			}
		}
		if noDevice(err) {
			return open("host")
		}
		return d, err
	}
	// The driver is found by the name before the colon and the options behind the
	// question mark, its device by what is between them.
	bare, options, _ := strings.Cut(name, "?")
	kind, which, colon := strings.Cut(bare, ":")
	if !colon {
		which = "0"
	}
	drv, err := driverNamed(kind, options)
	if err != nil {
		return nil, err
	}
	if n, err := strconv.Atoi(which); err == nil {
		which = strconv.Itoa(n)
	}
	return openDriver(drv, which)
}

// noDevice reports whether err is that there is no driver, or no device of it.
func noDevice(err error) bool { return errors.Is(err, ErrNoDriver) || errors.Is(err, ErrNoDevice) }

// cudaDevices is CUDA's devices; that there are none is no error.
func cudaDevices() (drv driver.Driver, all []Info, err error) {
	if drv, err = cuda.Default(); err == nil {
		all, err = drv.Devices()
	}
	if noDevice(err) {
		return nil, nil, nil
	}
	return drv, all, err
}

// OpenDriver opens device n of any driver: one that injects faults, or one of
// another vendor. The driver's dynamic type must be comparable, as pointers
// are. The caller must Close it.
func OpenDriver(drv driver.Driver, n int) (*Device, error) {
	d, err := openDriver(drv, strconv.Itoa(n))
	if err != nil {
		return nil, &OpError{Op: "open", Device: fmt.Sprintf("device %d", n), Err: err}
	}
	return d, nil
}

// openDriver opens the device that which stands for: an ordinal, or a UUID.
func openDriver(drv driver.Driver, which string) (*Device, error) {
	if drv == nil || !reflect.ValueOf(drv).Comparable() {
		return nil, fmt.Errorf("%w: no driver, or one whose type cannot be compared", ErrInvalid)
	}
	all, err := drv.Devices()
	if err != nil {
		return nil, err
	}
	for _, i := range all {
		if which != "" && slices.Contains([]string{strconv.Itoa(i.Ordinal), i.MIG, uuidText(i.UUID)}, which) {
			return newDevice(drv, i), nil
		}
	}
	return nil, fmt.Errorf("%w: none is %s; %s", ErrNoDevice, said.Word(which), devicesOf(drv, all))
}

// Devices lists CUDA's devices, then the first host device. The others, from "host:1" on, share its
// memory and are opened on demand. A missing CUDA driver is no error, but one that fails is.
func Devices() ([]Info, error) {
	_, all, err := cudaDevices()
	if err != nil {
		return nil, &OpError{Op: "list devices", Err: err}
	}
	here, err := host.Default().Devices()
	if err != nil {
		return nil, &OpError{Op: "list devices", Err: err}
	}
	return append(all, here[:1]...), nil
}

// checkDevices is nil if the devices are open, of one driver, and each is named once; else pair is of which.
func checkDevices(devs []*Device) (pair [2]*Device, err error) {
	for i, d := range devs {
		if err := d.checkOpen(); err != nil {
			return [2]*Device{d, devs[(i+1)%len(devs)]}, err
		}
		for _, e := range devs[:i] {
			switch {
			case e.state == d.state:
				return [2]*Device{d, e}, fmt.Errorf("%w: %v is named twice", ErrInvalid, d)
			case e.state.parent != d.state.parent:
				return [2]*Device{d, e}, fmt.Errorf("%w: %v is of another driver than %v", ErrInvalid, d, e)
			}
		}
	}
	return pair, nil
}
