package broker_test

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cuvmm/cuvmm/shareable/internal/broker"
	"github.com/cuvmm/cuvmm/vmm"
)

const unbounded = math.MaxUint64

// show is a list of actions in one line.
func show(actions []broker.Action) string {
	list := make([]string, len(actions))
	for i, a := range actions {
		kind := a.Kind.String()
		if a.Soft {
			kind = "soft " + kind
		}
		list[i] = fmt.Sprintf("%s %d to %d: %d", kind, a.Number, a.To, a.Lease)
	}
	return strings.Join(list, "; ")
}

// held is a member that has joined with so much.
func held(t *testing.T, b *broker.Broker, id broker.ID, terms broker.Terms, lease uint64) {
	t.Helper()
	require.NoError(t, b.Join(id, fmt.Sprint("m", id), terms, lease, 0))
}

// four is a Broker of 100 bytes with members of 40, 30, 20 and 0 bytes; the first is promised 10.
func four(t *testing.T) *broker.Broker {
	t.Helper()
	b := broker.New(100)
	held(t, b, 1, broker.Terms{Least: 10}, 40)
	held(t, b, 2, broker.Terms{}, 30)
	held(t, b, 3, broker.Terms{}, 20)
	held(t, b, 4, broker.Terms{}, 0)
	return b
}

func urgent(need uint64) broker.Ask      { return broker.Ask{Need: need, Want: need, Urgent: true} }
func wants(need, want uint64) broker.Ask { return broker.Ask{Need: need, Want: want} }

func leases(b *broker.Broker) (list []uint64) {
	for _, m := range b.Members() {
		list = append(list, m.Lease)
	}
	return list
}

func shares(b *broker.Broker) (list []uint64) {
	for _, m := range b.Members() {
		list = append(list, m.Share)
	}
	return list
}

func TestJoin(t *testing.T) {
	t.Parallel()
	b := broker.New(100)
	require.ErrorIs(t, b.Join(1, "", broker.Terms{Least: 3, Most: 2}, 0, 0), vmm.ErrInvalid)
	require.ErrorIs(t, b.Join(1, "", broker.Terms{Least: 101}, 0, 0), vmm.ErrLimit)
	require.NoError(t, b.Join(1, "", broker.Terms{Least: 60, Most: 60}, 0, 0))
	require.ErrorIs(t, b.Join(1, "", broker.Terms{}, 0, 0), vmm.ErrInvalid)
	require.ErrorContains(t, b.Join(2, "", broker.Terms{Least: 41}, 0, 0), "41 bytes to promise, and 40 bytes of a budget of 100 bytes are promised to no one")
	require.ErrorIs(t, b.Join(2, "", broker.Terms{Least: unbounded}, 0, 0), vmm.ErrLimit)
	require.NoError(t, b.Join(2, "x", broker.Terms{Least: 40}, 70, 5))
	require.Equal(t, broker.Member{ID: 2, Name: "x", Terms: broker.Terms{Least: 40}, Lease: 70, Created: 5, Share: 70}, b.Members()[1])
	require.EqualValues(t, 30, b.Idle())
	require.Empty(t, b.Leave(2))
	require.EqualValues(t, 100, b.Idle())
	require.Empty(t, b.Leave(2))
	require.EqualValues(t, 100, b.Budget())
}

// Rule 1: a grant passes neither the budget nor the room nor the most of a member.
func TestGrants(t *testing.T) {
	t.Parallel()
	b := broker.New(100)
	held(t, b, 1, broker.Terms{Most: 50}, 0)
	held(t, b, 2, broker.Terms{}, 0)
	require.Equal(t, "granted 1 to 1: 50", show(b.Ask(1, 1, wants(60, 70))))
	require.Equal(t, "granted 1 to 2: 50", show(b.Ask(2, 1, wants(60, 70))))
	require.Equal(t, "granted 2 to 2: 50", show(b.Ask(2, 2, wants(10, 20))), "an ask lowers nothing")
	require.Equal(t, "", show(b.SetRoom(80)))
	require.Zero(t, b.Idle())
	require.Equal(t, "", show(b.Gave(1, 9, 40, 0, "")), "still above the room")
	require.Equal(t, "granted 3 to 2: 50", show(b.Ask(2, 3, wants(60, 70))))
	require.Equal(t, "", show(b.SetRoom(unbounded)))
	require.Equal(t, "granted 4 to 2: 60", show(b.Ask(2, 4, wants(0, unbounded))))
}

// Rule 2.
func TestShares(t *testing.T) {
	t.Parallel()
	b := four(t)
	require.Equal(t, []uint64{40, 30, 20, 0}, shares(b))
	b.Ask(4, 1, urgent(50))
	require.Equal(t, []uint64{33, 23, 20, 23}, shares(b), "10 to the first, and 23 to each that claims it; 1 is left")

	b = broker.New(unbounded)
	held(t, b, 1, broker.Terms{Least: unbounded}, unbounded)
	held(t, b, 2, broker.Terms{}, unbounded)
	require.Equal(t, []uint64{unbounded, 0}, shares(b))
	require.Zero(t, b.Idle())
	b = broker.New(unbounded - 1)
	held(t, b, 1, broker.Terms{}, unbounded)
	held(t, b, 2, broker.Terms{}, unbounded)
	require.Equal(t, []uint64{unbounded / 2, unbounded / 2}, shares(b))
}

// Rule 3.
func TestAsksThatAreNotUrgent(t *testing.T) {
	t.Parallel()
	b := four(t)
	require.Equal(t, "granted 1 to 4: 5", show(b.Ask(4, 1, wants(5, 5))))
	require.Equal(t, "soft demand 1 to 1: 30; soft demand 2 to 2: 20; soft demand 3 to 3: 10", show(b.Ask(4, 2, urgent(20))))
	require.Equal(t, "granted 1 to 3: 20", show(b.Ask(3, 1, wants(21, 30))), "5 are idle, for the one that waits")
	require.Equal(t, "granted 2 to 4: 20", show(b.Gave(1, 1, 30, 0, "")))
	require.Equal(t, "granted 2 to 3: 20", show(b.Ask(3, 2, wants(21, 30))))
}

// Rule 4: what is granted or refused at once.
func TestUrgentAsksAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	b := four(t)
	require.NoError(t, second(b.SetTerms(2, broker.Terms{Most: 50})))
	require.Equal(t, "granted 1 to 4: 10", show(b.Ask(4, 1, broker.Ask{Need: 5, Want: 15, Urgent: true})))
	require.Equal(t, "granted 1 to 3: 20", show(b.Ask(3, 1, urgent(20))))
	for _, c := range []struct {
		id   broker.ID
		need uint64
		text string
	}{
		{2, 51, "out of memory: 51 bytes needed, and this process may have 50 bytes"},
		{3, 101, "out of memory: 101 bytes needed, and all processes may have 100 bytes"},
		{3, 96, "out of memory: 96 bytes needed, and the device has for all processes 95 bytes"},
	} {
		b.SetRoom(95)
		actions := b.Ask(c.id, 7, urgent(c.need))
		require.Equal(t, broker.Refused, actions[0].Kind)
		require.ErrorIs(t, actions[0].Err, vmm.ErrOutOfMemory)
		require.EqualError(t, actions[0].Err, c.text)
	}
}

func second[T any](_ T, err error) error { return err }

// Rule 4: soft demands, then hard ones, then the end.
func TestUrgentAsk(t *testing.T) {
	t.Parallel()
	ask := func(t *testing.T, need uint64) *broker.Broker {
		b := four(t)
		require.Equal(t, "soft demand 1 to 1: 28; soft demand 2 to 2: 18; soft demand 3 to 3: 8", show(b.Ask(4, 1, broker.Ask{Need: need, Want: 30, Urgent: true})))
		return b
	}
	t.Run("soft demands are enough", func(t *testing.T) {
		t.Parallel()
		b := ask(t, 22)
		require.Equal(t, "", show(b.Gave(1, 1, 35, 0, "")))
		require.Equal(t, "granted 1 to 4: 24", show(b.Gave(2, 2, 21, 0, "")))
		require.Equal(t, "", show(b.Gave(3, 3, 8, 0, "")), "the yield of a demand whose asker was served is idle")
		require.EqualValues(t, 12, b.Idle())
	})
	t.Run("hard demands", func(t *testing.T) {
		t.Parallel()
		b := ask(t, 22)
		require.Equal(t, "", show(b.Gave(1, 1, 39, 0, "")))
		require.Equal(t, "", show(b.Gave(3, 3, 20, 0, "")))
		require.Equal(t, []uint64{34, 24, 20, 22}, shares(b))
		require.Equal(t, "demand 5 to 1: 34; demand 4 to 2: 24", show(b.Gave(2, 2, 30, 0, "")), "the most over its share first")
		require.Equal(t, "", show(b.Gave(1, 5, 34, 0, "")))
		actions := b.Gave(2, 4, 28, 0, "pinned")
		require.Equal(t, "refused 1 to 4: 0", show(actions))
		require.EqualError(t, actions[0].Err, "out of memory: 22 bytes needed, and 4 bytes lack; "+
			`the share of this process is 22 bytes; "m2" gave 4 bytes less than demanded: "pinned"`)
	})
	t.Run("above its share", func(t *testing.T) {
		t.Parallel()
		b := ask(t, 22)
		require.NoError(t, b.Join(5, "late", broker.Terms{}, 8, 0))
		require.Equal(t, "soft demand 4 to 5: 0", show(b.Gave(1, 1, 40, 0, "")), "it came meanwhile")
		b.Gave(2, 2, 30, 0, "")
		require.Equal(t, "", show(b.Gave(3, 3, 20, 0, "")))
		require.Equal(t, []uint64{30, 20, 20, 20, 8}, shares(b))
		actions := b.Expire(4)
		require.Equal(t, "refused 1 to 4: 0", show(actions))
		require.EqualError(t, actions[0].Err, "out of memory: 22 bytes needed, and 20 bytes lack; the share of this process is 20 bytes")
	})
}

// Rule 4: a member that has a hard demand waits for nothing itself, and is told so first.
func TestWhoGivesDoesNotWait(t *testing.T) {
	t.Parallel()
	b := broker.New(100)
	held(t, b, 1, broker.Terms{}, 80)
	held(t, b, 2, broker.Terms{}, 20)
	require.Equal(t, "soft demand 1 to 1: 70", show(b.Ask(2, 1, urgent(30))))
	require.Equal(t, "soft demand 2 to 2: 0", show(b.Ask(1, 1, urgent(90))))
	actions := b.Gave(1, 1, 80, 80, "")
	require.Equal(t, "refused 1 to 1: 80; demand 3 to 1: 70", show(actions))
	require.EqualError(t, actions[0].Err, "out of memory: 90 bytes needed, and 20 bytes lack; the share of this process is 70 bytes")
	require.Equal(t, "refused 2 to 1: 80", show(b.Ask(1, 2, urgent(85))), "it has the demand still")
	require.Equal(t, "granted 3 to 1: 80", show(b.Ask(1, 3, urgent(80))), "it has that")
	require.Equal(t, "granted 1 to 2: 30", show(b.Gave(1, 3, 70, 70, "")))
}

// Rule 4: urgent asks are served in their order.
func TestUrgentAsksInOrder(t *testing.T) {
	t.Parallel()
	b := broker.New(100)
	held(t, b, 1, broker.Terms{}, 100)
	held(t, b, 2, broker.Terms{}, 0)
	held(t, b, 3, broker.Terms{}, 0)
	require.Equal(t, "soft demand 1 to 1: 90", show(b.Ask(2, 1, broker.Ask{Need: 10, Want: 30, Urgent: true})))
	require.Equal(t, "", show(b.Ask(3, 1, urgent(5))), "it waits for the demand that is there")
	require.Equal(t, "", show(b.Gave(1, 7, 94, 0, "")), "6 are idle, for the first one")
	require.Equal(t, "demand 2 to 1: 90", show(b.Gave(1, 1, 94, 0, "")))
	require.Equal(t, "granted 1 to 2: 10; granted 1 to 3: 5", show(b.Gave(1, 2, 85, 0, "")), "and not what the first one wants")

	require.Equal(t, "soft demand 3 to 1: 65; soft demand 4 to 3: 0", show(b.Ask(2, 2, urgent(30))))
	require.Equal(t, "soft demand 5 to 2: 0", show(b.Ask(3, 2, urgent(30))))
	require.Equal(t, "soft demand 6 to 1: 40; granted 2 to 2: 30", show(b.Gave(1, 3, 65, 0, "")), "it gave all of that: perhaps it has more")
	require.Equal(t, "", show(b.Withdraw(2)))
	require.Equal(t, []uint64{65, 30, 5}, leases(b))
}

// Rule 5.
func TestSilentMembers(t *testing.T) {
	t.Parallel()
	b := four(t)
	require.NoError(t, second(b.SetTerms(4, broker.Terms{Most: 30})))
	b.Ask(4, 1, urgent(22))
	require.Equal(t, "", show(b.Expire(1)))
	require.Equal(t, "", show(b.Expire(1)))
	require.True(t, b.Members()[0].Silent)
	b.Gave(3, 3, 20, 0, "")
	require.Equal(t, "demand 4 to 2: 24", show(b.Gave(2, 2, 30, 0, "")))
	actions := b.Gave(2, 4, 24, 0, "")
	require.Equal(t, "refused 1 to 4: 0", show(actions))
	require.EqualError(t, actions[0].Err, "out of memory: 22 bytes needed, and 6 bytes lack; "+
		`the share of this process is 22 bytes; "m1" does not answer`)
	require.Equal(t, "soft demand 5 to 2: 18; soft demand 6 to 3: 14", show(b.Ask(4, 2, urgent(22))))
	require.Equal(t, "granted 2 to 4: 22", show(b.Gave(1, 1, 34, 3, "")), "late")
	require.False(t, b.Members()[0].Silent)
	require.EqualValues(t, 3, b.Members()[0].Created)
	require.Equal(t, "", show(b.Expire(5)))
	b.Said(2, 9)
	require.Equal(t, broker.Member{ID: 2, Name: "m2", Lease: 24, Created: 9, Share: 24}, b.Members()[1])
}

func TestAbsentMembers(t *testing.T) {
	t.Parallel()
	b := four(t)
	b.Ask(4, 1, urgent(22))
	require.Equal(t, "", show(b.Absent(1)))
	b.Gave(2, 2, 24, 0, "")
	actions := b.Gave(3, 3, 20, 0, "")
	require.EqualError(t, actions[0].Err, "out of memory: 22 bytes needed, and 6 bytes lack; "+
		`the share of this process is 22 bytes; "m1" is not connected`)
	b.Ask(4, 2, urgent(22))
	lease, actions := b.Back(1, 41, 7)
	require.EqualValues(t, 40, lease)
	require.Equal(t, "soft demand 6 to 1: 34", show(actions))
	lease, actions = b.Back(1, 30, 7)
	require.EqualValues(t, 30, lease)
	require.Equal(t, "granted 2 to 4: 22", show(actions))
	b.Ask(4, 3, urgent(60))
	b.Absent(4)
	require.Equal(t, "", show(b.Leave(1)), "the ask is gone")
	require.Equal(t, []uint64{24, 20, 22}, leases(b))
}

// Rule 6.
func TestWithdraw(t *testing.T) {
	t.Parallel()
	b := four(t)
	b.Ask(4, 1, urgent(22))
	require.Equal(t, "", show(b.Withdraw(4)))
	require.EqualValues(t, 12, b.Members()[0].Demanded)
	require.Equal(t, "", show(b.Ask(4, 2, urgent(22))), "the demands are there")
	require.Equal(t, "", show(b.Withdraw(4)))
	require.Equal(t, "", show(b.Gave(1, 1, 28, 0, "")))
	require.EqualValues(t, 22, b.Idle())
	require.Zero(t, b.Members()[0].Demanded)
}

// A member that asks again has given up its ask before: that one is not replied to, and what was demanded for it counts.
func TestAskInPlaceOfAnother(t *testing.T) {
	t.Parallel()
	b := four(t)
	b.Ask(4, 1, urgent(22))
	b.Ask(3, 1, urgent(35))
	require.Equal(t, "", show(b.Ask(4, 2, urgent(15))), "it waits for the same demands, after the ask of the third")
	require.EqualValues(t, 15, b.Waits(4))
	require.Equal(t, "soft demand 4 to 1: 20; granted 1 to 3: 35", show(b.Gave(1, 1, 28, 0, "")))
	require.Equal(t, "granted 2 to 4: 15", show(b.Gave(2, 2, 12, 0, "")))
}

// Rule 7.
func TestLoweredTermsAndBudget(t *testing.T) {
	t.Parallel()
	b := four(t)
	actions, err := b.SetTerms(1, broker.Terms{Least: 10, Most: 25})
	require.NoError(t, err)
	require.Equal(t, "demand 1 to 1: 25", show(actions))
	require.ErrorIs(t, second(b.SetTerms(1, broker.Terms{Least: 26, Most: 25})), vmm.ErrInvalid)
	require.ErrorIs(t, second(b.SetTerms(2, broker.Terms{Least: 91})), vmm.ErrLimit)
	require.ErrorIs(t, second(b.SetTerms(9, broker.Terms{})), vmm.ErrInvalid)
	require.Equal(t, "demand 2 to 2: 20", show(b.SetBudget(70)), "shares are 30, 20 and 20")
	require.Equal(t, "", show(b.Gave(2, 2, 30, 0, "in use")), "it is not asked again")
	require.Equal(t, "", show(b.Gave(1, 1, 25, 0, "")))
	require.Equal(t, "demand 3 to 1: 10; demand 4 to 2: 0; demand 5 to 3: 0", show(b.SetBudget(5)), "never below the least")
	require.NoError(t, second(b.SetTerms(1, broker.Terms{Least: 9})), "it need not fit if it is lower")

	b = four(t)
	b.Ask(4, 1, urgent(50))
	require.Equal(t, "refused 1 to 4: 0", show(b.SetRoom(49)))
	b.Gave(1, 1, 40, 0, "")
	b.Ask(4, 2, urgent(11))
	b.Expire(2)
	require.Equal(t, "refused 2 to 4: 0", show(b.SetBudget(10)), "the first one has a demand, and the second is silent")
}

// Shares add up to the limit as far as they can, whatever the sizes.
func TestSharesOfAnySize(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.Uint64().Draw(t, "budget")
		b, left, claims, n := broker.New(budget), budget, new(big.Int), rapid.Uint64Range(1, 6).Draw(t, "members")
		for id := range n {
			least := rapid.Uint64Range(0, left).Draw(t, "least")
			left -= least
			lease := rapid.Uint64().Draw(t, "lease")
			claims.Add(claims, new(big.Int).SetUint64(lease))
			require.NoError(t, b.Join(broker.ID(id), "", broker.Terms{Least: least}, lease, 0))
		}
		sum, limit := new(big.Int), new(big.Int).SetUint64(budget)
		for _, m := range b.Members() {
			sum.Add(sum, new(big.Int).SetUint64(m.Share))
			require.GreaterOrEqual(t, m.Share, min(m.Lease, m.Least))
			require.LessOrEqual(t, m.Share, m.Lease)
		}
		if claims.Cmp(limit) <= 0 {
			require.Zero(t, sum.Cmp(claims))
			return
		}
		require.LessOrEqual(t, sum.Cmp(limit), 0)
		require.Positive(t, sum.Add(sum, new(big.Int).SetUint64(n)).Cmp(limit))
	})
}

// TestRestore: who had a lease of a Broker before counts whatever the terms and the budget are now, and is asked to
// come down to them once it is back.
func TestRestore(t *testing.T) {
	b := broker.New(50)
	b.Restore(1, "one", broker.Terms{Least: 30}, 30)
	b.Restore(2, "two", broker.Terms{Least: 30, Most: 35}, 40)
	require.Zero(t, b.Idle())
	require.Equal(t, "", show(b.SetBudget(50)))
	lease, all := b.Back(2, 40, 40)
	require.EqualValues(t, 40, lease)
	require.Equal(t, "demand 1 to 2: 30", show(all))
	require.Equal(t, "", show(b.Gave(2, 1, 30, 30, "")))
	lease, all = b.Back(1, 30, 30)
	require.EqualValues(t, 30, lease)
	require.Equal(t, "", show(all))
	require.Zero(t, b.Idle())
}

// TestWaits: a member waits from its urgent ask to the reply.
func TestWaits(t *testing.T) {
	b := broker.New(50)
	require.NoError(t, b.Join(1, "one", broker.Terms{}, 50, 50))
	require.NoError(t, b.Join(2, "two", broker.Terms{}, 0, 0))
	show(b.Ask(2, 1, wants(10, 20)))
	require.Zero(t, b.Waits(2))
	require.Equal(t, "soft demand 1 to 1: 40", show(b.Ask(2, 2, urgent(10))))
	require.EqualValues(t, 10, b.Waits(2))
	show(b.Gave(1, 1, 40, 40, ""))
	require.Zero(t, b.Waits(2))
}

// TestLoweredBudgetIsAskedForAgain: of who did not answer, once it says something, and of who has connected again.
func TestLoweredBudgetIsAskedForAgain(t *testing.T) {
	for name, then := range map[string]func(b *broker.Broker, n broker.Number) []broker.Action{
		"silent": func(b *broker.Broker, n broker.Number) []broker.Action {
			require.Empty(t, b.Expire(n))
			return b.Gave(1, 0, 90, 90, "")
		},
		"connected again": func(b *broker.Broker, _ broker.Number) []broker.Action {
			require.Empty(t, b.Absent(1))
			_, all := b.Back(1, 90, 90)
			return all
		},
	} {
		b := broker.New(100)
		require.NoError(t, b.Join(1, "one", broker.Terms{}, 90, 90))
		first := b.SetBudget(50)
		require.Len(t, first, 1, name)
		again := then(b, first[0].Number)
		require.Len(t, again, 1, name)
		require.Equal(t, broker.Demand, again[0].Kind, name)
		require.EqualValues(t, 50, again[0].Lease, name)
	}
}
