//go:build !linux

package ipc

const noWait = 0 // not known here
