package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/spf13/cobra"
)

// usageError is a mistake on the command line.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// app is what the commands share: where to write, and the exit code they leave.
type app struct {
	args           []string
	stdout, stderr io.Writer
	code           int
}

// run is the program, apart from the process it runs in.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{args: args, stdout: stdout, stderr: stderr}
	root := a.tour()
	root.AddCommand(a.info(), a.bw(), a.grow())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return a.code
	}
	fmt.Fprintln(stderr, "vmmbench:", err)
	var usage usageError
	if errors.As(err, &usage) {
		fmt.Fprintln(stderr, "See vmmbench --help.")
		return report.ExitUsage
	}
	return report.ExitFailed
}

// command completes c: it takes no arguments, and what is wrong with them or
// with a flag is a usageError.
func command(c *cobra.Command) *cobra.Command {
	c.SilenceErrors, c.SilenceUsage = true, true
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError{fmt.Errorf("unknown command or argument %q", args[0])}
		}
		return nil
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	return c
}
