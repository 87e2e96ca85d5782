//go:build man

// With -tags man this program writes the man pages of vmmstored instead of keeping buffers:
// tools/man runs it.
package main

import (
	"os"

	"github.com/cuvmm/cuvmm/cmd/internal/man"
)

func main() { man.Main(command(nil, os.Stdout, os.Stderr), "vmmstored "+version()) }
