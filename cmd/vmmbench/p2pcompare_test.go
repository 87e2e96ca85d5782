package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// compareP2P runs tools/p2p-compare on the two files.
func compareP2P(t *testing.T, csv, txt string) (code int, out string) {
	t.Helper()
	tool, err := filepath.Abs("../../tools/p2p-compare")
	require.NoError(t, err)
	for _, need := range []string{tool, "bash", "awk"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("needs %s: %v", need, err)
		}
	}
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.csv"), filepath.Join(dir, "b.txt")
	require.NoError(t, os.WriteFile(a, []byte(csv), 0o600))
	require.NoError(t, os.WriteFile(b, []byte(txt), 0o600))
	text, err := exec.Command(tool, a, b).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), string(text)
	}
	require.NoError(t, err)
	return 0, string(text)
}

func TestP2PCompare(t *testing.T) {
	const (
		header = "id,from,to,direction,size,mem,op,unit,bytes,status,reason,flags,n,value\r\n"
		small  = "x,cuda:0,cuda:1,write,4,vmm,,us,4,passed,,gated,9,1.2\r\nx,cuda:0,cuda:1,write,1024,vmm,,GB/s,1024,passed,,,9,5\r\n"
		vmm    = "x,cuda:0,cuda:1,write,4096,vmm,,GB/s,4096,passed,,gated,9,396.0\r\n"
		waived = "x,cuda:0,cuda:1,read,4096,vmm,,GB/s,4096,waived,\"no, path\",,,\r\n"
		failed = "x,cuda:0,cuda:1,read,4096,vmm,,GB/s,4096,failed,\"byte 5, bad\",,9,396\r\n"
		grant  = "x,,,,,,grant,us,4096,passed,,,9,7\r\n"
	)
	for _, c := range []struct {
		name, csv, txt string
		code           int
		want           string
	}{
		{"within", header + small + vmm + grant, "cuda:0 cuda:1 vmm write 390\n", 0, "1.015"},
		{"off", header + vmm, "cuda:0 cuda:1 vmm write 380\n", 1, "1.042 BAD"},
		{"off the other way", header + vmm, "cuda:0 cuda:1 vmm write 405\n", 1, "0.978 BAD"},
		{"waived on both sides", header + vmm + waived, "cuda:0 cuda:1 vmm write 396\n", 0, "waived"},
		{"waived on one side", header + vmm + waived, "cuda:0 cuda:1 vmm write 396\ncuda:0 cuda:1 vmm read 396\n", 1, "BAD: waived"},
		{"failed", header + vmm + failed, "cuda:0 cuda:1 vmm write 396\ncuda:0 cuda:1 vmm read 396\n", 1, "BAD: failed"},
		{"missing there", header + vmm, "cuda:1 cuda:0 vmm write 396\n", 1, "BAD: not in p2p"},
		{"missing here", header + vmm, "cuda:0 cuda:1 vmm write 396\ncuda:1 cuda:0 vmm write 396\n", 1, "BAD: not in vmmbench"},
		{"nothing", header, "", 2, "nothing to compare"},
		{"no table", "id,unit\r\n", "cuda:0 cuda:1 vmm write 396\n", 2, "no column from"},
		{"garbage", header + vmm, "out of memory\n", 2, "cannot read"},
	} {
		code, out := compareP2P(t, c.csv, c.txt)
		require.Equal(t, c.code, code, "%s: %s", c.name, out)
		require.Contains(t, strings.Join(strings.Fields(out), " "), c.want, c.name)
	}
}
