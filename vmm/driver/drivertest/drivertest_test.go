package drivertest_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

var update = flag.Bool("update", false, "write docs/contributing/conformance.md")

const docPath = "../../../docs/contributing/conformance.md"

const docHead = `# Conformance

What every driver below package vmm must do. Each rule is a subtest of ` + "`vmm/driver/drivertest`" + `. The host
driver, with three devices of which two cannot reach each other, passes all but those that say why not. The
tables are written by

    go test ./vmm/driver/drivertest -run TestConformance -update

Sources: "measured" is what the CUDA driver was seen to do on H200 (driver 580), "API" and "guide" are NVIDIA's
CUDA driver API and programming guide, "seam" is the documentation of package driver, and contracts are those of
architecture.md.
`

// docTables is the rules of each suite, with what did not pass.
func docTables(results []drivertest.Result) string {
	sources := strings.NewReplacer("measured on H200, driver 580", "measured", "CUDA driver API", "API",
		"CUDA programming guide", "guide", "package driver", "seam")
	var b strings.Builder
	suite := ""
	for _, r := range results {
		if r.Rule.Suite != suite {
			suite = r.Rule.Suite
			fmt.Fprintf(&b, "\n## %s\n\n| rule | what it says | source |\n|---|---|---|\n", suite)
		}
		says := r.Rule.Says
		if r.Outcome != "pass" {
			says += fmt.Sprintf(" (%s)", r.Outcome)
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.Rule.Name, says, sources.Replace(r.Rule.Source))
	}
	return b.String()
}

// docTail is where the hand-written part begins.
const docTail = "\n## What of the sources ran on a card\n"

// openHost opens what the document is about; in the quick suite with the smallest granules, of which
// the kernel clears less.
func openHost(testing.TB) driver.Driver {
	return host.New(host.Config{Devices: 3, Memory: 1 << 30, NoPeer: [][2]int{{1, 2}}, Granularity: testgate.Effort[uint64](4096, 0, 0)})
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
		want := docHead + docTables(results) + docTail + byHand
		if *update {
			require.NoError(t, os.WriteFile(docPath, []byte(want), 0o644))
		} else {
			require.Equal(t, want, string(got), "run this test with -update")
		}
		// What became of each rule on a GPU is written by hand, once it ran there.
		notes, err := os.ReadFile("../../../docs/contributing/driver-notes.md")
		require.NoError(t, err)
		_, output, _ := strings.Cut(string(notes), "\n## Output\n")
		ran := map[string]bool{}
		for name := range strings.FieldsSeq(output) {
			ran[strings.TrimRight(name, ",.")] = true
		}
		for _, r := range drivertest.Rules() {
			require.True(t, ran[r.Name], "run %s on a GPU", r.Name)
		}
	})
}

// TestConformanceOfSmallChunks runs the suites on chunks of a page, which the host
// driver allocates in another way.
func TestConformanceOfSmallChunks(t *testing.T) {
	testgate.Long(t) // in the quick suite TestConformance is this
	open := func(testing.TB) driver.Driver {
		return host.New(host.Config{Devices: 3, Memory: 1 << 30, NoPeer: [][2]int{{1, 2}}, Granularity: 4096})
	}
	t.Run("Memory", func(t *testing.T) { drivertest.Memory(t, open) })
	t.Run("Async", func(t *testing.T) { drivertest.Async(t, open) })
}
