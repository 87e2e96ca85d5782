//go:build !cgo || !linux

// Package cloop makes the driver's calls from C, for comparison; not in this build.
package cloop
