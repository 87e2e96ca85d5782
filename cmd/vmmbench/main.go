//go:build !man

// Command vmmbench measures memory that grows in place against the memory that a
// program would use otherwise. Then it does each case once more, over other data,
// and checks every byte of the result, or fewer by --verify.
//
// Without a subcommand it measures a preset, by default the quick tour: copies and growth.
// See vmmbench --help for the rest.
//
// The report goes to stdout, progress to stderr. The exit code is 0 if all passed,
// 1 if a case could not be run or a report could not be written, 2 for bad usage, 3
// if data were wrong, 4 if a comparison with an older run found what --fail-on names, 77
// if this machine can do none of the cases, and 130 if the run was interrupted. An interrupted run
// writes what it has measured, and marks it.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), endSignals...)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	if len(pipeSignals) > 0 {
		// Stdout may be a pipe to head. While this is on, writes to it fail instead of ending
		// the process, so the files are still written.
		signal.Notify(make(chan os.Signal, 1), pipeSignals...)
	}
	ctx, cancel := context.WithCancel(ctx)
	code := run(ctx, os.Args[1:], pipeOut{os.Stdout, cancel}, os.Stderr)
	cancel()
	stop()
	os.Exit(code)
}

// pipeOut is stdout. It ends the run when it is read no more. The signal alone would
// not do: it also comes when a process that reads for share has ended.
type pipeOut struct {
	*os.File
	end func()
}

// Write implements io.Writer.
func (p pipeOut) Write(b []byte) (int, error) {
	n, err := p.File.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		p.end()
	}
	return n, err
}
