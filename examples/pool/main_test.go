package main

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
	var out strings.Builder
	require.NoError(t, run(&out, "host"))
	require.Equal(t, `16 MiB of 16 used by scratch and the last 2 results of 10, 0 idle
12 MiB beside 8 of 16: out of memory true, 0 results left
`, out.String())
	require.Error(t, run(&out, "none"))
}
