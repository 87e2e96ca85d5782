package driver

// Peering is what a driver knows of the way from one device to another's memory.
type Peering struct {
	Access  bool   // from can reach memory of to at all
	Link    string // "nvlink", "pcie", "host"; "self" for a device and itself, "none" without a path, "" where the driver cannot tell
	Rank    int    // relative performance, 0 the best; -1 where the driver cannot tell
	Atomics bool   // native atomic operations over the link
}

// PeerInfo is a Driver that knows more of pairs of devices than CanAccessPeer.
// It needs no context and makes none.
type PeerInfo interface {
	// Peering describes how device from reaches memory of device to.
	Peering(from, to int) (Peering, error)
}

// LegacyPeers is a Device that reaches plain memory of another device: what
// cuMemAlloc made, not what was mapped, for which SetAccess alone counts.
type LegacyPeers interface {
	// EnablePeer lets this device's context reach plain memory of device to. If it
	// is enabled already, by any library, that is ErrPeerEnabled. A pair without a
	// path is ErrNotSupported.
	EnablePeer(to int) error
	// DisablePeer undoes EnablePeer. If it is not enabled, that is ErrInvalid. Work
	// that uses the memory must have ended. DisablePeer works on a lost device too.
	DisablePeer(to int) error
}
