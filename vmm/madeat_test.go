package vmm_test

import (
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// TestMadeAt: the first line outside the library, and if there is none, the outermost of those that
// are known.
func TestMadeAt(t *testing.T) {
	pc := func(f any) uintptr { return reflect.ValueOf(f).Pointer() }
	line := func(f any) string {
		file, n := vmm.LineOf(pc(f))
		return fmt.Sprintf("%s:%d", file, n)
	}
	inner, outer := pc((*vmm.Device).Close), pc(host.New)
	program := fmt.Println // as good as one
	for name, c := range map[string]struct {
		made []uintptr
		want string
	}{
		"the program":                {[]uintptr{inner, pc(program), outer}, line(program)},
		"a test of ours":             {[]uintptr{inner, outer, pc(newWorld), pc(program)}, line(newWorld)},
		"another package of ours":    {[]uintptr{inner, outer, pc(testgate.Require), pc(program)}, line(program)},
		"through sync":               {[]uintptr{inner, pc((*sync.Once).Do), outer, pc(program)}, line(program)},
		"all inside":                 {[]uintptr{inner, outer}, line(host.New)},
		"a goroutine of ours":        {[]uintptr{inner, outer, pc(runtime.Goexit)}, line(host.New)},
		"more frames than are known": {[]uintptr{inner, inner, inner, inner, inner, inner, inner, outer}, line(host.New)},
	} {
		require.Equal(t, c.want, vmm.MadeAt(c.made...), name)
	}
}
