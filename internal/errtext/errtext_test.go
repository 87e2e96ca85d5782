package errtext

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSize(t *testing.T) {
	t.Parallel()
	require.Equal(t, "17 bytes", Size(17))
	require.Equal(t, "2 MiB (2097152 bytes)", Size(2<<20))
	require.Equal(t, "1.5 KiB (1536 bytes)", Size(1536))
	require.Equal(t, "16 EiB (18446744073709551615 bytes)", Size(math.MaxUint64))
}
