package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each group has a line, unless --progress is off.
func TestProgress(t *testing.T) {
	var out strings.Builder
	p := newProgress(&out, "plain", 2)
	p.begin("first")
	p.begin("second")
	require.Equal(t, "1 of 2: first\n2 of 2: second\n", out.String())

	out.Reset()
	newProgress(&out, "off", 1).begin("only")
	require.Empty(t, out.String())
}
