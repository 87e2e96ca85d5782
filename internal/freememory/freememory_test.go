package freememory

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBytes(t *testing.T) {
	const meminfo = "MemTotal: 4000 kB\nMemAvailable:    3000 kB\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  uint64
	}{
		{"no control group", nil, 3000 << 10},
		{"a group without a limit", map[string]string{
			"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": "max\n", "sys/fs/cgroup/job/memory.current": "10\n",
		}, 3000 << 10},
		{"a group with one", map[string]string{
			"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": "1000\n", "sys/fs/cgroup/job/memory.current": "400\n",
		}, 600},
		{"page cache can be dropped", map[string]string{
			"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": "1000\n", "sys/fs/cgroup/job/memory.current": "400\n",
			"sys/fs/cgroup/job/memory.stat": "anon 100\ninactive_file 300\nactive_file 0\n",
		}, 900},
		{"the group above is tighter", map[string]string{
			"proc/self/cgroup": "0::/pod/job\n", "sys/fs/cgroup/pod/job/memory.max": "1000\n", "sys/fs/cgroup/pod/job/memory.current": "400\n",
			"sys/fs/cgroup/pod/memory.max": "500\n", "sys/fs/cgroup/pod/memory.current": "450\n",
		}, 50},
		{"beyond its limit", map[string]string{
			"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": "1000\n", "sys/fs/cgroup/job/memory.current": "1001\n",
		}, 0},
		{"looser than the machine", map[string]string{
			"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": "9000000\n", "sys/fs/cgroup/job/memory.current": "0\n",
		}, 3000 << 10},
		{"version 1, seen from a container", map[string]string{
			"proc/self/cgroup":                           "3:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "1000\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "400\n",
			"sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
		}, 700},
		{"a path that leads upward", map[string]string{
			"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "400\n",
		}, 600},
	} {
		root := t.TempDir()
		write := func(name, text string) {
			name = filepath.Join(root, name)
			require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
			require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		}
		write("proc/meminfo", meminfo)
		for name, text := range c.files {
			write(name, text)
		}
		free, ok := Bytes(root)
		require.True(t, ok, c.name)
		require.Equal(t, c.want, free, c.name)
	}
	_, ok := Bytes(t.TempDir())
	require.False(t, ok, "there is no figure where the files are missing")
}

func TestGroups(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	_, err := Groups(root, "dmem")
	require.ErrorIs(t, err, os.ErrNotExist)
	write("proc/self/cgroup", "4:memory:/docker/1\nnonsense\n0::/a/b\n")
	cgroup := filepath.Join(root, "sys/fs/cgroup")
	all, err := Groups(root, "dmem")
	require.NoError(t, err)
	require.Equal(t, []Group{{Dir: cgroup + "/a/b"}, {Dir: cgroup + "/a"}, {Dir: cgroup}}, all)
	all, err = Groups(root, "memory")
	require.NoError(t, err)
	require.Len(t, all, 6)
	g := all[0]
	_, _, err = g.Memory()
	require.ErrorIs(t, err, os.ErrNotExist)
	write("sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "400\n")
	write("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "9223372036854771712\n")
	limit, used, err := g.Memory()
	require.NoError(t, err)
	require.Equal(t, uint64(NoLimit), limit)
	require.Equal(t, uint64(400), used)
	write("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "1e9\n")
	_, _, err = g.Memory()
	require.ErrorContains(t, err, g.MemoryLimit())
}
