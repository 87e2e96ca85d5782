package vmm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Plan is what giving devices access to ranges would do: see PlanPeers. It is a
// picture of its moment and holds nothing open. Reading it is safe from several
// goroutines.
type Plan struct {
	Access Access
	Ranges []RangePlan

	devs   []*Device
	ranges []*Range
}

// RangePlan is the part of a Plan that is about one range. All devices of it are
// told to the driver together: once for each stretch of chunks without a hole,
// which on a Range is once, and the driver's work grows with chunks and devices.
type RangePlan struct {
	Range   *Range
	Chunks  int
	Bytes   uint64 // of the chunks
	Calls   int    // of SetAccess; 0 where nothing changes
	Waits   bool   // access is taken away, so Apply waits as Unmap does
	Devices []DevicePlan
	Err     error // why nothing can be done with the range
}

// DevicePlan is what changes for one device.
type DevicePlan struct {
	Device   *Device
	From, To Access // equal where there is nothing to do
	Err      error  // why it cannot be: a *PairError
}

// PlanPeers plans to set the access of every device to every range that it does
// not own: Read or ReadWrite to give it, now and for all that the ranges grow
// by, AccessNone to take it away. Nothing is changed. What cannot be done stands in
// the plan, with the reason: a pair without a path, a device without the calls
// that map memory, a device or a range that is closed, a range that sleeps, an
// owner that would be revoked. An error is a plan that makes no sense: a range or a
// device that is nil or named twice, no such access.
func PlanPeers(a Access, devs []*Device, ranges ...*Range) (*Plan, error) {
	if err := sensible(a, devs, ranges); err != nil {
		return nil, err
	}
	return plan(a, devs, ranges), nil
}

// EnablePeers is PlanPeers and Apply: it gives every device access a to every
// range that it does not own, all or nothing. Until it answers, copies of this
// package that need access which is new may be refused with ErrBusy.
func EnablePeers(a Access, devs []*Device, ranges ...*Range) error {
	p, err := PlanPeers(a, devs, ranges...)
	if err != nil {
		return err
	}
	return p.apply()
}

const planning, enablingPeers = "plan peers", "enable peers"

var errNoPlan = &OpError{Op: enablingPeers, Err: fmt.Errorf("%w: no plan", ErrInvalid)}

// sensible rejects nil and duplicate arguments.
func sensible(a Access, devs []*Device, ranges []*Range) error {
	var owner *Device
	if len(ranges) > 0 {
		owner = ranges[0].Device()
	}
	for i, g := range ranges {
		switch {
		case g == nil:
			return owner.fail(planning, 0, 0, g.live())
		case slices.Contains(ranges[:i], g):
			return g.fail(planning, 0, 0, fmt.Errorf("%w: %v is named twice", ErrInvalid, g))
		}
	}
	if a > AccessReadWrite {
		return owner.fail(planning, 0, 0, fmt.Errorf("%w: %v", ErrInvalid, a))
	}
	for i, d := range devs {
		if d == nil {
			return owner.fail(planning, 0, 0, d.live())
		}
		if slices.ContainsFunc(devs[:i], func(e *Device) bool { return e.state == d.state }) {
			return owner.fail(planning, 0, 0, pairFail(d, owner, fmt.Errorf("%w: %v is named twice", ErrInvalid, d)))
		}
	}
	return nil
}

// plan looks at everything once, and asks the driver once for each device and pair.
func plan(a Access, devs []*Device, ranges []*Range) *Plan {
	p := &Plan{Access: a, devs: slices.Clone(devs), ranges: slices.Clone(ranges)}
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
		if err := once(pair{from: from.state}, from.maps); err != nil {
			return err
		}
		return once(pair{from.state, to.state}, func() error { return checkPath(from, to) })
	}
	for _, g := range ranges {
		p.Ranges = append(p.Ranges, g.plan(a, devs, reach))
	}
	return p
}

// maps is nil if memory can be mapped for the device, or if nobody can tell for
// want of memory to try with.
func (d *Device) maps() error {
	err := d.drv().Supports(d.state.n, FeatureVMM)
	if errors.Is(err, ErrOutOfMemory) {
		return nil
	}
	return err
}

func (g *Range) plan(a Access, devs []*Device, reach func(from, to *Device) error) RangePlan {
	r := g.r
	rp := RangePlan{Range: g, Err: g.live()}
	for _, d := range devs {
		if d.state == r.dev.state && a != AccessNone {
			continue
		}
		rp.Devices = append(rp.Devices, DevicePlan{Device: d, To: a, Err: r.checkGrant(a, d, reach)})
	}
	r.mappingMu.Lock() // so that what is counted is what is granted
	defer r.mappingMu.Unlock()
	peers := rp.peers()
	after, _ := r.accessCalls(a, peers)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range rp.Devices {
		rp.Devices[i].From = r.granted(rp.Devices[i].Device)
	}
	rp.Waits = r.narrows(a, peers)
	rp.Chunks, rp.Bytes = len(r.slots), r.stats.Committed
	if len(peers) > 0 && len(after) > 0 {
		_ = r.eachRun(func(_, _ int, _, _ uint64) error { rp.Calls++; return nil })
	}
	return rp
}

// peers is the devices that nothing speaks against.
func (rp *RangePlan) peers() (devs []*Device) {
	for _, d := range rp.Devices {
		if d.Err == nil {
			devs = append(devs, d.Device)
		}
	}
	return devs
}

// Err is all that cannot be done, nil if everything can.
func (p *Plan) Err() error {
	if p == nil {
		return errNoPlan
	}
	var first *Range
	var all error
	for i := range p.Ranges {
		rp := &p.Ranges[i]
		found := rp.Err
		for _, d := range rp.Devices {
			found = also(found, "and", d.Err)
		}
		if found != nil && first == nil {
			first = rp.Range
		}
		all = also(all, "and", found)
	}
	if first == nil {
		return nil
	}
	return first.fail(enablingPeers, 0, 0, all)
}

// Apply does what was planned, all or nothing. It looks again first, since the
// plan may be old: what was granted or grew since is as good as done, and if
// anything cannot be done any more nothing is, and the answer is what Err of a
// new plan would be. If a step fails, what a device could do before comes back,
// without a wait for work, since nobody has been told of the grant. Until Apply
// returns, Grant, Revoke, Close, Sleep and Wake of these ranges wait. Applying a plan
// twice is fine.
func (p *Plan) Apply() error {
	if p == nil {
		return errNoPlan
	}
	return plan(p.Access, p.devs, p.ranges).apply()
}

func (p *Plan) apply() error {
	if err := p.Err(); err != nil {
		return err
	}
	unlock := lockGrants(p.ranges)
	defer unlock()
	var done []*accessChange
	for i := range p.Ranges {
		peers := p.Ranges[i].peers()
		if len(peers) == 0 {
			continue
		}
		g := p.Ranges[i].Range
		c, err := g.r.changeAccess(p.Access, peers)
		if err != nil {
			for _, c := range slices.Backward(done) {
				err = also(err, "and setting access back", c.undo())
			}
			return g.fail(enablingPeers, 0, g.Max(), err)
		}
		done = append(done, c)
	}
	for _, c := range done {
		c.commit()
	}
	return nil
}

// String is the plan for people: each range, each device, and what cannot be done.
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
	for i := range p.Ranges {
		rp := &p.Ranges[i]
		fmt.Fprintf(&b, "range %d of %v, %s in %s: %s\n", i, rp.Range.Device(), sizeText(rp.Bytes), plural(rp.Chunks, "chunk"), rp.cost())
		for _, d := range rp.Devices {
			all++
			if d.Err != nil || rp.Err != nil {
				refused++
			}
			fmt.Fprintf(&b, "  %v: %s\n", d.Device, d.text())
		}
	}
	switch {
	case refused > 0:
		fmt.Fprintf(&b, "nothing will be done, since %d of %d cannot be\n", refused, all)
	case p.Err() != nil: // of a range without a device to be told of
		b.WriteString("nothing will be done\n")
	}
	return b.String()
}

// cost is what a range takes.
func (rp *RangePlan) cost() string {
	switch {
	case rp.Err != nil:
		return rp.Err.Error()
	case rp.Waits:
		return plural(rp.Calls, "call") + ", after a wait"
	}
	return plural(rp.Calls, "call")
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
