//go:build !cgo || !linux

// Package nccloop makes NCCL's calls from C, for comparison; not in this build.
package nccloop
