//go:build man

// With -tags man this program writes the man pages of vmmbench instead of measuring:
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
	root := (&app{settings: userSettings()}).commands()
	if err := man.Write(os.Args[1], root, "vmmbench "+string(version())); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}
