// Command vmmbench measures memory that grows in place against the memory a
// program would use otherwise. Afterwards it does each case once more, where
// other data stood before, and checks every byte of that, or what --verify says.
//
// Without a subcommand it takes the quick tour: what the machine is, how fast
// copies are, what growing costs. See vmmbench --help for the rest.
//
// Data go to stdout, progress to stderr. It exits with 0 if all passed, 1 if a
// case could not be run or a report not be written, 2 for bad usage, 3 if data
// were wrong, 77 if this machine can do none of it, and 130 if it was
// interrupted. What had been measured by then is written and marked.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
