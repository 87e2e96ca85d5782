package vmm_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// otherNames is a program that calls back into the package.
const otherNames = `package main

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	dev, err := vmm.Open("host")
	check(err)
	depth, most := 0, 0
	stop := dev.OnSync(func() {
		depth++
		most = max(most, depth)
		if depth < 10 {
			check(dev.Sync())
		}
		depth--
	})
	check(dev.Sync())
	stop()
	fmt.Println("OnSync: depth", most)

	dev.SetLimit(4 << 20)
	hog, err := dev.Create(4<<20, vmm.Prop{})
	check(err)
	stop = dev.OnPressure(func(error) bool { return hog.Close() == nil && false })
	defer stop()
	c, err := dev.Create(4<<20, vmm.Prop{})
	fmt.Println("OnPressure: error", err)
	check(c.Close())
}
`

// TestOtherNames builds the package with other names of the functions that are looked for on the
// stack, as a tool that makes names unreadable does. In the control they are found by their names.
func TestOtherNames(t *testing.T) {
	testgate.Long(t)
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command to build with")
	}
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	run := func(t *testing.T, byName bool) string {
		dir := t.TempDir()
		overlay := map[string]string{}
		put := func(file string, b []byte) {
			to := filepath.Join(dir, filepath.Base(file))
			require.NoError(t, os.WriteFile(to, b, 0o600))
			overlay[filepath.Join(here, file)] = to
		}
		for _, file := range []string{"onsync.go", "background.go", "internal/bank/turn.go", "internal/bank/lease.go", "../internal/frames/calledby.go"} {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			for name, other := range map[string]string{"callSyncHook": "x1", "letThrough": "x2", "callLogger": "x3"} {
				for _, use := range []string{name + "(", "(" + name + ")"} {
					b = bytes.ReplaceAll(b, []byte(use), bytes.ReplaceAll([]byte(use), []byte(name), []byte(other)))
				}
			}
			if byName && strings.HasSuffix(file, "calledby.go") {
				const entries = "f.Entry() == entry"
				require.Contains(t, string(b), entries)
				b = bytes.ReplaceAll(b, []byte(entries), []byte(`entry > 0 && (f.Name() == "github.com/cuvmm/cuvmm/vmm.callSyncHook" || f.Name() == "github.com/cuvmm/cuvmm/vmm/internal/bank.letThrough")`))
			}
			put(file, b)
		}
		put("internal/othernames/main.go", []byte(otherNames))
		b, err := json.Marshal(map[string]any{"Replace": overlay})
		require.NoError(t, err)
		list := filepath.Join(dir, "overlay.json")
		require.NoError(t, os.WriteFile(list, b, 0o600))
		program := filepath.Join(dir, "othernames")
		out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "-overlay", list, "./internal/othernames").CombinedOutput()
		require.NoError(t, err, "%s", out)
		out, err = exec.CommandContext(t.Context(), program).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Equal(t, "OnSync: depth 1\nOnPressure: error <nil>\n", run(t, false))
	control := run(t, true)
	require.Contains(t, control, "OnSync: depth 10\n")
	require.Contains(t, control, "memory is being released for another operation")
}
