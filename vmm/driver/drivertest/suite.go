package drivertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Where a rule comes from.
const (
	measured = "measured on H200, driver 580"
	manual   = "CUDA driver API"
	guide    = "CUDA programming guide"
	seam     = "package driver"
)

// contract is a numbered promise of docs/contributing/architecture.md.
func contract(n int) string { return fmt.Sprintf("contract %d", n) }

// Rule is one promise of the seam, and one case that holds a driver to it.
type Rule struct {
	Suite  string // "Memory" or "Async"
	Name   string // the subtest's
	Says   string // one sentence
	Source string // where the rule comes from

	devices int              // how many devices it takes; 0 is 1
	needs   []driver.Feature // on every one of them
	lost    bool             // loses a device, so it runs in a child process
	child   bool             // runs in one without losing a device
	run     func(*check)
	peer    func(*check, *process) // what the process does that run starts by startPeer
}

// needing adds features that each of the rules needs.
func needing(rules []Rule, f ...driver.Feature) []Rule {
	for i := range rules {
		rules[i].needs = append(rules[i].needs, f...)
	}
	return rules
}

// Result is what became of a rule on one driver.
type Result struct {
	Rule    Rule
	Driver  string
	Outcome string // "pass", "fail", or "skipped: why"
}

// Rules lists every rule, Memory's first.
func Rules() []Rule {
	suite := func(name string, parts ...[]Rule) (all []Rule) {
		for _, r := range slices.Concat(parts...) {
			r.Suite = name
			all = append(all, r)
		}
		return all
	}
	return slices.Concat(
		suite("Memory", driverRules(), addressRules(), createRules(), mapRules(), accessRules(),
			peerRules(), legacyPeerRules(), shareRules(), rangeRules(), fabricRules(), copyRules(), copy2DRules(), optionalRules(), poolRules()),
		suite("Async", streamRules(), eventRules(), captureRules(), graphRules(), launchRules(), orderRules(), copy2DOrderRules(), poolOrderRules(), resetRules(), lostRules(),
			legacyIPCRules(), poolSharerRules()),
	)
}

// Memory holds a driver to the rules of addresses, physical memory, mappings,
// access and sharing. It calls open once for each rule; open may register
// cleanups and may give the same driver again. The results are those of the
// rules that the test's -run pattern let through.
func Memory(t *testing.T, open func(testing.TB) driver.Driver) []Result {
	return runSuite(t, "Memory", open)
}

// Async holds a driver to the rules of streams, events, captures, graphs, kernels, the
// order of work, lost devices, and of what other processes open. The rest is as for Memory.
func Async(t *testing.T, open func(testing.TB) driver.Driver) []Result {
	return runSuite(t, "Async", open)
}

func runSuite(t *testing.T, suite string, open func(testing.TB) driver.Driver) []Result {
	t.Helper()
	var results []Result
	for _, r := range Rules() {
		if r.Suite != suite {
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			c := &check{TB: t, rule: r, patience: patienceOf(t)}
			t.Cleanup(func() { // the last of them, so it knows what the others found
				results = append(results, Result{Rule: r, Driver: c.name, Outcome: c.outcome()})
			})
			c.open(open)
			if (r.lost || r.child) && !isChild(t) {
				runChild(c, t)
				return
			}
			t.Cleanup(c.giveBack)
			if r.peer != nil && isChild(t) {
				r.peer(c, c.starter())
				return
			}
			r.run(c)
		})
	}
	t.Log("\n" + Table(results))
	return results
}

// Table is the results as a Markdown table, one row for each rule.
func Table(results []Result) string {
	var b strings.Builder
	name := "driver"
	if len(results) > 0 {
		name = results[0].Driver
	}
	fmt.Fprintf(&b, "| suite | rule | what it says | source | %s |\n|---|---|---|---|---|\n", name)
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.Rule.Suite, r.Rule.Name, r.Rule.Says, r.Rule.Source, r.Outcome)
	}
	return b.String()
}
