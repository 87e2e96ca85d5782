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
	// Path is that of the socket, as for Listen; "" is the name "store". Mode and Group are those of its file: who may
	// connect to it, beside Options.UIDs. 0 is 0600, and nil the group of the process.
	Path  string
	Mode  fs.FileMode
	Group *int
	// Listener is a socket that is there already, in place of Path, Mode and Group: systemd's, say. NewKeeper takes it.
	Listener *os.File
	// Command makes each process, which has to call ServeKept.
	Command func() *exec.Cmd
	// HealthTime is how long a server may take to reply. One that takes longer is killed, and another one begins. 0 is
	// 10 s.
	HealthTime time.Duration
	// Token returns the secret of Options.Token as it is now, to ask the server with; nil: there is none.
	Token func() ([]byte, error)
	// Logger gets a line for each server that ends or does not begin; nil logs nothing.
	Logger *slog.Logger
	// Changed, if not nil, is called with what the Keeper does, by several goroutines. It must not wait.
	Changed func(KeeperState)
}

// KeeperState is what a Keeper does.
type KeeperState string

// States of a Keeper.
const (
	KeeperServes   KeeperState = "serves"   // a server serves
	KeeperHealthy  KeeperState = "healthy"  // it has replied
	KeeperReplaces KeeperState = "replaces" // another one is to take its place
	KeeperRestarts KeeperState = "restarts" // it has ended, and another one begins
	KeeperEnds     KeeperState = "ends"
)

// PingOptions configures Ping; its zero value is the default.
type PingOptions struct {
	// Token and UIDs are as in ClientOptions.
	Token []byte
	UIDs  []uint32
}
