package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGeneratedFileIsCurrent(t *testing.T) {
	want, err := generate("../../vmm/driver")
	require.NoError(t, err)
	got, err := os.ReadFile("../../vmm/driver/drivertest/inject_gen.go")
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run: go generate ./vmm/driver/drivertest")
}
