package kernel_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/kernel"
)

func source(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("device/" + name)
	require.NoError(t, err)
	return string(text)
}

// The committed PTX is that of the committed source: tools/kernels writes the sum of what
// it compiled.
func TestPTXIsOfTheSource(t *testing.T) {
	sum := sha256.Sum256([]byte(source(t, "builtin.cu") + source(t, "cuvmm_append.cuh")))
	m := regexp.MustCompile(`(?m)^// sha256 of the sources: ([0-9a-f]{64})$`).FindSubmatch(kernel.BuiltinPTX())
	require.NotNil(t, m, "device/builtin.ptx does not name its source: run make kernels where nvcc is")
	require.Equal(t, hex.EncodeToString(sum[:]), string(m[1]), "device/builtin.ptx is of other sources: run make kernels where nvcc is")
}

// Sizes that Go and the device have to agree on.
func TestSizesOfTheSource(t *testing.T) {
	number := func(file, pattern string) int {
		m := regexp.MustCompile(pattern).FindStringSubmatch(source(t, file))
		require.NotNil(t, m, pattern)
		n, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		return n
	}
	threads := number("builtin.cu", `THREADS = (\d+);`)
	require.Equal(t, kernel.BuiltinThreads, threads)
	require.Equal(t, kernel.CompactTile32, threads*number("builtin.cu", `COMPACT_32 = (\d+)[,;]`))
	require.Equal(t, kernel.CompactTile64, threads*number("builtin.cu", `COMPACT_64 = (\d+)[,;]`))
	require.Equal(t, kernel.CursorBytes, number("cuvmm_append.cuh", `sizeof\(cursor\) == (\d+)`))
}

// The fields of cuvmm::cursor are those of a cursor in Go, in their order: a comment of
// the header has their offsets.
func TestCursorOfTheSource(t *testing.T) {
	text := source(t, "cuvmm_append.cuh")
	want := map[string]int{
		"reserved": reserved, "written": written, "unfinished": unfinished, "wrong_size": wrongSize,
		"capacity": capacity, "data": data, "items": items, "limit": limit, "todo": todo, "todo_count": todoCount, "elem_size": elemSize,
	}
	listed := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^//\t +(\d+)  (\w+) `).FindAllStringSubmatch(text, -1) {
		at, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		listed[m[2]] = at / 8
	}
	require.Equal(t, want, listed)

	// Each field declared has 8 bytes, but for those that are there to be skipped.
	body := regexp.MustCompile(`(?s)struct cursor \{(.*?)\n\};`).FindStringSubmatch(text)
	require.NotNil(t, body)
	declared, at := map[string]int{}, 0
	for _, m := range regexp.MustCompile(`(?m)(\w+)(?:\[(\d+)\])?;$`).FindAllStringSubmatch(body[1], -1) {
		if m[2] != "" {
			n, err := strconv.Atoi(m[2])
			require.NoError(t, err)
			at += n
			continue
		}
		declared[m[1]] = at
		at++
	}
	require.Equal(t, want, declared)
	require.Equal(t, kernel.CursorBytes, 8*at)
}
