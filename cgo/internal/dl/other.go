//go:build !cgo || !linux

// Package dl opens shared libraries at run time; not in this build.
package dl
