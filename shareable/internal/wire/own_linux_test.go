package wire

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOverflowUserIsNoOnesOwn: where not all users have an id the overflow id is not this user's own,
// and where that cannot be seen. Everywhere else the user's id is its own. What cannot be seen is
// looked for again.
func TestOverflowUserIsNoOnesOwn(t *testing.T) {
	own := uint32(os.Getuid())
	require.True(t, IsOwn(own), "this process is no overflow user")
	overflow, maps := overflowFile, mapFile
	t.Cleanup(func() { overflowFile, mapFile = overflow, maps; alone.Store(0) })
	dir := t.TempDir()
	overflowFile, mapFile = filepath.Join(dir, "overflow"), filepath.Join(dir, "map")
	for _, c := range []struct {
		overflow, ids string
		own           bool
	}{
		{strconv.Itoa(int(own)), "         0          0 4294967295\n", true},
		{strconv.Itoa(int(own)), "         0     100000      65536\n", false},
		{strconv.Itoa(int(own)), "         0     100000      65536\n 65536 500000 4294901759\n", true},
		{strconv.Itoa(int(own)), "0 0\n", false},
		{strconv.Itoa(int(own)), "", false},  // no map yet
		{strconv.Itoa(int(own)), "-", false}, // it cannot be read
		{strconv.Itoa(int(own)), "no", true}, // a kernel without user namespaces
		{strconv.Itoa(int(own) + 1), "         0     100000      65536\n", true},
		{"", "", own != defaultOverflow},
	} {
		alone.Store(0)
		require.NoError(t, os.WriteFile(overflowFile, []byte(c.overflow+"\n"), 0o600))
		require.NoError(t, os.RemoveAll(mapFile))
		switch c.ids {
		case "no":
		case "-":
			require.NoError(t, os.Mkdir(mapFile, 0o700)) // a read of it fails
		default:
			require.NoError(t, os.WriteFile(mapFile, []byte(c.ids), 0o600))
		}
		require.Equal(t, c.own, IsOwn(own), "%+v", c)
		require.False(t, IsOwn(own+1))
		if !c.own {
			require.NoError(t, os.RemoveAll(mapFile))
			require.NoError(t, os.WriteFile(mapFile, []byte("0 0 4294967295\n"), 0o600))
			require.True(t, IsOwn(own), "it is looked for again: %+v", c)
		}
	}
}
