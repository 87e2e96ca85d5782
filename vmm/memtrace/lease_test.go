package memtrace_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm/memtrace"
)

// noLender lends nothing.
type noLender struct{}

func (noLender) Borrow(uint64, bool, time.Time) error { return nil }

func (noLender) Near() {}

// TestTraceOfALease: a counter follows the lease of a budget.
func TestTraceOfALease(t *testing.T) {
	d := busy(t)
	trace := func() string {
		var out bytes.Buffer
		require.NoError(t, memtrace.WriteTrace(&out, d))
		return out.String()
	}
	require.NotContains(t, trace(), "lease, change", "control")
	l, err := inside.VMM.Lend(d, noLender{})
	require.NoError(t, err)
	lease, _, _ := l.State()
	l.Raise((1 << 40) - lease)
	require.Contains(t, trace(), `"bytes":1099511627776`)
	require.NoError(t, l.End())
	require.Contains(t, trace(), `"name":"lease, change"`)
}
