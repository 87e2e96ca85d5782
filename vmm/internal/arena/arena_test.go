package arena

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

const unit = 2 << 20

var errInjected = errors.New("injected")

// source is a driver's addresses, and a limit.
type source struct {
	next   driver.Ptr
	live   map[driver.Ptr]uint64
	left   int // arenas that the limit has room for
	taken  uint64
	most   uint64 // of what is handed out
	refuse error
}

func newArenas(left int) (*Arenas, *source) {
	s := &source{next: 1 << 41, live: map[driver.Ptr]uint64{}, left: left, most: 1 << 60}
	return &Arenas{
		Reserve: func(size, align uint64) (driver.Ptr, error) {
			if s.refuse != nil {
				return 0, s.refuse
			}
			p := s.next
			s.next += driver.Ptr(2 * size)
			s.live[p] = size
			return p, nil
		},
		Free: func(p driver.Ptr, size uint64) error {
			if s.refuse != nil {
				return s.refuse
			}
			if s.live[p] != size {
				return driver.ErrInvalid
			}
			delete(s.live, p)
			return nil
		},
		Budget: s,
	}, s
}

func (s *source) Make(uint64) bool {
	if s.left == 0 {
		return false
	}
	s.left--
	return true
}

func (s *source) Unmake(uint64) { s.left++ }

func (s *source) Take(n uint64) bool {
	if n > s.most-s.taken {
		return false
	}
	s.taken += n
	return true
}

func (s *source) Give(n uint64) { s.taken -= n }

func take(t *testing.T, a *Arenas, size uint64) driver.Ptr {
	t.Helper()
	p, ok, err := a.Take(size, unit)
	require.NoError(t, err)
	require.True(t, ok)
	return p
}

// TestRandom: what is taken overlaps nothing, has a unit behind it, and lies in an arena; when all
// is given back all can be taken again.
func TestRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	a, s := newArenas(3)
	type one struct {
		p    driver.Ptr
		size uint64
	}
	var all []one // by address
	at := func(p driver.Ptr) int {
		i, found := slices.BinarySearchFunc(all, p, func(x one, p driver.Ptr) int { return cmp.Compare(x.p, p) })
		require.False(t, found)
		return i
	}
	refused := 0
	for range 40_000 {
		if r.IntN(100) < 55 {
			size := (1 + r.Uint64N(1<<r.Uint64N(15))) * unit
			p, ok, err := a.Take(size, unit)
			require.NoError(t, err)
			if !ok {
				refused++
				continue
			}
			in := false
			for base, n := range s.live {
				in = in || p >= base && uint64(p-base)+size+unit <= n
			}
			require.True(t, in)
			i := at(p)
			require.True(t, i == 0 || all[i-1].p+driver.Ptr(all[i-1].size+unit) <= p)
			require.True(t, i == len(all) || p+driver.Ptr(size+unit) <= all[i].p)
			all = slices.Insert(all, i, one{p, size})
		} else if len(all) > 0 {
			k := r.IntN(len(all))
			require.True(t, a.Give(all[k].p, all[k].size))
			all = slices.Delete(all, k, k+1)
		}
	}
	require.Positive(t, refused, "the arenas were full")
	require.Len(t, s.live, 3)
	for _, x := range all {
		require.True(t, a.Give(x.p, x.size))
	}
	require.Len(t, s.live, 1, "one empty arena stays")
	for range 15 {
		take(t, a, Most)
	}
	require.Len(t, s.live, 1)
}

// TestFreedAddressesComeLast: not before the arena has been gone through once, and then the oldest
// first.
func TestFreedAddressesComeLast(t *testing.T) {
	a, s := newArenas(1)
	const size = Most - unit // sixteen, with their gaps
	first := take(t, a, size)
	for range 3 {
		require.True(t, a.Give(first, size))
		next := take(t, a, size)
		require.Equal(t, first+Most, next)
		first = next
	}
	for range 12 {
		take(t, a, size)
	}
	base := first - 3*Most
	require.Equal(t, base, take(t, a, size))
	require.Equal(t, base+Most, take(t, a, size))
	require.True(t, a.Give(base+10*Most, size))
	require.True(t, a.Give(base+8*Most, size))
	require.Equal(t, base+2*Most, take(t, a, size), "freed long ago")
	require.Equal(t, base+10*Most, take(t, a, size))
	require.Equal(t, base+8*Most, take(t, a, size))
	_, ok, err := a.Take(unit, unit)
	require.NoError(t, err)
	require.False(t, ok)
	require.Len(t, s.live, 1)
	require.Equal(t, uint64(16*size), s.taken)
}

// TestUnits: reservations in units of other sizes have arenas of their own.
func TestUnits(t *testing.T) {
	a, s := newArenas(2)
	p := take(t, a, unit)
	q, ok, err := a.Take(4096, 4096)
	require.NoError(t, err)
	require.True(t, ok)
	require.Len(t, s.live, 2)
	require.True(t, a.Give(q, 4096))
	require.True(t, a.Give(p, unit))
	require.Len(t, s.live, 1)
	require.False(t, a.Give(p-1<<20, unit), "of no arena")
	require.False(t, a.Give(1, unit))
}

// TestNoArena: the caller reserves for itself where there is no room, or the driver has none. Any other error is its own.
func TestNoArena(t *testing.T) {
	a, s := newArenas(0)
	none := func(size uint64) {
		t.Helper()
		_, ok, err := a.Take(size, unit)
		require.Equal(t, s.refuse == errInjected, err != nil) //nolint:errorlint // it is that one
		require.False(t, ok)
		require.Zero(t, s.taken)
	}
	none(unit)
	s.left = 1
	for _, s.refuse = range []error{driver.ErrAddressSpace, driver.ErrInvalid, errInjected} {
		none(unit)
		require.Equal(t, 1, s.left)
	}
	s.refuse = nil
	none(Most + unit)
	s.most = unit
	none(2 * unit)
	require.Empty(t, s.live)
	take(t, a, unit)
}

// TestFreeThatFails: the arena stays, and can be used and freed again.
func TestFreeThatFails(t *testing.T) {
	a, s := newArenas(2)
	var all []driver.Ptr
	for range 17 {
		all = append(all, take(t, a, Most-unit))
	}
	require.Len(t, s.live, 2)
	s.refuse = errInjected
	for _, p := range all {
		require.True(t, a.Give(p, Most-unit))
	}
	require.Len(t, s.live, 2)
	require.ErrorIs(t, a.FreeEmpty(), errInjected)
	take(t, a, unit)
	s.refuse = nil
	require.NoError(t, a.FreeEmpty())
	require.Len(t, s.live, 1)
	require.Equal(t, 1, s.left)
}
