package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each group has a line, unless --progress is off.
func TestProgress(t *testing.T) {
	var out bytes.Buffer
	a := &app{stderr: &out}
	a.progress(&measureFlags{progress: "plain"}, 1, 2, "first")
	require.Equal(t, "1 of 2: first\n", out.String())

	out.Reset()
	a.progress(&measureFlags{progress: "off"}, 1, 2, "first")
	require.Empty(t, out.String())
}
