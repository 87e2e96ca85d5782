//go:build !unix

package main

import "os"

// ignoreSignals has no such signals to ignore here.
func ignoreSignals() {}

// reloadSignal never comes: there is no such signal.
func reloadSignal() (reload <-chan os.Signal, stop func()) { return nil, func() {} }

func ownerOf(string) (uid uint32, ok bool) { return 0, false }
