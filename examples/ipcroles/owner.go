package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
)

// The files in the directory. The first line of memoryFile is what the article's programs
// write and read.
const (
	memoryFile   = "memory.handle"
	readyFile    = "ready.handle"    // of an event of main's work
	finishedFile = "finished.handle" // of an event of another's work
	socketFile   = "turns.sock"
)

// owner is the memory of main and the events.
type owner struct {
	*role
	memory          *ipc.Memory
	ready, finished *vmm.Event
}

// main allocates the numbers, sets them to 1, and prints what others make of them until it is
// interrupted.
func (r *role) main() (err error) {
	// The lock comes first: it is what no second main can have.
	lock, err := lockDirectory(r.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	l, err := listen(r.file(socketFile))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	m := &owner{role: r}
	if m.memory, err = ipc.Alloc(r.dev, 4*uint64(r.count)); err != nil {
		return err
	}
	// No other process uses the memory by then: turns end before.
	defer func() { err = errors.Join(err, m.memory.Close()) }()
	if m.ready, err = r.newEvent(readyFile); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.ready.Close(), os.Remove(r.file(readyFile))) }()
	if m.finished, err = r.newEvent(finishedFile); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.finished.Close(), os.Remove(r.file(finishedFile))) }()
	h, err := m.memory.Handle()
	if err == nil {
		err = ipc.WriteFile(r.file(memoryFile), h)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(r.file(memoryFile))) }()

	if err := r.stream.Fill(m.memory.Ptr(), 1, 4, uint64(r.count)); err != nil {
		return err
	}
	if err := m.ready.Record(r.stream); err != nil {
		return err
	}
	if err := m.print("main"); err != nil {
		return err
	}
	return m.giveTurns(l)
}

// newEvent makes an event, and leaves its handle in a file.
func (r *role) newEvent(file string) (*vmm.Event, error) {
	e, err := r.dev.NewEvent(vmm.EventInterprocess)
	if err != nil {
		return nil, err
	}
	h, err := ipc.EventHandle(e)
	if err == nil {
		err = ipc.WriteFile(r.file(file), h)
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// lockDirectory makes a socket without a file, of a name that stands for the directory. The kernel
// gives a name to one process at a time, and takes it back when that ends, however it ends.
func lockDirectory(dir string) (net.Listener, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", fmt.Sprintf("@ipcroles-%x", sha256.Sum256([]byte(dir))))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("another main is there: %s: %w", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return l, nil
}

// listen makes the socket. It removes the socket of a main that was killed.
func listen(path string) (*net.UnixListener, error) {
	info, err := os.Lstat(path)
	if err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s is there and is not a socket", path)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

// giveTurns gives one process after another its turn.
func (m *owner) giveTurns(l *net.UnixListener) error {
	stop := context.AfterFunc(m.ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		c, err := l.AcceptUnix()
		if m.ctx.Err() != nil {
			if err == nil {
				err = c.Close()
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = nil
			}
			return err
		}
		if err != nil {
			return err
		}
		if err := errors.Join(m.giveTurn(c), c.Close()); err != nil {
			return err
		}
	}
}

// turnTime is how long a process may keep the others waiting.
const turnTime = 10 * time.Second

// giveTurn lets a process use the memory, until it has closed the connection, and so the
// memory.
func (m *owner) giveTurn(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(turnTime)); err != nil {
		return err
	}
	stop := context.AfterFunc(m.ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := fmt.Fprintln(c, yourTurn); err != nil {
		return nil // it has gone meanwhile
	}
	lines := bufio.NewScanner(c)
	if !lines.Scan() {
		fmt.Fprintln(m.w, "a process ended in its turn, or took too long")
		return m.stream.Sync()
	}
	name, queued := strings.CutSuffix(lines.Text(), " "+hasQueued)
	if !queued || name != "memory" && name != "rtc" {
		return nil // none of the roles
	}
	// Its work on the device may still run: what this stream does now comes after it.
	if err := m.stream.Wait(m.finished); err != nil {
		return err
	}
	if err := m.print(name); err != nil {
		return err
	}
	if err := m.ready.Record(m.stream); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(c, hasSeen); err == nil {
		lines.Scan() // the end, once it has closed the memory
	}
	return nil
}

// print reads the numbers after the stream's work and prints what they are.
func (m *owner) print(after string) error {
	b := make([]byte, m.memory.Len())
	if err := m.stream.CopyOut(b, m.memory.Ptr()); err != nil {
		return err
	}
	v, err := single(b)
	if err != nil { // a process was killed in the middle
		fmt.Fprintf(m.w, "after %s %v\n", after, err)
		return nil
	}
	fmt.Fprintf(m.w, "after %s all %d numbers are %d\n", after, len(b)/4, v)
	return nil
}
