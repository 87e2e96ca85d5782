package collective

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cuvmm/cuvmm/vmm"
)

func env(of map[string]string) func(string) string {
	return func(name string) string { return of[name] }
}

func TestFromEnvironment(t *testing.T) {
	torchrun := map[string]string{"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
	slurm := map[string]string{"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "5", "SLURM_STEP_NODELIST": "gpu[03-04,07],x", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}
	with := func(base map[string]string, also ...string) map[string]string {
		all := map[string]string{}
		for k, v := range base {
			all[k] = v
		}
		for i := 0; i < len(also); i += 2 {
			all[also[i]] = also[i+1]
		}
		return all
	}
	for name, c := range map[string]struct {
		env  map[string]string
		want Environment
		err  string
	}{
		"torchrun":             {env: torchrun, want: Environment{Rank: 3, Size: 8, LocalRank: 1, Address: "n1:29501", Launcher: "torchrun"}},
		"an address of ours":   {env: with(torchrun, addressVar, "[::1]:7"), want: Environment{Rank: 3, Size: 8, LocalRank: 1, Address: "[::1]:7", Launcher: "torchrun"}},
		"NCCL's own":           {env: with(torchrun, "NCCL_COMM_ID", "n1:7"), want: Environment{Rank: 3, Size: 8, LocalRank: 1, Launcher: "torchrun"}},
		"no local rank":        {env: with(torchrun, "LOCAL_RANK", ""), want: Environment{Rank: 3, Size: 8, Address: "n1:29501", Launcher: "torchrun"}},
		"alone":                {env: map[string]string{"RANK": "0", "WORLD_SIZE": "1"}, want: Environment{Size: 1, Launcher: "torchrun"}},
		"srun":                 {env: slurm, want: Environment{Rank: 5, Size: 16, LocalRank: 5, Address: "gpu03:" + strconv.Itoa(firstPort+portOf("17", "0")), Launcher: "srun"}},
		"srun --mpi=pmi2":      {env: with(slurm, "PMI_RANK", "5", "PMI_SIZE", "16"), want: Environment{Rank: 5, Size: 16, LocalRank: 5, Address: "gpu03:" + strconv.Itoa(firstPort+portOf("17", "0")), Launcher: "srun"}},
		"mpirun within srun":   {env: with(slurm, "PMI_RANK", "9", "PMI_SIZE", "32", "MPI_LOCALRANKID", "1", "MASTER_ADDR", "h", "MASTER_PORT", "9"), want: Environment{Rank: 9, Size: 32, LocalRank: 1, Address: "h:10", Launcher: "mpirun"}},
		"mpirun with a master": {env: map[string]string{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "9"}, want: Environment{Rank: 1, Size: 4, Address: "h:10", Launcher: "mpirun"}},
		"mpirun on many hosts": {env: map[string]string{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, err: "several hosts"},
		"nothing":              {env: nil, err: "names no group"},
		"no number":            {env: with(torchrun, "RANK", "x"), err: `RANK="x"`},
		"negative":             {env: with(torchrun, "WORLD_SIZE", "-1"), err: "WORLD_SIZE"},
		"too large a rank":     {env: with(torchrun, "RANK", "8"), err: "RANK=8"},
		"no port":              {env: with(torchrun, "MASTER_PORT", ""), err: "MASTER_PORT"},
		"port 65536":           {env: with(torchrun, "MASTER_PORT", "65535"), err: "port 65536"},
		"no host":              {env: with(slurm, "SLURM_STEP_NODELIST", "gpu["), err: "no host"},
		"port 0":               {env: with(torchrun, addressVar, "h:0"), err: "no port"},
		"an empty port":        {env: with(torchrun, addressVar, "h:"), err: "no port"},
		"a port of words":      {env: with(torchrun, addressVar, "h:none such"), err: "none such"},
		"not an address":       {env: with(torchrun, addressVar, "here"), err: "missing port"},
	} {
		got, err := fromEnvironment(env(c.env))
		if c.err != "" {
			require.ErrorIs(t, err, vmm.ErrInvalid, name)
			require.ErrorContains(t, err, c.err, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
	one, err := fromEnvironment(env(map[string]string{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}))
	require.NoError(t, err)
	require.Contains(t, one.Address, "127.0.0.1:")
}

// TestLocalRank: the device to open is one that the process sees.
func TestLocalRank(t *testing.T) {
	const visible, perTask = "CUDA_VISIBLE_DEVICES", "SLURM_GPUS_PER_TASK"
	srun := map[string]string{"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "3", "SLURM_STEP_NODELIST": "n1"}
	torchrun := map[string]string{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "n1", "MASTER_PORT": "1"}
	mpirun := map[string]string{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
	for name, c := range map[string]struct {
		base map[string]string
		also []string
		want int
	}{
		"srun":                                {srun, nil, 3},
		"srun --gpus-per-node=4":              {srun, []string{visible, "0,1,2,3"}, 3},
		"--gpus-per-task=1 in a cgroup":       {srun, []string{visible, "0", perTask, "1"}, 0},
		"--gpus-per-task=1 without cgroups":   {srun, []string{visible, "3", perTask, "1"}, 0},
		"--gpus-per-task=a100:1":              {srun, []string{visible, "0", perTask, "a100:1"}, 0},
		"--gpu-bind=single:1":                 {srun, []string{visible, "3"}, 0},
		"--gpus-per-task=2":                   {srun, []string{visible, "6,7", perTask, "2"}, 0},
		"--gpus-per-task=h100:2":              {srun, []string{visible, "0,1", perTask, "h100:2"}, 0},
		"--gpus-per-task=1 --gpu-bind=none":   {srun, []string{visible, "0,1,2,3", perTask, "1"}, 3},
		"a MIG device":                        {srun, []string{visible, "MIG-b1c2"}, 0},
		"no device":                           {srun, []string{visible, "NoDevFiles"}, 3},
		"too few devices, of no task":         {srun, []string{visible, "0,1"}, 3},
		"torchrun":                            {torchrun, nil, 3},
		"torchrun, all devices":               {torchrun, []string{visible, "4,5,6,7"}, 3},
		"torchrun, one device each":           {torchrun, []string{visible, "GPU-5ab1"}, 0},
		"torchrun in srun --gpus-per-task=4":  {torchrun, []string{visible, "0,1,2,3", perTask, "4"}, 3},
		"torchrun, a list that ends too soon": {torchrun, []string{visible, "2,-1,3"}, 0},
		"mpirun":                              {mpirun, []string{visible, "0,1,2,3"}, 3},
		"mpirun, one device each":             {mpirun, []string{visible, " 3 "}, 0},
	} {
		all := maps.Clone(c.base)
		for i := 0; i < len(c.also); i += 2 {
			all[c.also[i]] = c.also[i+1]
		}
		got, err := fromEnvironment(env(all))
		require.NoError(t, err, name)
		require.Equal(t, c.want, got.LocalRank, name)
	}
}

func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{
		"a": "a", "a,b": "a", "n[01-04,07],m2": "n01", "n[3,5]": "n3", "n[7]": "n7", "a,n[1-2]": "a", "r[1-2]n1": "r1n1", "r[1-2]n[3-4]s,x": "r1n3s", "n[1": "", "": "",
	} {
		require.Equal(t, want, firstHost(list), list)
	}
}

// freeAddress is an address at which nothing listens now.
func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := ownAddress(t.Context())
	require.NoError(t, err)
	return address
}

var addresses atomic.Uint32 // that ownAddress has tried

// ownAddress is an address that is free, and stays so: below the numbers that the kernel picks for
// listeners, and on Linux each has an IP of its own.
func ownAddress(ctx context.Context) (string, error) {
	for range 10_000 {
		n := int(addresses.Add(1))
		ip := "127.0.0.1"
		if runtime.GOOS == "linux" {
			ip = fmt.Sprintf("127.%d.%d.%d", os.Getpid()>>8&0xff, os.Getpid()&0xff, 2+n%250)
		}
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", fmt.Sprintf(":%d", 10_000+(os.Getpid()*101+n)%10_000))
		if err != nil {
			continue // another process has it
		}
		_, number, err := net.SplitHostPort(l.Addr().String())
		return net.JoinHostPort(ip, number), errors.Join(err, l.Close())
	}
	return "", errors.New("no address is free")
}

// giveID is join for rank 0, of a member that leaves at once.
func (m meeting) giveID(ctx context.Context, id ID) error {
	c, _, err := m.join(ctx, 0, idOf(id))
	if err == nil {
		c.leave()
	}
	return err
}

// takeID is join for another member, that leaves at once.
func (m meeting) takeID(ctx context.Context, rank int) (ID, error) {
	c, id, err := m.join(ctx, rank, nil)
	if err == nil {
		c.leave()
	}
	return id, err
}

func idOf(id ID) func() (ID, error) { return func() (ID, error) { return id, nil } }

// met is what meeting came to.
type met struct {
	id  ID
	err error
}

// start has a member meet the others.
func start(ctx context.Context, m meeting, rank int) <-chan met {
	c := make(chan met, 1)
	go func() {
		if rank == 0 {
			c <- met{ID{7}, m.giveID(ctx, ID{7})}
			return
		}
		id, err := m.takeID(ctx, rank)
		c <- met{id, err}
	}()
	return c
}

func TestMeet(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, 4, 9} {
		m := meeting{address: freeAddress(t), size: size, secret: []byte("s")}
		var all []<-chan met
		for i := range size {
			all = append(all, start(t.Context(), m, size-1-i))
		}
		for _, c := range all {
			require.Equal(t, met{id: ID{7}}, <-c)
		}
	}
}

// TestMeetRefuses: a member that does not fit is told why, and the others meet all the same.
func TestMeetRefuses(t *testing.T) {
	t.Parallel()
	const ours = "our secret"
	for name, c := range map[string]struct {
		rank, size int
		job        uint64
		secret     string
		want       error
		text       string
	}{
		"another size":   {1, 4, 5, ours, ErrMismatch, "another number of members"},
		"rank too large": {3, 3, 5, ours, ErrMismatch, "rank 3"},
		"another job":    {1, 3, 6, ours, ErrMismatch, "another job"},
		"another secret": {1, 3, 5, "guessed", vmm.ErrPermission, "Options.Secret"},
		"no secret":      {1, 3, 5, "", vmm.ErrPermission, "Options.Secret"},
		"any reply":      {1, 3, 5, "guessed", vmm.ErrPermission, "another secret"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := meeting{address: freeAddress(t), size: 3, job: 5, secret: []byte(ours)}
			all := []<-chan met{start(t.Context(), m, 0), start(t.Context(), m, 1)}
			for range 3 {
				stranger := <-start(t.Context(), meeting{address: m.address, size: c.size, job: c.job, secret: []byte(c.secret), trusting: name == "any reply"}, c.rank)
				require.ErrorIs(t, stranger.err, c.want)
				require.ErrorContains(t, stranger.err, c.text)
			}
			all = append(all, start(t.Context(), m, 2))
			for _, c := range all {
				require.Equal(t, met{id: ID{7}}, <-c)
			}
		})
	}
}

// TestMeetUnchecked: it is the HMAC that keeps a stranger out.
func TestMeetUnchecked(t *testing.T) {
	t.Parallel()
	m := meeting{address: freeAddress(t), size: 2, secret: []byte("our secret"), trusting: true}
	leader := start(t.Context(), m, 0)
	m.secret = []byte("guessed")
	require.Equal(t, met{id: ID{7}}, <-start(t.Context(), m, 1))
	require.Equal(t, met{id: ID{7}}, <-leader)
}

// TestMeetFalseRankZero: a member does not take a group from a program without the secret.
func TestMeetFalseRankZero(t *testing.T) {
	t.Parallel()
	m := meeting{address: freeAddress(t), size: 2, secret: []byte("guessed"), trusting: true}
	ctx, cancel := context.WithCancel(t.Context())
	leader := start(ctx, m, 0)
	got := <-start(ctx, meeting{address: m.address, size: 2, secret: []byte("our secret")}, 1)
	require.ErrorIs(t, got.err, vmm.ErrPermission)
	require.ErrorContains(t, got.err, "Options.Secret")
	cancel()
	<-leader
}

// TestMeetTwice: of two members of one rank that live the second is refused.
func TestMeetTwice(t *testing.T) {
	t.Parallel()
	m := meeting{address: freeAddress(t), size: 3}
	leader := start(t.Context(), m, 0)
	one, two := start(t.Context(), m, 1), start(t.Context(), m, 1)
	var second met
	select {
	case second = <-one:
		one = two
	case second = <-two:
	}
	require.ErrorIs(t, second.err, ErrMismatch)
	require.ErrorContains(t, second.err, "rank 1 is there twice")
	for _, c := range []<-chan met{start(t.Context(), m, 2), one, leader} {
		require.Equal(t, met{id: ID{7}}, <-c)
	}
}

// TestMeetMissing: the error says who did not come, and who was refused.
func TestMeetMissing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	m := meeting{address: freeAddress(t), size: 3}
	leader, one := start(ctx, m, 0), start(ctx, m, 1)
	other := m
	other.size = 4
	require.ErrorIs(t, (<-start(ctx, other, 2)).err, ErrMismatch)
	cancel()
	err := (<-leader).err
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "are missing: ranks [")
	require.ErrorContains(t, err, "2]")
	require.ErrorContains(t, err, "(refused: ") // rank 1 may be first, if it came before rank 0 was ready
	require.ErrorContains(t, err, "rank 2 at 127.")
	require.ErrorContains(t, err, "another number of members")
	require.ErrorIs(t, (<-one).err, context.Canceled)
}

// TestMeetStrangers: what connects and is no member keeps no one out.
func TestMeetStrangers(t *testing.T) {
	t.Parallel()
	m := meeting{address: freeAddress(t), size: 2, secret: []byte("s")}
	leader := start(t.Context(), m, 0)
	for _, says := range []string{"", "GET / HTTP/1.1\r\n\r\n", "cuvmmgr3\x01\x00\x00\x00\x02\x00\x00\x00"} {
		c := connect(t, m.address)
		_, err := c.Write([]byte(says))
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	silent := connect(t, m.address) // says nothing, and stays
	defer func() { require.NoError(t, silent.Close()) }()
	require.Equal(t, met{id: ID{7}}, <-start(t.Context(), m, 1))
	require.Equal(t, met{id: ID{7}}, <-leader)
}

// TestMeetReplay: a hello that was good on one connection is refused on the next.
func TestMeetReplay(t *testing.T) {
	t.Parallel()
	m := meeting{address: freeAddress(t), size: 2, secret: []byte("s")}
	leader := start(t.Context(), m, 0)
	var s signedHello
	for i := range 2 {
		c := connect(t, m.address)
		var g greeting
		require.NoError(t, binary.Read(c, binary.LittleEndian, &g))
		if i == 0 {
			s.Hello = hello{Magic: meetMagic, Rank: 1, Size: 2, Probe: 1, Nonce: newNonce()}
			copy(s.MAC[:], helloMAC(m.secret, g.Nonce, s.Hello))
		}
		require.NoError(t, binary.Write(c, binary.LittleEndian, s))
		l := newLink(c, m.secret, [2]nonce{g.Nonce, s.Hello.Nonce}, 2)
		f, err := l.next()
		require.NoError(t, err)
		require.Equal(t, []int{frameAdmitted, frameRefused}[i], f.Type)
		require.Equal(t, []code{codeNone, codeSecret}[i], f.Code)
		l.close()
	}
	require.Equal(t, met{id: ID{7}}, <-start(t.Context(), m, 1))
	require.Equal(t, met{id: ID{7}}, <-leader)
}

// TestMeetManyIdle: connections that say nothing, more than are kept, delay no member.
func TestMeetManyIdle(t *testing.T) {
	m := meeting{address: freeAddress(t), size: 2}
	leader := start(t.Context(), m, 0)
	var first net.Conn
	for range 3000 {
		c := connect(t, m.address)
		t.Cleanup(func() { _ = c.Close() }) // most are closed by the other side
		first = cmp.Or(first, c)
	}
	require.NoError(t, first.SetReadDeadline(time.Now().Add(meetTimeout/2))) // which idle ones have in any case
	_, err := io.Copy(io.Discard, first)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Equal(t, met{id: ID{7}}, <-start(t.Context(), m, 1))
	require.Equal(t, met{id: ID{7}}, <-leader)
}

// TestMeetSilentService: what listens at the address and says nothing is left after a while.
func TestMeetSilentService(t *testing.T) {
	t.Parallel()
	m := meeting{address: freeAddress(t), size: 2, timeout: 200 * time.Millisecond}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", m.address)
	require.NoError(t, err)
	member := start(t.Context(), m, 1)
	silent, err := l.Accept()
	require.NoError(t, err)
	defer silent.Close() //nolint:errcheck // the member has closed it
	require.NoError(t, l.Close())
	require.Equal(t, met{id: ID{7}}, <-start(t.Context(), m, 0))
	require.Equal(t, met{id: ID{7}}, <-member)
}

// TestMeetVanished: a member whose host has vanished keeps its connection, and says nothing. The
// group waits for the one that is started anew, which is admitted.
func TestMeetVanished(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]int{"its rank comes again": 2, "the last one comes": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, n *network) {
				m := meeting{address: memoryAddress, size: 3, network: n}
				leader := start(t.Context(), m, 0)
				vanished := greet(t, m, hello{Rank: 2, Size: 3})
				defer vanished.conn.Close() //nolint:errcheck // closed already
				one := start(t.Context(), m, first)
				f, err := vanished.next()
				require.NoError(t, err)
				require.Equal(t, framePing, f.Type)
				_, err = vanished.next()
				require.Error(t, err)
				require.Equal(t, met{id: ID{7}}, <-start(t.Context(), m, 3-first))
				require.Equal(t, met{id: ID{7}}, <-one)
				require.Equal(t, met{id: ID{7}}, <-leader)
			})
		})
	}
}

// TestMeetEnds: after the end of the context nothing is left, whatever was going on.
func TestMeetEnds(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithCancel(t.Context())
	m := meeting{address: freeAddress(t), size: 4}
	all := []<-chan met{start(ctx, m, 0), start(ctx, m, 1)}
	vanished := greet(t, m, hello{Rank: 2, Size: 4})
	idle := connect(t, m.address)
	all = append(all, start(ctx, m, 2))
	_, err := vanished.next() // the ping
	require.NoError(t, err)
	cancel()
	for _, c := range all {
		require.ErrorIs(t, (<-c).err, context.Canceled)
	}
	vanished.close()
	require.NoError(t, idle.Close())
}

// elsewhereConn seems to come from another host.
type elsewhereConn struct{ net.Conn }

func (elsewhereConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}
}

// TestMeetOtherHost: without a secret no connection between hosts is used, from either side.
func TestMeetOtherHost(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"", "s"} {
		m := meeting{size: 2, secret: []byte(secret)}
		a, err := m.listen(t.Context(), "0", 0)
		require.NoError(t, err)
		t.Cleanup(a.close)
		a.begin(0, 0)
		var lc net.ListenConfig
		l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		dialed := connect(t, l.Addr().String())
		accepted, err := l.Accept()
		require.NoError(t, err)
		go a.serve(elsewhereConn{accepted}, 2)
		_, err = m.introduce(dialed, hello{Rank: 1, Size: 2, Probe: 1})
		_, errHere := m.introduce(elsewhereConn{connect(t, "127.0.0.1:"+a.tcpPort())}, hello{Rank: 1, Size: 2, Probe: 1})
		for _, err := range []error{err, errHere} {
			if secret != "" {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, vmm.ErrInvalid)
			require.ErrorContains(t, err, "Options.Secret and CUVMM_GROUP_SECRET_FILE")
		}
		require.NoError(t, dialed.Close())
		if secret == "" { // who waits is told, too, of members that have seen it themselves
			silent := connect(t, l.Addr().String())
			accepted, err := l.Accept()
			require.NoError(t, err)
			require.NoError(t, silent.Close())
			a.serve(elsewhereConn{accepted}, 2)
			require.Contains(t, a.refusals(), "a connection from 192.0.2.1:7: invalid argument: members on several hosts need a secret")
		}
	}
}

func TestGroupSecret(t *testing.T) {
	write := func(text string) string {
		name := filepath.Join(t.TempDir(), "secret")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	for name, c := range map[string]struct {
		own  string
		env  map[string]string
		want string
		err  error
	}{
		"none":          {},
		"own":           {own: "o", env: map[string]string{secretVar: "v", secretFileVar: "/none"}, want: "o"},
		"a file":        {env: map[string]string{secretVar: "v", secretFileVar: write("f\n")}, want: "f"},
		"only one line": {env: map[string]string{secretFileVar: write("f\n\n")}, want: "f\n"},
		"a variable":    {env: map[string]string{secretVar: "v"}, want: "v"},
		"an empty file": {env: map[string]string{secretVar: "v", secretFileVar: write("\n")}, err: vmm.ErrInvalid},
		"no file":       {env: map[string]string{secretVar: "v", secretFileVar: "/none"}, err: vmm.ErrInvalid},
	} {
		got, err := groupSecret([]byte(c.own), env(c.env))
		require.ErrorIs(t, err, c.err, name)
		require.Equal(t, c.want, string(got), name)
	}
}
