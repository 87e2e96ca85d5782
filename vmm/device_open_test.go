package vmm_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// TestAutoWithoutItsDriver: if this program cannot use the GPU, it must not silently use
// host memory.
func TestAutoWithoutItsDriver(t *testing.T) {
	d, err := vmm.Open("cuda:0")
	if err == nil {
		require.NoError(t, d.Close())
		t.Skip("there is a CUDA driver, which \"auto\" takes")
	}
	require.ErrorIs(t, err, vmm.ErrNoDriver)

	file := filepath.Join(t.TempDir(), "nvidiactl")
	vmm.SetNVIDIADevice(t, file)
	d, err = vmm.Open("auto")
	require.NoError(t, err, "there is no NVIDIA device either")
	require.Equal(t, "host", d.Driver().Name())
	require.NoError(t, d.Close())

	require.NoError(t, os.WriteFile(file, nil, 0o600))
	d, err = vmm.Open("auto")
	require.ErrorIs(t, err, vmm.ErrNoDriver)
	require.Nil(t, d)
	require.ErrorContains(t, err, "CGO_ENABLED=1")
	require.ErrorContains(t, err, "C compiler")
	require.ErrorContains(t, err, `Open("host")`)

	d, err = vmm.Open("host")
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

// TestOpenWithAPage: the name says the granularity, and the device has that name again.
func TestOpenWithAPage(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux, for host memory as a device")
	}
	smallest := uint64(os.Getpagesize())
	for _, c := range []struct {
		name, is    string
		granularity uint64
	}{
		{"host", "host:0", 2 << 20},
		{"host:1?page=2M", "host:1", 2 << 20},
		{"host?page=64K", "host:0?page=64K", 64 << 10},
		{"host:3?page=65536", "host:3?page=64K", 64 << 10},
		{fmt.Sprintf("host:15?page=%d", smallest), fmt.Sprintf("host:15?page=%dK", smallest>>10), smallest},
		{"host?page=1G", "host:0?page=1G", 1 << 30},
	} {
		d, err := vmm.Open(c.name)
		require.NoError(t, err, c.name)
		require.Equal(t, c.is, d.String())
		require.Equal(t, c.is, d.Info().Open)
		require.Equal(t, "host", d.Driver().Name())
		gran, err := d.Driver().Granularity(driver.Prop{Location: driver.Location{Kind: driver.LocationDevice}})
		require.NoError(t, err)
		require.Equal(t, c.granularity, gran)
		again, err := vmm.Open(d.String())
		require.NoError(t, err)
		require.Same(t, d.Driver(), again.Driver(), "one driver for each granularity")
		if c.granularity == smallest {
			require.NoError(t, d.Supports(vmm.FeaturePageChunks))
		} else {
			err := d.Supports(vmm.FeaturePageChunks)
			require.ErrorIs(t, err, vmm.ErrNotSupported)
			require.ErrorContains(t, err, fmt.Sprintf("host?page=%dK", smallest>>10))
		}
		require.NoError(t, again.Close())
		require.NoError(t, d.Close())
	}

	// What such a device is for.
	d, err := vmm.Open("host?page=64K")
	require.NoError(t, err)
	g, err := d.NewRange(vmm.RangeOptions{Max: 1 << 30})
	require.NoError(t, err)
	require.NoError(t, g.Append([]byte{1}))
	require.EqualValues(t, 64<<10, g.Cap())
	require.NoError(t, g.Close())
	require.NoError(t, d.Close())
}

func TestOpenSaysWhatThereIs(t *testing.T) {
	for _, c := range []struct {
		name string
		is   error
		says []string
	}{
		{"cpu", vmm.ErrInvalid, []string{`open on cpu`, `"host"`, `"host:N"`, `"host?page=4K"`, `"cuda"`, `"cuda:N"`, `"auto"`}},
		{"", vmm.ErrInvalid, []string{`"host"`}},
		{"HOST", vmm.ErrInvalid, []string{`"host"`}},
		{"cuda?page=4K", vmm.ErrInvalid, []string{"only host has options"}},
		{"auto?page=4K", vmm.ErrInvalid, []string{"only host has options"}},
		{"host?pages=4K", vmm.ErrInvalid, []string{`no option "pages"`, `host?page=4K`}},
		{"host?page", vmm.ErrInvalid, []string{"page=", "power of two", "1G"}},
		{"host?page=", vmm.ErrInvalid, []string{"power of two"}},
		{"host?page=4k", vmm.ErrInvalid, []string{"page=4k", "power of two"}},
		{"host?page=6K", vmm.ErrInvalid, []string{"power of two"}},
		{"host?page=1", vmm.ErrInvalid, []string{"a page of this system"}},
		{"host?page=2G", vmm.ErrInvalid, []string{"to 1G"}},
		{"host?page=0", vmm.ErrInvalid, []string{"power of two"}},
		{"host?page=17179869184G", vmm.ErrInvalid, []string{"power of two"}},
		{"host?page=4K&page=4K", vmm.ErrInvalid, []string{"page=4K&page=4K"}},
		{"host:16", vmm.ErrNoDevice, []string{"none is 16", "there are host:0 to host:15"}},
		{"host:-1", vmm.ErrNoDevice, []string{"there are host:0 to host:15"}},
		{"host:16?page=64K", vmm.ErrNoDevice, []string{"host:15?page=64K"}},
		{"host:first", vmm.ErrNoDevice, []string{"none is first", "there are host:0 to host:15"}},
		{"host:", vmm.ErrNoDevice, []string{"there are host:0"}},
	} {
		if runtime.GOOS != "linux" && errors.Is(c.is, vmm.ErrNoDevice) {
			continue // there is no device whose name could be said
		}
		d, err := vmm.Open(c.name)
		require.Nil(t, d, c.name)
		require.ErrorIs(t, err, c.is, c.name)
		for _, text := range c.says {
			require.ErrorContains(t, err, text, c.name)
		}
	}
}

func TestKeepOpen(t *testing.T) {
	dev, err := vmm.Open("host")
	require.NoError(t, err)
	release, err := inside.VMM.KeepOpen(dev, "loan")
	require.NoError(t, err)
	other, err := inside.VMM.KeepOpen(dev, "loan")
	require.NoError(t, err)
	err = dev.Close()
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.ErrorContains(t, err, "loan made at ")
	require.ErrorContains(t, err, "device_open_test.go:")
	require.Equal(t, "loan", dev.Report().Open[0].Kind)
	release()
	release()
	require.Len(t, dev.Report().Open, 1)
	require.ErrorIs(t, dev.Close(), vmm.ErrBusy)
	other()
	require.NoError(t, dev.Close())
	_, err = inside.VMM.KeepOpen(dev, "loan")
	require.ErrorIs(t, err, vmm.ErrClosed)
}
