package main

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Growth ahead runs beside: how much it has mapped when Stats are read, and how often, varies.
func TestRun(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
	var out strings.Builder
	require.NoError(t, run(&out, "host"))
	var used, mapped, peak, waited, ahead uint64
	_, err := fmt.Sscanf(out.String(), `16777216 elements, the same pointer: true
4194304 elements after Clip, the same pointer: true
MiB: %d used, %d mapped, %d at most
growths: %d that an Append waited for, %d ahead
`, &used, &mapped, &peak, &waited, &ahead)
	require.NoError(t, err, out.String())
	require.Equal(t, uint64(16), used)
	require.GreaterOrEqual(t, mapped, uint64(16))
	require.Less(t, mapped, uint64(64), "Clip has given back nothing")
	require.GreaterOrEqual(t, peak, uint64(64))
	require.NotZero(t, waited+ahead)
	require.Error(t, run(&out, "none"))
}
