package vmm_test

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// TestZeroValues: no method of a nil pointer, or of a zero value that no function of the package
// made, panics. Those of handles return errors, but for closing what was never open. A zero Plan,
// Fence, Layout or MemoryArg means something: nothing to do, passed, unknown, in no Range.
func TestZeroValues(t *testing.T) {
	for _, zero := range []any{
		&vmm.Device{}, (*vmm.Device)(nil),
		&vmm.Range{}, (*vmm.Range)(nil),
		&vmm.Reservation{}, (*vmm.Reservation)(nil),
		&vmm.Chunk{}, (*vmm.Chunk)(nil),
		&vmm.Stream{}, (*vmm.Stream)(nil),
		&vmm.Event{}, (*vmm.Event)(nil),
		&vmm.Module{}, (*vmm.Module)(nil),
		&vmm.Function{}, (*vmm.Function)(nil),
		&vmm.Graph{}, (*vmm.Graph)(nil),
		&vmm.GraphExec{}, (*vmm.GraphExec)(nil),
		&vmm.Plan{}, (*vmm.Plan)(nil),
		&vmm.Mirror{}, (*vmm.Mirror)(nil),
		&vmm.MemoryArg{}, (*vmm.MemoryArg)(nil), &vmm.LaunchMemory{},
		vmm.Fence{}, vmm.Segment{}, vmm.Layout{}, vmm.Stats{}, vmm.RangeStats{}, &vmm.OpError{},
	} {
		v := reflect.ValueOf(zero)
		for i := range v.NumMethod() {
			m := v.Type().Method(i)
			t.Run(fmt.Sprintf("%T%v.%s", zero, v.Kind() == reflect.Pointer && v.IsNil(), m.Name), func(t *testing.T) {
				args := arguments(m.Type)
				var out []reflect.Value
				require.NotPanics(t, func() {
					if m.Type.IsVariadic() {
						out = m.Func.CallSlice(append([]reflect.Value{v}, args...))
					} else {
						out = m.Func.Call(append([]reflect.Value{v}, args...))
					}
				})
				if len(out) == 0 || !m.Type.Out(len(out)-1).Implements(reflect.TypeFor[error]()) {
					return
				}
				err, _ := out[len(out)-1].Interface().(error)
				switch m.Name {
				case "Close", "CloseContext", "Discard", "Unwrap":
					require.NoError(t, err)
				default:
					meant := zero == vmm.Fence{} || v.Type() == reflect.TypeFor[vmm.Layout]() || v.Type() == reflect.TypeFor[*vmm.Plan]() ||
						m.Name == "Err" && !v.IsNil()
					require.True(t, meant || err != nil)
				}
			})
		}
	}
}

// arguments are zero values, but for contexts.
func arguments(f reflect.Type) []reflect.Value {
	var args []reflect.Value
	for i := 1; i < f.NumIn(); i++ {
		switch in := f.In(i); in {
		case reflect.TypeFor[context.Context]():
			args = append(args, reflect.ValueOf(context.Background()))
		default:
			args = append(args, reflect.Zero(in))
		}
	}
	return args
}

// TestLookupRange finds the range of an address, and none for a user's reservation.
func TestLookupRange(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g := newRange(t, d, vmm.RangeOptions{Max: 4 * page})
	r, err := d.Reserve(4*page, vmm.ReserveOptions{})
	require.NoError(t, err)
	for _, off := range []uint64{0, page + 3, 4*page - 1} {
		got, at, ok := d.LookupRange(g.Ptr() + vmm.Ptr(off))
		require.True(t, ok)
		require.Same(t, g, got)
		require.Equal(t, off, at)
	}
	got, at, ok := d.LookupRange(r.Ptr())
	require.False(t, ok)
	require.Nil(t, got)
	require.Zero(t, at)
	_, _, ok = d.LookupRange(0)
	require.False(t, ok)
	p := g.Ptr()
	require.NoError(t, g.Close())
	_, _, ok = d.LookupRange(p)
	require.False(t, ok)
	require.NoError(t, r.Close())
	w.end()
}
