package ipc_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestZeroValues: no method of a nil pointer, or of a zero value that no function of the
// package made, panics. Those that return an error return one, but for closing what was never
// open, and the texts of a zero Handle or Token.
func TestZeroValues(t *testing.T) {
	for _, zero := range []any{
		&ipc.Memory{}, (*ipc.Memory)(nil),
		&ipc.Pool{}, (*ipc.Pool)(nil),
		&ipc.Block{}, (*ipc.Block)(nil),
		&ipc.Handle{}, (*ipc.Handle)(nil),
		&ipc.Token{}, (*ipc.Token)(nil),
		ipc.Kind(0),
	} {
		v := reflect.ValueOf(zero)
		isNil := v.Kind() == reflect.Pointer && v.IsNil()
		for i := range v.NumMethod() {
			m := v.Type().Method(i)
			if isNil && m.Name == "MarshalText" {
				continue // of a value: Go itself panics for a nil pointer to one
			}
			t.Run(fmt.Sprintf("%T%v.%s", zero, isNil, m.Name), func(t *testing.T) {
				args := []reflect.Value{v}
				for n := 1; n < m.Type.NumIn(); n++ {
					in := m.Type.In(n)
					if in == reflect.TypeFor[*vmm.MemoryArg]() { // what is written
						args = append(args, reflect.New(in.Elem()))
						continue
					}
					args = append(args, reflect.Zero(in))
				}
				call := m.Func.Call
				if m.Type.IsVariadic() {
					call = m.Func.CallSlice
				}
				var out []reflect.Value
				require.NotPanics(t, func() { out = call(args) })
				if len(out) == 0 || m.Type.Out(len(out)-1) != reflect.TypeFor[error]() {
					return
				}
				err, _ := out[len(out)-1].Interface().(error)
				if m.Name == "Close" || m.Name == "MarshalText" {
					require.NoError(t, err)
				} else {
					require.Error(t, err)
				}
			})
		}
	}
}

func TestNothing(t *testing.T) {
	for name, err := range map[string]error{
		"Alloc":         second(ipc.Alloc(nil, 1)),
		"Open":          second(ipc.Open(nil, ipc.Handle{Raw: raw(1), Size: 1})),
		"EventHandle":   second(ipc.EventHandle(nil)),
		"OpenEvent":     second(ipc.OpenEvent(nil, ipc.Handle{Raw: raw(1)})),
		"ImportPool":    second(ipc.ImportPool(nil, 0)),
		"ExportPool":    second(ipc.ExportPool(nil)),
		"ExportPointer": second(ipc.ExportPointer(nil, pool.Block{})),
		"zero Device":   second(ipc.Alloc(&vmm.Device{}, 1)),
	} {
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
	}
}

func second[T any](_ T, err error) error { return err }
