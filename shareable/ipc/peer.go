package ipc

import "github.com/cuvmm/cuvmm/vmm"

// peerAccess is legacy peer access that opened memory needs. Its zero value is none.
type peerAccess struct {
	owner   *vmm.Device
	disable func() error
}

// deviceOf is the ordinal of another device of dev's driver that has the UUID. A device that
// this process cannot see has none; the driver may reach its memory nevertheless.
func deviceOf(dev *vmm.Device, uuid [16]byte) (ordinal int, found bool) {
	if uuid == [16]byte{} || uuid == dev.Info().UUID {
		return 0, false
	}
	all, err := dev.Driver().Devices()
	if err != nil {
		return 0, false
	}
	for _, i := range all {
		if i.UUID == uuid {
			return i.Ordinal, true
		}
	}
	return 0, false
}

// enablePeer counts a user of the access between dev and the device whose memory it opens.
// Then an undo of another EnableLegacyPeers does not take the access away.
func enablePeer(dev *vmm.Device, owner int) (p peerAccess, err error) {
	if p.owner, err = vmm.OpenDriver(dev.Driver(), owner); err != nil {
		return peerAccess{}, err
	}
	if p.disable, err = vmm.EnableLegacyPeers(dev, p.owner); err != nil {
		return peerAccess{}, also(err, p.owner.Close())
	}
	return p, nil
}

// end undoes enablePeer. After an error it can be called again.
func (p *peerAccess) end() error {
	if p.owner == nil {
		return nil
	}
	err := p.disable()
	if err == nil || lost(err) {
		err = also(err, p.owner.Close())
	}
	return err
}
