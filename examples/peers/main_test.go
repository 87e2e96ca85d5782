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
	require.NoError(t, run(&out))
	for _, line := range []string{
		"link, rank (0 the best), + native atomics\n",
		":1: none -> read\n",
		"grow to 10000001 elements; the last is 10000000\n",
		":1 is refused after the revoke\n",
	} {
		require.Contains(t, out.String(), line)
	}
}
