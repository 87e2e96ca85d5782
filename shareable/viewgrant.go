package shareable

import (
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
)

// Grant gives devices access to present and future memory of the View, as vmm.Reservation.Grant
// does. At first only Device has access, whatever the owner has granted. Without
// AttachOptions.Write, more than vmm.AccessRead is vmm.ErrInvalid. Other errors are those of
// vmm.Reservation.Grant.
func (v *View) Grant(a vmm.Access, devs ...*vmm.Device) error {
	if v == nil || v.dev == nil {
		return errNoView
	}
	return v.res.Grant(a, devs...)
}

// Revoke removes access that Grant gave, as vmm.Reservation.Revoke does, with its errors.
func (v *View) Revoke(devs ...*vmm.Device) error {
	if v == nil || v.dev == nil {
		return errNoView
	}
	return v.res.Revoke(devs...)
}

// Access is what a device may do with the memory here.
func (v *View) Access(d *vmm.Device) vmm.Access { return nonnil.Of(v).res.Access(d) }
