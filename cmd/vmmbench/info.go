package main

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/machine"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

func (a *app) info() *cobra.Command {
	var o outputFlags
	c := command(&cobra.Command{
		Use:   "info",
		Short: "Show the machine, its devices, and what they can do",
		Long: `Show the machine, its devices and its limits. A feature of a device is found by
trying it, not by asking the driver. If the trial does not decide it, the table says
unknown.`,
	})
	o.add(c.Flags())
	device := c.Flags().String("device", "all", "all, or a list of devices as vmm.Open takes them")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := o.check("info measures nothing", report.GoBench, report.CSV); err != nil {
			return err
		}
		return a.withReport(c.Name(), &o, func(r *runner) error { return r.describeDevices(*device) })
	}
	return c
}

// describeDevices adds the devices that --device of info means to the report. A
// device that this machine does not have is a waived case.
func (r *runner) describeDevices(which string) (err error) {
	names, err := deviceNames(which)
	if err != nil {
		return err
	}
	var cases []report.Case
	var devs []device
	defer func() { err = errors.Join(err, closeDevices(devs)) }()
	for _, name := range names {
		dev, err := openDevice(r.app.settings, name)
		absent, err := r.app.waivedCase(name, err)
		switch {
		case err != nil:
			return err
		case absent != nil:
			cases = append(cases, *absent)
		default:
			devs = append(devs, dev)
		}
	}
	r.addDevices(devs)
	// The outputs are opened last, so a usage error leaves old files alone.
	if err := r.start(); err != nil {
		return err
	}
	r.add(cases, nil)
	return nil
}

// addDevices adds devices to the report, and what connects the GPUs among them.
func (r *runner) addDevices(devs []device) {
	var gpus []*vmm.Device
	for _, dev := range devs {
		r.report.Devices = append(r.report.Devices, describeDevice(dev))
		if !onHost(dev) {
			gpus = append(gpus, dev.Device)
		}
	}
	if len(gpus) < 2 {
		return
	}
	links, err := vmm.Topology(gpus...)
	if err != nil { // the rest is worth showing
		r.report.Devices[0].Reason = oneLine(err)
		return
	}
	r.report.Topology = topology(links)
	machine.AddPaths(r.report)
}

// topology describes links for the report, as far as the driver knows them.
func topology(links *vmm.Links) (list []report.Link) {
	open := map[int]string{}
	for _, i := range links.Devices {
		open[i.Ordinal] = i.Open
	}
	for _, p := range links.Pairs {
		l := report.Link{From: open[p.From], To: open[p.To], Kind: report.Text(p.Kind), Access: &p.Access, Atomics: &p.Atomics}
		switch {
		case p.Rank >= 0:
			l.Rank = &p.Rank
		case p.Access:
			l.Reason = "rank: the driver does not say"
		}
		list = append(list, l)
	}
	return list
}

// deviceNames are the devices that a flag means: all of them, all of a driver, as cuda:all, or a list.
func deviceNames(which string) (names []string, err error) {
	prefix, all := strings.CutSuffix(which, "all")
	if !all {
		return strings.Split(which, ","), nil
	}
	list, err := vmm.Devices()
	for _, d := range list {
		if strings.HasPrefix(d.Open, prefix) {
			names = append(names, d.Open)
		}
	}
	return names, err
}

// describeDevice describes a device for the report. If the driver returns an error
// for something, that is null, and Reason has the error.
func describeDevice(dev device) report.Device {
	info := dev.Info()
	d := report.Device{
		Open: info.Open, Name: info.Name, Driver: report.Text(info.Driver), UUID: uuid(info.UUID),
		PCI: report.Text(info.PCI), MIG: report.Text(info.MIG), Arch: report.Text(info.Arch),
		Compute: report.Text(info.Compute), Unified: info.Unified, Memory: info.Memory, Peers: []string{},
	}
	if info.Cache > 0 {
		d.Cache = &info.Cache
	}
	// A value that cannot be had does not hide the others.
	var reasons []string
	note := func(err error) bool {
		if err != nil {
			reasons = append(reasons, err.Error())
		}
		return err == nil
	}
	known := func(n uint64, err error) *uint64 {
		if !note(err) {
			return nil
		}
		return &n
	}
	free, _, err := dev.MemInfo()
	drv, prop := dev.Driver(), driver.Prop{Location: location(dev)}
	d.Free, d.Granularity, d.Recommended = known(free, err), known(drv.Granularity(prop)), known(drv.GranularityRecommended(prop))
	all, err := drv.Devices()
	note(err)
	for _, other := range all {
		if other.Ordinal == info.Ordinal {
			continue
		}
		if can, err := drv.CanAccessPeer(info.Ordinal, other.Ordinal); note(err) && can {
			d.Peers = append(d.Peers, other.Open)
		}
	}
	for _, f := range driver.Features() {
		d.Features = append(d.Features, probe(dev, f))
	}
	d.Reason = report.Text(strings.Join(reasons, "; "))
	return d
}

// probe tries a feature. An error that does not say whether there is support leaves it unknown.
func probe(dev device, f driver.Feature) report.Feature {
	result := report.Feature{Name: f.String()}
	err := dev.Supports(f)
	if yes := err == nil; yes || errors.Is(err, driver.ErrNotSupported) {
		result.Supported = &yes
	}
	if err != nil {
		result.Reason = report.Text(err.Error())
	}
	return result
}

// uuid prints a UUID as NVIDIA's tools do. It is empty if there is none.
func uuid(u [16]byte) report.Text {
	if u == [16]byte{} {
		return ""
	}
	return report.Text(fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]))
}

// runInfo describes the command that runs.
func (a *app) runInfo(command string, start time.Time) report.Run {
	args := append([]string{}, a.args...)
	return report.Run{Command: command, Args: args, Version: version(), Started: start.UTC().Format(time.RFC3339)}
}

// commit is set by the linker, as make build and tools/gpu-bundle do: with
// -X main.commit=..., because not every build finds the repository.
var commit string

// version is the commit that was built. If no one has set it, it is the version of the
// module, which has the commit if the build has recorded it.
func version() report.Text {
	b, ok := debug.ReadBuildInfo()
	if commit != "" || !ok {
		return report.Text(commit)
	}
	return report.Text(b.Main.Version)
}

// fullVersion is what --version prints: the version, the commit, and what the program
// was built with and for. It loads no driver.
func fullVersion() string {
	return fmt.Sprintf("%s %s %s/%s", cmp.Or(version(), "of an unknown version"), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
