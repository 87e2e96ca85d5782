package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

const mib = 1 << 20

// budgetMember is a member with a driver of its own.
type budgetMember struct {
	dev *vmm.Device
	m   *budget.Member
	g   *vmm.Range
}

func memberOf(t *testing.T, path, name string, least uint64) *budgetMember {
	t.Helper()
	x := &budgetMember{}
	var err error
	x.dev, err = vmm.OpenDriver(host.New(host.Config{}), 0)
	require.NoError(t, err)
	x.m, err = budget.Join(t.Context(), path, x.dev, budget.JoinOptions{Name: name, Least: least})
	require.NoError(t, err)
	x.g, err = x.dev.NewRange(vmm.RangeOptions{Max: 1 << 30, Chunk: 2 * mib})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, x.g.Close())
		require.NoError(t, x.m.Close())
		require.NoError(t, x.dev.Close())
	})
	return x
}

// budgets is what the command budget --json prints.
func budgets(t *testing.T, path string) budget.Report {
	t.Helper()
	out, stderr, code := call(t, "--socket="+path, "budget", "--json")
	require.Zero(t, code, stderr)
	var all []budget.Report
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	require.Len(t, all, 1)
	return all[0]
}

func TestBudgetFlags(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv(asProgram, "1")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--budget=host:0"}, 2, "want a device and a size"},
		{[]string{"--budget==1GiB"}, 2, "want a device and a size"},
		{[]string{"--budget=host:0=much"}, 2, "much"},
		{[]string{"--budget=host:0=-1"}, 2, "-1"},
		{[]string{"--budget=host:0="}, 2, "host:0="},
		{[]string{"--budget=host:0=0"}, 2, "more than 0 bytes"},
		{[]string{"--budget=none:0=1GiB"}, 1, "none:0"},
		{[]string{"--budget=host:99=1GiB"}, 1, "host:99"},
		{[]string{"--budget=host:0=1000TiB"}, 1, "which has"},
		{[]string{"--budget=host:0=1GiB", "--budget=host:0=1GiB"}, 1, "two budgets"},
		{[]string{"budget", "more"}, 2, "more"},
		{[]string{"budget", "--bytes=much"}, 2, "--bytes"},
		{[]string{"budget", "--least=1GiB"}, 2, "--member goes with"},
		{[]string{"budget", "--member=a"}, 2, "--member goes with"},
		{[]string{"budget", "--of=none:0", "--bytes=1GiB"}, 1, "none:0"},
		{[]string{"budget"}, 1, "no server listens"},
	} {
		_, stderr, code := call(t, c.args...)
		require.Equal(t, c.code, code, "%v: %s", c.args, stderr)
		require.Contains(t, stderr, c.says, "%v", c.args)
	}
}

// TestNoBudget: a server without a budget says so to all who ask.
func TestNoBudget(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	started(t, "--socket="+path)
	_, stderr, code := call(t, "--socket="+path, "budget")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "--budget")
	_, stderr, code = call(t, "--socket="+path, "budget", "--bytes=1GiB")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, vmm.ErrNotSupported.Error())
	dev, err := vmm.OpenDriver(host.New(host.Config{}), 0)
	require.NoError(t, err)
	_, err = budget.Join(t.Context(), path, dev, budget.JoinOptions{})
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	require.NoError(t, dev.Close())
}

// TestBudgetCommand: the table shows holders, waiters and givers. A change lasts when another process
// serves, whatever ended the one before.
func TestBudgetCommand(t *testing.T) {
	if withCUDA {
		t.Skip("each member has a driver of its own")
	}
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	p := started(t, "--socket="+path, "--budget=host:0=64MiB")
	a := memberOf(t, path, "a", 8*mib)
	b := memberOf(t, path, "b", 0)
	require.NoError(t, a.g.Grow(48*mib))
	require.NoError(t, b.g.Grow(4*mib))
	table := func() string {
		out, stderr, code := call(t, "--socket="+path, "budget")
		require.Zero(t, code, stderr)
		return out
	}
	require.Eventually(t, func() bool { // it says so each second
		return slices.ContainsFunc(budgets(t, path).Members, func(m budget.MemberReport) bool { return m.Name == "a" && m.Created == 48*mib })
	}, inTime, time.Millisecond)
	require.Regexp(t, `(?m)^a +\d+ +\S+MiB +48MiB +\S+ +8MiB +- +\S+s$`, table())
	require.Regexp(t, `(?m)^b +\d+ +\S+MiB +\S+ +\S+ +0\S* +- +\S+s$`, table(), "it waits for nothing")
	require.Regexp(t, fmt.Sprintf(`(?m)^store +%d +0\S* +0\S* +0\S* +0\S* +- +\S+s$`, p.server(t)), table())

	asked, goOn := make(chan struct{}), make(chan struct{})
	stop := a.dev.OnPressure(func(need error) bool {
		var e *vmm.OpError
		if !errors.As(need, &e) || a.g.Cap() <= 32*mib {
			return false
		}
		select {
		case asked <- struct{}{}:
			<-goOn
		default:
		}
		return a.g.Clip() == nil
	})
	grown := make(chan error, 1)
	go func() { grown <- b.g.Grow(20 * mib) }()
	<-asked
	require.Regexp(t, `(?m)^a .* gives \S+MiB `, table())
	require.Regexp(t, `(?m)^b .* waits for 20MiB `, table())
	close(goOn)
	require.NoError(t, <-grown)
	stop()
	require.NoError(t, a.g.SetLen(0))

	change := func(says string, args ...string) string {
		t.Helper()
		out, stderr, code := call(t, append([]string{"--socket=" + path, "budget"}, args...)...)
		require.Equal(t, says == "", code == 0, stderr)
		require.Contains(t, stderr, says)
		return out
	}
	change("no member is named", "--member=c", "--least=1MiB")
	change("which has", "--bytes=1000TiB")
	change("0 bytes", "--bytes=0")
	change(vmm.ErrLimit.Error(), "--member=a", "--least=1GiB")
	change(vmm.ErrInvalid.Error(), "--member=a", "--least=4MiB", "--most=2MiB")
	require.Contains(t, change("", "--bytes=61MiB"), " of 61MiB idle")
	require.Contains(t, change("", "--bytes=60MiB", "--json"), fmt.Sprintf(`"budget": %d`, 60*mib))
	change("", "--member=a", "--least=4MiB", "--most=50MiB")
	change("", "--member=store", "--least=2MiB")
	has := func() string {
		r := budgets(t, path)
		text := fmt.Sprint(r.Budget / mib)
		slices.SortFunc(r.Members, func(a, b budget.MemberReport) int { return strings.Compare(a.Name, b.Name) })
		for _, m := range r.Members {
			text += fmt.Sprintf(" %s %d to %d", m.Name, m.Least/mib, m.Most/mib)
		}
		return text
	}
	const want = "60 a 4 to 50 b 0 to 0 store 2 to 0"
	require.Equal(t, want, has())
	for i := range 4 {
		was := p.server(t)
		if i%2 == 0 {
			require.NoError(t, syscall.Kill(was, syscall.SIGKILL))
			require.Eventually(t, func() bool { all := childrenOf(t, p.cmd.Process.Pid); return len(all) == 1 && all[0] != was }, inTime, time.Millisecond)
		} else {
			_, stderr, code := call(t, "--socket="+path, "reload")
			require.Zero(t, code, stderr)
		}
		require.Eventually(t, func() bool { return has() == want }, inTime, time.Millisecond) // once the server before has gone
		for _, x := range []*budgetMember{a, b} {                                             // and members know of it
			require.Eventually(t, func() bool { return x.m.Stats().Err == nil && x.m.Stats().Again == uint64(i+1) }, inTime, time.Millisecond)
		}
	}
	require.Equal(t, uint64(50*mib), a.m.Stats().Most)
	require.Zero(t, b.m.Stats().Most)
	require.NoError(t, b.g.Grow(24*mib))
	require.True(t, strings.HasPrefix(table(), "host:0: "))
}
