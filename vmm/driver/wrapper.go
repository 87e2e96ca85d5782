package driver

import "fmt"

// Wrapper is a Driver or a Device that passes its calls on to another one and does
// something of its own before or after them: it counts, refuses, delays. Wraps is
// the only way to learn what it wraps.
//
// A caller makes every call on the Driver that it was given, and finds optional
// interfaces by a type assertion on that. So it cannot get past a wrapper. A wrapper
// has every optional interface and returns ErrNotSupported where the wrapped driver
// lacks one. The devices that it opens are wrapped too.
type Wrapper interface {
	// Wraps returns IdentityOf what is wrapped.
	Wraps() Identity
}

// Identity says which Driver, or which Device, is inside all wrappers. Two are equal
// if that is the same one. An Identity can only be compared and printed: no call can
// be made through it.
type Identity struct{ of any }

// IdentityOf returns the identity of a Driver or a Device.
func IdentityOf(of any) Identity {
	if w, ok := of.(Wrapper); ok {
		return w.Wraps()
	}
	return Identity{of}
}

// String names the type, like "*host.Driver".
func (i Identity) String() string { return fmt.Sprintf("%T", i.of) }
