package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/machine"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
)

// planPeers reports what EnablePeers would do for the devices that --device of p2p
// names. It measures nothing and grants nothing.
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
		absent, err := a.waivedCase(m.device, err)
		if err == nil {
			err = r.start()
		}
		if err == nil && absent != nil {
			r.add([]report.Case{*absent}, nil)
		}
		return err
	})
}

// plan adds the plan for open devices to the report.
func (r *runner) plan(devs []device) error {
	for _, from := range devs {
		r.report.Devices = append(r.report.Devices, describeDevice(from))
		for _, to := range devs {
			if from == to {
				continue
			}
			pair, err := planPair(from.Device, to.Device)
			if err != nil {
				return err
			}
			r.report.Plan = append(r.report.Plan, pair)
		}
	}
	var links []*report.Link
	for i := range r.report.Plan {
		links = append(links, &r.report.Plan[i].Link)
	}
	machine.AddPaths(r.report.Devices, links)
	if len(devs) < 2 {
		return noDeviceError{onlyDevice(devs[0], "a pair")}
	}
	return nil
}

// planPair plans access of one device to memory of another, which for that owns an empty range for a
// moment. A device that can have none cannot be shared.
func planPair(from, to *vmm.Device) (pair report.PeerPair, err error) {
	pair.Link = linkOf(from, to)
	g, refused := to.NewRange(vmm.RangeOptions{Max: 1})
	if refused == nil {
		defer func() { err = errors.Join(err, g.Close()) }()
		plan, err := vmm.PlanPeers(vmm.AccessReadWrite, []*vmm.Device{from}, g)
		if err != nil {
			return pair, err
		}
		of := plan.Memory[0]
		if len(of.Devices) == 0 { // the owner has access
			return pair, usageError{fmt.Errorf("%s is named twice", from)}
		}
		d := of.Devices[0]
		pair.Now, pair.Then = report.Text(d.From.String()), report.Text(d.To.String())
		refused = cmp.Or(of.Err, d.Err)
	}
	if pair.Can = refused == nil; !pair.Can {
		pair.Then, pair.Why = "", whyNot(from, to, refused)
	}
	return pair, nil
}

// linkOf is what the driver knows of the path from one device to another.
func linkOf(from, to *vmm.Device) report.Link {
	links, err := vmm.Topology(from, to)
	if err != nil {
		return report.Link{From: from.String(), To: to.String(), Reason: oneLine(err)}
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
	why := oneLine(err)
	if from.Info().MIG != "" || to.Info().MIG != "" {
		why += "; MIG instances cannot be peers"
	}
	for _, dev := range []*vmm.Device{from, to} {
		if dev.Info().Compute == "prohibited" {
			why += report.Text(fmt.Sprintf("; the compute mode of %s prohibits contexts", dev))
		}
	}
	return why
}
