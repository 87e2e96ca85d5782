package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
)

// completeValues has a shell complete the values of the flags of c and of its commands.
func completeValues(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if complete := completionOf(f); complete != nil {
			// It fails only if the flag has a completion already.
			_ = c.RegisterFlagCompletionFunc(f.Name, complete)
		}
	})
	for _, sub := range c.Commands() {
		completeValues(sub)
	}
}

// completionOf returns how the value of a flag is completed; nil: as files are.
func completionOf(f *pflag.Flag) cobra.CompletionFunc {
	if f.Name == "device" {
		return completeDevice
	}
	switch v := f.Value.(type) {
	case *choices:
		return completeList(v.of)
	case *choice, *report.Format, *verify.Mode:
		return cobra.FixedCompletions(strings.Split(v.Type(), "|"), cobra.ShellCompDirectiveNoFileComp)
	}
	return nil
}

// completeList completes the last word of a list, by those that are not in it yet.
func completeList(of []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		at := strings.LastIndexByte(typed, ',') + 1
		has := strings.Split(typed[:at], ",")
		var list []string
		for _, word := range of {
			if !slices.Contains(has, word) {
				list = append(list, typed[:at]+word)
			}
		}
		return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// completeDevice names the devices of this machine.
func completeDevice(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names := []string{"auto", "host"}
	list, _ := vmm.Devices() // without a driver there are these two
	for _, d := range list {
		names = append(names, d.Open)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
