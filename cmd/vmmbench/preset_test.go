package main

import (
	"fmt"
	"os"
	"slices"
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
			for _, row := range nvRows() {
				fmt.Fprintf(&want, "- %s:\n  %s\n", row.value, strings.Join(row.cases, ";\n  "))
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

type nvRow struct {
	value nvValue
	cases []string
}

// nvRows has the cases and what they copy at once. It has a row for each value. Cases of copy engines and of kernels that copy the same are one.
func nvRows() []*nvRow {
	var rows []*nvRow
	of := map[nvValue]*nvRow{}
	for _, c := range nvCases {
		if c.value == ofFirst && !strings.Contains(c.copies, " ") {
			c.value = "the copy"
		}
		row := of[c.value]
		if row == nil {
			row = &nvRow{value: c.value}
			of[c.value] = row
			rows = append(rows, row)
		}
		name, sm := strings.CutSuffix(c.name, "_sm")
		copies := fmt.Sprintf(" `%s`", c.copies)
		if i := slices.Index(row.cases, name+"_ce"+copies); sm && i >= 0 {
			row.cases[i] = name + "_ce, _sm" + copies
			continue
		}
		row.cases = append(row.cases, c.name+copies)
	}
	return rows
}
