package ledger_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cuvmm/cuvmm/shareable/internal/ledger"
	"github.com/cuvmm/cuvmm/vmm"
)

func limited(users int, all, user uint64) *ledger.Ledger {
	limits := map[ledger.Kind]ledger.Limit{}
	for k := ledger.Bytes; k <= ledger.Records; k++ {
		limits[k] = ledger.Limit{All: all, User: user}
	}
	return ledger.New(users, limits)
}

// TestLedger: the counts are the sums of what was reserved and not returned, and no limit is
// passed.
func TestLedger(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const all, user = 100, 60
		l := limited(3, all, user)
		type had struct {
			user uint32
			a    ledger.Amounts
		}
		var have []had
		sum := func(of func(had) bool) (s ledger.Amounts) {
			for _, h := range have {
				if of(h) {
					s = s.Plus(h.a)
				}
			}
			return s
		}
		check := func() {
			require.Equal(t, sum(func(had) bool { return true }), l.All())
			for u := range uint32(3) {
				require.Equal(t, sum(func(h had) bool { return h.user == u }), l.Users()[u])
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			h := had{user: rapid.Uint32Range(0, 2).Draw(t, "user")}
			for k := range h.a {
				h.a[k] = rapid.Uint64Range(0, 40).Draw(t, "amount")
			}
			if i := rapid.IntRange(0, 2*len(have)).Draw(t, "return"); i < len(have) {
				l.Return(have[i].user, have[i].a)
				have = append(have[:i], have[i+1:]...)
				check()
				continue
			}
			fits := true
			for k := range h.a {
				fits = fits && (h.a[k] == 0 || l.All()[k]+h.a[k] <= all && l.Users()[h.user][k]+h.a[k] <= user)
			}
			err := l.Reserve(h.user, h.a)
			if fits {
				require.NoError(t, err)
				have = append(have, h)
			} else {
				require.ErrorIs(t, err, vmm.ErrLimit)
			}
			check()
		}
	})
}

// TestPlanTakesNoShare: what others have helps only as far as it is more than their share, and for
// the limit of all alone.
func TestPlanTakesNoShare(t *testing.T) {
	const me, other = 1, 2
	some := func(n uint64) ledger.Amounts { return ledger.Amounts{ledger.Bytes: n} }
	l := limited(2, 100, 80)
	l.Add(me, some(30))
	l.Add(other, some(60))
	p := l.Plan(me, some(40))
	require.ErrorContains(t, p.Err(), "of at most 100")
	require.False(t, p.Helps(other, ledger.Amounts{ledger.Objects: 1}), "they are not short")
	require.True(t, p.Helps(other, some(10)))
	p.Less(other, some(10))
	require.Error(t, p.Err())
	require.False(t, p.Helps(other, some(10)), "it has its share left")
	require.True(t, p.Helps(me, some(20)))
	p.Less(me, some(20))
	require.NoError(t, p.Err())
	require.False(t, p.Helps(me, some(10)))
	require.Equal(t, some(90), l.All(), "a plan changes nothing")

	p = l.Plan(me, some(60))
	require.ErrorContains(t, p.Err(), "of user 1")
	p.Less(other, some(60))
	require.False(t, p.Helps(other, some(0)))
	require.Error(t, p.Err(), "what others have does not help")
	require.ErrorIs(t, l.Plan(me, some(math.MaxUint64)).Err(), vmm.ErrLimit)
}
