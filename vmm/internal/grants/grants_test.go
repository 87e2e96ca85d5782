package grants_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/grants"
)

const none, read, write = driver.AccessNone, driver.AccessRead, driver.AccessReadWrite

// device is one of a driver: of two drivers with the same ordinals they are different devices.
type device struct{ driver, n int }

func (d device) Ordinal() int { return d.n }

type (
	grant = grants.Grant[device, string]
	table = grants.Table[device, string]
)

func of(n int, a driver.Access) grant {
	return grant{Dev: device{n: n}, Holder: "first", Access: a}
}

func told(all ...grant) (calls []driver.Grant) {
	for _, g := range all {
		calls = append(calls, driver.Grant{To: driver.Location{Kind: driver.LocationDevice, ID: g.Dev.n}, Access: g.Access})
	}
	return calls
}

func TestSet(t *testing.T) {
	for name, c := range map[string]struct{ to, want []grant }{
		"nothing":         {nil, []grant{of(0, write), of(1, read)}},
		"one more":        {[]grant{of(2, read)}, []grant{of(0, write), of(1, read), of(2, read)}},
		"another access":  {[]grant{of(1, write)}, []grant{of(0, write), of(1, write)}},
		"less":            {[]grant{of(1, none)}, []grant{of(0, write)}},
		"nothing to take": {[]grant{of(3, none)}, []grant{of(0, write), of(1, read)}},
		"the owner stays": {[]grant{of(0, none)}, []grant{of(0, none), of(1, read)}},
		"two":             {[]grant{of(1, none), of(2, write)}, []grant{of(0, write), of(2, write)}},
	} {
		t.Run(name, func(t *testing.T) {
			var all table
			all.Set([]grant{of(0, write), of(1, read)})
			peers := all.Peers()
			all.Set(c.to)
			require.Equal(t, told(c.want...), all.Driver())
			require.Equal(t, c.want[1:], append([]grant{}, all.Peers()...))
			require.Equal(t, []grant{of(1, read)}, peers, "who has read the grants keeps them as they were")
			var devs []device
			for _, g := range c.want {
				require.Equal(t, g.Access, all.Access(g.Dev))
				devs = append(devs, g.Dev)
			}
			require.Equal(t, devs, all.Devices())
			require.Equal(t, none, all.Access(device{n: 9}))
			require.Equal(t, none, all.Access(device{driver: 1}), "the owner's ordinal, of another driver")
		})
	}
}

// TestSetKeepsTheFirst: a grant stays of the Device that it was given to first.
func TestSetKeepsTheFirst(t *testing.T) {
	var all table
	all.Set([]grant{of(0, write), of(1, read)})
	second := grant{Dev: device{n: 1}, Holder: "second", Access: write}
	require.Equal(t, []grant{of(1, read)}, all.Begin([]grant{second}).Before)
	all.Set([]grant{second})
	require.Equal(t, []grant{of(1, write)}, all.Peers())
}

func TestCalls(t *testing.T) {
	var all table
	all.Set([]grant{of(0, write), of(1, read)})
	to := []grant{of(1, read), of(2, write)}
	after, before := all.Calls(to, false)
	require.Equal(t, told(of(2, write)), after, "only what changes")
	require.Equal(t, told(of(2, none)), before)
	after, before = all.Calls(to[:1], false)
	require.Empty(t, after)
	require.Empty(t, before)

	all.Doubt([]grant{of(3, write)}, errors.New("refused"))
	after, before = all.Calls(to, true)
	require.Equal(t, told(of(3, none), of(0, write), of(1, read), of(1, read), of(2, write)), after)
	require.Equal(t, told(of(3, none), of(0, write), of(1, read), of(1, read), of(2, none)), before)
}

func TestChange(t *testing.T) {
	for name, c := range map[string]struct {
		to      grant
		narrows bool
		allowed driver.Access // until the end
	}{
		"more":            {of(1, write), false, read},
		"less":            {of(1, none), true, none},
		"the same":        {of(1, read), false, read},
		"of a new device": {of(2, write), false, none},
		"of the owner":    {of(0, read), true, read},
	} {
		t.Run(name, func(t *testing.T) {
			var all table
			all.Set([]grant{of(0, write), of(1, read)})
			before := grant{Dev: c.to.Dev, Holder: "first", Access: all.Access(c.to.Dev)}
			require.False(t, all.Refuses())
			change := all.Begin([]grant{c.to})
			require.Equal(t, []grant{before}, change.Before)
			require.Equal(t, c.narrows, change.Narrows)
			for _, set := range [][]grant{nil, {c.to}, change.Before} { // done, and undone
				all.Set(set)
				require.True(t, all.Refuses())
				allowed, inDoubt := all.Allowed(c.to.Dev)
				require.NoError(t, inDoubt)
				require.Equal(t, c.allowed, allowed)
			}
			other := device{n: 1 - min(c.to.Dev.n, 1)}
			allowed, _ := all.Allowed(other)
			require.Equal(t, all.Access(other), allowed, "other devices go on")
			all.Set([]grant{c.to})
			all.End(change)
			require.False(t, all.Refuses())
			allowed, _ = all.Allowed(c.to.Dev)
			require.Equal(t, c.to.Access, allowed)
		})
	}
}

func TestDoubt(t *testing.T) {
	var all table
	all.Set([]grant{of(0, write), of(1, read)})
	first, second := errors.New("first"), errors.New("second")
	change := all.Begin([]grant{of(1, write)})
	all.Doubt([]grant{of(2, read)}, first)
	all.Doubt([]grant{of(1, write), of(2, read)}, second)
	all.End(change)
	require.True(t, all.InDoubt())
	require.True(t, all.Refuses())
	for n, want := range []error{nil, second, first} {
		allowed, inDoubt := all.Allowed(device{n: n})
		require.Equal(t, want, inDoubt)
		require.Equal(t, want == nil, allowed == write)
	}
	require.Equal(t, []device{{n: 2}, {n: 1}, {n: 0}}, all.Devices(), "each once, those without a grant too")
	require.Equal(t, read, all.Access(device{n: 1}), "the grants are what they were")
	all.Agree()
	require.False(t, all.InDoubt())
	require.False(t, all.Refuses())
	require.Equal(t, []device{{n: 0}, {n: 1}}, all.Devices())
}
