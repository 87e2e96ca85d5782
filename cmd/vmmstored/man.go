//go:build man

// With -tags man this program writes the man pages of vmmstored instead of keeping buffers:
// tools/man runs it.
package main

import (
	"fmt"
	"os"

	"github.com/cuvmm/cuvmm/cmd/internal/man"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: tools/man DIR")
		os.Exit(2)
	}
	if err := man.Write(os.Args[1], command(nil, os.Stdout, os.Stderr), "vmmstored "+version()); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}
