package collective

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestJoinRefuses: what cannot be is refused before anything is waited for.
func TestJoinRefuses(t *testing.T) {
	dev := vmmtest.Device(t)
	const none = "/nowhere/libnccl.so.2"
	for name, c := range map[string]struct {
		dev *vmm.Device
		o   Options
		err error
	}{
		"no device":          {nil, Options{}, vmm.ErrInvalid},
		"a negative timeout": {dev, Options{Timeout: -time.Second}, vmm.ErrInvalid},
		"rank of size":       {dev, Options{Rank: 2, Size: 2}, vmm.ErrInvalid},
		"a negative rank":    {dev, Options{Rank: -1, Size: 2}, vmm.ErrInvalid},
		"an ID and no size":  {dev, Options{ID: ID{1}}, vmm.ErrInvalid},
		"no library":         {dev, Options{ID: ID{1}, Size: 1, Library: none}, vmm.ErrNotSupported},
	} {
		g, err := Join(t.Context(), c.dev, c.o)
		require.ErrorIs(t, err, c.err, name)
		require.Nil(t, g)
	}
	_, err := Join(t.Context(), dev, Options{ID: ID{1}, Size: 1, Library: none})
	require.ErrorContains(t, err, "libnccl")
	_, err = NewID(none)
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	for _, name := range overrides {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "0")
			_, err := Join(t.Context(), dev, Options{ID: ID{1}, Size: 1, Library: none})
			require.ErrorIs(t, err, vmm.ErrInvalid)
			require.ErrorContains(t, err, name)
		})
	}
}
