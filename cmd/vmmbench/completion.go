package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completeValues has a shell complete the values of the flags of c and of its commands. Others
// are completed as files are.
func completeValues(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		complete := completeDevice
		if f.Name != "device" {
			words := valuesOf(f.Value)
			if len(words) < 2 {
				return
			}
			complete = cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
		}
		// It fails only if the flag has a completion already.
		_ = c.RegisterFlagCompletionFunc(f.Name, complete)
	})
	for _, sub := range c.Commands() {
		completeValues(sub)
	}
}

// valuesOf returns the words that a flag takes, of which its type is made.
func valuesOf(v pflag.Value) []string {
	if list, ok := v.(*choices); ok {
		return list.of
	}
	return strings.FieldsFunc(v.Type(), func(c rune) bool { return c == '|' || c == ',' })
}

// completeDevice names the devices of this machine.
func completeDevice(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names, _ := deviceNames("all") // without a driver there are the other two
	return append([]string{"auto", "host"}, names...), cobra.ShellCompDirectiveNoFileComp
}
