//go:build linux

package host

import (
	"cmp"
	"errors"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// Driver is host memory as a driver.Driver. It holds no thread and no
// goroutine while nothing is queued. Safe for concurrent use.
type Driver struct {
	granularity uint64
	options     string // in the names of its devices, "?page=4K"; empty for none
	noPeer      map[[2]int]bool
	states      []*deviceState
	lost        atomic.Bool            // one device is, so all are
	lostWhy     atomic.Pointer[string] // set before lost

	// memMu guards addresses, memory and access. It is held for reading while work
	// is checked and queued, and for writing while memory is unmapped or narrowed. So
	// those see all work that passed the check.
	memMu        sync.RWMutex
	regions      []*region // by base
	mappings     int       // kernel mappings held, never less than the kernel counts
	mappingLimit int       // Config.Mappings; 0: only the process's
	handles      map[driver.Handle]*handle
	created      map[inode]*memory // made here; imports of it find it again
	orphans      []*memory         // released, but an exported descriptor may be open
	orphanPause  time.Duration     // before the next look at them; 0: none is due
	freed        freed             // to be closed after memMu is unlocked
	lastHandle   driver.Handle
	pools        map[driver.Pool]*pool // those of contexts that were reset, too, until they are destroyed
	cachedBlocks atomic.Int64          // of all pools

	arenas arenas // has a lock of its own

	// workMu guards streams, events and captures. It is locked after memMu.
	workMu sync.Mutex
	lastID uint64 // of streams and events
	events map[driver.Event]*event
}

// deviceState is the state of one device ordinal, open or not.
type deviceState struct {
	ordinal int
	memory  uint64
	used    uint64   // bytes charged; guarded by Driver.memMu
	context *context // nil while it is not open; guarded by Driver.workMu
}

var (
	_ driver.Driver       = (*Driver)(nil)
	_ driver.HostViewer   = (*Driver)(nil)
	_ driver.FreeReporter = (*Driver)(nil)
)

// New makes a driver with devices, capacity and handles of its own. It needs no
// closing: it holds only what its caller reserved, created and opened.
func New(c Config) *Driver {
	c = c.resolve()
	d := &Driver{
		granularity:  c.Granularity,
		noPeer:       make(map[[2]int]bool),
		mappingLimit: c.Mappings,
		handles:      make(map[driver.Handle]*handle),
		created:      make(map[inode]*memory),
		events:       make(map[driver.Event]*event),
		pools:        make(map[driver.Pool]*pool),
		lastID:       lastDefault,
	}
	for i := range c.Devices {
		d.states = append(d.states, &deviceState{ordinal: i, memory: c.Memory})
	}
	// In both directions.
	for _, p := range c.NoPeer {
		d.noPeer[p] = true
		d.noPeer[[2]int{p[1], p[0]}] = true
	}
	return d
}

// resolve returns c with the default of each field that is zero.
func (c Config) resolve() Config {
	c.Devices = max(1, c.Devices)
	if c.Memory == 0 {
		c.Memory = machineMemory()
	}
	c.Granularity = cmp.Or(c.Granularity, defaultGranularity)
	page := uint64(os.Getpagesize())
	c.Granularity = 1 << bits.Len64(min(max(c.Granularity, page), 1<<62)-1)
	c.Mappings = max(0, c.Mappings)
	return c
}

// Name is "host".
func (d *Driver) Name() string { return "host" }

// state finds a device. Every call that names one goes through it, so it returns
// the error of a lost device.
func (d *Driver) state(verb string, dev int) (*deviceState, error) {
	if dev < 0 || dev >= len(d.states) {
		return nil, refuse(verb, driver.ErrNoDevice, "host:%d; there are %d", dev, len(d.states))
	}
	u := d.states[dev]
	if d.lost.Load() {
		return nil, d.lostError(verb, u)
	}
	return u, nil
}

// checkDevices is state for the devices that a call names.
func (d *Driver) checkDevices(verb string, devs ...int) error {
	for _, dev := range devs {
		if _, err := d.state(verb, dev); err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) lostError(verb string, u *deviceState) error {
	return refuse(verb, driver.ErrDeviceLost, "host:%d: %s", u.ordinal, *d.lostWhy.Load())
}

// Supports tries what a feature needs of the system.
func (d *Driver) Supports(dev int, f driver.Feature) error {
	const verb = "Supports"
	if _, err := d.state(verb, dev); err != nil {
		return err
	}
	switch f {
	case driver.FeatureVMM, driver.FeatureReadOnlyMap, driver.FeatureStreamMemOps, driver.FeatureHostView, driver.FeatureZeroFilled, driver.FeatureCopy2D:
		return d.probe(0, private)
	case driver.FeatureKernels, driver.FeaturePools:
		return nil
	case driver.FeatureLegacyIPC, driver.FeaturePoolShareFD:
		return d.probeSparse()
	case driver.FeatureShareFD:
		return d.probe(0, driver.ShareFD)
	case driver.FeatureShareReadOnly:
		err := d.probe(unix.F_SEAL_FUTURE_WRITE, driver.ShareFD)
		if errors.Is(err, unix.EINVAL) {
			return refuse(verb, driver.ErrNotSupported, "%v: the kernel has no such seal; it came with Linux 5.1", f)
		}
		return err
	case driver.FeaturePageChunks:
		page := uint64(os.Getpagesize())
		if d.granularity == page {
			return d.probe(0, private)
		}
		return refuse(verb, driver.ErrNotSupported, "%v: the granularity is %d bytes; \"host?page=%s\" has it", f, d.granularity, sizeText(page))
	}
	return refuse(verb, driver.ErrNotSupported, "%v", f)
}

// CanAccessPeer is true except for the pairs of Config.NoPeer.
func (d *Driver) CanAccessPeer(from, to int) (bool, error) {
	err := d.checkDevices("CanAccessPeer", from, to)
	return err == nil && d.canReach(from, to), err
}

func (d *Driver) canReach(from, to int) bool {
	return from == to || !d.noPeer[[2]int{from, to}]
}

// Granularity is 2 MiB, as on the card, or that of the Config.
func (d *Driver) Granularity(p driver.Prop) (uint64, error) {
	if _, err := d.stateFor("Granularity", p); err != nil {
		return 0, err
	}
	return d.granularity, nil
}

// GranularityRecommended is Granularity: no size is faster here.
func (d *Driver) GranularityRecommended(p driver.Prop) (uint64, error) { return d.Granularity(p) }

// stateFor checks p and finds its device.
func (d *Driver) stateFor(verb string, p driver.Prop) (*deviceState, error) {
	switch p.Location.Kind {
	case driver.LocationDevice:
	case driver.LocationHostNUMA:
		return nil, refuse(verb, driver.ErrNotSupported, "memory on %v", p.Location)
	default:
		return nil, refuse(verb, driver.ErrInvalid, "memory on %v", p.Location)
	}
	// What CUDA knows and host memory cannot do is not supported; the rest is invalid.
	known := driver.ShareFD | driver.ShareFabric | driver.ShareReadOnly
	switch {
	case p.Share&^known != 0:
		return nil, refuse(verb, driver.ErrInvalid, "share %#x", uint8(p.Share))
	case p.Share&driver.ShareFabric != 0:
		return nil, refuse(verb, driver.ErrNotSupported, "fabric handles")
	case p.Share == driver.ShareReadOnly:
		return nil, refuse(verb, driver.ErrInvalid, "share read-only without a way to share")
	case p.RDMA:
		return nil, refuse(verb, driver.ErrNotSupported, "RDMA")
	case p.Compress:
		return nil, refuse(verb, driver.ErrNotSupported, "compression")
	}
	return d.state(verb, p.Location.ID)
}

// checkSpan checks that an address and a size are multiples of the granularity and
// that their sum does not overflow.
func (d *Driver) checkSpan(verb string, p driver.Ptr, size uint64) error {
	switch {
	case size == 0:
		return refuse(verb, driver.ErrInvalid, "size 0")
	case size%d.granularity != 0:
		return refuse(verb, driver.ErrInvalid, "size %d is no multiple of %d", size, d.granularity)
	case uint64(p)%d.granularity != 0:
		return refuse(verb, driver.ErrInvalid, "address %v is no multiple of %d", p, d.granularity)
	case uint64(p)+size < size:
		return refuse(verb, driver.ErrInvalid, "%d bytes at %v pass the end of addresses", size, p)
	}
	return nil
}

// SyncIfActive waits for all work of dev if it is open.
func (d *Driver) SyncIfActive(dev int) error {
	const verb = "SyncIfActive"
	u, err := d.state(verb, dev)
	if err != nil {
		return err
	}
	if err := d.sync(verb, u); !errors.Is(err, driver.ErrClosed) {
		return err
	}
	return nil // the context ended meanwhile, with its work
}
