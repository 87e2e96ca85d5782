package pool

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSlabsShareNoLine: what one stream writes lies in other lines of the cache than what
// another stream does.
func TestSlabsShareNoLine(t *testing.T) {
	const line = 64
	require.Zero(t, reflect.TypeFor[slab]().Size()%line)
	require.Zero(t, reflect.TypeFor[extent]().Size()%line)
	of := reflect.TypeFor[stream]()
	read, _ := of.FieldByName("peer")
	written, _ := of.FieldByName("mu")
	require.GreaterOrEqual(t, written.Offset-read.Offset, uintptr(line))
}
