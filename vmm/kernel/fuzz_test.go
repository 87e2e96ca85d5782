package kernel_test

import (
	"testing"

	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// FuzzPTXParams: any text is read, and parameters follow each other.
func FuzzPTXParams(f *testing.F) {
	f.Add([]byte(".version 6.3\n.visible .entry f(.param .u64 a, .param .align 8 .b8 b[24])"))
	f.Add([]byte(".version .entry f(.param .align 0 .b8 b[65535], .param .u65535 x[65535])"))
	f.Fuzz(func(t *testing.T, image []byte) {
		for name, params := range kernel.PTXParams(image) {
			var end uint32
			for _, p := range params {
				if p.Size == 0 || p.Offset < end || p.Offset+p.Size < p.Offset {
					t.Fatalf("%s: %v", name, params)
				}
				end = p.Offset + p.Size
			}
		}
	})
}
