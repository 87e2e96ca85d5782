package store

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

const hostileBudget = 16 * budgetChunk

// lendingServer is a server with a budget.
func lendingServer(t *testing.T) *Server {
	t.Helper()
	return lendingServerWithin(t, budgetDeadline)
}

// lendingServerWithin has another deadline.
func lendingServerWithin(t *testing.T, deadline time.Duration) *Server {
	t.Helper()
	if withCUDA {
		t.Skip("each member has a driver of its own")
	}
	dev := testDevice(t)
	return listening(t, Options{Budgets: []budget.Budget{{Device: dev, Bytes: hostileBudget}}, hooks: hooks{deadline: deadline}})
}

// joinOf is a valid JOIN.
func (h *hostile) joinOf(token byte) wire.Join {
	return wire.Join{UUID: h.s.dev.Info().UUID, Token: [16]byte{token}, Most: math.MaxUint64, Name: fmt.Sprint("liar", token)}
}

// lent reads until the server lends.
func (h *hostile) lent() wire.Lent {
	h.t.Helper()
	for {
		f, err := h.c.Read()
		require.NoError(h.t, err)
		if f.Type == wire.TypeLent {
			l, err := wire.DecodeLent(f.Payload)
			require.NoError(h.t, err)
			return l
		}
	}
}

// tells sends a frame, and returns what is lent for it.
func (h *hostile) tells(of wire.Type, payload []byte) wire.Lent {
	h.t.Helper()
	require.NoError(h.t, h.send(of, payload))
	return h.lent()
}

// holds is what the members have, and what is idle. The store has nothing, and is not counted.
func holds(s *Server) (leases, idle uint64, members int) {
	r := s.budgets.Reports()[0]
	for _, m := range r.Members {
		leases += m.Lease
	}
	return leases, r.Idle, len(othersOf(r))
}

// TestBudgetLiars: what a member says never makes the server lend more than there is, or end; and frames that cannot
// be end their connection alone.
func TestBudgetLiars(t *testing.T) {
	t.Parallel()
	s := lendingServer(t)
	h := newHostile(t, s)
	require.Equal(t, uint64(0), h.tells(wire.TypeJoin, h.joinOf(1).Append(nil)).More)
	all := h.tells(wire.TypeAsk, wire.Ask{Number: 1, Urgent: true, Need: hostileBudget, Want: math.MaxUint64}.Append(nil))
	require.Zero(t, all.Code)
	require.EqualValues(t, hostileBudget, all.More)
	twice := h.tells(wire.TypeJoin, h.joinOf(1).Append(nil))
	require.EqualValues(t, hostileBudget, twice.More, "a second JOIN hears what is lent, and lends nothing")
	above := h.tells(wire.TypeAsk, wire.Ask{Number: 2, Urgent: true, Need: math.MaxUint64, Want: math.MaxUint64}.Append(nil))
	require.Equal(t, wire.CodeOutOfMemory, above.Code)
	require.Contains(t, above.Text, "all processes may have")
	leases, idle, _ := holds(s)
	require.EqualValues(t, hostileBudget, leases)
	require.Zero(t, idle)

	for name, bad := range map[string]struct {
		of      wire.Type
		payload []byte
		code    uint32 // 0: the connection ends
	}{
		"no such device":    {wire.TypeJoin, wire.Join{Token: [16]byte{9}, Name: "x"}.Append(nil), wire.CodeNotSupported},
		"promised too much": {wire.TypeJoin, wire.Join{UUID: s.dev.Info().UUID, Token: [16]byte{9}, Least: math.MaxUint64, Name: "x"}.Append(nil), wire.CodeLimit},
		"least above most":  {wire.TypeJoin, wire.Join{UUID: s.dev.Info().UUID, Token: [16]byte{9}, Least: 2, Most: 1, Name: "x"}.Append(nil), wire.CodeInvalid},
		"token of zeros":    {wire.TypeJoin, wire.Join{UUID: s.dev.Info().UUID, Name: "x"}.Append(nil), 0},
		"no name":           {wire.TypeJoin, wire.Join{UUID: s.dev.Info().UUID, Token: [16]byte{9}}.Append(nil), 0},
		"odd name":          {wire.TypeJoin, wire.Join{UUID: s.dev.Info().UUID, Token: [16]byte{9}, Name: "a\x1b[2J\n"}.Append(nil), 0},
		"number 0":          {wire.TypeAsk, wire.Ask{Need: 1, Want: 1}.Append(nil), 0},
		"wants less":        {wire.TypeAsk, wire.Ask{Number: 1, Need: 2, Want: 1}.Append(nil), 0},
		"cut short":         {wire.TypeGave, []byte{1}, 0},
		"nothing to change": {wire.TypeTerms, wire.Terms{}.Append(nil), 0},
		"no such member":    {wire.TypeTerms, wire.Terms{Flags: wire.TermsLeast, Member: "none"}.Append(nil), wire.CodeInvalid},
		"a budget of 0":     {wire.TypeTerms, wire.Terms{Flags: wire.TermsBudget}.Append(nil), wire.CodeInvalid},
		"above the card":    {wire.TypeTerms, wire.Terms{Flags: wire.TermsBudget, Budget: math.MaxUint64}.Append(nil), wire.CodeInvalid},
	} {
		x := newHostile(t, s)
		if bad.code != 0 {
			x.refused(bad.code, bad.of, bad.payload)
			continue
		}
		require.NoError(t, x.send(bad.of, bad.payload), name)
		x.lost()
	}

	// Lies of a rejoin: more than it had, and more created than there is.
	h.close()
	again := newHostile(t, s)
	lie := again.joinOf(1)
	lie.Lease, lie.Created = math.MaxUint64, math.MaxUint64
	require.EqualValues(t, hostileBudget, again.tells(wire.TypeJoin, lie.Append(nil)).More)
	stranger := newHostile(t, s)
	lie = stranger.joinOf(2)
	lie.Lease = math.MaxUint64
	require.Zero(t, stranger.tells(wire.TypeJoin, lie.Append(nil)).More, "there is nothing idle")
	require.NoError(t, again.send(wire.TypeGave, wire.Gave{Number: 77, Given: math.MaxUint64, Created: math.MaxUint64, Why: "\x1b[2J"}.Append(nil)))
	await(t, func() string {
		leases, idle, n := holds(s)
		if leases == 0 && idle == hostileBudget && n == 2 {
			return ""
		}
		return fmt.Sprint(leases, idle, n)
	})
	require.NoError(t, again.send(wire.TypeLeave, nil))
	require.NoError(t, stranger.send(wire.TypeLeave, nil))
	isUnused(t, s.Path(), hostileBudget)
}

// TestBudgetMemberNeverReplies: after the deadline the one who needed memory hears who has not answered; others go on.
func TestBudgetMemberNeverReplies(t *testing.T) {
	t.Parallel()
	s := lendingServer(t)
	h := newHostile(t, s)
	h.tells(wire.TypeJoin, h.joinOf(1).Append(nil))
	h.tells(wire.TypeAsk, wire.Ask{Number: 1, Urgent: true, Need: hostileBudget, Want: hostileBudget}.Append(nil))
	c := &counted{t: t, path: s.Path()}
	a := c.join("a", 0)
	err := a.g.Grow(2 * budgetChunk)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, `"liar1" does not answer`)
	require.NoError(t, h.send(wire.TypeGave, wire.Gave{Number: 1, Given: 4 * budgetChunk}.Append(nil))) // late
	a.grow(2)
	h.close()
	require.NoError(t, a.g.Grow(2*budgetChunk), "what came late")
	a.leave()
}

// TestBudgetTokenOfAnother: a process cannot be a member in another's place.
func TestBudgetTokenOfAnother(t *testing.T) {
	t.Parallel()
	s := lendingServer(t)
	h := newHostile(t, s)
	h.tells(wire.TypeJoin, h.joinOf(1).Append(nil))
	c := spawn(t, "thief", s.Path(), fmt.Sprint(s.gran), hex.EncodeToString(h.joinOf(1).Append(nil)))
	require.Equal(t, strconv.Itoa(int(wire.CodePermission)), c.expect("refused"))
	c.wait()
	h.close()
}

// TestBudgetMemberForks: a process that has a member's connections is not the member.
func TestBudgetMemberForks(t *testing.T) {
	t.Parallel()
	s := lendingServer(t)
	c := spawn(t, "member", s.Path(), "m", "0", fmt.Sprint(hostileBudget), "1")
	c.expect("ready")
	c.ask("grow", hostileBudget)
	pid, err := strconv.Atoi(c.ask("fork"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	c.kill()
	isUnused(t, s.Path(), hostileBudget)
	require.NoError(t, syscall.Kill(pid, 0), "its child runs")
}

// TestBudgetMemberStopsWhileItGives: it is named, and what it gives later counts.
func TestBudgetMemberStopsWhileItGives(t *testing.T) {
	t.Parallel()
	s := lendingServer(t)
	m := spawn(t, "member", s.Path(), "m", "0", fmt.Sprint(hostileBudget), "1")
	m.expect("ready")
	m.ask("grow", hostileBudget)
	m.ask("freeze")
	c := &counted{t: t, path: s.Path()}
	a := c.join("a", 0)
	err := a.g.Grow(4 * budgetChunk)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, `"m" does not answer`)
	require.NoError(t, syscall.Kill(m.pid(), syscall.SIGCONT))
	a.grow(4)
	h := holders{budget: hostileBudget}
	h.add(t, m.pid())
	h.look()
	require.LessOrEqual(t, h.most+4*budgetChunk, uint64(hostileBudget))
	m.ask("leave")
	m.wait()
	a.leave()
	isUnused(t, s.Path(), hostileBudget)
}

// twoMembers are one that has all of the budget, and one that waits for half of it.
func twoMembers(t *testing.T, s *Server) (has, waits *hostile) {
	t.Helper()
	has, waits = newHostile(t, s), newHostile(t, s)
	has.tells(wire.TypeJoin, has.joinOf(1).Append(nil))
	all := has.tells(wire.TypeAsk, wire.Ask{Number: 1, Need: hostileBudget, Want: hostileBudget}.Append(nil))
	require.EqualValues(t, hostileBudget, all.More)
	waits.tells(wire.TypeJoin, waits.joinOf(2).Append(nil))
	require.NoError(t, waits.send(wire.TypeAsk, wire.Ask{Number: 1, Urgent: true, Need: hostileBudget / 2, Want: hostileBudget / 2}.Append(nil)))
	f, err := has.c.Read()
	require.NoError(t, err)
	require.Equal(t, wire.TypeDemand, f.Type)
	return has, waits
}

// TestBudgetConnectsAgainWithLess: what a member gave up when it joined again is there for who waits for it, whether
// its connection has ended or not.
func TestBudgetConnectsAgainWithLess(t *testing.T) {
	t.Parallel()
	for name, closes := range map[string]bool{"connection ended": true, "connection open": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := lendingServer(t)
			has, waits := twoMembers(t, s)
			if closes {
				has.close()
			}
			again := newHostile(t, s)
			q := again.joinOf(1)
			q.Lease = hostileBudget / 4
			require.EqualValues(t, q.Lease, again.tells(wire.TypeJoin, q.Append(nil)).More)
			lent := waits.lent()
			require.Zero(t, lent.Code, lent.Text)
			require.EqualValues(t, hostileBudget/2, lent.More)
		})
	}
}

// TestBudgetMemberIsKilledWhileOthersWait: its connection ends before the process does, and all that it had is theirs.
func TestBudgetMemberIsKilledWhileOthersWait(t *testing.T) {
	t.Parallel()
	s := lendingServerWithin(t, 2*time.Second) // more than a process needs to end
	for range 5 {
		m := spawn(t, "member", s.Path(), "m", "0", fmt.Sprint(hostileBudget), "1")
		m.expect("ready")
		m.ask("grow", hostileBudget)
		m.ask("freeze")
		h := newHostile(t, s)
		h.tells(wire.TypeJoin, h.joinOf(2).Append(nil))
		before := s.budgets.Reports()[0].Counts.Demands
		require.NoError(t, h.send(wire.TypeAsk, wire.Ask{Number: 1, Urgent: true, Need: hostileBudget / 2, Want: hostileBudget / 2}.Append(nil)))
		require.Eventually(t, func() bool { return s.budgets.Reports()[0].Counts.Demands > before }, inTime, time.Millisecond)
		m.kill()
		lent := h.lent()
		require.Zero(t, lent.Code, lent.Text)
		require.NoError(t, h.send(wire.TypeLeave, nil))
		isUnused(t, s.Path(), hostileBudget)
		h.close()
	}
}

// TestBudgetPromisesNoMoreThanThereIs: also to who says that it had a lease.
func TestBudgetPromisesNoMoreThanThereIs(t *testing.T) {
	t.Parallel()
	s := lendingServer(t)
	h := newHostile(t, s)
	promised := h.joinOf(1)
	promised.Least = hostileBudget / 2
	h.tells(wire.TypeJoin, promised.Append(nil))
	for name, c := range map[string]struct{ least, most, promised uint64 }{
		"too much":   {hostileBudget/2 + 1, math.MaxUint64, hostileBudget / 2},
		"above most": {2, 1, 1},
	} {
		x := newHostile(t, s)
		q := x.joinOf(2)
		q.Lease, q.Least, q.Most = 1, c.least, c.most
		require.Equal(t, c.promised, x.tells(wire.TypeJoin, q.Append(nil)).Least, name)
		require.NoError(t, x.send(wire.TypeLeave, nil))
		x.close()
		await(t, func() string {
			if _, _, n := holds(s); n != 1 {
				return fmt.Sprint(n, " members")
			}
			return ""
		})
	}
}
