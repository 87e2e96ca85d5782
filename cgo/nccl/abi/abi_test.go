// Package abi holds symbols.h of cgo/nccl to NVIDIA's nccl.h.
package abi

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		t.Skipf("needs %s", path)
	}
	require.NoError(t, err)
	return string(text)
}

// All constants and all fields must be printed, or a part of the header is not checked.
func TestAllIsPrinted(t *testing.T) {
	header, program := read(t, "../symbols.h"), read(t, "print.c")
	constants := regexp.MustCompile(`(?m)(?:^\t|\{ )(n?N?\w+) = -?\d+[, ]`).FindAllStringSubmatch(header, -1)
	require.Greater(t, len(constants), 20)
	for _, m := range constants {
		require.Contains(t, program, "\tVALUE("+m[1]+");\n")
	}
	config := regexp.MustCompile(`(?ms)^typedef struct \{\n\tsize_t size;\n(.*?)^\} ncclConfig_t;`).FindStringSubmatch(header)
	require.NotNil(t, config)
	for _, field := range regexp.MustCompile(`(?m)(\w+);$`).FindAllStringSubmatch(config[1], -1) {
		require.Regexp(t, `\t(FIELD|NUMBER|TEXT)\(`+field[1]+`\);`, program)
	}
}

// The tool must see what is not as in NVIDIA's header. This one is made of ours.
func TestTool(t *testing.T) {
	testgate.Long(t)
	if runtime.GOOS != "linux" {
		t.Skip("the layouts are those of Linux")
	}
	for _, program := range []string{"cc", "bash"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	const tool = "../../../tools/abi-check-nccl"
	read(t, tool)
	ours := read(t, "../symbols.h")
	nvidia := "#define NCCL_VERSION_CODE 22809\n#include <cuda_runtime.h>\n" + ours[:strings.Index(ours, "#define CUVMM_NCCL_SYMBOLS(")]
	prototype := regexp.MustCompile(`(?m)^\t(?:REQUIRED|OPTIONAL)\(([^,]*), \w+, "(\w+)", (\(.*\))\)(?: \\)?$`)
	for _, m := range prototype.FindAllStringSubmatch(ours, -1) {
		nvidia += m[1] + " " + m[2] + m[3] + ";\n"
	}
	nvidia += "#endif\n"
	old := strings.Replace(nvidia, "VERSION_CODE 22809", "VERSION_CODE 21800", 1)
	for name, test := range map[string]struct {
		header, from, to string
		ok               bool
		says             string
	}{
		"same":       {nvidia, "", "", true, "agree with NCCL 22809, 0 are not in it"},
		"number":     {nvidia, "ncclRemoteError = 6", "ncclRemoteError = 8", false, "-ncclRemoteError 8"},
		"layout":     {nvidia, "int blocking;", "long blocking;", false, "-offsetof blocking 16 sizeof 8"},
		"magic":      {nvidia, "0xcafebeef", "0xcafebeee", false, "-initial magic 3405692654"},
		"initial":    {nvidia, ".CTAPolicy = INT_MIN", ".CTAPolicy = 0", false, "-initial CTAPolicy 0"},
		"parameters": {nvidia, "ncclCommFinalize(ncclComm_t comm)", "ncclCommFinalize(int comm)", false, "check_ncclCommFinalize"},
		"misspelt":   {nvidia, "ncclFloat8e5m2 = 11,", "", false, "not in this header: ncclFloat8e5m2"},
		"old":        {old, "ncclFloat8e5m2 = 11,", "", true, "not in this header: ncclFloat8e5m2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := strings.Replace(test.header, test.from, test.to, 1)
			require.Equal(t, test.from == test.to, changed == test.header)
			header := filepath.Join(t.TempDir(), "nccl.h")
			require.NoError(t, os.WriteFile(header, []byte(changed), 0o600))
			text, err := exec.CommandContext(t.Context(), tool, header).CombinedOutput()
			require.Equal(t, test.ok, err == nil, string(text))
			require.Contains(t, string(text), test.says)
		})
	}
}
