package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/vmm"
)

// IsKept reports whether a Keeper has started this process.
func IsKept() bool { return os.Getenv(keptBy) != "" }

// ServeKept serves in a process that a Keeper has started, and continues with what the one before
// it had. It calls began once it serves. It returns nil once ctx or the Keeper has ended. dev must be
// the same device as before. It is called once.
func ServeKept(ctx context.Context, dev *vmm.Device, o Options, began func(*Server)) error {
	if ctx == nil {
		return errNoContext
	}
	files, path, kept := strings.Cut(os.Getenv(keptBy), ":")
	if !kept {
		return fmt.Errorf("serve: %w: no Keeper has started this process", vmm.ErrInvalid)
	}
	_ = os.Unsetenv(keptBy) // processes that this one starts are none of its
	control, err := connOf(os.NewFile(keeperFD, "keeper"))
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	defer control.Close() //nolint:errcheck // it ends this process
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = control.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	from := newKeptReader(control)
	near, far, err := socketPair() // now: later there may be no descriptors
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	defer near.Close() //nolint:errcheck // no one reads it any more
	defer far.Close()  //nolint:errcheck // the same
	s, err := keptServer(dev, o, path, keeperFD+1, files == "2", from)
	if err != nil {
		sendFailed(control, err)
		return fmt.Errorf("serve: %w", err)
	}
	if began != nil {
		began(s)
	}
	check, err := s.objects.Health(near, far)
	if o.hooks.blind {
		check = func() error { return nil }
	}
	for err == nil { // until the keeper ends
		var m keptMessage
		if m, _, err = from.next(); err == nil && m.Op == opHealth {
			err = sendHealth(control, check())
		}
	}
	return s.Close()
}

// keeperFD is the descriptor of the keeper, after the standard ones.
const keeperFD = 3

// FailKept tells the Keeper that has started this process why it does not call ServeKept: the text is in the
// errors of Keeper.Run and Keeper.Reload, and in the log. It returns err.
func FailKept(err error) error {
	if err == nil || !IsKept() {
		return err
	}
	_ = os.Unsetenv(keptBy)
	if control, connErr := connOf(os.NewFile(keeperFD, "keeper")); connErr == nil {
		sendFailed(control, err)
		_ = control.Close()
	}
	return err
}

const maxFailText = 4096 // bytes

// sendFailed tells the keeper why this process does not serve.
func sendFailed(control *net.UnixConn, why error) {
	text := why.Error()
	_ = writeKept(control, keptMessage{Op: opFailed, Text: []byte(strings.ToValidUTF8(text[:min(len(text), maxFailText)], ""))}) // else its exit code says it
}

// sendHealth replies to opHealth.
func sendHealth(control *net.UnixConn, wrong error) error {
	m := keptMessage{Op: opHealthy}
	if wrong != nil {
		m.Text = []byte(wrong.Error())
	}
	return writeKept(control, m)
}

// keptServer makes the server. fd is the first of the descriptors of the socket.
func keptServer(dev *vmm.Device, o Options, path string, fd int, locked bool, from *keptReader) (*Server, error) {
	lock := -1
	if locked {
		lock = fd + 1
		unix.CloseOnExec(lock)
	}
	unix.CloseOnExec(fd)
	if dev == nil {
		return nil, fmt.Errorf("%w: no device", vmm.ErrInvalid)
	}
	o, err := o.resolve()
	if err != nil {
		return nil, err
	}
	var kept keptObjects
	defer kept.close()
	before, err := kept.receive(dev, from)
	if err != nil {
		return nil, err
	}
	s, err := recordedServer(dev, o, from.conn, &kept)
	if err != nil {
		return nil, err
	}
	s.before = before
	go s.watchLeases() // from here on it tells the keeper what changes
	go s.endAwaited()
	// The keeper hears of it before a client can: a client may end this process with a request.
	err = s.objects.Adopt(path, fd, lock, func() error { return writeKept(from.conn, keptMessage{Op: opServing, Health: true}) })
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// receive takes what the keeper has, until this process is to serve. It returns how many servers
// there were before.
func (k *keptObjects) receive(dev *vmm.Device, from *keptReader) (before uint64, err error) {
	if err := writeKept(from.conn, keptMessage{Op: opBegin}); err != nil {
		return 0, err
	}
	for {
		m, fds, err := from.next()
		if err != nil {
			return 0, err
		}
		k.apply(m, fds)
		switch m.Op {
		case opGo:
			return before, nil
		case opBegin:
			before = m.Count
			if err := checkKept(dev, k); err != nil {
				return 0, fmt.Errorf("go on with what there is: %w", err)
			}
			if err := writeKept(from.conn, keptMessage{Op: opReady}); err != nil {
				return 0, err
			}
		}
	}
}

// recordedServer makes a server of what the keeper has, which may be nothing.
func recordedServer(dev *vmm.Device, o Options, conn *net.UnixConn, kept *keptObjects) (*Server, error) {
	if kept.server == nil {
		s, err := newServer(dev, o)
		if err != nil {
			return nil, err
		}
		s.startRecording(conn, kept, 0)
		if err := errors.Join(s.recordFirst(), s.serveBudgets(kept.members)); err != nil { // with the Instance, which stays
			return nil, errors.Join(err, s.Close())
		}
		return s, nil
	}
	s, ids, gone, err := restore(dev, o, kept)
	if err != nil {
		return nil, fmt.Errorf("go on with what there is: %w", err)
	}
	s.startRecording(conn, kept, ids)
	if err := s.serveBudgets(kept.members); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	for _, id := range gone {
		if err := writeKept(conn, keptMessage{Op: opForget, ID: id}); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	for _, e := range slices.Clone(s.order) { // those whose writers are gone have another page now
		if err := s.record(e, requestID{}); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}
