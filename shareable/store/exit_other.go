//go:build !linux

package store

func waitExit(int, func() (int, error)) bool { return true }
func hasExited(func() (int, error)) bool     { return false }
