//go:build man

// With -tags man this program writes the man pages of vmmbench instead of measuring:
// tools/man runs it.
package main

import "github.com/cuvmm/cuvmm/cmd/internal/man"

func main() {
	man.Main((&app{settings: userSettings()}).commands(), "vmmbench "+string(version()))
}
