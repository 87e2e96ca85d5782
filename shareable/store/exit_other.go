//go:build !linux

package store

func waitExit(int, func() (int, error)) bool { return true }
func hasExited(func() (int, error)) bool     { return false }
func startTime(int) uint64                   { return 0 }
func (p *process) pidfd() (int, error)       { return -1, errLinux }
