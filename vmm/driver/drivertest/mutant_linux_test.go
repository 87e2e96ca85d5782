package drivertest_test

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

const mutantEnv = "CUVMM_DRIVERTEST_MUTANT"

// TestMutants is the negative control of the suites: a host driver with one fault must
// fail the rule that forbids it. The failing suite runs in a child process.
func TestMutants(t *testing.T) {
	if name, child := os.LookupEnv(mutantEnv); child {
		open := func(testing.TB) driver.Driver {
			return mutants()[name].of(host.New(host.Config{Devices: 3, Memory: 1 << 30, NoPeer: [][2]int{{1, 2}}, Granularity: mutantGranule}))
		}
		drivertest.Memory(t, open)
		drivertest.Async(t, open)
		return
	}
	self, err := os.Executable()
	require.NoError(t, err)
	all := mutants()
	for i, name := range slices.Sorted(maps.Keys(all)) { // each is a process
		if i%testgate.Effort(3, 1, 1) != 0 {
			delete(all, name)
		}
	}
	runs := map[string]func() (string, error){}
	for name, m := range all {
		timeout := "1m"
		if m.hangs { // a case waits for a quarter of it
			timeout = "8s"
		}
		cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestMutants$/^"+m.rule+"$", "-test.v", "-test.timeout="+timeout)
		cmd.Env = append(os.Environ(), mutantEnv+"="+name, "GORACE=atexit_sleep_ms=0")
		run := sync.OnceValues(func() (string, error) {
			out, err := cmd.CombinedOutput()
			return string(out), err
		})
		if m.hangs { // they wait all at once, which takes no processor
			go func() { _, _ = run() }()
		}
		runs[name] = run
	}
	for name, m := range all {
		t.Run(name, func(t *testing.T) {
			out, err := runs[name]()
			require.Error(t, err, "rule %s let it pass:\n%s", m.rule, out)
			require.Contains(t, out, "--- FAIL: TestMutants/"+m.rule, "%s", out)
			require.NotContains(t, out, "panic:", "%s", out)
		})
	}
}

// mutantGranule is small, so that the kernel has little to clear.
const mutantGranule = 64 << 10

type mutant struct {
	rule  string
	of    func(*host.Driver) driver.Driver
	hangs bool // until the case loses patience
}

func mutants() map[string]mutant {
	device := func(rule string, wrap func(full) driver.Device) mutant {
		return mutant{rule: rule, of: func(d *host.Driver) driver.Driver { return &otherDevice{d, wrap} }}
	}
	hangs := func(rule, call string) mutant {
		m := device(rule, func(f full) driver.Device { return &waitsIn{f, call} })
		m.hangs = true
		return m
	}
	memory := func(rule string, of func(*host.Driver) driver.Driver) mutant { return mutant{rule: rule, of: of} }
	all := map[string]mutant{
		"one code for both kinds of exhaustion": memory("reserve-exhausted", func(d *host.Driver) driver.Driver { return &oneCode{d} }),
		"errors without their call":             memory("reserve-size", func(d *host.Driver) driver.Driver { return &bareErrors{d} }),
		"free takes any size":                   memory("free-exact", func(d *host.Driver) driver.Driver { return &freeAny{d} }),
		"release forgets the memory":            memory("memory-back", func(d *host.Driver) driver.Driver { return &releaseNothing{d} }),
		"map takes any size":                    memory("map-whole", func(d *host.Driver) driver.Driver { return &mapAny{d} }),
		"a mapping starts with access":          memory("map-no-access", func(d *host.Driver) driver.Driver { return &mapOpen{d} }),
		"unmap skips holes":                     memory("unmap-hole", func(d *host.Driver) driver.Driver { return &unmapAny{d} }),
		"unmap of a part does nothing":          memory("unmap-part", func(d *host.Driver) driver.Driver { return &unmapAny{d} }),
		"read-only shares are hidden":           memory("supports-what-works", func(d *host.Driver) driver.Driver { return &hides{d, driver.FeatureShareReadOnly} }),
		"copies of rows are hidden":             memory("supports-what-works", func(d *host.Driver) driver.Driver { return &hides{d, driver.FeatureCopy2D} }),
		"kernels are hidden":                    memory("supports-what-works", func(d *host.Driver) driver.Driver { return &hides{d, driver.FeatureKernels} }),
		"its address space is hidden":           memory("supports-what-works", func(d *host.Driver) driver.Driver { return &hides{d, driver.FeatureHostView} }),
		"large granules are called pages":       memory("supports-what-works", func(d *host.Driver) driver.Driver { return &boasts{d, driver.FeaturePageChunks} }),
		"reading is writing":                    memory("read-only", func(d *host.Driver) driver.Driver { return &readWrites{d} }),
		"a grant is for everyone":               memory("peer-others-keep", func(d *host.Driver) driver.Driver { return &grantAll{d} }),
		"revoke is forgotten":                   memory("access-none", func(d *host.Driver) driver.Driver { return &revokeNothing{d} }),
		"a descriptor is inherited":             memory("export-cloexec", func(d *host.Driver) driver.Driver { return &inheritable{d} }),
		"import takes the descriptor":           memory("import-leaves-fd", func(d *host.Driver) driver.Driver { return &importCloses{d} }),
		"import believes what it is told":       memory("import-location", func(d *host.Driver) driver.Driver { return &believes{d, map[driver.Handle]driver.Location{}} }),
		"import takes anything":                 memory("import-foreign", func(d *host.Driver) driver.Driver { return &importAny{d} }),
		"a lost device still creates":           memory("lost-entry", func(d *host.Driver) driver.Driver { return &createLost{d} }),
		"a reset is silent":                     device("reset-device", func(f full) driver.Device { return &silentReset{f} }),
		"a reset is of all devices":             memory("reset-others", func(d *host.Driver) driver.Driver { return &resetAll{d} }),
		"a reset takes mapped memory":           memory("reset-memory", func(d *host.Driver) driver.Driver { return &resetRevokes{d} }),
		"a lost device is lost alone":           memory("lost-process", func(d *host.Driver) driver.Driver { return &lostAlone{d} }),
		"a lost device keeps its memory":        memory("lost-give-back", func(d *host.Driver) driver.Driver { return &unmapLost{d} }),
		"one call at a time":                    memory("concurrent", func(d *host.Driver) driver.Driver { return &oneAtATime{Driver: d} }),
		"unmap destroys a capture":              memory("capture-grow", func(d *host.Driver) driver.Driver { return &syncUnmap{d} }),
		"a closed context cannot be waited for": memory("sync-closing", func(d *host.Driver) driver.Driver { return &syncClosed{d} }),

		"every pair has a path":               memory("peering", func(d *host.Driver) driver.Driver { return &allPairs{d} }),
		"a device is no pair with itself":     memory("peering-self", func(d *host.Driver) driver.Driver { return &noSelf{d} }),
		"a pair that is not there is unknown": memory("peering-unknown", func(d *host.Driver) driver.Driver { return &anyPair{d} }),
		"enabling twice is fine":              device("peer-enable", func(f full) driver.Device { return &enableTwice{f} }),
		"disabling twice is fine":             device("peer-enable", func(f full) driver.Device { return &disableTwice{f} }),
		"a device is its own peer":            device("peer-enable-refused", func(f full) driver.Device { return &selfPeer{f} }),
		"close leaves peers enabled":          device("peer-enable-close", func(f full) driver.Device { return &closeKeeps{f} }),
		"enabling needs no path":              device("peer-no-path", func(f full) driver.Device { return &noPath{f} }),
		"copies need access":                  device("peer-plain", func(f full) driver.Device { return &copyNeeds{full: f} }),
		"enabling grants":                     memory("peer-plain-only", func(d *host.Driver) driver.Driver { return &enableGrants{Driver: d} }),
		"a lost device keeps peers":           device("lost-peer-disable", func(f full) driver.Device { return &keepLost{f} }),

		"copies stop at a chunk":             device("copy-round-trip", func(f full) driver.Device { return &shortCopy{f} }),
		"a second close is an error":         device("device-close", func(f full) driver.Device { return &closeOnce{full: f} }),
		"events are always done":             device("stream-late", func(f full) driver.Device { return &alwaysDone{f} }),
		"a stream is not waited for":         device("stream-sync", func(f full) driver.Device { return &noSyncStream{f} }),
		"the device is not waited for":       device("sync-all", func(f full) driver.Device { return &noSync{f} }),
		"an event is not waited for":         device("event-sync", func(f full) driver.Device { return &noSyncEvent{f} }),
		"a stream waits for no event":        device("event-wait", func(f full) driver.Device { return &noWait{f} }),
		"a capture survives a wait":          device("capture-sync", func(f full) driver.Device { return &endAny{f} }),
		"a copy destroys a capture":          device("capture-spared", func(f full) driver.Device { return &syncCopy{f} }),
		"a record ends all captures":         device("capture-apart", func(f full) driver.Device { return &recordEnds{full: f} }),
		"0 is like any other stream":         device("stream-thread", func(f full) driver.Device { return &legacyAside{f, f.CopyStream()} }),
		"asking for a stream ends a capture": device("capture-done", func(f full) driver.Device { return &doneEnds{f} }),
		"a stream is always done":            device("stream-done", func(f full) driver.Device { return &doneEnds{f} }),
		"to ask ends a capture":              device("capture-legacy", func(f full) driver.Device { return &askEnds{f} }),
		"the loss of a device is silent":     device("lost-unmap", func(f full) driver.Device { return &silentLoss{f} }),

		"filling waits":             hangs("stream-late", "Fill"),
		"recording waits":           hangs("stream-late", "Record"),
		"copying out waits for all": hangs("stream-late", "CopyOut"),
		"copying in waits for all":  hangs("stream-apart", "CopyIn"),
		"copying waits":             hangs("event-wait", "Copy"),
		"waiting waits here":        hangs("event-wait", "Wait"),
		"freeing a stream waits":    hangs("stream-free", "FreeStream"),
		"freeing an event waits":    hangs("event-free", "FreeEvent"),
	}
	maps.Copy(all, copy2DMutants(device))
	maps.Copy(all, launchMutants(device))
	maps.Copy(all, graphMutants(device))
	maps.Copy(all, poolMutants(device, hangs))
	maps.Copy(all, ipcMutants(device))
	return all
}

// full is the host's Device with its optional interfaces.
type full interface {
	driver.Device
	driver.Allocator
	driver.HostAllocator
	driver.Grapher
	driver.StreamMemOps
	driver.LegacyPeers
	driver.Copier2D
	driver.Launcher
	driver.StreamPriorities
	driver.Pooler
	driver.PeerCopier
	driver.LegacyIPC
	driver.PoolSharer
}

type otherDevice struct {
	*host.Driver
	wrap func(full) driver.Device
}

func (d *otherDevice) Open(n int) (driver.Device, error) {
	dev, err := d.Driver.Open(n)
	if err != nil {
		return nil, err
	}
	return d.wrap(dev.(full)), nil
}

type oneCode struct{ *host.Driver }

func (d *oneCode) Reserve(size, align uint64) (driver.Ptr, error) {
	p, err := d.Driver.Reserve(size, align)
	if errors.Is(err, driver.ErrAddressSpace) {
		err = &driver.CallError{Call: "reserve", Kind: driver.ErrOutOfMemory}
	}
	return p, err
}

type bareErrors struct{ *host.Driver }

func (d *bareErrors) Reserve(size, align uint64) (driver.Ptr, error) {
	p, err := d.Driver.Reserve(size, align)
	if err != nil {
		err = driver.ErrInvalid
	}
	return p, err
}

// pass is err, unless it is of that kind.
func pass(err, kind error) error {
	if errors.Is(err, kind) {
		return nil
	}
	return err
}

type freeAny struct{ *host.Driver }

func (d *freeAny) Free(p driver.Ptr, size uint64) error {
	return pass(d.Driver.Free(p, size), driver.ErrInvalid)
}

type releaseNothing struct{ *host.Driver }

func (d *releaseNothing) Release(driver.Handle) error { return nil }

type mapAny struct{ *host.Driver }

func (d *mapAny) Map(p driver.Ptr, size uint64, h driver.Handle) error {
	return pass(d.Driver.Map(p, size, h), driver.ErrInvalid)
}

type mapOpen struct{ *host.Driver }

func (d *mapOpen) Map(p driver.Ptr, size uint64, h driver.Handle) error {
	if err := d.Driver.Map(p, size, h); err != nil {
		return err
	}
	return d.SetAccess(p, size, []driver.Grant{{To: onDevice(0), Access: driver.AccessReadWrite}})
}

type unmapAny struct{ *host.Driver }

func (d *unmapAny) Unmap(p driver.Ptr, size uint64) error {
	return pass(d.Driver.Unmap(p, size), driver.ErrInvalid)
}

type readWrites struct{ *host.Driver }

func (d *readWrites) SetAccess(p driver.Ptr, size uint64, who []driver.Grant) error {
	for i := range who {
		if who[i].Access == driver.AccessRead {
			who[i].Access = driver.AccessReadWrite
		}
	}
	return d.Driver.SetAccess(p, size, who)
}

type grantAll struct{ *host.Driver }

func (d *grantAll) SetAccess(p driver.Ptr, size uint64, who []driver.Grant) error {
	return d.Driver.SetAccess(p, size, []driver.Grant{
		{To: onDevice(0), Access: who[0].Access}, {To: onDevice(1), Access: who[0].Access},
	})
}

type revokeNothing struct{ *host.Driver }

func (d *revokeNothing) SetAccess(p driver.Ptr, size uint64, who []driver.Grant) error {
	if who[0].Access == driver.AccessNone {
		return nil
	}
	return d.Driver.SetAccess(p, size, who)
}

type inheritable struct{ *host.Driver }

func (d *inheritable) Export(h driver.Handle) (int, error) {
	fd, err := d.Driver.Export(h)
	if err != nil {
		return fd, err
	}
	defer func() { _ = syscall.Close(fd) }()
	return syscall.Dup(fd)
}

type importCloses struct{ *host.Driver }

func (d *importCloses) Import(fd int, size uint64, p driver.Prop) (driver.Handle, error) {
	h, err := d.Driver.Import(fd, size, p)
	_ = syscall.Close(fd)
	return h, err
}

type believes struct {
	*host.Driver
	told map[driver.Handle]driver.Location
}

func (d *believes) Import(fd int, size uint64, p driver.Prop) (driver.Handle, error) {
	h, err := d.Driver.Import(fd, size, p)
	d.told[h] = p.Location
	return h, err
}

func (d *believes) Properties(h driver.Handle) (driver.Prop, error) {
	p, err := d.Driver.Properties(h)
	if told, ok := d.told[h]; ok && err == nil {
		p.Location = told
	}
	return p, err
}

type importAny struct{ *host.Driver }

func (d *importAny) Import(fd int, size uint64, p driver.Prop) (driver.Handle, error) {
	h, err := d.Driver.Import(fd, size, p)
	if err != nil {
		return d.Create(size, p)
	}
	return h, err
}

type shortCopy struct{ full }

func (d *shortCopy) CopyIn(dst driver.Ptr, src []byte) error {
	return d.full.CopyIn(dst, src[:min(len(src), mutantGranule)])
}

type closeOnce struct {
	full
	closed bool
}

func (d *closeOnce) Close() error {
	if d.closed {
		return &driver.CallError{Call: "close", Kind: driver.ErrClosed}
	}
	d.closed = true
	return d.full.Close()
}

type alwaysDone struct{ full }

func (d *alwaysDone) Done(driver.Event) (bool, error) { return true, nil }

type noSyncStream struct{ full }

func (d *noSyncStream) SyncStream(driver.Stream) error { return nil }

type noSync struct{ full }

func (d *noSync) Sync() error { return nil }

type noSyncEvent struct{ full }

func (d *noSyncEvent) SyncEvent(driver.Event) error { return nil }

type noWait struct{ full }

func (d *noWait) Wait(driver.Stream, driver.Event) error { return nil }

type endAny struct{ full }

func (d *endAny) EndCapture(s driver.Stream) (driver.Graph, error) {
	g, err := d.full.EndCapture(s)
	return g, pass(err, driver.ErrInvalid)
}

// recordEnds destroys a capture beside which an event is recorded.
type recordEnds struct {
	full
	records, begun atomic.Int64
}

func (d *recordEnds) Record(e driver.Event, s driver.Stream) error {
	d.records.Add(1)
	return d.full.Record(e, s)
}

func (d *recordEnds) BeginCapture(s driver.Stream, m driver.CaptureMode) error {
	d.begun.Store(d.records.Load())
	return d.full.BeginCapture(s, m)
}

func (d *recordEnds) EndCapture(s driver.Stream) (driver.Graph, error) {
	g, err := d.full.EndCapture(s)
	if err == nil && d.records.Load() > d.begun.Load() {
		return 0, errors.Join(driver.ErrInvalid, d.FreeGraph(g))
	}
	return g, err
}

type syncCopy struct{ full }

func (d *syncCopy) CopyOut(dst []byte, src driver.Ptr) error {
	if err := d.Sync(); err != nil {
		return err
	}
	return d.full.CopyOut(dst, src)
}

type legacyAside struct {
	full
	other driver.Stream
}

func (d *legacyAside) Record(e driver.Event, s driver.Stream) error {
	if s == 0 {
		s = d.other
	}
	return d.full.Record(e, s)
}

type askEnds struct{ full }

func (d *askEnds) Capturing(s driver.Stream) (bool, error) {
	yes, err := d.full.Capturing(s)
	if errors.Is(err, driver.ErrCapturing) {
		_ = d.SyncStream(s)
	}
	return yes, err
}

type doneEnds struct{ full }

func (d *doneEnds) StreamDone(s driver.Stream) (bool, error) {
	if yes, err := d.Capturing(s); err != nil || yes {
		return false, d.SyncStream(s)
	}
	return true, nil
}

type oneAtATime struct {
	*host.Driver
	mu sync.Mutex
}

func (d *oneAtATime) Create(size uint64, p driver.Prop) (driver.Handle, error) {
	if !d.mu.TryLock() {
		return 0, &driver.CallError{Call: "create", Kind: driver.ErrLimit}
	}
	defer d.mu.Unlock()
	for range 100 { // time for another to come
		runtime.Gosched()
	}
	return d.Driver.Create(size, p)
}

type syncUnmap struct{ *host.Driver }

func (d *syncUnmap) Unmap(p driver.Ptr, size uint64) error {
	_ = d.SyncIfActive(0)
	return d.Driver.Unmap(p, size)
}

type syncClosed struct{ *host.Driver }

func (d *syncClosed) SyncIfActive(n int) error {
	dev, err := d.Driver.Open(n)
	if err != nil {
		return err
	}
	_ = dev.Close()
	return dev.Sync()
}

type allPairs struct{ *host.Driver }

func (d *allPairs) Peering(from, to int) (driver.Peering, error) {
	p, err := d.Driver.Peering(from, to)
	if err == nil && p.Link == "none" {
		p = driver.Peering{Access: true, Link: "host"}
	}
	return p, err
}

type noSelf struct{ *host.Driver }

func (d *noSelf) Peering(from, to int) (driver.Peering, error) {
	p, err := d.Driver.Peering(from, to)
	if from == to {
		p.Link = "host"
	}
	return p, err
}

type anyPair struct{ *host.Driver }

func (d *anyPair) Peering(from, to int) (driver.Peering, error) {
	p, err := d.Driver.Peering(from, to)
	return p, pass(err, driver.ErrNoDevice)
}

type enableTwice struct{ full }

func (d *enableTwice) EnablePeer(to int) error {
	return pass(d.full.EnablePeer(to), driver.ErrPeerEnabled)
}

type disableTwice struct{ full }

func (d *disableTwice) DisablePeer(to int) error {
	return pass(d.full.DisablePeer(to), driver.ErrInvalid)
}

type selfPeer struct{ full }

func (d *selfPeer) EnablePeer(to int) error { return pass(d.full.EnablePeer(to), driver.ErrInvalid) }

type closeKeeps struct{ full }

func (d *closeKeeps) Close() error { return nil }

type noPath struct{ full }

func (d *noPath) EnablePeer(to int) error { return pass(d.full.EnablePeer(to), driver.ErrNotSupported) }

type copyNeeds struct {
	full
	on bool
}

func (d *copyNeeds) EnablePeer(to int) error {
	err := d.full.EnablePeer(to)
	d.on = d.on || err == nil
	return err
}

func (d *copyNeeds) Copy(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	if !d.on {
		return nil
	}
	return d.full.Copy(dst, src, n, s)
}

type enableGrants struct {
	*host.Driver
	p    driver.Ptr
	size uint64
}

func (d *enableGrants) SetAccess(p driver.Ptr, size uint64, who []driver.Grant) error {
	if who[0].To == onDevice(0) {
		d.p, d.size = p, size
	}
	return d.Driver.SetAccess(p, size, who)
}

func (d *enableGrants) Open(n int) (driver.Device, error) {
	dev, err := d.Driver.Open(n)
	if err != nil {
		return nil, err
	}
	return &granting{dev.(full), d, n}, nil
}

type granting struct {
	full
	d *enableGrants
	n int
}

func (g *granting) EnablePeer(to int) error {
	if err := g.full.EnablePeer(to); err != nil {
		return err
	}
	return g.d.Driver.SetAccess(g.d.p, g.d.size, []driver.Grant{{To: onDevice(g.n), Access: driver.AccessReadWrite}})
}

type keepLost struct{ full }

func (d *keepLost) DisablePeer(to int) error {
	if err := d.full.Sync(); err != nil {
		return err
	}
	return d.full.DisablePeer(to)
}
