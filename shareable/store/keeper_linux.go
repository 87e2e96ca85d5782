package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/socket"
	"github.com/cuvmm/cuvmm/vmm"
)

// A Keeper is a process that has the socket and starts the one that serves:
//
//	server -> keeper   begin: its device is open
//	keeper -> server   what there is, begin; from here on also what changes, while another one serves
//	server -> keeper   ready: it can go on with that
//	                   the keeper kills the one that serves
//	keeper -> server   go, after the last change
//	server -> keeper   serving; then what it promises
//	keeper -> server   health, now and then
//	server -> keeper   healthy
//
// So there is one way in which a server ends, whatever ends it. The Keeper reads nothing that a
// client sends. If it ends, the server sees that, and ends, too.

// Keeper keeps the socket of a store, and starts the processes that serve it, one after the other.
// Clients connect again by themselves, and go on. Safe for concurrent use. The caller must Close
// it.
type Keeper struct {
	socket  *socket.Kept
	opts    KeeperOptions
	log     *slog.Logger
	reloads chan reload
	begun   atomic.Bool   // Run was called
	over    chan struct{} // closed once Run has ended

	// Guarded by mu.
	mu      sync.Mutex
	kept    keptObjects
	next    *keptProcess // it is told what changes; nil: no process begins
	servers uint64       // that have served

	watches sync.WaitGroup // each of a process that serves
}

// reload is a call of Reload. A caller whose context ends before its reload begins wants none.
type reload struct {
	caller context.Context
	done   chan error // of capacity 1
}

// keepSocket checks the options and makes the socket, or takes Listener.
func (o KeeperOptions) keepSocket() (*socket.Kept, error) {
	invalid := o.Command == nil || o.HealthTime < 0
	switch {
	case invalid && o.Listener != nil:
		_ = o.Listener.Close()
		fallthrough
	case invalid:
		return nil, fmt.Errorf("%w: no command, or a time below 0", vmm.ErrInvalid)
	case o.Listener != nil:
		return socket.KeepListener(o.Listener)
	}
	return socket.Keep(cmp.Or(o.Path, defaultName), socket.Options{Mode: o.Mode, Group: o.Group})
}

// NewKeeper makes the socket, or takes the one of the options. It returns vmm.ErrBusy if another
// server has the path, and vmm.ErrInvalid for options that cannot be; on error it has closed
// Listener. The caller must Close the Keeper.
func NewKeeper(o KeeperOptions) (*Keeper, error) {
	kept, err := o.keepSocket()
	if err != nil {
		return nil, fmt.Errorf("keep a store: %w", err)
	}
	o.HealthTime = cmp.Or(o.HealthTime, 10*time.Second)
	return &Keeper{socket: kept, opts: o, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), reloads: make(chan reload), over: make(chan struct{})}, nil
}

// tell calls KeeperOptions.Changed.
func (k *Keeper) tell(s KeeperState) {
	if f := k.opts.Changed; f != nil {
		f(s)
	}
}

var errKeeperOver = fmt.Errorf("%w: the Keeper has ended", vmm.ErrClosed)

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
	takePatience   = 2 * time.Second  // for one that begins while none serves any more
	tellPatience   = time.Second      // for one that begins to take what it is told
	firstPause     = 100 * time.Millisecond
	longestPause   = 5 * time.Second // before a server is started that did not begin
)

// Run starts a server, and another one whenever that ends, until ctx does; it returns nil then. If
// the first one ends before it serves, Run returns why. The next one has the objects that are
// sealed, what was published of those that are durable, and those whose Writers come back within
// ten seconds. It is called once.
func (k *Keeper) Run(ctx context.Context) error {
	if k == nil || k.socket == nil {
		return errNoKeeper
	}
	if k.begun.Swap(true) {
		return fmt.Errorf("%w: Run was called before", vmm.ErrInvalid)
	}
	defer close(k.over)
	p, err := k.begin(ctx, nil)
	if err == nil {
		k.tell(KeeperServes)
		p = k.keep(ctx, p)
	}
	if ctx.Err() != nil {
		k.log.Info("the store ends", "why", context.Cause(ctx))
	}
	k.tell(KeeperEnds)
	k.end(p)
	k.watches.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("the server has not begun: %w", err)
}

// keep has another process serve whenever one has ended, until ctx does. It returns the last one.
func (k *Keeper) keep(ctx context.Context, p *keptProcess) *keptProcess {
	var shows sync.WaitGroup
	defer shows.Wait()
	shows.Go(func() { k.showHealth(ctx) })
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case r := <-k.reloads:
			if err := r.caller.Err(); err != nil {
				r.done <- err
				continue
			}
			k.log.Info("the server is to be replaced", "pid", p.cmd.Process.Pid)
			k.tell(KeeperReplaces)
			next, err := k.begin(ctx, p)
			if next != nil {
				p = next
			}
			if err != nil {
				k.log.Error("the server has not been replaced", "error", err)
				err = fmt.Errorf("replace the server: %w", err)
			} else {
				k.log.Info("the server has been replaced", "pid", p.cmd.Process.Pid)
			}
			r.done <- err
			k.tell(KeeperServes)
		case <-p.ended:
			k.log.Error("the server has ended; another one begins", "error", p.err)
			k.tell(KeeperRestarts)
			if p = k.restart(ctx); p != nil {
				k.tell(KeeperServes)
			}
		}
	}
	return p
}

// Reload has a new process take the place of the one that serves: of the program as it is now at
// the path that command runs. If that cannot go on with what there is the old one does. It works
// while Run does. If ctx ends before the new process is started, none is; after that it goes on.
func (k *Keeper) Reload(ctx context.Context) error {
	switch {
	case k == nil || k.socket == nil:
		return errNoKeeper
	case ctx == nil:
		return errNoContext
	}
	done := make(chan error, 1)
	select {
	case k.reloads <- reload{ctx, done}:
	case <-k.over:
		return errKeeperOver
	case <-ctx.Done():
		return ctx.Err()
	}
	var ended error
	select {
	case err := <-done:
		return err
	case <-k.over:
		ended = errKeeperOver
	case <-ctx.Done():
		ended = ctx.Err()
	}
	select {
	case err := <-done: // meanwhile
		return err
	default:
		return ended
	}
}

// healthLooks is how often a Keeper looks for a reply in HealthTime. After a pause of all processes it
// is one look later, and not HealthTime.
const healthLooks = 4

// healthTicker ticks once for each look.
func (k *Keeper) healthTicker() *time.Ticker {
	return time.NewTicker(max(k.opts.HealthTime/healthLooks, 1))
}

// showHealth tells that the Keeper runs, until ctx ends. What the server does is no matter: nothing
// that it is refused, and no server that cannot begin, is a reason to end the Keeper and all objects.
func (k *Keeper) showHealth(ctx context.Context) {
	t := k.healthTicker()
	defer t.Stop()
	for {
		select {
		case <-t.C:
			k.mu.Lock()   // a Keeper that hangs with it says nothing
			k.mu.Unlock() // that it can be had is enough
			k.tell(KeeperHealthy)
		case <-ctx.Done():
			return
		}
	}
}

// watchHealth asks a process that serves how it is, until it or ctx ends, and kills it if it has
// not replied for HealthTime.
func (k *Keeper) watchHealth(ctx context.Context, p *keptProcess) {
	t := k.healthTicker()
	defer t.Stop()
	looks := 0 // since it was asked; 0: it has replied
	wrong := ""
	for {
		select {
		case <-t.C:
		case <-p.ended:
			return
		case <-ctx.Done():
			return
		}
		select {
		case says := <-p.healthy:
			if looks = 0; says != wrong && says != "" {
				k.log.Warn("the server is not well", "pid", p.cmd.Process.Pid, "error", says)
			}
			wrong = says
		default:
		}
		switch looks {
		case 0:
			_ = p.control.SetWriteDeadline(time.Now().Add(tellPatience))
			_ = writeKept(p.control, keptMessage{Op: opHealth}) // without it there is no reply
		case healthLooks:
			k.log.Error("the server does not reply; it is killed", "pid", p.cmd.Process.Pid)
			p.signal(syscall.SIGKILL)
			return
		}
		looks++
	}
}

// keptProcess is a process that serves, or is to.
type keptProcess struct {
	cmd     *exec.Cmd
	control *net.UnixConn
	ready   chan struct{} // closed once it can go on
	serving chan struct{} // closed once it serves
	replies bool          // to opHealth; set before serving is closed
	healthy chan string   // of capacity 1: its replies, what is wrong or nothing
	read    chan struct{} // closed once it says no more
	ended   chan struct{} // closed once it has ended, after err is set
	failed  string        // why it does not begin; set before read is closed
	err     error
}

// keptBy is the variable of the environment by which a process knows that a Keeper has started it:
// how many descriptors the socket has, and its path after a colon.
const keptBy = "CUVMM_STORE_KEPT"

// begin has a new process serve, in the place of the old one, which may be nil. It returns nil if
// there is none, and the old one serves on. If one is there that does not serve, it returns that
// and the error.
func (k *Keeper) begin(ctx context.Context, old *keptProcess) (*keptProcess, error) {
	p, err := k.start()
	if err != nil {
		return nil, err
	}
	defer k.tellNoMore()
	var before <-chan struct{}
	if old != nil {
		before = old.ended
	}
	if err := p.reaches(ctx, p.ready, before); err != nil {
		p.kill()
		return nil, err
	}
	if old != nil {
		select {
		case <-p.ended: // although it was ready: the old one serves on
			return nil, p.err
		default:
		}
		old.signal(syscall.SIGKILL)
		_ = old.control.CloseRead() // it can promise nothing more, also if it takes its time to end
		<-old.read                  // all that it has promised
	}
	k.mu.Lock()
	k.servers++
	err = k.tellLocked(p, keptMessage{Op: opGo})
	k.mu.Unlock()
	if err == nil {
		err = p.reaches(ctx, p.serving, nil)
	}
	if err != nil {
		p.kill()
		return p, err
	}
	if p.replies {
		k.watches.Go(func() { k.watchHealth(ctx, p) })
	} else {
		k.log.Warn("the server is of a program that its keeper cannot ask for its health", "pid", p.cmd.Process.Pid)
	}
	return p, nil
}

// start starts a process. Its first descriptor after the standard ones is that of its keeper, then
// come those of the socket.
func (k *Keeper) start() (*keptProcess, error) {
	own, theirs, err := filePair()
	if err != nil {
		return nil, err
	}
	control, err := connOf(own)
	if err != nil {
		return nil, errors.Join(err, theirs.Close())
	}
	cmd := k.opts.Command()
	cmd.ExtraFiles = append([]*os.File{theirs}, k.socket.Files...)
	cmd.Env = append(cmd.Environ(), fmt.Sprintf("%s=%d:%s", keptBy, len(k.socket.Files), k.socket.Path))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what a terminal sends is for the keeper
	cmd.WaitDelay = cmp.Or(cmd.WaitDelay, time.Second)    // a process that it has started may have its output, too
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	p := &keptProcess{
		cmd: cmd, control: control, ready: make(chan struct{}), serving: make(chan struct{}), healthy: make(chan string, 1),
		read: make(chan struct{}), ended: make(chan struct{}),
	}
	go func() {
		defer close(p.read)
		k.follow(p)
	}()
	go func() {
		err := cmp.Or(cmd.Wait(), error(errEnded))
		_ = control.CloseRead() // a process that it has started may have the other end
		<-p.read                // also what it has said last
		if p.failed != "" {
			err = fmt.Errorf("%s (%w)", p.failed, err)
		}
		_ = control.Close()
		p.err = err
		close(p.ended)
	}()
	return p, nil
}

// follow applies the messages of a process until it ends.
func (k *Keeper) follow(p *keptProcess) {
	r := newKeptReader(p.control)
	for {
		m, fds, err := r.next()
		if err == nil {
			err = k.do(p, m, fds)
		}
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			k.log.Error("what a server promises cannot be kept", "error", err)
			p.signal(syscall.SIGKILL) // it must promise nothing more
			return
		}
	}
}

// do does what a message says, and takes its descriptors.
func (k *Keeper) do(p *keptProcess, m keptMessage, fds []int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch m.Op {
	case opBegin:
		_ = p.control.SetWriteDeadline(time.Now().Add(tellPatience))
		if err := k.kept.sendTo(p.control, k.servers); err != nil {
			return err
		}
		k.next = p
	case opReady:
		closeOnce(p.ready)
	case opServing:
		p.replies = m.Health
		closeOnce(p.serving)
	case opFailed:
		p.failed = string(m.Text)
	case opHealthy:
		select {
		case p.healthy <- string(m.Text):
		default: // it was not asked
		}
	default:
		if k.next != nil && k.next != p {
			_ = k.tellLocked(k.next, m, fds...) // it cannot begin then
		}
		k.kept.apply(m, fds)
		return nil
	}
	closeFDs(fds)
	return nil
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// tellLocked tells a process that begins something. One that does not take it is killed. Requires
// mu.
func (k *Keeper) tellLocked(p *keptProcess, m keptMessage, fds ...int) error {
	_ = p.control.SetWriteDeadline(time.Now().Add(tellPatience))
	err := writeKept(p.control, m, fds...)
	if err != nil {
		p.signal(syscall.SIGKILL)
		k.next = nil
	}
	return err
}

// tellNoMore has no process told what changes.
func (k *Keeper) tellNoMore() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next = nil
}

var errEnded = errors.New("exit status 0")

// reaches waits until the channel is closed. Once the server before has ended it waits for
// takePatience at most.
func (p *keptProcess) reaches(ctx context.Context, what, before <-chan struct{}) error {
	t := time.NewTimer(beginPatience)
	defer t.Stop()
	for {
		select {
		case <-what:
			return nil
		case <-p.ended:
			select {
			case <-what: // before it ended: what it has said last is read by now
				return nil
			default:
				return p.err
			}
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

// signal sends a signal, once, to the process and to those that it has started, if it is a script.
func (p *keptProcess) signal(s syscall.Signal) {
	if p.cmd.Process.Signal(syscall.Signal(0)) == nil && syscall.Kill(-p.cmd.Process.Pid, s) != nil {
		_ = p.cmd.Process.Signal(s) // it has left its group
	}
}

// kill ends a process that does not serve.
func (p *keptProcess) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// end has a process end, and waits for that. A nil p is fine.
func (k *Keeper) end(p *keptProcess) {
	if p == nil {
		return
	}
	p.signal(syscall.SIGTERM)
	t := time.NewTimer(keeperPatience)
	defer t.Stop()
	select {
	case <-p.ended:
	case <-t.C:
		k.log.Warn("a server that is to end is killed", "pid", p.cmd.Process.Pid)
		p.kill()
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
		p, err := k.begin(ctx, nil)
		switch {
		case err == nil:
			return p
		case ctx.Err() != nil:
			return nil
		}
		k.log.Error("a server has not begun", "error", err)
	}
}
