package store

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// hangVar is the variable of the environment that says what hangs in a server from SIGUSR1 on, and
// whether it says that it does not.
const hangVar = "STORE_TEST_HANG"

// healthVar is the variable of the environment that sets KeeperOptions.HealthTime; it is a second without.
const healthVar = "STORE_TEST_HEALTH"

// hangs prepares the options of a server for hangVar.
func (o *Options) hangs(p *part) (began func(*Server)) {
	what := os.Getenv(hangVar)
	if what == "" {
		return nil
	}
	what, o.hooks.blind = strings.CutSuffix(what, " blind")
	var now atomic.Bool
	hang := func() {
		if now.Load() {
			select {}
		}
	}
	lock := func() {}
	switch what {
	case "accept loop": // it logs what it refuses
		o.Logger = slog.New(hangingLog{slog.DiscardHandler, hang})
	case "session":
		o.hooks.step = hang
	case "ledger":
	default:
		p.check(false, "no %q", what)
	}
	begin := make(chan os.Signal, 1)
	signal.Notify(begin, syscall.SIGUSR1)
	return func(s *Server) {
		if what == "ledger" {
			lock = s.mu.Lock
		}
		go func() {
			<-begin
			now.Store(true)
			lock()
			p.must(os.WriteFile(s.Path()+".hangs", nil, 0o600))
		}()
	}
}

type hangingLog struct {
	slog.Handler
	hang func()
}

func (h hangingLog) Enabled(context.Context, slog.Level) bool { return true }

func (h hangingLog) Handle(context.Context, slog.Record) error { h.hang(); return nil }

// hangingServer is a server whose part of that name hangs, and its process id.
func hangingServer(t *testing.T, what string) (k *child, c *Client, pid string) {
	t.Setenv(hangVar, what)
	t.Setenv(optionsVar, `{"MaxConns": 8}`)
	t.Setenv(healthVar, "300ms")
	k, path, c := kept(t)
	pid = k.ask("pid")
	n, err := strconv.Atoi(pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(n, syscall.SIGUSR1))
	require.Eventually(t, func() bool { _, err := os.Stat(path + ".hangs"); return err == nil }, inTime, step)
	for range 20 { // more than may connect: the accept loop logs it
		conn, err := net.Dial("unixpacket", path)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close()) })
	}
	return k, c, pid
}

// TestServerOfWhichAPartHangs: a server whose accept loop, sessions or lock hangs is killed, and
// clients go on with the next one. It uses the clock of the keeper's process: HealthTime is what is
// tested.
func TestServerOfWhichAPartHangs(t *testing.T) {
	for _, what := range []string{"accept loop", "session", "ledger"} {
		t.Run(what, func(t *testing.T) {
			k, c, pid := hangingServer(t, what)
			k.ask("looks", 2*healthLooks+1) // one HealthTime, with all that is rounded
			require.Eventually(t, func() bool { return k.ask("pid") != pid }, inTime, step)
			w, err := c.Create(within(t), "w", CreateOptions{Size: 100})
			require.NoError(t, err)
			require.NoError(t, w.Append([]byte{1}))
			require.NoError(t, w.Close())
			k.ask("close")
			k.wait()
			require.Contains(t, k.err.String(), "does not reply")
		})
		// As a negative control such a server says that it does not hang: it lives on.
		t.Run(what+", and it is not looked at", func(t *testing.T) {
			k, _, pid := hangingServer(t, what+" blind")
			k.ask("looks", 3*healthLooks)
			require.Equal(t, pid, k.ask("pid"))
			k.ask("kill") // it would not end
			require.Eventually(t, func() bool { return k.ask("pid") != pid }, inTime, step)
			k.ask("close")
			k.wait()
			require.NotContains(t, k.err.String(), "does not reply")
		})
	}
}

// TestWhatIsNoHangIsLogged: once, and the server is asked again. One that does not reply is killed.
func TestWhatIsNoHangIsLogged(t *testing.T) {
	t.Parallel()
	near, far, err := socketPair()
	require.NoError(t, err)
	defer near.Close()
	defer far.Close()
	var said bytes.Buffer
	k := &Keeper{opts: KeeperOptions{HealthTime: 100 * time.Millisecond}, log: slog.New(slog.NewTextHandler(&said, nil))}
	p := &keptProcess{cmd: exec.Command("sleep", "300"), control: near, healthy: make(chan string, 1), ended: make(chan struct{})}
	require.NoError(t, p.cmd.Start())
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	over := make(chan struct{})
	go func() { k.watchHealth(t.Context(), p); close(over) }()
	r := newKeptReader(far)
	for _, says := range []string{"", "ill", "ill", "ill", "", "worse"} {
		m, _, err := r.next()
		require.NoError(t, err)
		require.Equal(t, opHealth, m.Op)
		p.healthy <- says
	}
	<-over
	<-p.ended
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	require.Len(t, lines, 3, said.String())
	require.Contains(t, lines[0], "error=ill")
	require.Contains(t, lines[1], "error=worse")
	require.Contains(t, lines[2], "is killed")
}

// playOld serves as a program that does not know opHealth; with an argument it says that it does.
func playOld(p *part) {
	f := os.NewFile(3, "keeper")
	control, err := connOf(f)
	p.must(err)
	p.must(writeKept(control, keptMessage{Op: opBegin}))
	for r := newKeptReader(control); ; {
		m, _, err := r.next()
		p.must(err)
		switch m.Op {
		case opBegin:
			p.must(writeKept(control, keptMessage{Op: opReady}))
		case opGo:
			p.must(writeKept(control, keptMessage{Op: opServing, Health: len(p.args) > 0}))
		}
	}
}

// TestServerOfAnOldProgram: one that a keeper cannot ask is not killed for that. As a negative control
// it says that it can be asked.
func TestServerOfAnOldProgram(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	for _, args := range [][]string{nil, {"replies"}} {
		var mu sync.Mutex
		var states []KeeperState
		k, err := NewKeeper(KeeperOptions{
			Path: socketAt(t), HealthTime: 50 * time.Millisecond,
			Command: func() *exec.Cmd {
				cmd := exec.Command(self, args...)
				cmd.Env = append(os.Environ(), partVar+"=old")
				return cmd
			},
			Changed: func(s KeeperState) { mu.Lock(); defer mu.Unlock(); states = append(states, s) },
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- k.Run(ctx) }()
		restarts := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Contains(states, KeeperRestarts)
		}
		require.Eventually(t, func() bool {
			mu.Lock()
			n := len(states)
			mu.Unlock()
			return n > 5*healthLooks || restarts()
		}, inTime, step)
		require.Equal(t, args != nil, restarts())
		cancel()
		require.NoError(t, <-over)
		require.NoError(t, k.Close())
	}
}

// TestHealthNeedsNoPlace: the reply counts against no limit and shows no token. It uses the clock of the
// keeper's process, as the test above.
func TestHealthNeedsNoPlace(t *testing.T) {
	testgate.Long(t) // a server that gets no processor for a health time is taken for one that hangs
	t.Setenv(optionsVar, `{"MaxConns": 2, "Rate": 1, "Token": "c2VjcmV0", "MaxObjects": 1, "MaxBytes": 1, "MaxRecordBytes": 1}`)
	t.Setenv(healthVar, "4s")
	k := spawn(t, "keeper", socketAt(t))
	k.expect("ready")
	pid := k.ask("pid")
	for range 20 { // until each place is taken, also those of the operator
		require.Eventually(t, func() bool {
			conn, err := net.Dial("unixpacket", k.cmd.Args[1])
			if err == nil {
				t.Cleanup(func() { require.NoError(t, conn.Close()) })
			}
			return err == nil
		}, inTime, step)
	}
	k.ask("looks", 3*healthLooks)
	require.Equal(t, pid, k.ask("pid"))
	k.ask("close")
	k.wait()
	require.NotContains(t, k.err.String(), "not well")
	require.NotContains(t, k.err.String(), "does not reply")
}

// TestPromisesBesideAnUnreadQuestion: what a server has promised is kept, although it has ended before it
// has read what its keeper asked.
func TestPromisesBesideAnUnreadQuestion(t *testing.T) {
	t.Parallel()
	near, far, err := socketPair()
	require.NoError(t, err)
	defer near.Close()
	require.NoError(t, writeKept(near, keptMessage{Op: opHealth}))
	require.NoError(t, writeKept(far, keptMessage{Op: opForget, ID: 7}))
	require.NoError(t, far.Close())
	r := newKeptReader(near)
	m, _, err := r.next()
	require.NoError(t, err)
	require.EqualValues(t, 7, m.ID)
	_, _, err = r.next()
	require.ErrorIs(t, err, io.EOF)
}
