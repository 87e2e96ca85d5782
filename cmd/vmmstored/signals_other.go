//go:build !unix

package main

// ignoreSignals has no such signals to ignore here.
func ignoreSignals() {}
