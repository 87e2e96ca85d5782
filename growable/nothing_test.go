package growable_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// silent is the methods of v, but for those named, that report no error although they
// can: an error result, or an iterator that yields errors. Each argument is zero.
func silent(v any, but ...string) (methods []string) {
	value := reflect.ValueOf(v)
	for i := range value.NumMethod() {
		name, method := value.Type().Method(i).Name, value.Method(i)
		if strings.Contains(" "+strings.Join(but, " ")+" ", " "+name+" ") {
			continue
		}
		var args []reflect.Value
		for k := range method.Type().NumIn() {
			in := method.Type().In(k)
			arg := reflect.Zero(in)
			if in == reflect.TypeFor[*vmm.MemoryArg]() { // what is written
				arg = reflect.New(in.Elem())
			}
			args = append(args, arg)
		}
		call := method.Call
		if method.Type().IsVariadic() {
			call = method.CallSlice
		}
		out := call(args)
		if len(out) == 0 {
			continue
		}
		last := out[len(out)-1]
		switch {
		case last.Type() == reflect.TypeFor[error]():
			if last.IsNil() {
				methods = append(methods, name)
			}
		case last.Kind() == reflect.Func && last.Type().CanSeq2():
			var errs []any
			for _, err := range last.Seq2() {
				errs = append(errs, err.Interface())
			}
			if len(errs) != 1 || errs[0] == nil {
				methods = append(methods, fmt.Sprintf("%s (%v)", name, errs))
			}
		}
	}
	return methods
}

// TestNothingIsAnError: a nil or zero value returns an error from every method that
// can, and so does what is closed.
func TestNothingIsAnError(t *testing.T) {
	for _, v := range []any{
		(*growable.Vector[int32])(nil), (*growable.Rows[int32])(nil), (*growable.Writer[int32])(nil),
		(*growable.Reader[int32])(nil), (*growable.RowsReader[int32])(nil),
		&growable.Vector[int32]{}, &growable.Rows[int32]{}, &growable.Writer[int32]{},
		&growable.Reader[int32]{}, &growable.RowsReader[int32]{},
	} {
		// Nothing is closed already.
		for _, method := range silent(v, "Close", "CloseContext") {
			t.Errorf("%T, nil: %t: no error from %s", v, reflect.ValueOf(v).IsNil(), method)
		}
	}

	d := vmmtest.Device(t)
	v, err := growable.New[int32](d, growable.Options{MaxLen: 10})
	require.NoError(t, err)
	r, err := growable.NewRows[int32](d, 3, growable.RowsOptions{MaxRows: 10})
	require.NoError(t, err)
	er, err := growable.NewReader[int32](v.Range())
	require.NoError(t, err)
	rr, err := growable.NewRowsReader[int32](r.Range(), 3)
	require.NoError(t, err)
	w := growable.NewWriter(v, 4)
	require.NoError(t, v.Close())
	require.NoError(t, r.Close())
	for _, x := range []any{v, r, er, rr} {
		for _, method := range silent(x, "Close", "CloseContext") {
			t.Errorf("%T, closed: no error from %s", x, method)
		}
	}
	require.ErrorIs(t, w.Flush(), vmm.ErrClosed)

	// What can return no error returns nothing.
	var none growable.Vector[int32]
	<-none.Range().Changed()
	require.Zero(t, none.Len()+none.Cap()+none.MaxLen())
	require.Zero(t, none.PtrAt(0))
	<-(&growable.Reader[int32]{}).Changed()
	var noRows growable.Rows[int32]
	require.Zero(t, noRows.Len()+noRows.Cap()+noRows.MaxLen()+noRows.Width()+noRows.Pitch())
	require.Equal(t, vmm.Layout{}, noRows.Layout())
	var noWriter growable.Writer[int32]
	require.Zero(t, noWriter.Buffered())
}
