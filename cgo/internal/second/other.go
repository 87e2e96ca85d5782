//go:build !cgo || !linux

// Package second is another library in the same process; not in this build.
package second
