package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/reference/vmmbench.md has every preset with its commands. UPDATE_GOLDEN writes them.
func TestPresetsInDocument(t *testing.T) {
	const name, begin, end = "../../docs/reference/vmmbench.md", "<!-- presets -->\n", "<!-- /presets -->\n"
	text, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		t.Skip("needs the module's sources")
	}
	require.NoError(t, err)
	var want strings.Builder
	for _, p := range presets {
		fmt.Fprintf(&want, "**%s**: %s.\n\n", p.name, p.what)
		for _, line := range p.lines {
			fmt.Fprintf(&want, "    vmmbench %s\n", line)
		}
		if p.name == nvbandwidthPreset {
			fmt.Fprintf(&want, "| case | copies at once | its value |\n| --- | --- | --- |\n")
			for _, c := range nvCases {
				value := c.value
				if value == ofFirst && !strings.Contains(c.copies, " ") {
					value = "the copy"
				}
				fmt.Fprintf(&want, "| %s | `%s` | %s |\n", c.name, c.copies, value)
			}
			fmt.Fprintln(&want)
		}
		if len(p.lines) > 0 {
			want.WriteByte('\n')
		}
	}
	before, rest, _ := strings.Cut(string(text), begin)
	got, after, found := strings.Cut(rest, end)
	require.True(t, found)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(name, []byte(before+begin+want.String()+end+after), 0o644))
		return
	}
	require.Equal(t, want.String(), got)
}
