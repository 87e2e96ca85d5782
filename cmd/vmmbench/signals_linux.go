package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// process runs vmmbench with the signals and the stdout of this process.
func process(set *settings, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	// Stdout may be a pipe to head. While this is on, writes to it fail instead of ending
	// the process, so the files are still written.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, cancel := context.WithCancel(ctx)
	code := run(ctx, set, args, pipeOut{os.Stdout, cancel}, os.Stderr)
	cancel()
	stop()
	return code
}

// pipeOut is stdout. It ends the run when it is no longer read. The signal alone would
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
