package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/store"
)

// leastWatchdog leaves a server a tenth of a second to reply.
const leastWatchdog = 300 * time.Millisecond

// newManager takes the socket of a unit that is activated by one.
func newManager(log *slog.Logger) (*manager, error) {
	m := &manager{log: log}
	var err error
	if m.listener, err = listenerOf(os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")); err != nil {
		return nil, err
	}
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name) // the processes that serve get the socket from the keeper
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, err
	}
	if watchdog < 0 || watchdog > 0 && watchdog < leastWatchdog {
		return nil, usagef("WATCHDOG_USEC=%q of the service manager: %v at least", os.Getenv("WATCHDOG_USEC"), leastWatchdog)
	}
	m.health = watchdog / 3 // of which it is told several times
	return m, nil
}

// listenerOf is the socket of which the service manager has told this process; nil: there is none.
func listenerOf(pid, fds string) (*os.File, error) {
	const first = 3 // after the standard ones
	switch {
	case pid != strconv.Itoa(os.Getpid()) || fds == "" || fds == "0":
		return nil, nil
	case fds != "1":
		return nil, usagef("LISTEN_FDS=%q of the service manager: one socket at most", fds)
	}
	syscall.CloseOnExec(first)
	return os.NewFile(first, "listener"), nil
}

// changed tells the service manager what the keeper does. Its watchdog is for the keeper: that kills a
// server that hangs.
func (m *manager) changed(s store.KeeperState) {
	state := map[store.KeeperState]string{
		store.KeeperServes:   daemon.SdNotifyReady + "\nSTATUS=serving",
		store.KeeperHealthy:  daemon.SdNotifyWatchdog,
		store.KeeperReplaces: fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, monotonic()),
		store.KeeperRestarts: "STATUS=the server has ended; another one begins",
		store.KeeperEnds:     daemon.SdNotifyStopping,
	}[s]
	_, err := daemon.SdNotify(false, state)
	if told := err == nil; untold.Swap(!told) == told && !told { // not each time
		m.log.Warn("the service manager is not told", "state", string(s), "error", err)
	}
}

// untold is that the manager could not be told the last time.
var untold atomic.Bool

// monotonic is the system's monotonic clock in us, which the manager compares with its own.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano() / 1000
}

// reusePort lets the next process listen at the address while this one does.
func reusePort(_, _ string, c syscall.RawConn) (err error) {
	if failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); failed != nil {
		return failed
	}
	return err
}

var listenConfig = net.ListenConfig{Control: reusePort}
