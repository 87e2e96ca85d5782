package shareable

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// The errors of this package. It also returns errors of package vmm:
// ErrClosed after Close, ErrPermission when a peer is refused, ErrLimit when a
// limit of the system or of the other side is reached, ErrInvalid and
// ErrNotSupported. Compare with errors.Is.
var (
	ErrOwnerGone = errors.New("the owner is gone")                                     // mapped memory stays, and nothing more comes
	ErrSealed    = errors.New("sealed: its length is final")                           // more bytes are asked for than there will be, or a sealed object is to be written
	ErrTooSlow   = errors.New("the owner did not wait any longer")                     // it lives, and has disconnected this process, which was stopped, say
	ErrRetired   = errors.New("the owner took back memory that is in use here")        // so the view has detached from the owner; also bytes of a store's writer that do not count, and were shown
	ErrNotSealed = errors.New("not sealed")                                            // a store's object, and it was not asked for as it is
	ErrAborted   = errors.New("its writer has given it up")                            // a store's object
	ErrNotFound  = errors.New("no object of this name")                                // not published, or no longer
	ErrVersion   = errors.New("the other side speaks another version of the protocol") // usually another version of the library
	ErrProtocol  = errors.New("the other side broke the protocol")                     // the connection is closed
)

// noServerError is ErrOwnerGone where no server listens now, and maybe none ever did.
type noServerError struct {
	path  string
	cause error
}

func (e *noServerError) Error() string {
	cause := e.cause
	if op := (*net.OpError)(nil); errors.As(cause, &op) {
		cause = op.Err // which does not name the path again
	}
	return fmt.Sprintf("no server listens at %s: %v", e.path, cause)
}

func (e *noServerError) Is(target error) bool { return target == ErrOwnerGone }
func (e *noServerError) Unwrap() error        { return e.cause }

// wireError turns an error of package wire into one of the kinds above.
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
		return fmt.Errorf("%w: fds were lost at the limit on open files (RLIMIT_NOFILE): %w", vmm.ErrLimit, err)
	}
	return err
}

// peerError is the error that an ERROR frame stands for.
func peerError(e wire.Error) error {
	kind := ErrProtocol // for CodeProtocol
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
	case wire.CodeNotSealed:
		kind = ErrNotSealed
	case wire.CodeAborted:
		kind = ErrAborted
	case wire.CodeSealed:
		kind = ErrSealed
	case wire.CodeInvalid:
		kind = vmm.ErrInvalid
	case wire.CodeOutOfMemory:
		kind = vmm.ErrOutOfMemory
	case wire.CodeBounds:
		kind = vmm.ErrBounds
	case wire.CodeTooSlow:
		kind = ErrTooSlow
	case wire.CodeInternal:
		kind = errRefused
	}
	return &ownerError{kind, e.Text}
}

// ownerError is an error of a kind in the server's words.
type ownerError struct {
	kind error
	text string
}

// Error has the kind once: the server's text often begins with it, or is nothing else.
func (e *ownerError) Error() string {
	kind := e.kind.Error()
	switch text := strings.TrimPrefix(e.text, kind+": "); {
	case text != "" && text != kind && strings.Contains(text, kind):
		return fmt.Sprintf("the server says %q", text)
	case text != "" && text != kind:
		return fmt.Sprintf("%s: the server says %q", kind, text)
	}
	if slices.Contains([]error{ErrNotFound, ErrOwnerGone, ErrSealed, ErrNotSealed, ErrAborted, ErrTooSlow}, e.kind) {
		return kind // only the owner can know it
	}
	return kind + ": the server says so"
}

func (e *ownerError) Unwrap() error { return e.kind }

var errRefused = errors.New("refused")

// codeOf is the code of an ERROR frame for one of our errors.
func codeOf(err error) uint32 {
	switch {
	case errors.Is(err, vmm.ErrLimit):
		return wire.CodeLimit
	case errors.Is(err, vmm.ErrOutOfMemory):
		return wire.CodeOutOfMemory
	case errors.Is(err, vmm.ErrClosed):
		return wire.CodeNotFound
	case errors.Is(err, vmm.ErrPermission):
		return wire.CodePermission
	case errors.Is(err, ErrNotFound):
		return wire.CodeNotFound
	case errors.Is(err, vmm.ErrBusy):
		return wire.CodeBusy
	case errors.Is(err, vmm.ErrNotSupported):
		return wire.CodeNotSupported
	case errors.Is(err, ErrNotSealed):
		return wire.CodeNotSealed
	case errors.Is(err, ErrAborted):
		return wire.CodeAborted
	case errors.Is(err, ErrSealed):
		return wire.CodeSealed
	case errors.Is(err, vmm.ErrBounds):
		return wire.CodeBounds
	case errors.Is(err, vmm.ErrInvalid):
		return wire.CodeInvalid
	case errors.Is(err, ErrOwnerGone):
		return wire.CodeClosed
	}
	return wire.CodeInternal
}
