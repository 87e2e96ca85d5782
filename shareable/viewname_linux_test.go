package shareable

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestViewsAreNamed: what is open in a device names a View by its object, and by the line that has
// attached, although another goroutine makes it.
func TestViewsAreNamed(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 1000)))
	v := attached(t, s, AttachOptions{})
	var found []vmm.OpenObject
	for _, o := range v.dev.Report().Open {
		if o.Kind == `view of "x"` {
			found = append(found, o)
		}
	}
	require.Len(t, found, 1)
	require.Contains(t, found[0].Made, "_test.go:")
	require.Equal(t, `view of "x"`, v.String())
	require.Equal(t, `publication of "x"`, p.String())
	require.Equal(t, "server at "+s.Path(), s.String())
	require.Equal(t, `view of ""`, (*View)(nil).String())
}

// TestImportsAreNamed: the memory that a View imports counts where the program has attached, although
// the View's goroutine imports it.
func TestImportsAreNamed(t *testing.T) {
	t.Parallel()
	s, _, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 1000)))
	dev := vmmtest.Device(t)
	dev.SetHistory(vmm.HistoryOptions{Events: 100})
	v, err := Attach(t.Context(), s.Path(), "x", dev, AttachOptions{})
	require.NoError(t, err)
	wait(t, v, 1000)
	here := func(stack []uintptr) bool {
		for frames := runtime.CallersFrames(stack); ; {
			f, more := frames.Next()
			if strings.HasSuffix(f.Function, ".TestImportsAreNamed") {
				return true
			}
			if !more {
				return false
			}
		}
	}
	imports := 0
	for _, e := range dev.History(0) {
		if e.Kind == "import" {
			imports++
			require.True(t, here(e.Stack))
		}
	}
	require.Equal(t, 1, imports)
	sampled := 0
	for _, r := range inside.VMM.Samples(dev).Records() {
		if r.Kind == memsample.Import {
			sampled++
			require.True(t, here(r.Stack[:]))
		}
	}
	require.LessOrEqual(t, sampled, 1) // by chance
	require.NoError(t, v.Close())
}
