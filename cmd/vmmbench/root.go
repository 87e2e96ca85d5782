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
	ran, err := root.ExecuteContextC(ctx)
	return a.exit(ran, err)
}

// commands is vmmbench with all its commands.
func (a *app) commands() *cobra.Command {
	root := a.root()
	root.Version = fullVersion()
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(a.info(), a.bw(), a.grow(), a.ops(), a.pool(), a.p2p(), a.share(), a.sleep(), a.compare(), a.report(), a.shareReader())
	root.SetHelpCommand(help())
	root.InitDefaultCompletionCmd(a.args...)
	// The completion command is cobra's. It gets the same checks as the others.
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		command(c).RunE = func(c *cobra.Command, _ []string) error { return c.Help() } // cobra's own accepts any argument
		for _, shell := range c.Commands() {
			command(shell)
		}
	}
	completeValues(root)
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

// help replaces the help command of cobra, which accepts unknown topics.
func help() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(c *cobra.Command, args []string) error {
			topic, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usageError{fmt.Errorf("no help on %q", args)}
			}
			return topic.Help()
		},
	}
}

// command completes c: it takes no arguments, and a wrong argument or flag is a
// usageError.
func command(c *cobra.Command) *cobra.Command {
	c.SilenceErrors, c.SilenceUsage = true, true
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(c, args[0])
		}
		return nil
	}
	c.SetFlagErrorFunc(flagError)
	return c
}
