package frames

import (
	"fmt"
	"runtime"
	"slices"
)

// Callers is the innermost callers of a function of the library, as runtime.Callers has them.
type Callers [16]uintptr

// MadeAt is where an object was made.
type MadeAt struct {
	Line  string   // the first line outside the library; if all are inside, the outermost one that is known
	Stack []string // lines outside the library, the innermost first
}

// mostLines is how long MadeAt.Stack may be.
const mostLines = 4

// Lines is where the callers are.
func (c *Callers) Lines() (at MadeAt) {
	n := slices.Index(c[:], 0)
	if n < 0 {
		n = len(c)
	}
	all := runtime.CallersFrames(c[:n])
	for {
		f, more := all.Next()
		line := fmt.Sprintf("%s:%d", f.File, f.Line)
		switch whose := Of(f); {
		case whose == Program:
			at.Stack = append(at.Stack, line)
			at.Line = at.Stack[0]
		case whose == Library && len(at.Stack) == 0:
			at.Line = line
		}
		if !more || len(at.Stack) == mostLines {
			return at
		}
	}
}
