package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// Memory is what EnablePeers gives devices access to: a Range, a Reservation, or something
// that is built on one, as a pool is. Reservation returns the same each time.
type Memory interface{ Reservation() *Reservation }

// Reservation is the reservation itself, which makes it a Memory.
func (r *Reservation) Reservation() *Reservation { return r }

// Reservation is the reservation inside the range, which makes it a Memory. Its Map, Unmap and
// Close return ErrBusy.
func (g *Range) Reservation() *Reservation { return g.res() }

// Plan says what giving devices access to memory would do; see PlanPeers. It is a snapshot and holds
// nothing open. Reading it is safe from several goroutines.
type Plan struct {
	Access Access
	Memory []MemoryPlan

	devs []*Device
}

// MemoryPlan is the part of a Plan for one Memory. One driver call sets access for all its devices on
// each run of chunks without a hole; a Range is one run. The driver's work grows with chunks and devices.
type MemoryPlan struct {
	Of      Memory
	Chunks  int
	Bytes   uint64 // of the chunks
	Calls   int    // of SetAccess; 0 where nothing changes
	Waits   bool   // access is taken away, so Apply waits as Unmap does
	Devices []DevicePlan
	Err     error // why nothing can be done with the memory

	r *Reservation
}

// DevicePlan is what changes for one device.
type DevicePlan struct {
	Device   *Device
	From, To Access // equal where there is nothing to do
	Err      error  // why it cannot be: a *PairError
}

// PlanPeers plans to set the access of every device to all memory that it does not own. Read or ReadWrite
// gives access, also to memory mapped there later; AccessNone takes it away. Nothing is changed. The plan
// names each pair that is impossible, with the reason: a pair without a path, a device without the calls
// that map memory, a device or memory that is closed, a range that sleeps, ReadWrite of a read-only
// reservation. The error is ErrInvalid for arguments alone: memory or a
// device that is nil or given twice, or no such access.
func PlanPeers(a Access, devs []*Device, of ...Memory) (*Plan, error) {
	all, err := checkPlanArguments(a, devs, of)
	if err != nil {
		return nil, err
	}
	return plan(a, slices.Clone(devs), all), nil
}

// EnablePeers is PlanPeers and Apply: it gives every device access a to all memory that it does not own,
// all or nothing. Until it returns, copies of this package that need the new access may return ErrBusy.
func EnablePeers(a Access, devs []*Device, of ...Memory) error {
	p, err := PlanPeers(a, devs, of...)
	if err != nil {
		return err
	}
	return p.apply()
}

const planning, enablingPeers = "plan peers", "enable peers"

var errNoPlan = &OpError{Op: enablingPeers, Err: fmt.Errorf("%w: no plan", ErrInvalid)}

// checkPlanArguments rejects nil and duplicate arguments. It returns the memory with its
// reservations.
func checkPlanArguments(a Access, devs []*Device, of []Memory) (all []MemoryPlan, err error) {
	var owner *Device
	for _, m := range of {
		var r *Reservation
		if m != nil {
			r = m.Reservation()
		}
		if r == nil || r.dev == nil {
			return nil, owner.wrap(planning, 0, 0, fmt.Errorf("%w: no memory", ErrInvalid))
		}
		if slices.ContainsFunc(all, func(p MemoryPlan) bool { return p.r == r }) {
			return nil, r.wrap(planning, 0, 0, fmt.Errorf("%w: %s is named twice", ErrInvalid, r.describe(r.kind)))
		}
		owner = cmp.Or(owner, r.dev)
		all = append(all, MemoryPlan{Of: m, r: r})
	}
	if a > AccessReadWrite {
		return nil, owner.wrap(planning, 0, 0, fmt.Errorf("%w: %v", ErrInvalid, a))
	}
	// Two Devices on one ordinal are one device twice.
	for i, d := range devs {
		if d == nil || d.state == nil {
			return nil, owner.wrap(planning, 0, 0, d.checkOpen())
		}
		if slices.ContainsFunc(devs[:i], func(e *Device) bool { return e.state == d.state }) {
			return nil, owner.wrap(planning, 0, 0, pairFail(d, owner, fmt.Errorf("%w: %v is named twice", ErrInvalid, d)))
		}
	}
	return all, nil
}

// plan looks at everything once, and asks the driver once for each device and pair.
func plan(a Access, devs []*Device, all []MemoryPlan) *Plan {
	p := &Plan{Access: a, devs: devs}
	// Each result of the driver is remembered: there is more memory than pairs.
	type pair struct{ from, to *deviceState }
	known := map[pair]error{}
	once := func(k pair, ask func() error) error {
		err, asked := known[k]
		if !asked {
			err = ask()
			known[k] = err
		}
		return err
	}
	reach := func(from, to *Device) error {
		if err := once(pair{from: from.state}, func() error { return canMap(from) }); err != nil {
			return err
		}
		return once(pair{from.state, to.state}, func() error { return checkPath(from, to) })
	}
	for _, m := range all {
		p.Memory = append(p.Memory, planMemory(m.Of, m.r, a, devs, reach))
	}
	return p
}

// canMap is nil if memory can be mapped for the device, or if that cannot be found out for
// want of memory to try with.
func canMap(d *Device) error {
	err := d.drv.Supports(d.state.n, FeatureVMM)
	if errors.Is(err, ErrOutOfMemory) {
		return nil
	}
	return err
}

func planMemory(m Memory, r *Reservation, a Access, devs []*Device, reach func(from, to *Device) error) MemoryPlan {
	mp := MemoryPlan{Of: m, r: r, Err: cmp.Or(r.checkOpen(), r.checkAccess(a))}
	for _, d := range devs {
		if d.state == r.dev.state {
			continue
		}
		mp.Devices = append(mp.Devices, DevicePlan{Device: d, To: a, Err: r.checkGrant(a, d, reach)})
	}
	r.mappingMu.Lock() // so that what is counted is what is granted
	defer r.mappingMu.Unlock()
	unsure := r.anyInDoubt()
	r.mu.Lock()
	defer r.mu.Unlock()
	mp.Chunks, mp.Bytes = r.table.Len(), r.committedLocked()
	for i := range mp.Devices {
		d := &mp.Devices[i]
		d.From = r.grants.Access(d.Device.state)
		if d.Err == nil && (d.From != a || unsure) {
			mp.Calls = r.runCount()
			mp.Waits = mp.Waits || d.From > a || unsure
		}
	}
	return mp
}

// grants are those of the devices that nothing speaks against.
func (mp *MemoryPlan) grants(a Access) (to []grant) {
	for _, d := range mp.Devices {
		if d.Err == nil {
			to = append(to, d.Device.grant(a))
		}
	}
	return to
}

// Err is everything that cannot be done, or nil.
func (p *Plan) Err() error {
	if p == nil {
		return errNoPlan
	}
	// The error is of the first memory that has one, and names all others.
	var first *Reservation
	var all error
	for i := range p.Memory {
		mp := &p.Memory[i]
		found := mp.Err
		for _, d := range mp.Devices {
			found = errtext.Join(found, "and", d.Err)
		}
		if found != nil && first == nil {
			first = mp.r
		}
		all = errtext.Join(all, "and", found)
	}
	if first == nil {
		return nil
	}
	return first.wrap(enablingPeers, 0, 0, all)
}

// Apply does what was planned, all or nothing. It checks the plan again first, since that may be old.
// Grants and growth since then are no error. If a step has become impossible, Apply changes nothing and
// returns the error that a new plan's Err would. If a step fails, devices get their earlier access back,
// without a wait for work, because no caller has been told of the grant. If the driver refuses that, too,
// see Grant. Until Apply returns, Grant, Revoke, Close, Sleep and Wake of this memory wait. Applying a
// plan twice is fine.
func (p *Plan) Apply() error {
	if p == nil {
		return errNoPlan
	}
	return plan(p.Access, p.devs, p.Memory).apply()
}

func (p *Plan) apply() error {
	if err := p.Err(); err != nil {
		return err
	}
	// The grants of all memory are locked to the end, so that the undo is exact.
	all := make([]*Reservation, len(p.Memory))
	for i := range p.Memory {
		all[i] = p.Memory[i].r
	}
	unlock := lockGrants(all)
	defer unlock()
	var done []*accessChange
	for i := range p.Memory {
		to := p.Memory[i].grants(p.Access)
		if len(to) == 0 {
			continue
		}
		r := p.Memory[i].r
		c, err := r.changeAccessLocked(to)
		if err != nil {
			err = undoAll(err, "and setting access back", done, (*accessChange).undo)
			return r.wrap(enablingPeers, 0, r.size, err)
		}
		done = append(done, c)
	}
	for _, c := range done {
		c.finish()
	}
	return nil
}

// String is the plan for people: all memory, each device, and what cannot be done.
func (p *Plan) String() string {
	if p == nil {
		return "no plan"
	}
	var names []string
	for _, d := range p.devs {
		names = append(names, d.name)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "access %v for %s\n", p.Access, strings.Join(names, ", "))
	refused, all := 0, 0
	for i := range p.Memory {
		mp := &p.Memory[i]
		fmt.Fprintf(&b, "%s %d of %v, %s in %s: %s\n", withName(mp.r.kind, mp.r.name), i, mp.r.dev, errtext.Size(mp.Bytes), plural(mp.Chunks, "chunk"), mp.cost())
		for _, d := range mp.Devices {
			all++
			if d.Err != nil || mp.Err != nil {
				refused++
			}
			fmt.Fprintf(&b, "  %v: %s\n", d.Device, d.text())
		}
	}
	switch {
	case refused > 0:
		fmt.Fprintf(&b, "nothing will be done, since %d of %d cannot be\n", refused, all)
	case p.Err() != nil: // of memory without a device to be told of
		b.WriteString("nothing will be done\n")
	}
	return b.String()
}

// cost is what the memory takes.
func (mp *MemoryPlan) cost() string {
	switch {
	case mp.Err != nil:
		return mp.Err.Error()
	case mp.Waits:
		return plural(mp.Calls, "call") + ", after a wait"
	}
	return plural(mp.Calls, "call")
}

func (d *DevicePlan) text() string {
	switch {
	case d.Err != nil:
		return "cannot be: " + d.Err.Error()
	case d.From == d.To:
		return fmt.Sprintf("%v, as it is", d.To)
	}
	return fmt.Sprintf("%v -> %v", d.From, d.To)
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// legacyKey lists a pair, of EnableLegacyPeers, among what both its devices have open.
type legacyKey struct {
	l        *legacy
	from, to *Device
}

// at is the pair's ordinals.
func (k legacyKey) at() [2]int { return [2]int{k.from.state.n, k.to.state.n} }

// legacy is the pairs of one EnableLegacyPeers.
type legacy struct {
	parent *driverState
	left   []legacyKey // still enabled; guarded by legacyPairs.mu
}

const enabling, disabling = "enable legacy peers", "disable legacy peers"

// EnableLegacyPeers lets every one of the devices reach memory of every other that
// cuMemAlloc, cudaMalloc or another library's pool made. This is CUDA's older peer access,
// of one context to all such memory of another: cuCtxEnablePeerAccess. It has nothing to
// do with the legacy stream, and does nothing for mapped memory, ranges and reservations;
// see EnablePeers. All pairs
// are enabled or none. Pairs are counted for the whole process, and one that
// another library enabled before is used and never disabled here.
//
// disable waits for the work of the devices, as Unmap does, so it returns ErrCapturing during a capture.
// Then it disables pairs that have no other user here. If it fails, some stay enabled: call it again.
// After success it does nothing. Close of the devices returns ErrBusy until disable has succeeded.
// Another library that relies on a pair enabled here, without enabling it itself, loses it. It returns
// ErrNotSupported, in a *PairError, if there is no path.
func EnableLegacyPeers(devs ...*Device) (disable func() error, err error) {
	var first *Device
	if len(devs) > 0 {
		first = devs[0]
	}
	l := &legacy{}
	if err := l.enable(devs); err != nil {
		return nil, first.wrap(enabling, 0, 0, err)
	}
	return func() error { return first.wrap(disabling, 0, 0, l.disable()) }, nil
}

func (l *legacy) enable(devs []*Device) error {
	if len(devs) == 0 {
		return fmt.Errorf("%w: no device", ErrInvalid)
	}
	if pair, err := checkDevices(devs); err != nil {
		return pairFail(pair[0], pair[1], err)
	}
	l.parent = devs[0].state.parent
	var all []legacyKey
	for _, from := range devs {
		for _, to := range devs {
			if from == to {
				continue
			}
			if err := checkPath(from, to); err != nil {
				return pairFail(from, to, err)
			}
			all = append(all, legacyKey{l, from, to})
		}
	}
	for i, d := range devs { // both contexts of a pair have to be there
		if _, err := legacyDevice(d); err != nil {
			return pairFail(d, devs[(i+1)%len(devs)], err)
		}
	}
	l.parent.legacy.mu.Lock()
	defer l.parent.legacy.mu.Unlock()
	for _, k := range all {
		if err := k.addUserLocked(); err != nil {
			return undoAll(pairFail(k.from, k.to, err), "and disabling another pair", l.left, legacyKey.undoUserLocked)
		}
		l.left = append(l.left, k)
	}
	return nil
}

// legacyDevice is the driver's device with what enables pairs.
func legacyDevice(d *Device) (driver.LegacyPeers, error) {
	o, err := d.state.ensureOpen()
	if err != nil {
		return nil, err
	}
	p, ok := order.As[driver.LegacyPeers](o.Device)
	if !ok {
		return nil, fmt.Errorf("%w: the driver has no peer access to cuMemAlloc memory", ErrNotSupported)
	}
	return p, nil
}

// addUserLocked counts a user of the pair; the first user enables it. It needs
// legacyPairs.mu.
func (k legacyKey) addUserLocked() error {
	all := &k.l.parent.legacy
	invariants.Held(&all.mu)
	if err := k.track(); err != nil {
		return err
	}
	if p := all.pairs[k.at()]; p != nil {
		p.users++
		return nil
	}
	// The driver enables a pair once, whichever library asks: what another library has enabled is
	// used, and left to it.
	raw, err := legacyDevice(k.from)
	if err == nil {
		err = raw.EnablePeer(k.to.state.n)
	}
	theirs := errors.Is(err, driver.ErrPeerEnabled)
	if err != nil && !theirs {
		k.untrack()
		return err
	}
	all.pairs[k.at()] = &legacyPair{users: 1, theirs: theirs}
	return nil
}

// removeUserLocked undoes addUserLocked; the last user disables the pair. A device that is lost has
// nothing left to disable. After any other error the pair stays as it was. It needs legacyPairs.mu.
func (k legacyKey) removeUserLocked() error {
	all := &k.l.parent.legacy
	invariants.Held(&all.mu)
	p := all.pairs[k.at()]
	var err error
	if p.users == 1 {
		if err = k.disableLocked(p); err != nil && !lost(err) {
			return err
		}
	}
	p.users--
	k.untrack()
	return err
}

// undoUserLocked is removeUserLocked for an EnableLegacyPeers that fails, whose caller has nothing to
// disable later. A pair that cannot be disabled stays enabled without a user: the next user finds it,
// and the device tries again when it closes. It needs legacyPairs.mu.
func (k legacyKey) undoUserLocked() error {
	p := k.l.parent.legacy.pairs[k.at()]
	err := k.removeUserLocked()
	if err != nil && !lost(err) {
		k.l.parent.refusedCalls.add(k.from, func() error { return k.leftover(p) })
		p.users--
		k.untrack()
	}
	return err
}

// disableLocked takes away what was enabled here, unless another library has done so
// by now, which the driver calls invalid, and forgets the pair. It needs legacyPairs.mu.
func (k legacyKey) disableLocked(p *legacyPair) error {
	all := &k.l.parent.legacy
	invariants.Held(&all.mu)
	raw, err := legacyDevice(k.from)
	if err == nil && !p.theirs {
		if err = raw.DisablePeer(k.to.state.n); errors.Is(err, ErrInvalid) {
			err = nil
		}
	}
	if err == nil || lost(err) {
		delete(all.pairs, k.at())
	}
	return pairFail(k.from, k.to, err)
}

// leftover disables a pair that an undo left enabled, unless it is used by now.
func (k legacyKey) leftover(p *legacyPair) error {
	all := &k.l.parent.legacy
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.pairs[k.at()] != p || p.users > 0 {
		return nil
	}
	if err := k.disableLocked(p); !lost(err) {
		return err
	}
	return nil
}

// disable waits, then gives up all pairs that are left.
func (l *legacy) disable() error {
	l.parent.legacy.mu.Lock()
	left := slices.Clone(l.left)
	l.parent.legacy.mu.Unlock()
	err := l.waitForWork(left)
	l.parent.legacy.mu.Lock()
	defer l.parent.legacy.mu.Unlock()
	if err != nil && len(l.left) > 0 { // else another call has disabled them meanwhile
		return err
	}
	var failed error
	l.left = slices.DeleteFunc(l.left, func(k legacyKey) bool {
		err := k.removeUserLocked()
		failed = errtext.Join(failed, "and", err)
		return err == nil || lost(err)
	})
	return failed
}

// waitForWork waits for the work of all devices that may use a peer's memory.
func (l *legacy) waitForWork(pairs []legacyKey) error {
	if l.parent.hooks.noWait || len(pairs) == 0 {
		return nil
	}
	var devs []*deviceState
	for _, k := range pairs {
		if !slices.Contains(devs, k.from.state) {
			devs = append(devs, k.from.state)
		}
	}
	return waitDevices(nil, devs)
}

// track keeps both devices open as long as the pair is used.
func (k legacyKey) track() error {
	if err := k.from.track(k, "legacy peer access"); err != nil {
		return err
	}
	err := k.to.track(k, "legacy peer access")
	if err != nil {
		k.from.untrack(k)
	}
	return err
}

// untrack undoes track.
func (k legacyKey) untrack() {
	k.from.untrack(k)
	k.to.untrack(k)
}

func (k legacyKey) describe(kind string) string {
	return fmt.Sprintf("%s of %v to memory of %v", kind, k.from, k.to)
}

func (k legacyKey) where() (p Ptr, size uint64) { return 0, 0 }
