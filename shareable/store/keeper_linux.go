package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// A Keeper is a process that has the socket and starts the one that serves:
//
//	keeper -> server   the listener, the lock file; what the server before promised
//	server -> keeper   ready; then what it promises
//	keeper -> server   hand over, with one end of a socket pair
//	       -> successor  its other end, and a pidfd of the server
//	successor -> keeper  ready; the server ends
//
// It reads nothing that a client sends. If it ends, the server sees that, and ends, too.

// Keeper keeps the socket of a store, and starts the processes that serve it, one after the other. Clients
// notice nothing when one takes over from another. Safe for concurrent use. The caller must Close it.
type Keeper struct {
	socket  *shareable.KeptSocket
	command func() *exec.Cmd
	log     *slog.Logger
	reloads chan chan error

	mu   sync.Mutex
	kept keptObjects // guarded by mu
}

// NewKeeper makes the socket at path, which is as for Listen. Each process is made by command; it has to
// call ServeKept. A nil log logs nothing.
func NewKeeper(path string, command func() *exec.Cmd, log *slog.Logger) (*Keeper, error) {
	if command == nil {
		return nil, fmt.Errorf("keep a store: %w: no command", vmm.ErrInvalid)
	}
	socket, err := shareable.KeepSocket(cmp.Or(path, defaultName))
	if err != nil {
		return nil, fmt.Errorf("keep a store: %w", err)
	}
	return &Keeper{socket: socket, command: command, log: cmp.Or(log, slog.New(slog.DiscardHandler)), reloads: make(chan chan error)}, nil
}

var errNoKeeper = fmt.Errorf("%w: no keeper", vmm.ErrInvalid)

// Path is the path of the socket.
func (k *Keeper) Path() string {
	if k == nil || k.socket == nil {
		return ""
	}
	return k.socket.Path
}

// Close gives the socket up, after Run. A nil Keeper is fine.
func (k *Keeper) Close() error {
	if k == nil || k.socket == nil {
		return nil
	}
	k.mu.Lock()
	k.kept.close()
	k.mu.Unlock()
	return k.socket.Close()
}

const (
	keeperPatience = 10 * time.Second // for a server that is to end
	beginPatience  = time.Minute      // for one that begins
	takePatience   = 2 * time.Second  // for one that takes over from a server that has ended
	firstPause     = 100 * time.Millisecond
	longestPause   = 5 * time.Second // before a server is started that did not begin
)

// Run starts a server, and another one whenever that ends, until ctx does; it returns nil then. If the first
// one ends before it serves, Run returns why. One that is started after a server has died has the objects that
// are sealed, and what was published of those that are durable; connections are gone. It is called once.
func (k *Keeper) Run(ctx context.Context) error {
	if k == nil || k.socket == nil {
		return errNoKeeper
	}
	p, err := k.start("listen", nil, k.socket.Files...)
	if err == nil {
		err = p.begins(ctx, nil)
	}
	switch {
	case ctx.Err() != nil:
		k.end(p)
		return nil
	case err != nil:
		k.end(p)
		return fmt.Errorf("the server has not begun: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			k.end(p)
			return nil
		case done := <-k.reloads:
			p, err = k.replace(ctx, p)
			done <- err
		case <-p.ended:
			k.log.Error("the server has ended; another one begins", "error", p.err)
			if p = k.restart(ctx); p == nil {
				return nil
			}
		}
	}
}

// Reload has a new process take over from the one that serves: of the program as it is now at the path that
// command runs. If that fails the old one goes on. It works while Run does.
func (k *Keeper) Reload(ctx context.Context) error {
	switch {
	case k == nil || k.socket == nil:
		return errNoKeeper
	case ctx == nil:
		return errNoContext
	}
	done := make(chan error, 1)
	select {
	case k.reloads <- done:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keptProcess is a process that serves, or is to.
type keptProcess struct {
	cmd     *exec.Cmd
	control *net.UnixConn
	ready   chan struct{} // closed once it serves
	read    chan struct{} // closed once it says no more
	ended   chan struct{} // closed once it has ended, after err is set
	err     error
}

// keptBy is the variable of the environment that says how a process is to begin; after a colon follows the path
// of the socket.
const keptBy = "CUVMM_STORE_KEPT"

// start starts a process. Its first descriptor after the standard ones is that of its keeper, then come the files.
// What it says comes after what the process after says, if that is not nil.
func (k *Keeper) start(how string, after *keptProcess, files ...*os.File) (*keptProcess, error) {
	own, theirs, err := filePair()
	if err != nil {
		return nil, err
	}
	control, err := connOf(own)
	if err != nil {
		return nil, errors.Join(err, theirs.Close())
	}
	cmd := k.command()
	cmd.ExtraFiles = append([]*os.File{theirs}, files...)
	cmd.Env = append(cmd.Environ(), keptBy+"="+how+":"+k.socket.Path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what a terminal sends is for the keeper
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	p := &keptProcess{cmd: cmd, control: control, ready: make(chan struct{}), ended: make(chan struct{}), read: make(chan struct{})}
	go func() {
		defer close(p.read)
		k.follow(p, after)
	}()
	go func() {
		err := cmp.Or(cmd.Wait(), error(errEnded))
		<-p.read // also what it has said last
		_ = control.Close()
		p.err = err
		close(p.ended)
	}()
	if how == "listen" {
		k.mu.Lock()
		defer k.mu.Unlock()
		_ = control.SetWriteDeadline(time.Now().Add(beginPatience))
		err := k.kept.sendTo(control)
		_ = control.SetWriteDeadline(time.Time{})
		if err != nil {
			k.log.Warn("a server does not take what there is", "error", err) // it is about to end
		}
	}
	return p, nil
}

// follow does what a process says until it ends. Of two that serve one after the other the first comes first.
func (k *Keeper) follow(p, after *keptProcess) {
	r := newKeptReader(p.control)
	ready := false
	for {
		m, fds, err := r.next()
		if err != nil {
			if errors.Is(err, vmm.ErrLimit) {
				k.log.Error("what a server promises cannot be kept", "error", err)
				_ = p.cmd.Process.Kill() // it must promise nothing more
			}
			return
		}
		if m.Op != opReady && after != nil {
			<-after.read
		}
		k.mu.Lock()
		switch {
		case m.Op == opPut:
			k.kept.put(m, fds)
			fds = nil
		case m.Op == opForget:
			k.kept.forget(m.ID)
		case m.Op == opServer:
			k.kept.server = m.Text
		case m.Op == opReady && !ready:
			ready = true
			close(p.ready)
		}
		k.mu.Unlock()
		closeFDs(fds)
	}
}

var errEnded = errors.New("exit status 0")

// begins waits until a process serves. Once the one before has ended, it does so soon or not at all.
func (p *keptProcess) begins(ctx context.Context, before <-chan struct{}) error {
	t := time.NewTimer(beginPatience)
	defer t.Stop()
	for {
		select {
		case <-p.ready:
			return nil
		case <-p.ended:
			return p.err
		case <-before:
			before = nil
			t.Reset(takePatience)
		case <-t.C:
			return fmt.Errorf("%w: it does not say that it serves", os.ErrDeadlineExceeded)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// end has a process end, and waits for that. A nil p is fine.
func (k *Keeper) end(p *keptProcess) {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.isGone(k.log)
}

// isGone waits for a process that is about to end, and kills it if it does not.
func (p *keptProcess) isGone(log *slog.Logger) {
	t := time.NewTimer(keeperPatience)
	defer t.Stop()
	select {
	case <-p.ended:
	case <-t.C:
		log.Warn("a server that is to end is killed", "pid", p.cmd.Process.Pid)
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// restart starts a server until one serves; nil if ctx ends first.
func (k *Keeper) restart(ctx context.Context) *keptProcess {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
		p, err := k.start("listen", nil, k.socket.Files...)
		if err == nil {
			err = p.begins(ctx, nil)
		}
		if err == nil {
			return p
		}
		k.end(p)
		if ctx.Err() != nil {
			return nil
		}
		k.log.Error("a server has not begun", "error", err)
	}
}

// replace has a new process take over from the old one, and returns the one that serves then.
func (k *Keeper) replace(ctx context.Context, old *keptProcess) (*keptProcess, error) {
	next, err := k.startNext(old)
	if err == nil {
		err = next.begins(ctx, old.ended)
	}
	if err != nil {
		k.end(next)
		k.log.Error("a server has not taken over", "error", err)
		return old, fmt.Errorf("the server has not been replaced: %w", err)
	}
	old.isGone(k.log)
	return next, nil
}

// startNext starts a process that takes over, and tells the old one.
func (k *Keeper) startNext(old *keptProcess) (*keptProcess, error) {
	one, other, err := filePair()
	if err != nil {
		return nil, err
	}
	defer one.Close()   //nolint:errcheck // nothing was written
	defer other.Close() //nolint:errcheck // nothing was written
	pidfd, err := unix.PidfdOpen(old.cmd.Process.Pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	of := os.NewFile(uintptr(pidfd), "pidfd")
	defer of.Close() //nolint:errcheck // of no interest
	next, err := k.start("next", old, other, of)
	if err != nil {
		return nil, err
	}
	if err := writeKept(old.control, keptMessage{Op: opHandOver}, int(one.Fd())); err != nil {
		k.end(next)
		return nil, err
	}
	return next, nil
}

// IsKept reports whether a Keeper has started this process.
func IsKept() bool { return os.Getenv(keptBy) != "" }

// ServeKept serves in a process that a Keeper has started: anew, or by taking over from the process before.
// It calls began once it serves. It returns nil once ctx or the Keeper has ended, or another process has
// taken over. dev must be the same device as before. It is called once.
func ServeKept(ctx context.Context, dev *vmm.Device, o Options, began func(*Server)) error {
	if ctx == nil {
		return errNoContext
	}
	how, path, kept := strings.Cut(os.Getenv(keptBy), ":")
	if !kept {
		return fmt.Errorf("serve: %w: no Keeper has started this process", vmm.ErrInvalid)
	}
	_ = os.Unsetenv(keptBy) // processes that this one starts are none of its
	const first = 3         // after the standard ones
	control, err := connOf(os.NewFile(first, "keeper"))
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	defer control.Close() //nolint:errcheck // it ends this process
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from := newKeptReader(control)
	s, err := keptServer(ctx, dev, o, how, path, first+1, from)
	if err != nil {
		return err
	}
	if began != nil {
		began(s)
	}
	go func() { s.Wait(); cancel() }()
	go func() { followKeeper(from, s, o.Logger); cancel() }()
	<-ctx.Done()
	return s.Close()
}

// keptServer makes the server. fd is the first of the descriptors that it gets from the Keeper.
func keptServer(ctx context.Context, dev *vmm.Device, o Options, how, path string, fd int, from *keptReader) (*Server, error) {
	if how == "next" {
		other := os.NewFile(uintptr(fd+1), "pidfd")
		defer other.Close() //nolint:errcheck // it was only asked
		conn, err := connOf(os.NewFile(uintptr(fd), "predecessor"))
		if err != nil {
			return nil, fmt.Errorf("take over: %w", err)
		}
		return takeOverOn(ctx, dev, conn, fd+1, o, from.conn)
	}
	lock := -1
	if !strings.HasPrefix(path, "@") {
		lock = fd + 1
		unix.CloseOnExec(lock)
	}
	unix.CloseOnExec(fd)
	s, err := recordedServer(dev, o, from)
	if err != nil {
		return nil, err
	}
	if err = s.objects.Adopt(path, fd, lock); err == nil {
		err = writeKept(from.conn, keptMessage{Op: opReady})
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// recordedServer makes a server of what the keeper has, which may be nothing.
func recordedServer(dev *vmm.Device, o Options, from *keptReader) (s *Server, err error) {
	var kept keptObjects
	for {
		m, fds, err := from.next()
		if err != nil {
			kept.close()
			return nil, err
		}
		switch m.Op {
		case opPut:
			kept.put(m, fds)
			continue
		case opServer:
			kept.server = m.Text
		}
		closeFDs(fds)
		if m.Op == opBegin {
			break
		}
	}
	if kept.server == nil {
		if s, err = NewServer(dev, o); err == nil {
			s.startRecording(from.conn)
		}
		return s, err
	}
	if o, err = o.resolve(); err != nil {
		kept.close()
		return nil, err
	}
	s, gone, err := restore(dev, o, &kept)
	if err != nil {
		return nil, fmt.Errorf("go on with what there is: %w", err)
	}
	s.startRecording(from.conn)
	for _, id := range gone {
		if err := writeKept(from.conn, keptMessage{Op: opForget, ID: id}); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	for _, e := range slices.Clone(s.order) { // those whose writers are gone have another page now
		if err := s.record(e); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// followKeeper does what the Keeper says, until that ends.
func followKeeper(from *keptReader, s *Server, log *slog.Logger) {
	for {
		m, fds, err := from.next()
		if err != nil {
			return
		}
		if m.Op != opHandOver || len(fds) != 1 {
			closeFDs(fds)
			continue
		}
		conn, err := connOf(os.NewFile(uintptr(fds[0]), "successor"))
		if err == nil {
			err = s.HandOver(conn)
		}
		if err != nil && log != nil {
			log.Warn("the store goes on", "error", err)
		}
	}
}

// Replace asks the Keeper of the store that the Client is connected to for another process, as SIGHUP does, and
// waits until that has taken over. It returns vmm.ErrNotSupported if there is no Keeper, or none that can
// be seen from here, and an error of ctx if nothing has taken over by then: the Keeper logs why.
func (c *Client) Replace(ctx context.Context) error {
	if err := c.replace(ctx); err != nil {
		return fmt.Errorf("replace the server: %w", err)
	}
	return nil
}

func (c *Client) replace(ctx context.Context) error {
	before, err := c.Stats(ctx)
	if err != nil {
		return err
	}
	conn, _, err := c.connection(ctx)
	if err != nil {
		return err
	}
	c.release() // it is only asked what it is
	if c.dial != nil || conn.Hello().Features&wire.FeatureKept == 0 {
		return fmt.Errorf("%w: the store has no keeper", vmm.ErrNotSupported)
	}
	if err := shareable.SignalKeeper(c.path, syscall.SIGHUP); err != nil {
		return err
	}
	t := time.NewTicker(lookPause)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if now, err := c.Stats(ctx); err == nil && now.Taken > before.Taken {
			return nil
		}
	}
}

// lookPause is the time between two looks at whether a server was replaced.
const lookPause = 20 * time.Millisecond
