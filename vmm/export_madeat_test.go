package vmm

import "runtime"

// MadeAt is what Report would say of an object whose makers are these functions, the innermost
// first.
func MadeAt(pcs ...uintptr) string {
	o := openedAt{}
	for i, pc := range pcs {
		o.made[i] = pc + 1 // as a return address
	}
	return o.made.Lines().Line
}

// LineOf is where the function of a pc begins.
func LineOf(pc uintptr) (file string, line int) { return runtime.FuncForPC(pc).FileLine(pc) }
