// Package inside is the door of package vmm, with its types, for the packages of this module that
// import it.
package inside

import (
	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/vmm"
)

// VMM does for the packages beside vmm what no program can ask for.
var VMM = door.Through[door.VMM[*vmm.Device, *vmm.Range, *vmm.Reservation, *vmm.Chunk, *vmm.Stream]]()
