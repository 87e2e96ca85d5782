package vmm

import "github.com/cuvmm/cuvmm/vmm/driver"

func (p *port) copyIn(raw driver.Device, dst Ptr, src []byte) error  { return raw.CopyIn(dst, src) }
func (p *port) copyOut(raw driver.Device, dst []byte, src Ptr) error { return raw.CopyOut(dst, src) }
