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

import "os"

func main() { os.Exit(process(userSettings(), os.Args[1:])) }
