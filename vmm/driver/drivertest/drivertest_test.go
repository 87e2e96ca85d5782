package drivertest_test

import (
	"flag"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

var update = flag.Bool("update", false, "write docs/conformance.md")

const docPath = "../../../docs/conformance.md"

const docHead = `# Conformance

What every driver below package vmm must do. Each row is a subtest of ` + "`vmm/driver/drivertest`" + `.

The table shows the host driver, with three devices, two of which cannot reach each other. The CUDA
driver has passed the same rules on A1 and A2 of [benchmarks.md](benchmarks.md): one and two NVIDIA
H200, driver 580.159.04. [driver-notes.md](driver-notes.md#output) has its table and the rules that are
skipped there, with the reasons. Through ` + "`cgo/cuda`" + ` on a fake libcuda, the Memory rules run wherever
there is a C compiler.

The command that writes the table is

    go test ./vmm/driver/drivertest -run TestConformance -update

and without -update the test compares the table with the rules. Sources: "measured" is what the CUDA
driver did on the card. "CUDA driver API" and "CUDA programming guide" are NVIDIA's documents.
"package driver" is the documentation of ` + "`vmm/driver`" + `. Contracts are those of
[architecture.md](architecture.md#contracts).

`

// docTail is the heading of the part that is written by hand.
const docTail = "\n## What users of other libraries complain about\n"

func openHost(testing.TB) driver.Driver {
	return host.New(host.Config{Devices: 3, Memory: 1 << 30, NoPeer: [][2]int{{1, 2}}})
}

func TestConformance(t *testing.T) {
	var results []drivertest.Result
	t.Run("Memory", func(t *testing.T) { results = append(results, drivertest.Memory(t, openHost)...) })
	t.Run("Async", func(t *testing.T) { results = append(results, drivertest.Async(t, openHost)...) })
	t.Run("Doc", func(t *testing.T) {
		switch {
		case runtime.GOOS != "linux":
			t.Skip("the document's table is of Linux")
		case len(results) != len(drivertest.Rules()):
			t.Skip("not every rule ran")
		}
		got, err := os.ReadFile(docPath)
		require.NoError(t, err)
		_, byHand, _ := strings.Cut(string(got), docTail)
		want := docHead + drivertest.Table(results) + docTail + byHand
		if *update {
			require.NoError(t, os.WriteFile(docPath, []byte(want), 0o644))
		} else {
			require.Equal(t, want, string(got), "run this test with -update")
		}
	})
}
