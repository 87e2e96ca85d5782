// Package man writes the man pages of a program whose commands are cobra's. It is apart from
// the commands, which so carry no library for them.
package man

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// Main is the main function of a program that writes its man pages into the folder of its argument: see
// Write.
func Main(root *cobra.Command, source string) {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: tools/man DIR")
		os.Exit(2)
	}
	if err := Write(os.Args[1], root, source); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

// Write writes a page for root and one for each of its commands into dir, which is made. It
// changes the texts of the commands. source is what the pages name as their origin: the
// program and its version.
func Write(dir string, root *cobra.Command, source string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	root.DisableAutoGenTag = true // the same sources make the same pages
	asMarkdown(root)
	return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: source, Manual: "cuvmm"}, dir)
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
