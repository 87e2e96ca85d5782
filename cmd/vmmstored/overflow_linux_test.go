package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	overflowUser = 65534
	firstMapped  = 100_000 // of the system, which is 0 in the namespace
	mapped       = 70_000
)

// inNamespace has a process be a user of a namespace that maps few of the system's users.
func inNamespace(uid uint32) *syscall.SysProcAttr {
	ids := []syscall.SysProcIDMap{{HostID: firstMapped, Size: mapped}}
	return &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{Uid: uid, Gid: uid},
	}
}

func asUser(uid uint32) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}

// otherUsers is a folder of a user of the system with the program in it, and what runs that as another.
func otherUsers(t *testing.T, owner int) (dir string, program func(as *syscall.SysProcAttr, args ...string) *exec.Cmd) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to be other users")
	}
	dir, err := os.MkdirTemp("", "overflow") //nolint:usetesting // other users can look into it
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	b, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	self := filepath.Join(dir, "vmmstored")
	require.NoError(t, os.WriteFile(self, b, 0o700))
	require.NoError(t, os.Chmod(self, 0o755))
	require.NoError(t, os.Chown(dir, owner, owner))
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir, func(as *syscall.SysProcAttr, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), self, append([]string{"--device=host:0", "--socket=" + filepath.Join(dir, "s")}, args...)...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		cmd.SysProcAttr = as
		return cmd
	}
}

// serves starts a daemon and waits until it serves, or has ended: then it returns false and what it
// said.
func serves(t *testing.T, cmd *exec.Cmd) (bool, string) {
	t.Helper()
	var said output
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Skipf("needs user namespaces: %v", err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); <-ended })
	for end := time.After(inTime); ; {
		select {
		case <-ended:
			return false, said.String()
		case <-end:
			require.Fail(t, "it neither serves nor ends", said.String())
		case <-time.After(time.Millisecond):
			if strings.Contains(said.String(), "msg=serving") {
				return true, said.String()
			}
		}
	}
}

// TestOverflowUser: a namespace shows all users that it does not map as one. A daemon that is that one
// takes none of them for itself, and says so if it is told no user and has no token. With a namespace
// that maps its user, and without one, nothing changes.
func TestOverflowUser(t *testing.T) {
	t.Parallel()
	said := func(cmd *exec.Cmd) string {
		b, err := cmd.CombinedOutput()
		if err == nil {
			return "fine"
		}
		return string(b)
	}
	const stranger, another = 4242, 4343 // of the system alone
	inside := strconv.Itoa(overflowUser + firstMapped)
	for name, c := range map[string]struct {
		as     *syscall.SysProcAttr
		owner  int
		args   []string
		begins bool
	}{
		"the overflow user":              {inNamespace(overflowUser), firstMapped + overflowUser, nil, false},
		"who admits another":             {inNamespace(overflowUser), firstMapped + overflowUser, []string{"--user=1000"}, true},
		"a user of the namespace":        {inNamespace(overflowUser - 1), firstMapped + overflowUser - 1, nil, true},
		"that number without one":        {asUser(overflowUser), overflowUser, nil, true},
		"the overflow user with a token": {inNamespace(overflowUser), firstMapped + overflowUser, []string{"--token-file="}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, program := otherUsers(t, c.owner)
			token := filepath.Join(dir, "token")
			require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
			require.NoError(t, os.Chmod(token, 0o644)) // who reads it decides the test
			withToken := len(c.args) > 0 && c.args[0] == "--token-file="
			if withToken {
				c.args = []string{"--token-file=" + token}
			}
			begins, log := serves(t, program(c.as, append(c.args, "--mode=0666")...))
			require.Equal(t, c.begins, begins, log)
			if !begins {
				require.Contains(t, log, "name the users who may connect")
				return
			}
			owner := "--owner=" + strconv.Itoa(c.owner)
			for _, user := range []uint32{stranger, another} {
				require.Contains(t, said(program(asUser(user), "list", owner)), "permission denied")
				if withToken {
					require.Equal(t, "fine", said(program(asUser(user), "list", owner, "--token-file="+token)))
				}
			}
			if !withToken && len(c.args) == 0 {
				require.Equal(t, "fine", said(program(asUser(uint32(c.owner)), "list")), "its own user")
			}
		})
	}
	for name, user := range map[string]uint32{"the overflow user": overflowUser, "another one": overflowUser - 1} {
		t.Run("a sticky folder of "+name, func(t *testing.T) { // its owner could put another socket there
			t.Parallel()
			dir, program := otherUsers(t, int(firstMapped+user))
			require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
			begins, log := serves(t, program(inNamespace(user), "--user=1000"))
			require.Equal(t, user != overflowUser, begins, log)
			if !begins {
				require.Contains(t, log, "so other users can replace the socket")
			}
		})
	}
	t.Run("a client that is the overflow user", func(t *testing.T) {
		t.Parallel()
		_, program := otherUsers(t, stranger)
		begins, log := serves(t, program(asUser(stranger), "--mode=0666", "--user="+inside))
		require.True(t, begins, log)
		require.Contains(t, said(program(inNamespace(overflowUser), "list")), "the other side is user 65534")
		require.Equal(t, "fine", said(program(inNamespace(overflowUser), "list", "--owner=65534")))
	})
}
