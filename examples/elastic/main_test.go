package main

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// few is a trace of one burst of each worker, in small pages: the bytes of a token do not matter.
func few(t *testing.T) options {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
	return options{Device: "host?page=64K", Mode: "all", Seconds: 20, Seed: 2, Budget: 8 << 20, Token: 1 << 10}
}

func played(t *testing.T, o options, mode string) result {
	t.Helper()
	o.Mode = mode
	r, err := play(o)
	require.NoError(t, err)
	require.NotZero(t, r.Served)
	require.NotZero(t, r.peak)
	return r
}

// TestBudgetServesMore than halves, never has more than the budget, and gives all back.
func TestBudgetServesMore(t *testing.T) {
	o := few(t)
	halves, elastic := played(t, o, "halves"), played(t, o, "budget")
	require.Greater(t, elastic.Tokens, halves.Tokens)
	require.Less(t, elastic.Left, halves.Left)
	require.Less(t, elastic.wait(0.5), halves.wait(0.5))
	require.NotZero(t, elastic.Dropped, "no memory in use has gone from one to the other")
	for _, r := range []result{halves, elastic} {
		require.LessOrEqual(t, r.peak, o.Budget)
		require.Zero(t, r.over)
	}
	require.Equal(t, o.Budget, elastic.idle)
}

// TestNoneHasTooMuch: with no one to coordinate, both together have more than the budget.
func TestNoneHasTooMuch(t *testing.T) {
	o := few(t)
	o.Seconds = 10
	r := played(t, o, "none")
	require.Greater(t, r.peak, o.Budget)
	require.NotZero(t, r.over)
	require.Zero(t, r.Refused+r.Dropped+r.Left)
}

// TestBadOptions start nothing; a worker that fails is an error of the parent.
func TestBadOptions(t *testing.T) {
	o := few(t)
	var out strings.Builder
	o.Mode = "most"
	require.ErrorContains(t, run(&out, o), `no mode "most"`)
	o.Mode, o.Budget = "all", 1<<20
	require.ErrorContains(t, run(&out, o), "-budget")
	o.Budget, o.Token = 8<<20, 1<<10+1
	o.Mode = "none"
	require.ErrorContains(t, run(&out, o), "none: ")
}
