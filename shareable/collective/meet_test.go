package collective

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

var addresses atomic.Uint32 // that ownAddress has given

// ownAddress is an address that is free, and stays so: on Linux each has an IP of its own, from
// which nothing connects to elsewhere.
func ownAddress(ctx context.Context) (string, error) {
	ip := "127.0.0.1"
	if runtime.GOOS == "linux" {
		ip = fmt.Sprintf("127.%d.%d.%d", os.Getpid()>>8&0xff, os.Getpid()&0xff, 2+addresses.Add(1)%250)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", ip+":0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// met is what meeting came to, by rank.
type met struct {
	id  ID
	err error
}

// meet has members meet: those of the ranks, of which each says a size.
func meetAll(t *testing.T, limit time.Duration, size int, members ...[2]int) []met {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	address := freeAddress(t)
	all := make([]chan met, len(members))
	for i, m := range members {
		all[i] = make(chan met, 1)
		go func() {
			if m[0] == 0 {
				all[i] <- met{ID{1}, meeting{address: address, size: size}.giveID(ctx, ID{1})}
				return
			}
			id, err := meeting{address: address, size: m[1]}.takeID(ctx, m[0])
			all[i] <- met{id, err}
		}()
	}
	var got []met
	for _, c := range all {
		got = append(got, <-c)
	}
	return got
}

func TestMeet(t *testing.T) {
	t.Parallel()
	const soon, late = 300 * time.Millisecond, time.Minute
	for name, c := range map[string]struct {
		limit   time.Duration
		size    int
		members [][2]int
		want    error
	}{
		"all":            {late, 4, [][2]int{{3, 4}, {1, 4}, {0, 4}, {2, 4}}, nil},
		"twice":          {late, 3, [][2]int{{0, 3}, {1, 3}, {1, 3}}, ErrMismatch},
		"another size":   {late, 3, [][2]int{{0, 3}, {1, 4}}, ErrMismatch},
		"rank too large": {late, 3, [][2]int{{0, 3}, {3, 3}}, ErrMismatch},
		"one is missing": {soon, 3, [][2]int{{0, 3}, {1, 3}}, context.DeadlineExceeded},
		"without rank 0": {soon, 3, [][2]int{{1, 3}}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, m := range meetAll(t, c.limit, c.size, c.members...) {
				require.ErrorIs(t, m.err, c.want)
				if c.want == nil {
					require.Equal(t, ID{1}, m.id)
				}
			}
		})
	}
}

// TestMeetStrangers: what connects and is no member keeps no one out.
func TestMeetStrangers(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	done := make(chan error, 1)
	go func() { done <- meeting{address: address, size: 2}.giveID(t.Context(), ID{7}) }()
	for _, says := range []string{"", "GET / HTTP/1.1\r\n\r\n", "cuvmmgr2\x01\x00\x00\x00\x02\x00\x00\x00"} {
		require.Eventually(t, func() bool {
			var d net.Dialer
			c, err := d.DialContext(t.Context(), "tcp", address)
			if err != nil {
				return false
			}
			_, err = c.Write([]byte(says))
			return c.Close() == nil && err == nil
		}, 10*time.Second, 10*time.Millisecond)
	}
	var d net.Dialer // says nothing, and stays
	silent, err := d.DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	defer func() { require.NoError(t, silent.Close()) }()
	id, err := meeting{address: address, size: 2}.takeID(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, ID{7}, id)
	require.NoError(t, <-done)
}
