package growable

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
)

// ErrElement is for a type that cannot be an element. The text has the path to the
// field: "struct {..}.P.Name (string)".
var ErrElement = errors.New("not plain data")

// checked caches the result of check for each type: nil or an error.
var checked sync.Map

// check returns nil if t can be an element.
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

// plain checks a type, and those of its array or of its fields. path leads from the
// element to t.
func plain(t reflect.Type, path string) error {
	// int and uint are refused although they are plain: their size differs between
	// machines, and CUDA's int has 4 bytes.
	switch t.Kind() {
	case reflect.Bool,
		reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return nil
	case reflect.Int:
		return fmt.Errorf("%w: %s: use int32 (CUDA's int) or int64", ErrElement, at(path, t))
	case reflect.Uint, reflect.Uintptr:
		return fmt.Errorf("%w: %s: use uint32 or uint64", ErrElement, at(path, t))
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
	return fmt.Errorf("%w: %s", ErrElement, at(path, t))
}

// at names the field at path and its type; only one of them if they are the same.
func at(path string, t reflect.Type) string {
	if path == t.String() {
		return path
	}
	return fmt.Sprintf("%s (%v)", path, t)
}

// typeName is the name of the type, short for a struct without one.
func typeName(t reflect.Type) string {
	if t.Kind() == reflect.Struct && t.Name() == "" {
		return "struct {..}"
	}
	return t.String()
}
