package broker_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutantEnv has the index of the mutant that a child process is to be.
const mutantEnv = "CUVMM_BROKER_MUTANT"

// mutant is a fault in the sources: an expression, or statements, that replace others.
type mutant struct {
	rule     string
	file, in string // the first such text below the text in
	old, new string
	block    bool // statements
}

// mutants are all of them. Of two whose texts overlap, the larger one is first.
var mutants = []mutant{
	{rule: "1: room", file: "share.go", old: "min(b.budget, b.physical)", new: "b.budget"},
	{rule: "1: budget", file: "share.go", old: "min(b.budget, b.physical)", new: "b.physical"},
	{rule: "1: an ask does not lower", file: "ask.go", old: "max(old, min(w.Want, w.m.most(), plus(old, b.Idle())))", new: "min(w.Want, w.m.most(), plus(old, b.Idle()))"},
	{rule: "1: most", file: "ask.go", old: "min(w.Want, w.m.most(), plus(old, b.Idle()))", new: "min(w.Want, plus(old, b.Idle()))"},
	{rule: "1: idle", file: "ask.go", old: "min(w.Want, w.m.most(), plus(old, b.Idle()))", new: "min(w.Want, w.m.most())"},
	{rule: "5: a late Gave counts", file: "demand.go", in: ") Gave(", old: "m.lease = min(m.lease, lease)", new: "if b.demands[n] != nil { m.lease = min(m.lease, lease) }", block: true},
	{rule: "1: Gave does not raise", file: "demand.go", in: ") Gave(", old: "min(m.lease, lease)", new: "lease"},
	{rule: "1: Back does not raise", file: "broker.go", in: ") Back(", old: "min(m.lease, lease)", new: "lease"},
	{rule: "1: an absent member counts", file: "broker.go", in: ") Absent(", old: "m.absent = true", new: "m.absent, m.lease = true, 0", block: true},
	{rule: "2: least", file: "share.go", old: "plus(m.Least, s)", new: "s"},
	{rule: "2: claim", file: "share.go", old: "max(w.m.lease, w.Need)", new: "w.m.lease"},
	{rule: "2: largest", file: "share.go", old: "uint64(1) << 63", new: "uint64(1) << 3"},
	{rule: "3: nothing while one waits", file: "ask.go", in: "switch others", old: "!others", new: "true"},
	{rule: "3: the newest one waits", file: "ask.go", in: ") Ask(", old: "b.withdraw(m)", new: "", block: true},
	{rule: "4b: most", file: "refuse.go", old: "w.Need > bound.bytes", new: "false"},
	{rule: "4c: no soft demands", file: "ask.go", in: ") serve(", old: "!w.hard", new: "false"},
	{rule: "4c: least", file: "demand.go", in: ") soften(", old: "max(m.Least, minus(m.lease, b.lacks(w)))", new: "minus(m.lease, b.lacks(w))"},
	{rule: "4c: all at once", file: "demand.go", in: ") soften(", old: "w.softened[m.id]", new: "(w.softened[m.id] || len(w.waits) > 0)"},
	{rule: "4c: one outstanding", file: "demand.go", in: ") soften(", old: "m.demand != nil", new: "false"},
	{rule: "4c: not from itself", file: "demand.go", in: ") soften(", old: "m == w.m", new: "false"},
	{rule: "4d: after the soft ones", file: "ask.go", in: ") serve(", old: "len(w.waits) == 0", new: "true"},
	{rule: "4d: within its share", file: "demand.go", in: ") harden(", old: "w.Need > shares[w.m]", new: "false"},
	{rule: "4d: over their share", file: "demand.go", in: ") harden(", old: "max(shares[m], minus(m.lease, lacks))", new: "minus(m.lease, lacks)"},
	{rule: "4d: just what lacks", file: "demand.go", in: ") harden(", old: "max(shares[m], minus(m.lease, lacks))", new: "shares[m]"},
	{rule: "4d: most over first", file: "demand.go", in: ") harden(", old: "cmp.Compare(o.lease-shares[o], m.lease-shares[m])", new: "cmp.Compare(m.lease-shares[m], o.lease-shares[o])"},
	{rule: "4d: what others give counts", file: "demand.go", in: ") harden(", old: "lacks = minus(lacks, d.amount())", new: "_ = d", block: true},
	{rule: "4d: not on silent ones", file: "demand.go", in: ") askable(", old: "!m.silent && !m.absent", new: "!m.absent"},
	{rule: "4d: not on absent ones", file: "demand.go", in: ") askable(", old: "!m.silent && !m.absent", new: "!m.silent"},
	{rule: "4d: once", file: "demand.go", in: ") short(", old: "w.lacking[d.m.id] = lacking{amount: d.amount(), why: why}", new: "", block: true},
	{rule: "4e: granted", file: "ask.go", in: ") serve(", old: "b.lacks(w) == 0", new: "b.lacks(w) == 0 && !w.hard"},
	{rule: "4e: names who gave less", file: "refuse.go", in: ") notEnough(", old: `does == ""`, new: `does == "" || !m.silent && !m.absent`},
	{rule: "4e: names silent ones", file: "refuse.go", in: ") blame(", old: "m.silent", new: "false"},
	{rule: "4e: names only those over their share", file: "refuse.go", in: ") notEnough(", old: "m.lease <= shares[m]", new: "false"},
	{rule: "4d: who gives does not wait", file: "ask.go", in: ") serve(", old: "d != nil && !d.soft", new: "false"},
	{rule: "4d: who gives what is idle waits", file: "ask.go", in: ") serve(", old: "!d.soft", new: "true"},
	{rule: "4: first come", file: "ask.go", in: ") Ask(", old: "append(b.waiting, w)", new: "append([]*waiter{w}, b.waiting...)"},
	{rule: "4: Want only if no other waits", file: "ask.go", in: "case slices.Contains(b.waiting, w)", old: "max(old, w.Need)", new: "max(old, min(w.Want, w.m.most(), plus(old, b.Idle())))"},
	{rule: "5: silent", file: "demand.go", in: ") Expire(", old: "d.m.silent = true", new: "", block: true},
	{rule: "5: until it says something", file: "broker.go", in: ") says(", old: "m.created, m.silent = created, false", new: "m.created = created", block: true},
	{rule: "6: stays outstanding", file: "ask.go", in: ") Withdraw(", old: "return b.settle()", new: "for _, d := range b.demands { b.end(d) }\nreturn b.settle()", block: true},
	{rule: "6: is idle", file: "broker.go", in: ") Leave(", old: "delete(b.members, id)", new: "", block: true},
	{rule: "7: most", file: "broker.go", in: ") SetTerms(", old: "m.reduce || m.lease > t.most()", new: "m.reduce"},
	{rule: "7: promises", file: "broker.go", in: ") check(", old: "t.Least > m.Least && t.Least > left", new: "false"},
	{rule: "7: a promise fits", file: "broker.go", in: ") Fitting(", old: "b.unpromised(nil, b.budget)", new: "b.budget"},
	{rule: "7: budget", file: "broker.go", in: ") SetBudget(", old: "m.reduce || m.lease > share", new: "m.reduce"},
	{rule: "7: least", file: "demand.go", in: ") reduce(", old: "min(to, shares[m])", new: "0"},
	{rule: "an ask ends when its member leaves", file: "broker.go", in: ") Leave(", old: "b.disconnect(m)", new: "", block: true},
	{rule: "an ask ends when its member is absent", file: "broker.go", in: ") Absent(", old: "b.disconnect(m)", new: "", block: true},
	{rule: "an ask waits no longer than its demands", file: "demand.go", in: ") end(", old: "delete(w.waits, d)", new: "", block: true},
	{rule: "deterministic", file: "broker.go", in: ") sorted(", old: "cmp.Compare(m.id, o.id)", new: "0"},
	{rule: "sorted", file: "ask.go", in: ") settle(", old: "cmp.Compare(a.To, c.To)", new: "0"},
	{rule: "replies first", file: "ask.go", in: ") settle(", old: "cmp.Compare(a.Kind, c.Kind)", new: "0"},
}

// TestMutants is the negative control of TestModel: with one fault in the sources it must fail. All
// faults are in one program, which has the one that its environment names.
func TestMutants(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "mutants.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", mutated(t, dir), "-o", program, ".")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := func(n, checks int) (string, error) {
		cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestModel$", "-test.timeout=1m",
			"-rapid.seed=1", fmt.Sprint("-rapid.checks=", checks), "-rapid.nofailfile", "-rapid.shrinktime=0")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", mutantEnv, n))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		out, err := run(len(mutants), 50)
		require.NoError(t, err, "%s", out)
	})
	for n, m := range mutants {
		t.Run(m.rule, func(t *testing.T) {
			t.Parallel()
			out, err := run(n, 500)
			require.Error(t, err)
			require.Regexp(t, `\[rapid\] (failed after|flaky test)`, out)
		})
	}
}

// mutated writes the sources with all mutants, and the list with which go finds them.
func mutated(t *testing.T, dir string) (list string) {
	t.Helper()
	sources := map[string]string{"mutant.go": `package broker

import (
	"os"
	"strconv"
)

var mutant, _ = strconv.Atoi(os.Getenv("` + mutantEnv + `"))

func mutated[T any](n int, right, wrong T) T {
	if mutant == n {
		return wrong
	}
	return right
}
`}
	for n, m := range mutants {
		if sources[m.file] == "" {
			text, err := os.ReadFile(m.file)
			require.NoError(t, err)
			sources[m.file] = string(text)
		}
		head, tail, found := strings.Cut(sources[m.file], m.in)
		require.True(t, found, "%s: no %s", m.rule, m.in)
		before, after, found := strings.Cut(tail, m.old)
		require.True(t, found, "%s: no %s", m.rule, m.old)
		text := fmt.Sprintf("mutated(%d, (%s), (%s))", n, m.old, m.new)
		if m.block {
			text = fmt.Sprintf("if mutant != %d {\n%s\n} else {\n%s\n}", n, m.old, m.new)
		}
		sources[m.file] = head + m.in + before + text + after
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for file, text := range sources {
		here, err := filepath.Abs(file)
		require.NoError(t, err)
		overlay.Replace[here] = filepath.Join(dir, file)
		require.NoError(t, os.WriteFile(overlay.Replace[here], []byte(text), 0o600))
	}
	text, err := json.Marshal(overlay)
	require.NoError(t, err)
	list = filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(list, text, 0o600))
	return list
}
