package ipc

import "github.com/cuvmm/cuvmm/vmm"

// EventHandle is a handle of an event that was made with vmm.EventInterprocess; any other is
// vmm.ErrInvalid. The event must stay open as long as another process uses it.
func EventHandle(e *vmm.Event) (Handle, error) {
	raw, err := e.IPCHandle()
	if err != nil {
		return Handle{}, err
	}
	return newHandle(nil, KindEvent, raw), nil
}

// OpenEvent opens the event of a handle of another process. Both can record it, and both can
// wait for it. A handle that this package made is checked as Open does. Of other 64 bytes the
// driver decides: CUDA's opens an event whose process has ended, too, and it counts as
// reached. The caller must Close it.
func OpenEvent(dev *vmm.Device, h Handle) (_ *vmm.Event, err error) {
	defer func() { err = fail(dev, "open handle of event", 0, 0, err) }()
	if err := h.check(KindEvent); err != nil {
		return nil, err
	}
	e, err := dev.OpenEvent(h.Raw)
	if err != nil {
		return nil, h.explain(KindEvent, err)
	}
	// The driver may open an event of a process that has ended meanwhile.
	if gone := h.check(KindEvent); gone != nil {
		return nil, joinErr(gone, e.Close())
	}
	return e, nil
}
