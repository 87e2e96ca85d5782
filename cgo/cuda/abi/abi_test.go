// Package abi holds abi.h and symbols.h of cgo/cuda to NVIDIA's cuda.h.
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

// What NVIDIA's header of CUDA 13.0 says: tools/abi-check -o writes it.
const committed = "cuda-13.0.txt"

func compiler(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the layouts are those of Linux")
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler")
	}
	return cc
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		t.Skipf("needs %s", path)
	}
	require.NoError(t, err)
	return string(text)
}

func TestHeaderIsNVIDIAs(t *testing.T) {
	cc := compiler(t)
	read(t, "../abi.h") // so that the test cache knows of it
	read(t, "print.c")
	_, want, _ := strings.Cut(read(t, committed), "\n")
	program := filepath.Join(t.TempDir(), "print")
	text, err := exec.CommandContext(t.Context(), cc, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", program, "print.c").CombinedOutput()
	require.NoError(t, err, string(text))
	got, err := exec.CommandContext(t.Context(), program).Output()
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

// All of abi.h must be printed, or a part of it is not checked.
func TestAllIsPrinted(t *testing.T) {
	header, program := read(t, "../abi.h"), read(t, "print.c")
	for _, m := range regexp.MustCompile(`(?m)^\t(CU\w+) = `).FindAllStringSubmatch(header, -1) {
		require.Contains(t, program, "\tVALUE("+m[1]+");\n")
	}
	types := regexp.MustCompile(`(?m)^(?:typedef .*?|\} )(\w+);$`).FindAllStringSubmatch(header, -1)
	require.NotEmpty(t, types)
	for _, m := range types {
		require.Contains(t, program, "\tSIZE("+m[1]+");\n")
	}
	structs := regexp.MustCompile(`(?ms)^typedef struct (?:\w+ )?\{\n(.*?)^\} (\w+);`).FindAllStringSubmatch(header, -1)
	require.NotEmpty(t, structs)
	for _, m := range structs {
		for _, field := range regexp.MustCompile(`(?m)(\w+)(?:\[\d+\])?;$`).FindAllStringSubmatch(m[1], -1) {
			require.Regexp(t, `\tFIELD\(`+m[2]+`, (\w+\.)?`+field[1]+`\);`, program)
		}
	}
}

// The tool must see what is not as in NVIDIA's header. This one is made of ours.
func TestTool(t *testing.T) {
	testgate.Long(t)
	compiler(t)
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("needs bash")
	}
	const tool = "../../../tools/abi-check"
	read(t, tool)
	prototype := regexp.MustCompile(`(?m)^\t(?:REQUIRED|OPTIONAL)\(\w+, "(\w+)", (\(.*\))\)(?: \\)?$`)
	nvidia := "#define CUDA_VERSION 13000\n" + read(t, "../abi.h")
	for _, m := range prototype.FindAllStringSubmatch(read(t, "../symbols.h"), -1) {
		nvidia += "CUresult " + m[1] + m[2] + ";\n"
	}
	const plain = "CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id);\n"
	const revised = "#ifdef __CUDA_API_VERSION_INTERNAL\n" + plain + "#else\n" +
		"#define cuStreamGetCaptureInfo cuStreamGetCaptureInfo_v3\nCUresult cuStreamGetCaptureInfo(int);\n#endif\n"
	old := strings.Replace(nvidia, "CUDA_VERSION 13000", "CUDA_VERSION 11040", 1)
	for name, test := range map[string]struct {
		header, from, to string
		ok               bool
		says             string
	}{
		"same":       {nvidia, "", "", true, "agree with CUDA 13000, 0 are not in it"},
		"number":     {nvidia, "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124", "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 123", false, "-CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED 123"},
		"layout":     {nvidia, "unsigned short usage;", "unsigned int usage;", false, "-offsetof CUmemAllocationProp.allocFlags.usage 28 sizeof 4"},
		"parameters": {nvidia, "cuMemUnmap(CUdeviceptr p, size_t size)", "cuMemUnmap(CUdeviceptr p, int size)", false, "check_cuMemUnmap"},
		"misspelt":   {nvidia, "CU_MEMHOSTALLOC_PORTABLE = 1,", "", false, "not in this header: CU_MEMHOSTALLOC_PORTABLE"},
		"old":        {old, "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,", "", true, "not in this header: CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED"},
		"revised":    {nvidia, plain, revised, true, "agree with CUDA 13000, 0 are not in it"},
		"older":      {old, "CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev);", "", true, "not in this header: cuDeviceGetUuid_v2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := strings.Replace(test.header, test.from, test.to, 1)
			require.Equal(t, test.from == test.to, changed == test.header)
			header, out := filepath.Join(t.TempDir(), "cuda.h"), filepath.Join(t.TempDir(), "out")
			require.NoError(t, os.WriteFile(header, []byte(changed), 0o600))
			text, err := exec.CommandContext(t.Context(), tool, "-o", out, header).CombinedOutput()
			require.Equal(t, test.ok, err == nil, string(text))
			require.Contains(t, string(text), test.says)
			_, err = os.Stat(out)
			require.Equal(t, test.ok, err == nil)
		})
	}
}
