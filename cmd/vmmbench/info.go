package main

import (
	"encoding/hex"
	"errors"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
trying it, not by asking the driver. If a trial does not show it, the feature is open.`,
	})
	o.add(c.Flags())
	device := c.Flags().String("device", "all", "all, or one device as vmm.Open takes it")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		if err := o.reject("info measures nothing", report.GoBench, report.CSV); err != nil {
			return err
		}
		return a.withReport(c.Name(), &o, func(r *runner) error { return r.describeDevices(*device) })
	}
	return c
}

// describeDevices adds the devices that --device of info means to the report. A
// device that this machine does not have is a waived case.
func (r *runner) describeDevices(which string) error {
	names, err := deviceNames(which)
	if err != nil {
		return err
	}
	var cases []report.Case
	for _, name := range names {
		dev, err := openDevice(name)
		if err == nil {
			r.report.Devices = append(r.report.Devices, describeDevice(dev))
			err = dev.Close()
		}
		c, err := r.app.waivedCase(name, err)
		if err != nil {
			return err
		}
		if c != nil {
			cases = append(cases, *c)
		}
	}
	// The outputs are opened last, so a usage error leaves old files alone.
	if err := r.start(); err != nil {
		return err
	}
	r.add(cases, nil)
	return nil
}

// deviceNames returns the devices that --device of info means.
func deviceNames(which string) ([]string, error) {
	if which != "all" {
		return []string{which}, nil
	}
	list, err := vmm.Devices()
	names := make([]string, len(list))
	for i, d := range list {
		names[i] = d.Open
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
		Compute: report.Text(info.Compute), Memory: info.Memory, Peers: []string{},
	}
	// A value that cannot be had does not hide the others.
	var reasons []string
	if free, _, err := dev.MemInfo(); err == nil {
		d.Free = &free
	} else {
		reasons = append(reasons, err.Error())
	}
	drv := dev.Driver()
	prop := driver.Prop{Location: location(dev)}
	if n, err := drv.Granularity(prop); err == nil {
		d.Granularity = &n
	} else {
		reasons = append(reasons, err.Error())
	}
	if n, err := drv.GranularityRecommended(prop); err == nil {
		d.Recommended = &n
	} else {
		reasons = append(reasons, err.Error())
	}
	all, err := drv.Devices()
	if err != nil {
		reasons = append(reasons, err.Error())
	}
	for _, other := range all {
		if other.Ordinal == info.Ordinal {
			continue
		}
		switch can, err := drv.CanAccessPeer(info.Ordinal, other.Ordinal); {
		case err != nil:
			reasons = append(reasons, err.Error())
		case can:
			d.Peers = append(d.Peers, other.Open)
		}
	}
	for _, f := range driver.Features() {
		d.Features = append(d.Features, probe(dev, f))
	}
	d.Reason = report.Text(strings.Join(reasons, "; "))
	return d
}

// probe tries a feature.
func probe(dev device, f driver.Feature) report.Feature {
	err := dev.Supports(f)
	result := report.Feature{Name: f.String()}
	switch yes, no := true, false; {
	case err == nil:
		result.Supported = &yes
	case errors.Is(err, driver.ErrNotSupported):
		result.Supported, result.Reason = &no, report.Text(err.Error())
	default:
		result.Reason = report.Text(err.Error())
	}
	return result
}

// uuid prints a UUID as NVIDIA's tools do. It is empty if there is none.
func uuid(u [16]byte) report.Text {
	if u == [16]byte{} {
		return ""
	}
	h := hex.EncodeToString(u[:])
	return report.Text(strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-"))
}

// runInfo describes the command that runs.
func (a *app) runInfo(command string, start time.Time) report.Run {
	args := a.args
	if args == nil {
		args = []string{}
	}
	return report.Run{Command: command, Args: args, Version: version(), Started: start.UTC().Format(time.RFC3339)}
}

// version is that of the module, with the commit if the build has recorded it.
func version() report.Text {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	v := b.Main.Version
	for _, s := range b.Settings {
		if s.Key == "vcs.revision" {
			v += " " + s.Value
		}
		if s.Key == "vcs.modified" && s.Value == "true" {
			v += " modified"
		}
	}
	return report.Text(v)
}
