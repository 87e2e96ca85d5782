package collective

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// greet connects to rank 0, once that listens, and says hello. The caller must close it.
func greet(t *testing.T, address string, says any) net.Conn {
	t.Helper()
	var c net.Conn
	require.Eventually(t, func() (ok bool) {
		var d net.Dialer
		var err error
		c, err = d.DialContext(t.Context(), "tcp", address)
		return err == nil
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, binary.Write(c, binary.LittleEndian, says))
	return c
}

// greetAndEnd is a member that ends after it has said hello. It returns when rank 0 has seen that.
func greetAndEnd(t *testing.T, address string, says any) {
	t.Helper()
	c := greet(t, address, says)
	require.NoError(t, c.(*net.TCPConn).CloseWrite())
	_, _ = io.Copy(io.Discard, c)
	require.NoError(t, c.Close())
}

// TestMeetAgain: a member that has said hello and ended counts no more, and one that is started in
// its place is no second one.
func TestMeetAgain(t *testing.T) {
	t.Parallel()
	for range 5 {
		address := freeAddress(t)
		given := make(chan error, 1)
		go func() { given <- meeting{address: address, size: 3}.giveID(t.Context(), ID{7}) }()
		for range 3 {
			greetAndEnd(t, address, hello{Magic: meetMagic, Rank: 2, Size: 3})
		}
		taken := make(chan met, 2)
		for _, rank := range []int{1, 2} {
			go func() {
				id, err := meeting{address: address, size: 3}.takeID(t.Context(), rank)
				taken <- met{id, err}
			}()
		}
		require.NoError(t, <-given)
		require.Equal(t, met{id: ID{7}}, <-taken)
		require.Equal(t, met{id: ID{7}}, <-taken)
	}
}

// TestMeetWithoutWhoHasEnded: no group is made with a member that has ended.
func TestMeetWithoutWhoHasEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	address := freeAddress(t)
	given := make(chan error, 1)
	go func() { given <- meeting{address: address, size: 3}.giveID(ctx, ID{7}) }()
	greetAndEnd(t, address, hello{Magic: meetMagic, Rank: 2, Size: 3})
	_, err := meeting{address: address, size: 3}.takeID(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	err = <-given
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "1 of 3 members are missing")
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
			_, _ = io.ReadFull(c, make([]byte, binary.Size(hello{}))) // else the close would reset the reply
			_, _ = c.Write(make([]byte, 1000))
			_ = c.Close()
		}
	}()
	_, err = meeting{address: l.Addr().String(), size: 3}.takeID(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "another program")
}

// TestMeetOtherJob: members of another job that come to this one's address are told so, and this
// one's meet all the same.
func TestMeetOtherJob(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	ours, theirs := meeting{address: address, size: 2, job: 1}, meeting{address: address, size: 2, job: 2}
	given := make(chan error, 1)
	go func() { given <- ours.giveID(t.Context(), ID{7}) }()
	for range 3 {
		_, err := theirs.takeID(t.Context(), 1)
		require.ErrorIs(t, err, ErrMismatch)
		require.ErrorContains(t, err, "another job")
	}
	id, err := ours.takeID(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, ID{7}, id)
	require.NoError(t, <-given)
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
