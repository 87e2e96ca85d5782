package kernel

import (
	"bytes"
	"regexp"
	"strconv"

	"github.com/cuvmm/cuvmm/vmm"
)

// PTX declares a kernel's parameters in the brackets after its name:
//
//	.visible .entry saxpy(
//		.param .u64 saxpy_param_0,
//		.param .align 8 .b8 saxpy_param_1[24]
//	)
var (
	ptxEntry = regexp.MustCompile(`\.entry\s+([\w$]+)\s*\(([^)]*)\)`)
	ptxParam = regexp.MustCompile(`\.param\s+(?:\.align\s+(\d+)\s+)?\.([a-z]+\d+)\s[^,\[]*(?:\[(\d+)\])?`)
)

// ptxParams is the parameters of the kernels in PTX text; nil if it is none.
func ptxParams(image []byte) map[string][]vmm.Param {
	if !bytes.Contains(image, []byte(".version")) {
		return nil
	}
	all := map[string][]vmm.Param{}
	for _, entry := range ptxEntry.FindAllSubmatch(image, -1) {
		params := []vmm.Param{}
		var end uint32
		for _, m := range ptxParam.FindAllSubmatch(entry[2], -1) {
			bits, _ := strconv.ParseUint(string(m[2][1:]), 10, 16)
			size := uint32(bits / 8) //nolint:gosec // 16 bits
			align := size
			if a, err := strconv.ParseUint(string(m[1]), 10, 16); err == nil {
				align = uint32(a) //nolint:gosec // 16 bits
			}
			if n, err := strconv.ParseUint(string(m[3]), 10, 16); err == nil {
				size *= uint32(n) //nolint:gosec // 16 bits
			}
			if size == 0 || align == 0 {
				params = nil // nothing that is known here
				break
			}
			off := (end + align - 1) &^ (align - 1)
			params = append(params, vmm.Param{Offset: off, Size: size})
			end = off + size
		}
		if params != nil {
			all[string(entry[1])] = params
		}
	}
	return all
}
