package shareable

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
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
