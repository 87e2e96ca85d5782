package collective

import (
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// connect connects to an address once something listens there. The caller must close it.
func connect(t *testing.T, address string) (c net.Conn) {
	t.Helper()
	return meeting{address: address}.connected(t)
}

// connected is connect for where a meeting is.
func (m meeting) connected(t *testing.T) (c net.Conn) {
	t.Helper()
	require.Eventually(t, func() (ok bool) {
		var err error
		c, err = m.dialer()(t.Context(), m.address)
		return err == nil
	}, 10*time.Second, time.Millisecond)
	return c
}

// greet is a member that is admitted at the meeting, and then says nothing more. The caller must
// close it.
func greet(t *testing.T, m meeting, h hello) (l *link) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		c := m.connected(t)
		if l, err = m.introduce(c, h); err != nil {
			_ = c.Close()
		}
		return err == nil
	}, 10*time.Second, time.Millisecond)
	return l
}

// TestMeetAgain: a member that has said hello and ended counts no more, and one that is started in
// its place is no second one.
func TestMeetAgain(t *testing.T) {
	t.Parallel()
	for range 5 {
		m := meeting{address: freeAddress(t), size: 3}
		leader := start(t.Context(), m, 0)
		for range 3 {
			greet(t, m, hello{Rank: 2, Size: 3}).close()
		}
		one, two := start(t.Context(), m, 1), start(t.Context(), m, 2)
		require.Equal(t, met{id: ID{7}}, <-leader)
		require.Equal(t, met{id: ID{7}}, <-one)
		require.Equal(t, met{id: ID{7}}, <-two)
	}
}

// TestMeetWithoutWhoHasEnded: no group is made with a member that has ended.
func TestMeetWithoutWhoHasEnded(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, n *network) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		m := meeting{address: memoryAddress, size: 3, network: n}
		leader := start(ctx, m, 0)
		greet(t, m, hello{Rank: 2, Size: 3}).close()
		require.ErrorIs(t, (<-start(ctx, m, 1)).err, context.DeadlineExceeded)
		err := (<-leader).err
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "of 3 members are missing")
	})
}

// TestMeetAtAnotherProgram: the error says so when something else listens where rank 0 should.
func TestMeetAtAnotherProgram(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for asked := 1; ; asked++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if asked == 2 { // the first reply has been read
				cancel()
			}
			_, _ = c.Write(make([]byte, binary.Size(greeting{})))
			_ = c.Close()
		}
	}()
	_, err = meeting{address: l.Addr().String(), size: 3}.takeID(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "another program")
}

// TestJobNumber: it is the same for all processes of a job, and no other job has it.
func TestJobNumber(t *testing.T) {
	for name, c := range map[string]struct{ one, same, other map[string]string }{
		"torchrun": {
			map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "SLURM_STEP_ID": "1"},
			map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500", "SLURM_STEP_ID": "2"},
			map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29502"},
		},
		"srun": {
			map[string]string{"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
			map[string]string{"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
			map[string]string{"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0"},
		},
		"mpirun": {
			map[string]string{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "a@1"},
			map[string]string{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "a@1"},
			map[string]string{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "b@1"},
		},
	} {
		require.Equal(t, jobNumber(env(c.one)), jobNumber(env(c.same)), name)
		require.NotEqual(t, jobNumber(env(c.one)), jobNumber(env(c.other)), name)
	}
}
