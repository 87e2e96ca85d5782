//go:build cgo && linux

package collective

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
)

// The tests of groups over NCCL need two GPUs. Each member is a process of its own, which runs
// a role; the group comes from the environment, as under torchrun.

// roleVar has this binary be a member.
const roleVar = "VMM_TEST_MEMBER"

var roles = map[string]func(m *process) error{
	"figures": playFigures, "calls": playCalls, "rounds": playRounds, "victim": playVictim, "survivor": playSurvivor, "window": playWindow,
	"graphs": playGraphs, "victim in C": playVictimInC,
}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		if err := play(role); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := flag.Set("test.parallel", "4"); err != nil { // they wait more than they compute
		log.Fatal(err)
	}
	os.Exit(m.Run())
}

// process is a member in its process.
type process struct {
	ctx   context.Context
	dev   *vmm.Device
	lines *bufio.Scanner // of standard input
}

// play is what a member's process does.
func play(role string) error {
	env, err := FromEnvironment()
	if err != nil {
		return err
	}
	dev, err := vmm.Open(fmt.Sprintf("cuda:%d", env.LocalRank))
	if err != nil {
		return err
	}
	m := &process{ctx: context.Background(), dev: dev, lines: bufio.NewScanner(os.Stdin)}
	return errors.Join(roles[role](m), dev.Close())
}

// member is a member's process as others see it.
type member struct {
	cmd *exec.Cmd
	out *bufio.Scanner
}

// startMember starts a member's process. The environment comes after this process's own.
func startMember(role string, rank, size int, address string, env ...string) (*member, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	m := &member{cmd: exec.CommandContext(context.Background(), self)}
	m.cmd.Env = append(os.Environ(), roleVar+"="+role, "RANK="+strconv.Itoa(rank), "LOCAL_RANK="+strconv.Itoa(rank),
		"WORLD_SIZE="+strconv.Itoa(size), addressVar+"="+address, "NCCL_NVLS_ENABLE=0")
	m.cmd.Env = append(m.cmd.Env, env...)
	m.cmd.Stderr = os.Stderr
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	m.out = bufio.NewScanner(out)
	return m, m.cmd.Start()
}

// expect reads lines until one begins with prefix.
func (m *member) expect(prefix string) error {
	for m.out.Scan() {
		if strings.HasPrefix(m.out.Text(), prefix) {
			return nil
		}
		if strings.HasPrefix(m.out.Text(), "failed:") {
			return errors.New(m.out.Text())
		}
	}
	return fmt.Errorf("the member ended without saying %q", prefix)
}

func (m *member) kill() {
	_ = m.cmd.Process.Kill()
	m.wait()
}

func (m *member) wait() {
	for m.out.Scan() { // to the end, before Wait closes the pipe
	}
	_ = m.cmd.Wait()
}

// needsTwo skips a test where there are no two GPUs or no NCCL.
func needsTwo(t *testing.T) {
	t.Helper()
	gpus := 0
	all, err := vmm.Devices()
	for _, d := range all {
		if strings.HasPrefix(d.Open, "cuda:") {
			gpus++
		}
	}
	if err == nil && gpus < 2 {
		err = fmt.Errorf("%w: there are %d GPUs", vmm.ErrNotSupported, gpus)
	}
	testgate.Require(t, "p2p", err)
	_, err = nccl.Open("")
	testgate.Require(t, "nccl", err)
}

// sockets is the environment in which NCCL treats processes of one host as if each were on a
// host of its own.
var sockets = []string{"NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1", "NCCL_SOCKET_IFNAME=lo"}

// playAll runs a group of two in which both play the role, and logs what they print.
func playAll(t *testing.T, role string, limit time.Duration, env ...string) (lines []string) {
	t.Helper()
	address := freeAddress(t)
	var all []*member
	for rank := range 2 {
		m, err := startMember(role, rank, 2, address, env...)
		require.NoError(t, err)
		all = append(all, m)
	}
	late := time.AfterFunc(limit, func() {
		for _, m := range all {
			_ = m.cmd.Process.Kill()
		}
	})
	defer late.Stop()
	for rank, m := range all {
		for m.out.Scan() {
			t.Logf("rank %d: %s", rank, m.out.Text())
			lines = append(lines, m.out.Text())
		}
	}
	for _, m := range all {
		require.NoError(t, m.cmd.Wait())
	}
	return lines
}

// grown is a range that was grown to n bytes by 64 MiB.
func grown(dev *vmm.Device, n uint64) (*vmm.Range, error) {
	r, err := dev.NewRange(vmm.RangeOptions{})
	if err != nil {
		return nil, err
	}
	const step = 64 << 20
	for at := uint64(0); at < n && err == nil; at += step {
		err = r.Grow(min(step, n-at))
		if err == nil {
			err = r.SetLen(min(at+step, n))
		}
	}
	return r, err
}

// openFiles is how many descriptors of each kind the process has open.
func openFiles() (map[string]int, error) {
	const dir = "/proc/self/fd/"
	all, err := os.ReadDir(dir)
	kinds := map[string]int{}
	for _, f := range all {
		to, err := os.Readlink(dir + f.Name())
		if err != nil {
			continue // that of the folder
		}
		kind, inode, _ := strings.Cut(to, ":")
		if kind == "socket" {
			kind = socketKind(strings.Trim(inode, "[]"))
		}
		kinds[kind]++
		kinds["all"]++
	}
	return kinds, err
}

// more is by how much kinds of descriptors have become more.
func more(before, now map[string]int) map[string]int {
	d := map[string]int{}
	for k, n := range now {
		if n != before[k] {
			d[k] = n - before[k]
		}
	}
	return d
}

// socketKind is what the kernel says of a socket.
func socketKind(inode string) string {
	for _, table := range []string{"tcp", "tcp6", "udp", "unix"} {
		text, err := os.ReadFile("/proc/self/net/" + table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			switch {
			case table == "unix" && len(fields) > 6 && fields[6] == inode:
				return "unix"
			case table != "unix" && len(fields) > 9 && fields[9] == inode:
				return table + " in state " + fields[3]
			}
		}
	}
	return "socket"
}
