//go:build man

// With -tags man this program writes the man pages of vmmbench instead of measuring:
// tools/man runs it. So vmmbench itself carries no library for them.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: tools/man DIR")
		os.Exit(2)
	}
	if err := writeMan(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

// writeMan writes a page for vmmbench and one for each command into dir, which is made.
func writeMan(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	root := (&app{}).commands()
	root.DisableAutoGenTag = true // the same sources make the same pages
	asMarkdown(root)
	return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "vmmbench " + string(version()), Manual: "cuvmm"}, dir)
}

// asMarkdown makes Markdown of the texts of c and its commands, because package doc takes
// them for that. Those of completion are Markdown already.
func asMarkdown(c *cobra.Command) {
	if c.Name() == "completion" {
		return
	}
	plain := strings.NewReplacer("<", `\<`, "*", `\*`)
	c.Short = plain.Replace(c.Short)
	c.LocalFlags().VisitAll(func(f *pflag.Flag) { f.Usage = plain.Replace(f.Usage) })
	// A list is a block of code, so that its lines stay lines: four spaces and no escapes.
	var lines []string
	list := false
	for line := range strings.SplitSeq(c.Long, "\n") {
		if strings.HasPrefix(line, "  ") != list {
			list = !list
			lines = append(lines, "")
		}
		if list {
			line = "  " + line
		} else {
			line = plain.Replace(line)
		}
		lines = append(lines, line)
	}
	c.Long = strings.Join(lines, "\n")
	for _, sub := range c.Commands() {
		asMarkdown(sub)
	}
}
