package main

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestWork runs the members as goroutines of this process, on host memory.
func TestWork(t *testing.T) {
	o := options{rounds: 4, rows: 30, width: 8}
	groups := collectivetest.Groups(t, 3)
	outs, ended := make([]bytes.Buffer, len(groups)), make(chan error, len(groups))
	for i, g := range groups {
		go func() { ended <- errors.Join(work(t.Context(), &outs[i], g, o), g.Close()) }()
	}
	for range groups {
		require.NoError(t, <-ended)
	}
	require.Equal(t, "720 rows of 3 members; the nearest is row 675, at a distance of 0\n", outs[0].String())
	require.Empty(t, outs[1].String())
}

// TestStartReturnsTheFailure of the processes: with a context that has ended none starts.
func TestStartReturnsTheFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, start(ctx, 2), context.Canceled)
}

// TestBadEnvironment: where mpirun does not say enough, no process starts a group of its own.
func TestBadEnvironment(t *testing.T) {
	for name, value := range map[string]string{"RANK": "", "PMI_RANK": "", "MASTER_ADDR": "", "CUVMM_GROUP_ADDRESS": "", "NCCL_COMM_ID": "",
		"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"} {
		t.Setenv(name, value)
	}
	require.ErrorIs(t, run(t.Context(), options{}), vmm.ErrInvalid)
}
