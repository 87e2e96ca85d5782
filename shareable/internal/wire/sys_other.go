//go:build !linux

package wire

import (
	"errors"
	"net"
	"syscall"
)

// Connections need Linux: here NewConn returns errors.ErrUnsupported.
const controlSize = 0

func receive([]byte, int) ([]int, error)       { return nil, errors.ErrUnsupported }
func truncated(int) bool                       { return false }
func rights([]int) []byte                      { return nil }
func closeFD(int) error                        { return errors.ErrUnsupported }
func keepsPackets(*net.UnixConn) (bool, error) { return false, errors.ErrUnsupported }
func peerCred(*net.UnixConn) (Cred, error)     { return Cred{}, errors.ErrUnsupported }
func peerPIDFD(*net.UnixConn) (int, error)     { return -1, errors.ErrUnsupported }
func passCred(*net.UnixConn) error             { return errors.ErrUnsupported }
func queued(*net.UnixConn) (int, error)        { return 0, errors.ErrUnsupported }
func shutdown(*net.UnixConn) error             { return errors.ErrUnsupported }
func awaitEnd(*net.UnixConn)                   {}
func discard(*net.UnixConn) bool               { return true }
func waitForPacket(syscall.RawConn) (int, bool, error) {
	return 0, false, errors.ErrUnsupported
}

// RefuseFDs returns errors.ErrUnsupported.
func RefuseFDs(syscall.RawConn) error { return errors.ErrUnsupported }
