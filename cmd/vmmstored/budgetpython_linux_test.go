package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// pythonMember is testdata/member.py, a member in a process of its own.
type pythonMember struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

// pythonState is what it says after each command.
type pythonState struct {
	Err                           string
	Lease, Used, Pressed, Granted uint64
}

func startPythonMember(t *testing.T, path, name string, least uint64) *pythonMember {
	t.Helper()
	if withCUDA {
		t.Skip("the allocator is a fake one, of host memory")
	}
	const version = "import sys; assert sys.version_info >= (3, 9)"
	if out, err := exec.CommandContext(t.Context(), "python3", "-c", version).CombinedOutput(); err != nil {
		t.Skipf("needs python3, 3.9 at least: %v\n%s", err, out)
	}
	p := &pythonMember{t: t, cmd: exec.CommandContext(t.Context(), "python3", "-BS", "testdata/member.py", path, name, fmt.Sprint(least))}
	p.cmd.Stderr = t.Output()
	in, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.in, p.out = in, bufio.NewReader(out)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = p.cmd.Wait() // again, where it has ended
	})
	p.state()
	return p
}

func (p *pythonMember) state() (s pythonState) {
	p.t.Helper()
	line, err := p.out.ReadBytes('\n')
	require.NoError(p.t, err)
	return p.stateOf(line)
}

func (p *pythonMember) stateOf(line []byte) (s pythonState) {
	p.t.Helper()
	require.NoError(p.t, json.Unmarshal(line, &s), "%s", line)
	return s
}

func (p *pythonMember) do(word string, size uint64) pythonState {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, word, size)
	require.NoError(p.t, err)
	return p.state()
}

// budgeted is a budget with a member in this process that gives the end of its vector.
type budgeted struct {
	t      *testing.T
	path   string
	d      *vmm.Device
	member *budget.Member
	g      *vmm.Range
}

func newBudgeted(t *testing.T, path string) *budgeted {
	t.Helper()
	d, err := vmm.OpenDriver(host.New(host.Config{Granularity: 64 << 10}), 0)
	require.NoError(t, err)
	b := &budgeted{t: t, path: path, d: d}
	b.member, err = budget.Join(t.Context(), path, b.d, budget.JoinOptions{Name: "go"})
	require.NoError(t, err)
	b.g, err = b.d.NewRange(vmm.RangeOptions{Max: 1 << 30, Chunk: mib})
	require.NoError(t, err)
	remove := b.d.OnPressure(func(need error) bool {
		var e *vmm.OpError
		if !errors.As(need, &e) || e.Op != "give" {
			return false
		}
		n := b.g.Len()
		return b.g.SetLen(n-min(n, e.Size)) == nil && b.g.Clip() == nil && b.g.Len() < n
	})
	t.Cleanup(func() {
		remove()
		require.NoError(t, b.g.Close())
		require.NoError(t, b.member.Close())
		require.NoError(t, d.Close())
	})
	return b
}

func (b *budgeted) grow(to uint64) {
	b.t.Helper()
	require.NoError(b.t, errors.Join(b.g.Grow(to-b.g.Len()), b.g.SetLen(to)))
	b.report()
}

// report checks that no more is lent than there is. It is what members have but for the store, which has nothing.
func (b *budgeted) report() map[string]budget.MemberReport {
	b.t.Helper()
	all, err := budget.Reports(b.t.Context(), b.path, b.d, shareable.AttachOptions{})
	require.NoError(b.t, err)
	require.Len(b.t, all, 1)
	members, sum := map[string]budget.MemberReport{}, uint64(0)
	for _, m := range all[0].Members {
		members[m.Name] = m
		sum += m.Lease
	}
	require.Contains(b.t, members, "store")
	delete(members, "store")
	require.LessOrEqual(b.t, sum, all[0].Budget)
	return members
}

// toAndFro hands memory over from Python to Go and back. Both have their share of 64 MiB at the end.
func (b *budgeted) toAndFro(p *pythonMember) {
	b.t.Helper()
	b.grow(32 * mib)
	s := p.do("allocate", 0)
	require.Equal(b.t, uint64(32*mib), s.Used, "it has given what is beyond its share")
	require.LessOrEqual(b.t, s.Lease, uint64(32*mib))
	require.NoError(b.t, errors.Join(b.g.SetLen(8*mib), b.g.Clip()))
	require.Empty(b.t, p.do("allocate", 16*mib).Err, "what Go has given up of itself")
	require.Empty(b.t, p.do("drop", 40*mib).Err)
	b.grow(52 * mib)
	require.Empty(b.t, p.do("allocate", 20*mib).Err)
	require.LessOrEqual(b.t, b.g.Cap(), uint64(36*mib), "Go has given")
	require.Empty(b.t, p.do("allocate", 4*mib).Err)
	b.report()
}

// TestPythonMember: a member in Python and one in Go hand memory over, both ways.
func TestPythonMember(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	started(t, "--socket="+path, "--budget=host:0=64MiB")
	p := startPythonMember(t, path, "python", 0)
	b := newBudgeted(t, path)
	require.Zero(t, p.do("allocate", 60*mib).Pressed)

	p.do("drop", 10*mib)
	b.grow(10 * mib)
	s := p.do("allocate", 0)
	require.Equal(t, uint64(50*mib), s.Used)
	require.Zero(t, s.Pressed, "its cache was enough")
	p.do("nest", 1)
	err := b.g.Grow(10 * mib)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, `"python" gave`)
	require.ErrorContains(t, err, "RuntimeError: reserve is for")
	p.do("nest", 0)
	b.toAndFro(p)

	require.Contains(t, p.do("allocate", 30*mib).Err, "the share of this process is 32 MiB")
	require.Empty(t, p.do("fork", 0).Err)
	s = p.do("take", mib)
	require.Eventually(t, func() bool { return b.report()["python"].Created == s.Used }, inTime, time.Millisecond)
	p.do("drop", 33*mib)
	p.do("close", 0)
	require.Eventually(t, func() bool { return len(b.report()) == 1 }, inTime, time.Millisecond)
	b.grow(64 * mib)
}

// TestPythonMemberKilled: all that it had goes to the others.
func TestPythonMemberKilled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	started(t, "--socket="+path, "--budget=host:0=64MiB")
	p := startPythonMember(t, path, "python", 32*mib)
	b := newBudgeted(t, path)
	require.GreaterOrEqual(t, p.do("allocate", 0).Lease, uint64(32*mib))
	require.Empty(t, p.do("allocate", 60*mib).Err)
	require.NoError(t, p.cmd.Process.Kill())
	_ = p.cmd.Wait()
	b.grow(64 * mib)
	require.Len(t, b.report(), 1)
}

// TestPythonMemberGoesOn: the server is killed, then the whole daemon. Both members keep what they have, and go on.
func TestPythonMemberGoesOn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	args := []string{"--socket=" + path, "--budget=host:0=64MiB"}
	daemon := started(t, args...)
	p := startPythonMember(t, path, "python", 0)
	b := newBudgeted(t, path)
	both := func() bool {
		all := b.report()
		return len(all) == 2 && !all["python"].IsSilent && !all["go"].IsSilent && b.member.Stats().Err == nil
	}
	for range 2 {
		require.Empty(t, p.do("allocate", 40*mib-p.do("allocate", 0).Used).Err)
		b.toAndFro(p)
		require.NoError(t, errors.Join(b.g.SetLen(8*mib), b.g.Clip()))
		was := daemon.server(t)
		require.NoError(t, syscall.Kill(was, syscall.SIGKILL))
		require.Eventually(t, func() bool { return daemon.server(t) != was }, inTime, time.Millisecond)
		require.Eventually(t, both, inTime, 10*time.Millisecond)
	}
	require.Empty(t, p.do("allocate", 20*mib).Err)
	require.NoError(t, daemon.cmd.Process.Kill())
	daemon.ended(t)
	used := p.do("allocate", 0).Used
	started(t, args...)
	require.Eventually(t, both, inTime, 10*time.Millisecond)
	require.Equal(t, used, b.report()["python"].Created)
	require.GreaterOrEqual(t, b.report()["python"].Lease, used)
	require.Empty(t, p.do("allocate", 40*mib-min(40*mib, used)).Err)
	b.toAndFro(p)
}

// TestPythonMemberStorm: threads of two members in Python, and one in Go, allocate and give up at random, while the
// server is killed.
func TestPythonMemberStorm(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	daemon := started(t, "--socket="+path, "--budget=host:0=64MiB")
	p, q := startPythonMember(t, path, "python", 8*mib), startPythonMember(t, path, "another", 0)
	b := newBudgeted(t, path)
	length := testgate.Effort(2*time.Second, 10*time.Second, 30*time.Second)
	for _, x := range []*pythonMember{p, q} {
		_, err := fmt.Fprintln(x.in, "storm", length.Milliseconds())
		require.NoError(t, err)
	}
	both := make(chan [2][]byte, 1)
	go func() {
		first, _ := p.out.ReadBytes('\n') // an error: there is no state
		second, _ := q.out.ReadBytes('\n')
		both <- [2][]byte{first, second}
	}()
	random, grown := rand.New(rand.NewPCG(1, 2)), 0
	var ends [2][]byte
	for i, over := 0, false; !over; i++ {
		if to := uint64(random.IntN(40)) * mib; to < b.g.Len() {
			require.NoError(t, errors.Join(b.g.SetLen(to), b.g.Clip()))
		} else if err := b.g.Grow(to - b.g.Len()); err == nil {
			grown++
			_ = b.g.SetLen(to) // OnPressure may have taken it meanwhile
		}
		b.report()
		if i == 100 {
			require.NoError(t, syscall.Kill(daemon.server(t), syscall.SIGKILL))
		}
		select {
		case ends = <-both:
			over = true
		default:
		}
	}
	s, another := p.stateOf(ends[0]), q.stateOf(ends[1])
	t.Logf("python %+v, another %+v, go grown %d times, %+v", s, another, grown, b.member.Stats())
	require.Positive(t, min(s.Granted, another.Granted, uint64(grown)))
	require.NoError(t, errors.Join(b.g.SetLen(0), b.g.Clip()))
	require.Empty(t, p.do("drop", 64*mib).Err)
	require.Empty(t, q.do("drop", 64*mib).Err)
	require.Empty(t, p.do("allocate", 64*mib-mib).Err, "all is back")
}
