package collective

import (
	"os"
	"path/filepath"
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
			require.ErrorContains(t, err, name+" set in the environment")
			t.Setenv(name, "")
			_, err = Join(t.Context(), dev, Options{ID: ID{1}, Size: 1, Library: none})
			require.ErrorIs(t, err, vmm.ErrNotSupported, "it counts as not set")
			require.NoError(t, os.Unsetenv(name))
			named := filepath.Join(t.TempDir(), "conf")
			require.NoError(t, os.WriteFile(named, []byte(name+"=0\n"), 0o600))
			t.Setenv("NCCL_CONF_FILE", named)
			_, err = Join(t.Context(), dev, Options{ID: ID{1}, Size: 1, Library: none})
			require.ErrorIs(t, err, vmm.ErrInvalid)
			require.ErrorContains(t, err, name+" set in "+named)
		})
	}
}

// TestOverridesInFiles: what NCCL reads from files is refused, too, and the error names the file.
func TestOverridesInFiles(t *testing.T) {
	const blocking, share = "NCCL_COMM_BLOCKING", "NCCL_COMM_SPLIT_SHARE_RESOURCES"
	for name, c := range map[string]struct {
		env               map[string]string
		named, home, etc  string
		variable, refused string // no file: it is not refused
	}{
		"nothing":                  {},
		"named":                    {named: blocking + "=1\n", variable: blocking, refused: "named"},
		"home":                     {home: "NCCL_DEBUG=WARN\n" + share + "=0", variable: share, refused: ".nccl.conf"},
		"all users":                {etc: "# ours\n\n" + blocking + "=0\n", variable: blocking, refused: "etc.conf"},
		"all of them":              {named: share + "=1", home: share + "=1", etc: share + "=1", variable: share, refused: "named"},
		"lines end with CR":        {etc: blocking + "=0\r\n", variable: blocking, refused: "etc.conf"},
		"an empty line of it":      {home: blocking + "=\n" + blocking + "=\r\n", etc: "NCCL_DEBUG=" + blocking + "\n"},
		"a comment":                {etc: "#" + blocking + "=0\n# " + share + "=0\n"},
		"spaces":                   {etc: " " + blocking + "=0\n" + share + " =0\n"},
		"another name":             {etc: blocking + "_X=0\nX" + blocking + "=0\n" + blocking + "\n"},
		"the environment":          {env: map[string]string{share: "0"}, variable: share, refused: "the environment"},
		"empty in the environment": {env: map[string]string{blocking: ""}, named: blocking + "=0", home: blocking + "=0", etc: blocking + "=0"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			files := confFiles(filepath.Join(dir, "named"), dir, filepath.Join(dir, "etc.conf"))
			for i, text := range []string{c.named, c.home, c.etc} {
				if text != "" {
					require.NoError(t, os.WriteFile(files[i], []byte(text), 0o600))
				}
			}
			err := checkOverrides(func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }, files)
			if c.refused == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, vmm.ErrInvalid)
			require.ErrorContains(t, err, c.variable)
			require.ErrorContains(t, err, c.refused)
		})
	}
	require.Equal(t, []string{confOfAllUsers}, confFiles("", "", confOfAllUsers))
}
