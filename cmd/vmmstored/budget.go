package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/internal/said"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memmap/gpuprocs"
)

// deviceBudget is one --budget.
type deviceBudget struct {
	device string
	bytes  uint64
}

// parseBudgets reads the values of --budget.
func parseBudgets(all []string) (budgets []deviceBudget, err error) {
	for _, s := range all {
		at := strings.LastIndexByte(s, '=') // a device may have options
		if at <= 0 {
			return nil, usagef("--budget %q: want a device and a size, as cuda:0=70GiB", s)
		}
		device := s[:at]
		n, err := size.Parse(s[at+1:])
		if err != nil {
			return nil, usagef("--budget %q: %v", s, err)
		}
		if n == 0 {
			return nil, usagef("--budget %q: want more than 0 bytes", s)
		}
		budgets = append(budgets, deviceBudget{device, n})
	}
	return budgets, nil
}

// openBudgets opens the devices of --budget. The caller calls closeAll, also after an error.
func (o *options) openBudgets(log *slog.Logger) (all []budget.Budget, closeAll func() error, err error) {
	parsed, err := parseBudgets(o.budgets)
	var gpus *gpuprocs.Processes
	closeAll = func() (err error) {
		for _, b := range all {
			err = errors.Join(err, b.Device.Close())
		}
		if gpus != nil {
			err = errors.Join(err, gpus.Close())
		}
		return err
	}
	for _, b := range parsed {
		dev, err := vmm.Open(b.device)
		if err != nil {
			return all, closeAll, fmt.Errorf("--budget: %w", err)
		}
		all = append(all, budget.Budget{Device: dev, Bytes: b.bytes})
		if dev.Driver().Name() != "cuda" { // others on the host have no part of a budget
			continue
		}
		if gpus == nil {
			if gpus, err = gpuprocs.Open(); err != nil {
				gpus = nil
				log.Warn("what others have of the device is not seen", "device", b.device, "error", err)
				continue
			}
		}
		all[len(all)-1].Free = func() (uint64, error) { return gpus.Free(dev) }
	}
	return all, closeAll, err
}

func (o *options) budget(stdout io.Writer) *cobra.Command {
	var asJSON bool
	var device, bytes, member, least, most string
	cmd := &cobra.Command{
		Use: "budget", Short: "Print which process holds how much of a device, who waits and who gives; or change that first", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := budget.Change{Member: member}
			for _, f := range []struct {
				name, text string
				to         **uint64
			}{{"bytes", bytes, &c.Budget}, {"least", least, &c.Least}, {"most", most, &c.Most}} {
				if cmd.Flags().Changed(f.name) {
					n, err := size.Parse(f.text)
					if err != nil {
						return usagef("--%s: %v", f.name, err)
					}
					*f.to = &n
				}
			}
			if changesMember := c.Least != nil || c.Most != nil; changesMember != (member != "") {
				return usagef("--member goes with --least or --most, and they with it")
			}
			return o.withDevice(cmp.Or(device, o.device), func(dev *vmm.Device, with shareable.AttachOptions) error {
				if c.Budget != nil || member != "" {
					if err := budget.SetTerms(cmd.Context(), o.socket, dev, c, with); err != nil {
						return err
					}
				}
				return o.printBudgets(cmd.Context(), stdout, dev, with, asJSON)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "as JSON")
	f.StringVar(&device, "of", "", "device of the budget to change (default: that of --device)")
	f.StringVar(&bytes, "bytes", "", "change the budget to this SIZE")
	f.StringVar(&member, "member", "", "change --least or --most of this member")
	f.StringVar(&least, "least", "", "SIZE that is never taken from the member")
	f.StringVar(&most, "most", "", "SIZE that the member may have (0: no bound but the budget)")
	return cmd
}

// withDevice calls f with a device and what a client shows.
func (o *options) withDevice(name string, f func(*vmm.Device, shareable.AttachOptions) error) (err error) {
	with, err := o.credentials()
	if err != nil {
		return err
	}
	dev, err := vmm.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	return f(dev, shareable.AttachOptions{Token: with.Token, UIDs: with.UIDs})
}

func (o *options) printBudgets(ctx context.Context, w io.Writer, dev *vmm.Device, with shareable.AttachOptions, asJSON bool) error {
	all, err := budget.Reports(ctx, o.socket, dev, with)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(w, all)
	}
	if len(all) == 0 {
		return errors.New("the server has no budget: see --budget")
	}
	for i, r := range all {
		if i > 0 {
			_, _ = fmt.Fprintln(w)
		}
		if err := printBudget(w, r, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

func printBudget(w io.Writer, r budget.Report, now time.Time) error {
	_, _ = fmt.Fprintf(w, "%s: %s of %s idle; %d leases raised, %d refused; %d demands, %d unanswered; %s given back\n", said.Word(r.Device),
		size.Format(r.Idle), size.Format(r.Budget), r.Counts.Granted, r.Counts.Refused, r.Counts.Demands, r.Counts.Expired, size.Format(r.Counts.GivenBack))
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "MEMBER\tPID\tLEASE\tCREATED\tSHARE\tLEAST\tMOST\tSTATE\tSINCE")
	for _, m := range r.Members {
		most := ""
		if m.Most > 0 {
			most = size.Format(m.Most)
		}
		_, _ = fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%v\n", said.Word(m.Name), m.PID, size.Format(m.Lease), size.Format(m.Created),
			size.Format(m.Share), size.Format(m.Least), most, doing(m), now.Sub(m.Since).Round(time.Second))
	}
	if r.LeftOut > 0 {
		_, _ = fmt.Fprintf(t, "and %d with smaller leases\n", r.LeftOut)
	}
	return t.Flush()
}

// doing is what a member does, in a few words.
func doing(m budget.MemberReport) string {
	var all []string
	if m.IsSilent {
		all = append(all, "does not answer")
	}
	if m.Wants > m.Lease {
		all = append(all, "waits for "+size.Format(m.Wants))
	}
	if m.Gives > 0 {
		all = append(all, "gives "+size.Format(m.Gives))
	}
	return cmp.Or(strings.Join(all, ", "), "-")
}
