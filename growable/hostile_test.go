package growable_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// hostile is values of a type that a careless caller might pass.
func hostile(t reflect.Type) []reflect.Value {
	if t == reflect.TypeFor[*vmm.MemoryArg]() { // it is written: nil panics as any nil pointer does
		return []reflect.Value{reflect.New(t.Elem())}
	}
	all := []reflect.Value{reflect.Zero(t)}
	add := func(values ...any) {
		for _, v := range values {
			all = append(all, reflect.ValueOf(v).Convert(t))
		}
	}
	switch t.Kind() {
	case reflect.Uint64, reflect.Uintptr:
		if t.Kind() == reflect.Uint64 { // a stream's handle must be a stream's
			add(uint64(1), uint64(1)<<63, uint64(math.MaxUint64), uint64(math.MaxUint64-4095))
		}
	case reflect.Int, reflect.Int64:
		add(1, -1, math.MaxInt, math.MinInt)
	case reflect.Uint8:
		add(1, 2, 255)
	case reflect.Slice:
		for n := range 3 {
			all = append(all, reflect.MakeSlice(t, n, n))
		}
	}
	switch t {
	case reflect.TypeFor[context.Context]():
		done, cancel := context.WithCancel(context.Background())
		cancel()
		add(done)
	case reflect.TypeFor[io.Writer]():
		add(io.Discard)
	case reflect.TypeFor[io.Reader]():
		add(bytes.NewReader(make([]byte, 10)))
	}
	return all
}

// outOfIndex says that a panic is what an index of a slice does.
func outOfIndex(what any) bool {
	err, ok := what.(runtime.Error)
	return ok && strings.Contains(err.Error(), "index out of range")
}

// misuse calls every method of v, but for those named, with all combinations of
// hostile arguments, and closes what it is given. It returns what panicked,
// other than an index.
func misuse(v any, but ...string) (panics []string) {
	value := reflect.ValueOf(v)
	for i := range value.NumMethod() {
		name, method := value.Type().Method(i).Name, value.Method(i)
		if strings.Contains(" "+strings.Join(but, " ")+" ", " "+name+" ") {
			continue
		}
		of := method.Type()
		var with func(args []reflect.Value)
		with = func(args []reflect.Value) {
			if n := len(args); n < of.NumIn() {
				for _, a := range hostile(of.In(n)) {
					with(append(args[:n:n], a))
				}
				return
			}
			defer func() {
				if what := recover(); what != nil && !outOfIndex(what) {
					panics = append(panics, fmt.Sprintf("%T.%s(%v): %v", v, name, args, what))
				}
			}()
			call := method.Call
			if of.IsVariadic() {
				call = method.CallSlice
			}
			for _, out := range call(args) {
				discard(name, out)
			}
		}
		with(nil)
	}
	return panics
}

// discard gives up what a method returned.
func discard(method string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Func:
		if v.IsNil() {
			return
		}
		switch f := v.Interface().(type) {
		case func():
			f()
		case func() error:
			_ = f()
		default: // an iterator
			if v.Type().CanSeq2() {
				for range v.Seq2() {
				}
			}
		}
	case reflect.Struct:
		if made, ok := v.Interface().(interface{ Free() }); ok {
			made.Free()
		}
	case reflect.Pointer:
		if method == "Device" || method == "Range" || method == "Lookup" {
			return // it was there before
		}
		switch made := v.Interface().(type) {
		case io.Closer:
			_ = made.Close()
		case interface{ Release() }:
			made.Release()
		}
	}
}

// TestMisuseIsNoPanic: whatever is called on nothing, on a zero value, on what
// is open and on what is closed, with whatever arguments, only an index panics.
func TestMisuseIsNoPanic(t *testing.T) {
	check := func(name string, v any, but ...string) {
		t.Helper()
		for _, p := range misuse(v, but...) {
			t.Errorf("%s: %s", name, p)
		}
	}
	for _, v := range []any{
		(*vmm.Device)(nil), (*vmm.Range)(nil), (*vmm.Reservation)(nil), (*vmm.Chunk)(nil),
		(*vmm.Stream)(nil), (*vmm.Event)(nil), (*vmm.Plan)(nil),
		(*growable.Vector[int32])(nil), (*growable.Rows[int32])(nil), (*growable.Writer[int32])(nil),
		(*growable.Reader[int32])(nil), (*growable.RowsReader[int32])(nil),
	} {
		check("nil", v)
	}
	check("nil", (*vmm.Links)(nil), "MarshalJSON") // of the value; encoding/json does not call it
	for _, v := range []any{
		vmm.Segment{}, vmm.Layout{}, &vmm.Plan{}, &vmm.Links{}, vmm.Stats{}, vmm.Report{},
		&growable.Vector[int32]{}, &growable.Rows[int32]{}, &growable.Writer[int32]{},
		&growable.Reader[int32]{}, &growable.RowsReader[int32]{},
	} {
		check("zero", v)
	}

	devs := vmmtest.Devices(t, 2)
	d, err := vmm.OpenDriver(devs[0].Driver(), 0)
	require.NoError(t, err)
	g, err := d.NewRange(vmm.RangeOptions{Max: 64 << 20})
	require.NoError(t, err)
	require.NoError(t, g.Append(make([]byte, 100)))
	s, err := d.NewStream()
	require.NoError(t, err)
	e, err := s.Record()
	require.NoError(t, err)
	size := g.Segments()[0].Size
	c, err := d.Create(size, vmm.Prop{})
	require.NoError(t, err)
	r, err := d.Reserve(size, vmm.ReserveOptions{})
	require.NoError(t, err)
	v, err := growable.New[int32](d, growable.Options{MaxLen: 1 << 20})
	require.NoError(t, err)
	rows, err := growable.NewRows[int32](d, 3, growable.RowsOptions{Pitch: 16, MaxRows: 1 << 20})
	require.NoError(t, err)
	w, wr := growable.NewWriter(v, 4), growable.NewWriter(rows, 4)
	er, err := growable.NewReader[int32](g)
	require.NoError(t, err)
	rr, err := growable.NewRowsReader[int32](g, 3)
	require.NoError(t, err)
	plan, err := vmm.PlanPeers(vmm.AccessRead, devs, g)
	require.NoError(t, err)
	seg := g.Segments()[0]

	for _, v := range []any{g, r, c, s, e, v, rows, w, wr, er, rr, d, plan, seg} {
		check("open", v, "Close", "CloseContext")
	}
	d.SetLimit(0)
	require.NoError(t, vmm.Wake(g))
	for _, c := range []io.Closer{e, s, c, g, r, v, rows} {
		require.NoError(t, c.Close())
	}
	for _, v := range []any{g, r, c, s, e, v, rows, w, wr, er, rr, plan, seg} {
		check("closed", v)
	}
	require.NoError(t, d.Close())
	check("closed", d)
}
