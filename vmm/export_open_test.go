package vmm

import "testing"

// SetNVIDIADevice sets where Open looks for the kernel's NVIDIA driver, until
// the test ends.
func SetNVIDIADevice(t *testing.T, path string) {
	before := nvidiaDevice
	nvidiaDevice = path
	t.Cleanup(func() { nvidiaDevice = before })
}
