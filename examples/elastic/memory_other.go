//go:build !linux

package main

// memory is 0: a budget needs Linux.
func (both pair) memory() uint64 { return 0 }
