package broker_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
	require.EqualValues(t, 70, b.Members()[1].Want-(unbounded-70))
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
	actions := b.Ask(4, 3, urgent(6))
	require.Equal(t, "refused 3 to 4: 5", show(actions))
	require.ErrorIs(t, actions[0].Err, vmm.ErrBusy)
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
}
