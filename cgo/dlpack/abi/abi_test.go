// Package abi holds dlpack.h of cgo/dlpack to the header of another library.
package abi

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSameStructs: the consumer's header is written from the specification alone. One that differs is seen.
func TestSameStructs(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("needs cc")
	}
	theirs, err := os.ReadFile("../consumer/consumer.h")
	require.NoError(t, err)
	compile := func(old, changed string) (string, error) {
		require.Contains(t, string(theirs), old)
		path := filepath.Join(t.TempDir(), "header.h")
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(theirs), old, changed, 1)), 0o600))
		out, err := exec.CommandContext(t.Context(), "cc", "-std=gnu11", "-fsyntax-only", `-DDLPACK_H="`+path+`"`, "check.c").CombinedOutput()
		return string(out), err
	}
	out, err := compile("", "")
	require.NoError(t, err, "%s", out)
	for old, wrong := range map[string]string{
		"int32_t ndim;":         "int64_t ndim;",
		"uint16_t lanes;":       "uint8_t lanes;",
		"uint64_t flags;":       "",
		"uint64_t byte_offset;": "uint32_t byte_offset;",
	} {
		out, err := compile(old, wrong)
		require.Error(t, err, old)
		require.Contains(t, out, "DL", old)
	}
}
