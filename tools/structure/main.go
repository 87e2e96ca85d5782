// Structure measures how the files of vmm hang together.
//
//	structure [-C dir] refs [-v] [-what-if file] [packages]
//	structure [-C dir] crossed [-v] [-closures]
//
// Refs counts which file refers to which, and how many of those references no
// order of the files can avoid pointing forward. With -what-if it counts again
// after declarations have moved between files; nothing is written.
//
// Crossed counts the functions and files that one operation runs through.
//
// It runs in the root of the repository, or in -C dir, which may be a checkout
// of another commit. From the root:
//
//	go build -C tools -o bin/ ./structure && tools/bin/structure refs -v
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	dir := flag.String("C", ".", "root of the `checkout` to measure")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: structure [-C dir] refs|crossed [flags]")
		flag.PrintDefaults()
	}
	flag.Parse()
	var err error
	switch flag.Arg(0) {
	case "refs":
		err = refs(*dir, flag.Args()[1:])
	case "crossed":
		err = crossed(*dir, flag.Args()[1:])
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "structure:", err)
		os.Exit(1)
	}
}
