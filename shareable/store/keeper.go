package store

import (
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"time"
)

// KeeperOptions configures NewKeeper.
type KeeperOptions struct {
	// Path is the path of the socket, as for Listen; "" is the name "store".
	Path string
	// Mode is the mode of the socket's file, permission bits alone; 0 is 0600. Group is its group;
	// nil is that of the process. Of the processes that can open the file those of Options.UIDs may
	// connect.
	Mode  fs.FileMode
	Group *int
	// Listener is a socket that is there already, systemd's, say. NewKeeper takes it. With it Path,
	// Mode and Group are not used.
	Listener *os.File
	// Command makes each process, which has to call ServeKept.
	Command func() *exec.Cmd
	// HealthTime is how long a server may take to reply to its Keeper. One that takes longer is
	// killed, and another one begins. 0 is 10 s.
	HealthTime time.Duration
	// Logger gets a line for each server that ends, begins or does not, and for the end; nil logs nothing.
	Logger *slog.Logger
	// Changed, if not nil, is called with what the Keeper does, by several goroutines. It must not
	// wait.
	Changed func(KeeperState)
}

// KeeperState is what a Keeper does.
type KeeperState string

// States of a Keeper.
const (
	KeeperServes   KeeperState = "serves"   // a server serves
	KeeperHealthy  KeeperState = "healthy"  // the Keeper runs, whatever its server does: each quarter of HealthTime
	KeeperReplaces KeeperState = "replaces" // another one is to take its place
	KeeperRestarts KeeperState = "restarts" // it has ended, and another one begins
	KeeperEnds     KeeperState = "ends"
)
