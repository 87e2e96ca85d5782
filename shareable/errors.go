package shareable

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// What this package answers with, beside the errors of package vmm: ErrClosed
// after Close, ErrPermission where a peer is turned away, ErrLimit where a limit
// of the system, or of the other side, is reached, ErrInvalid, ErrNotSupported.
// Compare with errors.Is.
var (
	ErrOwnerGone = errors.New("the owner is gone")                                     // what is mapped stays, and no more comes
	ErrSealed    = errors.New("sealed: it grows no more")                              // it has its last length
	ErrRetired   = errors.New("the owner took back memory that is in use here")        // the view has let go of the owner instead
	ErrNotFound  = errors.New("no object of this name")                                // not published, or no longer
	ErrVersion   = errors.New("the other side speaks another version of the protocol") // of the library, usually
	ErrProtocol  = errors.New("the other side broke the protocol")                     // nothing it says counts any more
)

// wireError gives an error of the connection its kind.
func wireError(err error) error {
	var broke *wire.ProtocolError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, wire.ErrVersion):
		return fmt.Errorf("%w: %w", ErrVersion, err)
	case errors.As(err, &broke):
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	case errors.Is(err, wire.ErrTruncated):
		return fmt.Errorf("%w: fds were lost, which the limit on open files (RLIMIT_NOFILE) does: %w", vmm.ErrLimit, err)
	}
	return err
}

// refusal is the error that an ERROR frame stands for.
func peerError(e wire.Error) error {
	kind := ErrProtocol
	switch e.Code {
	case wire.CodeVersion:
		kind = ErrVersion
	case wire.CodePermission:
		kind = vmm.ErrPermission
	case wire.CodeNotFound:
		kind = ErrNotFound
	case wire.CodeLimit:
		kind = vmm.ErrLimit
	case wire.CodeBusy:
		kind = vmm.ErrBusy
	case wire.CodeNotSupported:
		kind = vmm.ErrNotSupported
	case wire.CodeClosed:
		kind = ErrOwnerGone
	case wire.CodeInternal:
		kind = errRefused
	}
	return fmt.Errorf("%w: the owner says %q", kind, e.Text)
}

var errRefused = errors.New("refused")
