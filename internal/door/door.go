// Package door keeps what only packages of this module need out of the exported methods that programs
// see. A package opens a door, and the others go through:
//
//	var _ = door.Open[seam[*Device]](inside{}) // in package vmm
//	in := door.Through[seam[*vmm.Device]]()    // in a package that imports it
//
// What a door lets through is an interface, here or in another internal package, whose type
// parameters are the types of the package that opens it.
package door

import "reflect"

var doors = map[reflect.Type]any{}

// Open opens a door. It is called when package variables are initialised, which is one after the
// other.
func Open[T any](inside T) struct{} {
	doors[reflect.TypeFor[T]()] = inside
	return struct{}{}
}

// Through is what Open was given; nil if there is no such door.
func Through[T any]() T {
	inside, _ := doors[reflect.TypeFor[T]()].(T)
	return inside
}
