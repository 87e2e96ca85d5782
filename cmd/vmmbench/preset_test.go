package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/benchmarks.md has every preset with its commands.
func TestPresetsInDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/benchmarks.md")
	if os.IsNotExist(err) {
		t.Skip("needs the module's sources")
	}
	require.NoError(t, err)
	for _, p := range presets {
		want := "**" + p.name + "**: " + p.what + ".\n"
		for i, line := range p.lines {
			if i == 0 {
				want += "\n"
			}
			want += "    vmmbench " + line.command
			if line.name != "" {
				want += "    # " + line.name
			}
			want += "\n"
		}
		require.Contains(t, string(text), want+"\n", p.name)
	}
}
