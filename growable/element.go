package growable

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
)

// ErrElement says that a type cannot be an element. The text has the path to
// the field: "struct {..}.P.Name (string)".
var ErrElement = errors.New("not plain data")

// checked holds the verdict on each type that was asked for: nil or an error.
var checked sync.Map

// check is nil if t can be an element.
func check(t reflect.Type) error {
	if v, ok := checked.Load(t); ok {
		err, _ := v.(error)
		return err
	}
	err := plain(t, typeName(t))
	if err == nil && t.Size() == 0 {
		err = fmt.Errorf("%w: %s has no size", ErrElement, typeName(t))
	}
	checked.Store(t, err)
	return err
}

// plain looks through arrays and structs; path is how it got here.
func plain(t reflect.Type, path string) error {
	switch t.Kind() {
	case reflect.Bool,
		reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return nil
	case reflect.Int:
		return fmt.Errorf("%w: %s (%v): use int32 (CUDA's int) or int64", ErrElement, path, t)
	case reflect.Uint, reflect.Uintptr:
		return fmt.Errorf("%w: %s (%v): use uint32 or uint64", ErrElement, path, t)
	case reflect.Array:
		if t.Len() == 0 {
			return nil
		}
		return plain(t.Elem(), path+"[0]")
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if err := plain(f.Type, path+"."+f.Name); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%w: %s (%v)", ErrElement, path, t)
}

// typeName is the type's name, a struct without one in short.
func typeName(t reflect.Type) string {
	if t.Kind() == reflect.Struct && t.Name() == "" {
		return "struct {..}"
	}
	return t.String()
}
