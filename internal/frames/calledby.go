package frames

import (
	"reflect"
	"runtime"
)

// CalledBy reports whether a function, which is never inlined, is on the goroutine's stack. It is
// known by where it begins: programs may be built with other names. That takes microseconds.
func CalledBy(function any) bool {
	entry := runtime.FuncForPC(reflect.ValueOf(function).Pointer()).Entry()
	var pcs [32]uintptr
	for skip := 0; ; {
		n := runtime.Callers(skip, pcs[:])
		for _, pc := range pcs[:n] {
			if f := runtime.FuncForPC(pc - 1); f != nil && f.Entry() == entry {
				return true
			}
		}
		if n < len(pcs) {
			return false
		}
		skip += n
	}
}
