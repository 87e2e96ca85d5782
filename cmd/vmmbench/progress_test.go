package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A terminal has one line, which is gone at the end.
func TestProgress(t *testing.T) {
	var out strings.Builder
	p := newProgress(&out, "line", 2)
	p.begin("first")
	p.begin(strings.Repeat("second", 20))
	p.stop()
	lines := strings.Split(out.String(), clearLine)
	require.Equal(t, []string{"", "1 of 2: first"}, lines[:2])
	require.Len(t, lines[2], columns)
	require.Empty(t, lines[3])
	require.NotContains(t, out.String(), "\n")

	out.Reset()
	p = newProgress(&out, "auto", 1)
	p.begin("only")
	p.stop()
	require.Equal(t, "1 of 1: only\n", out.String())

	out.Reset()
	newProgress(&out, "off", 1).begin("only")
	require.Empty(t, out.String())
}
