package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// What package vmm does for the other packages of the module; those test what they use it for.

// TestWithMemory: what lacks memory is called again while something releases some, and any other
// error is the caller's.
func TestWithMemory(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	require.ErrorIs(t, inside.VMM.WithMemory(d, "allocate", "x", page, nil), vmm.ErrInvalid)
	calls, releases := 0, 2
	stop := d.OnPressure(func(need error) bool {
		require.ErrorIs(t, need, vmm.ErrOutOfMemory)
		var op *vmm.OpError
		require.ErrorAs(t, need, &op)
		require.Equal(t, []any{"allocate", "x", uint64(page), d.String()}, []any{op.Op, op.Name, op.Size, op.Device})
		releases--
		return releases >= 0
	})
	lacking := func() error { calls++; return vmm.ErrOutOfMemory }
	require.ErrorIs(t, inside.VMM.WithMemory(d, "allocate", "x", page, lacking), vmm.ErrOutOfMemory)
	require.Equal(t, -1, releases, "asked until there is nothing to release")
	require.GreaterOrEqual(t, calls, 3)
	releases, calls = 1, 0
	require.NoError(t, inside.VMM.WithMemory(d, "allocate", "x", page, func() error {
		if calls++; releases > 0 {
			return vmm.ErrOutOfMemory
		}
		return nil
	}))
	releases, calls = 1, 0
	require.ErrorIs(t, inside.VMM.WithMemory(d, "allocate", "x", page, func() error { calls++; return errInjected }), errInjected)
	require.Equal(t, 1, calls)
	require.Equal(t, 1, releases)
	stop()
	require.NoError(t, d.Close())
	calls = 0
	require.ErrorIs(t, inside.VMM.WithMemory(d, "allocate", "x", page, lacking), vmm.ErrOutOfMemory)
	require.Equal(t, 1, calls, "closed")
	w.end()
}

// TestOnGraphLaunch: the functions run around each launch of the graph, and an error of one is the
// launch's, after which those that ran before it have their end.
func TestOnGraphLaunch(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s, on := newStream(t, d), newStream(t, d)
	g := newRange(t, d, vmm.RangeOptions{Max: page})
	require.NoError(t, g.Append(make([]byte, page)))
	var seen []string
	around := func(name string, err *error) func(*vmm.Stream) (func(), error) {
		return func(launchedOn *vmm.Stream) (func(), error) {
			require.Equal(t, on, launchedOn)
			seen = append(seen, name)
			return func() { seen = append(seen, name+" launched") }, *err
		}
	}
	var first, second error
	require.ErrorIs(t, inside.VMM.OnGraphLaunch(s, around("a", &first)), vmm.ErrInvalid, "it captures nothing")
	require.NoError(t, s.BeginCapture())
	require.NoError(t, inside.VMM.OnGraphLaunch(s, around("a", &first)))
	require.NoError(t, inside.VMM.OnGraphLaunch(s, around("b", &second)))
	require.NoError(t, s.Fill(g.Ptr(), 7, 1, page))
	graph, err := s.EndCapture()
	require.NoError(t, err)
	x, err := graph.Instantiate()
	require.NoError(t, err)
	require.NoError(t, x.Launch(on))
	require.Equal(t, []string{"a", "b", "a launched", "b launched"}, seen)
	seen, second = nil, errInjected
	require.ErrorIs(t, x.Launch(on), errInjected)
	require.Equal(t, []string{"a", "b", "a launched"}, seen)
	require.NoError(t, x.Close())
	require.NoError(t, graph.Close())
	require.NoError(t, g.Close())
	require.NoError(t, s.Close())
	require.NoError(t, on.Close())
	w.end()
}

// TestNotedAllocation: what is noted twice at an address is one Allocation until both are retired; a
// Restore undoes the last Retire.
func TestNotedAllocation(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	require.Nil(t, inside.VMM.NoteAllocation(nil, 1, 1))
	require.Nil(t, inside.VMM.NoteAllocation(d, 1, 0))
	note := func() any { return inside.VMM.NoteAllocation(d, 1<<40, page) }
	a := inside.VMM.NoteAllocation(d, 1<<40, page)
	require.Same(t, a, note())
	a.Retire()
	a.Retire()
	a.Restore()
	require.Same(t, a, note())
	a.Retire()
	a.Retire()
	b := inside.VMM.NoteAllocation(d, 1<<40, page)
	require.NotSame(t, a, b)
	b.Retire()
	w.end()
}
