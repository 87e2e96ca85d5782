package machine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/stretchr/testify/require"
)

// tree writes files under a folder that stands for the root of the system.
func tree(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	return root
}

// server is a machine of which all can be read.
func server() map[string]string {
	return map[string]string{
		"proc/loadavg": "0.50 1.25 2.00 3/812 4711\n",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor":     "powersave\n",
		"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor":     "performance\n",
		"sys/devices/system/cpu/cpu10/cpufreq/scaling_governor":    "performance\n",
		"sys/devices/system/cpu/cpufreq/ondemand/scaling_governor": "no CPU\n",
		"sys/kernel/mm/transparent_hugepage/enabled":               "always [madvise] never\n",
	}
}

func TestHostState(t *testing.T) {
	s := hostState(tree(t, server()))
	_, err := time.Parse(time.RFC3339, s.Time)
	require.NoError(t, err)
	require.Equal(t, []float64{0.5, 1.25, 2}, s.Load)
	require.Equal(t, []string{"performance", "powersave"}, s.Governors)
	require.Equal(t, report.Text("madvise"), s.HugePages)
	require.Empty(t, s.Reason)
}

// What is missing or makes no sense is null, and the reason names it.
func TestHostStateThatCannotBeRead(t *testing.T) {
	s := hostState(t.TempDir())
	require.Equal(t, &report.HostState{Time: s.Time, Reason: s.Reason}, s)
	for _, name := range []string{
		"load", "governors", "transparent_huge_pages",
	} {
		require.Contains(t, s.Reason, name)
	}
	require.NotContains(t, s.Reason, "open /")

	for name, c := range map[string]struct {
		text, reason string
	}{
		"proc/loadavg": {"none", `load: "none"`},
		"sys/kernel/mm/transparent_hugepage/enabled": {"never", "transparent_huge_pages: "},
	} {
		files := server()
		files[name] = c.text
		require.Contains(t, hostState(tree(t, files)).Reason, c.reason, name)
	}
}

func TestHost(t *testing.T) {
	root := tree(t, map[string]string{
		"proc/cpuinfo": "processor : 0\nmodel name\t: Fast One\n", "proc/meminfo": "MemTotal: 4000 kB\n",
		"proc/sys/vm/max_map_count": "65530\n", "proc/sys/kernel/osrelease": "6.18.1\n",
		"proc/self/limits": "Limit                     Soft Limit           Hard Limit           Units\n" +
			"Max open files            1024                 524288               files\n" +
			"Max locked memory         unlimited            unlimited            bytes\n",
	})
	h := Host(root)
	require.Equal(t, report.Text("6.18.1"), h.Kernel)
	files := uint64(1024)
	require.Equal(t, []report.Limit{{Name: "nofile", Value: &files}, {Name: "memlock", Reason: "unlimited"}}, h.Limits[:2])
	require.Equal(t, report.Text("Fast One"), h.CPU)
	require.Equal(t, uint64(4000<<10), *h.Memory)
	last := h.Limits[len(h.Limits)-1]
	require.Equal(t, uint64(65530), *last.Value)

	h = Host(t.TempDir())
	require.Empty(t, h.CPU)
	require.Nil(t, h.Memory)
	last = h.Limits[len(h.Limits)-1]
	require.Nil(t, last.Value)
	require.NotEmpty(t, last.Reason)
	require.NotEmpty(t, h.Limits[0].Reason)
	AddPaths(&report.Report{Devices: []report.Device{{Open: "host:0"}}}) // has no GPU to ask about
}

// Where NVML is missing, the files of the system say something of a GPU.
func TestDeviceStateWithoutNVML(t *testing.T) {
	const dir = "sys/bus/pci/devices/0000:3b:00.0/"
	root := tree(t, map[string]string{
		dir + "numa_node": "1\n", dir + "local_cpulist": "16-31\n",
		"sys/bus/pci/devices/0000:5e:00.0/numa_node":     "-1\n",
		"sys/bus/pci/devices/0000:5e:00.0/local_cpulist": "0-31\n",
	})
	opened := 0
	open := func() (library, error) {
		opened++
		return nil, errors.New("no NVML here")
	}
	host := report.Device{Open: "host:0", UUID: "y"}
	require.Equal(t, []*report.DeviceState{nil}, deviceStates(root, []report.Device{host}, open))
	require.Zero(t, opened, "without a GPU NVML is not loaded")

	list := deviceStates(root, []report.Device{
		host, {Open: "cuda:0", UUID: "x", PCI: "0000:3b:00.0"}, {Open: "cuda:1", PCI: "0000:5e:00.0"}, {Open: "cuda:2"},
	}, open)
	require.Equal(t, 1, opened)
	require.Nil(t, list[0])
	s := list[1]
	require.Equal(t, 1, *s.NUMANode)
	require.Equal(t, report.Text("16-31"), s.CPUs)
	require.Equal(t, report.Text("NVML: no NVML here"), s.Reason)

	require.Nil(t, list[2].NUMANode)
	require.Contains(t, list[2].Reason, "numa_node: the system ties the device to no node")
	require.Contains(t, list[3].Reason, "on no PCI bus")
}

// The state is taken twice, and once does not disturb the other.
func TestStateAtBothEnds(t *testing.T) {
	r := report.New(report.Run{}, report.Host{})
	r.Devices = []report.Device{{Open: "host:0"}}
	AddState(r)
	first := r.Host.State
	require.NotNil(t, first)
	require.Nil(t, r.Host.StateEnd)
	AddEndState(r)
	require.Same(t, first, r.Host.State)
	require.NotNil(t, r.Host.StateEnd)
	require.Nil(t, r.Devices[0].StateEnd)
}

func TestThrottleNames(t *testing.T) {
	require.Empty(t, throttleNames(0))
	require.NotNil(t, throttleNames(0), "null would mean that it is not known")
	require.Equal(t, []string{"idle", "display clock setting", "unknown 0x600"}, throttleNames(1|256|0x600))
}
