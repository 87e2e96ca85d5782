package main

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
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

// TestWithoutAGPU: a program that starts processes says why they fail.
func TestWithoutAGPU(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, start(ctx, 2))
}
