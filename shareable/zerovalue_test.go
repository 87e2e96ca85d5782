package shareable

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// TestZeroValues: no method of a nil pointer, or of a zero value that no function of the
// package made, panics. Those that return an error return one, but for closing what was
// never open.
func TestZeroValues(t *testing.T) {
	for _, zero := range []any{
		&Server{}, (*Server)(nil),
		&Publication{}, (*Publication)(nil),
		&View{}, (*View)(nil),
	} {
		v := reflect.ValueOf(zero)
		for i := range v.NumMethod() {
			m := v.Type().Method(i)
			t.Run(fmt.Sprintf("%T%v.%s", zero, v.IsNil(), m.Name), func(t *testing.T) {
				args := []reflect.Value{v}
				for n := 1; n < m.Type.NumIn(); n++ {
					in := m.Type.In(n)
					if in == reflect.TypeFor[context.Context]() {
						args = append(args, reflect.ValueOf(context.Background()))
						continue
					}
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
				if m.Name == "Close" || m.Name == "CloseContext" {
					require.NoError(t, err)
				} else {
					require.Error(t, err)
				}
			})
		}
	}
}
