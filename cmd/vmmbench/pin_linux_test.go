package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// allowedCPUs is for each thread of the process the list of CPUs that it may run on.
func allowedCPUs(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/status")
	require.NoError(t, err)
	var list []string
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), "Cpus_allowed_list:")
		list = append(list, strings.Fields(rest)[0])
	}
	require.NotEmpty(t, list)
	return list
}
