// Command vmmstored keeps named buffers of device memory for the processes of a machine; see
// package shareable/store. It owns the memory of one device and makes no context on it, so
// no fault of a client can take the memory with it.
//
// Without a subcommand it serves until it gets SIGINT or SIGTERM. SIGHUP, or "vmmstored reload",
// replaces the process that serves by the program that is on disk now; clients go on. The exit code
// is 0 after a signal, 1 after an error, and 2 for bad usage.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ignoreSignals()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// usageError is an error in the arguments.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }
