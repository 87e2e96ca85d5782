//go:build !cgo || !linux

// Package fork runs a function in a forked child; not in this build.
package fork
