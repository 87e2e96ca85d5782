package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/machine"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
)

// planPeers reports what EnablePeers would do for the devices that --device of p2p
// names. It measures nothing and grants nothing. For each device a range is reserved,
// and given back at once; the driver is asked, as by EnablePeers, whether it can map memory.
func (a *app) planPeers(m *measureFlags) error {
	if err := m.check(); err != nil {
		return err
	}
	if m.dryRun {
		return usageError{errors.New("--dry-run prints what p2p measures, and --plan measures nothing")}
	}
	if err := m.reject("--plan has no cases", report.NDJSON, report.CSV, report.GoBench); err != nil {
		return err
	}
	return a.withReport("p2p", &m.outputFlags, func(r *runner) error {
		r.report.Plan = report.PeerPlan{} // empty if there is no pair
		names, err := p2pNames(m.device)
		if err != nil {
			return err
		}
		devs, err := openDevices(a.settings, names)
		if err == nil {
			err = errors.Join(r.plan(devs), closeDevices(devs))
		}
		c, err := a.waivedCase(m.device, err)
		if c == nil {
			return err
		}
		if err := r.start(); err != nil {
			return err
		}
		r.add([]report.Case{*c}, nil)
		return nil
	})
}

// plan adds the plan for open devices to the report.
func (r *runner) plan(devs []device) error {
	for _, dev := range devs {
		r.report.Devices = append(r.report.Devices, describeDevice(dev))
	}
	plan, err := planPairs(withoutRaw(devs))
	if err != nil {
		return err
	}
	links := make([]*report.Link, len(plan))
	for i := range plan {
		links[i] = &plan[i].Link
	}
	machine.AddPaths(r.report.Devices, links)
	// The driver says only that there is no path. NVML knows more of it.
	for i := range plan {
		if p := &plan[i]; !p.Can && p.Refused != "" {
			p.Why += "; by NVML, " + p.Refused
		}
	}
	r.report.Plan = plan
	return r.start()
}

// planPairs plans access of each device to memory of every other, by vmm.PlanPeers.
func planPairs(devs []*vmm.Device) (plan report.PeerPlan, err error) {
	if len(devs) < 2 {
		return nil, noDeviceError{fmt.Errorf("%w: %s is the only device, and a pair takes two", vmm.ErrNotSupported, devs[0])}
	}
	// A plan is about ranges, so each device owns an empty one for a moment. A device
	// that can have none cannot be shared.
	var ranges []*vmm.Range
	var of []vmm.Memory
	owners := map[*vmm.Device]int{}
	failed := map[*vmm.Device]error{}
	defer func() {
		for _, g := range ranges {
			err = errors.Join(err, g.Close())
		}
	}()
	for _, dev := range devs {
		g, err := dev.NewRange(vmm.RangeOptions{Max: 1})
		if err != nil {
			failed[dev] = err
			continue
		}
		owners[dev] = len(ranges)
		ranges, of = append(ranges, g), append(of, g)
	}
	all, err := vmm.PlanPeers(vmm.AccessReadWrite, devs, of...)
	if errors.Is(err, vmm.ErrInvalid) { // a device is named twice
		return nil, usageError{err}
	} else if err != nil {
		return nil, err
	}
	for _, from := range devs {
		for _, to := range devs {
			if from == to {
				continue
			}
			pair := report.PeerPair{Link: linkOf(from, to)}
			refusal := failed[to]
			if at, ok := owners[to]; ok {
				refusal = fillPair(&pair, all.Memory[at], from)
			}
			if pair.Can = refusal == nil; !pair.Can {
				pair.Why = whyNot(from, to, refusal)
			}
			plan = append(plan, pair)
		}
	}
	return plan, nil
}

// fillPair fills in what the plan for a range of a device says of another one. It returns
// why nothing would be done.
func fillPair(pair *report.PeerPair, mp vmm.MemoryPlan, from *vmm.Device) error {
	at := slices.IndexFunc(mp.Devices, func(d vmm.DevicePlan) bool { return d.Device == from })
	switch {
	case mp.Err != nil:
		return mp.Err
	case at < 0:
		return fmt.Errorf("%w: the plan does not name the device", vmm.ErrInvalid)
	}
	d := mp.Devices[at]
	pair.Now = report.Text(d.From.String())
	if d.Err == nil {
		pair.Then = report.Text(d.To.String())
	}
	return d.Err
}

// linkOf is what the driver knows of the path from one device to another.
func linkOf(from, to *vmm.Device) report.Link {
	l := report.Link{From: from.String(), To: to.String()}
	links, err := vmm.Topology(from, to)
	if err != nil {
		l.Reason = oneLine(err)
		return l
	}
	return link(links, *links.Link(from.Info().Ordinal, to.Info().Ordinal))
}

// whyNot is why a pair cannot have access: the driver's error without the names of the
// devices, and what is known of devices that never can.
func whyNot(from, to *vmm.Device, err error) report.Text {
	var pair *vmm.PairError
	if errors.As(err, &pair) {
		err = pair.Err
	}
	reasons := []string{string(oneLine(err))}
	if from.Info().MIG != "" || to.Info().MIG != "" {
		reasons = append(reasons, "MIG instances cannot be peers")
	}
	for _, dev := range []*vmm.Device{from, to} {
		if dev.Info().Compute == "prohibited" {
			reasons = append(reasons, fmt.Sprintf("the compute mode of %s prohibits contexts", dev))
		}
	}
	return report.Text(strings.Join(reasons, "; "))
}
