package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/internal/said"
)

// usageError is a mistake on the command line.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// app has what all commands share: where to write, and the exit code.
type app struct {
	settings       *settings
	args           []string
	stdout, stderr io.Writer
	code           int
}

// run is the program without its process: tests call it.
func run(ctx context.Context, set *settings, args []string, stdout, stderr io.Writer) int {
	a := &app{settings: set, args: args, stdout: stdout, stderr: stderr}
	root := a.commands()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	begun := false
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		err := c.ValidateFlagGroups()
		begun = err == nil
		return err
	}
	ran, err := root.ExecuteContextC(ctx)
	if err != nil && !begun { // cobra has refused the command line
		err = usageError{err}
	}
	return a.exit(ran, err)
}

// commands is vmmbench with all its commands.
func (a *app) commands() *cobra.Command {
	root := a.root()
	root.Args = nil // which has cobra suggest what is like an unknown command
	root.SilenceErrors, root.SilenceUsage = true, true
	root.Version = fullVersion()
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(a.info(), a.bw(), a.grow(), a.ops(), a.pool(), a.p2p(), a.share(), a.sleep(), a.compare(), a.report(), a.shareReader())
	root.InitDefaultCompletionCmd()
	return root
}

// exit prints the error of a command and returns the exit code. An error changes
// the code only if the cases have passed or were waived: wrong data, for one, are
// worse than an error.
func (a *app) exit(ran *cobra.Command, err error) int {
	if err == nil {
		return a.code
	}
	a.printError(err)
	var usage usageError
	switch {
	case errors.As(err, &usage):
		a.printError(fmt.Errorf("see %s --help", ran.CommandPath()))
		return report.ExitUsage
	case a.code == report.ExitPassed || a.code == report.ExitWaived:
		return report.ExitError
	}
	return a.code
}

// benchmark gives c the flags of measuring, those that has adds and those of the plan, and has it
// measure the plan.
func (a *app) benchmark(c *cobra.Command, p commandPlan, samples int, maxTime time.Duration, has ...func(*measureFlags, *pflag.FlagSet)) (*cobra.Command, *measureFlags) {
	m := &measureFlags{}
	m.add(command(c).Flags(), a.settings, samples, maxTime)
	for _, add := range has {
		add(m, c.Flags())
	}
	p.flags(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		return a.measure(c.Context(), c.Name(), m, []string{m.device}, p)
	}
	return c, m
}

// printError prints an error to stderr. There is no place for an error of stderr.
func (a *app) printError(err error) {
	_, _ = fmt.Fprintln(said.Screen(a.stderr), "vmmbench:", err)
}

// command returns c, which takes no arguments unless its caller sets others.
func command(c *cobra.Command) *cobra.Command {
	c.Args = cobra.NoArgs
	return c
}
