//go:build cgo && linux

package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/fakenccl"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// fakeNCCL is a fake NCCL of the test's own. It must violate no rule of NCCL's, and leave nothing.
func fakeNCCL(t *testing.T) (path string, fake *fakenccl.Library) {
	t.Helper()
	path = fakenccl.Build(t)
	fake = fakenccl.Open(t, path)
	t.Cleanup(fake.Clean)
	return path, fake
}

// joinAll makes a group of members with these devices, through the binding.
func joinAll(t *testing.T, path string, limit time.Duration, devs ...*vmm.Device) ([]*Group, []error) {
	t.Helper()
	id, err := NewID(path)
	require.NoError(t, err)
	groups, errs := make([]*Group, len(devs)), make([]error, len(devs))
	var wg sync.WaitGroup
	for rank, dev := range devs {
		wg.Go(func() {
			groups[rank], errs[rank] = Join(t.Context(), dev, Options{
				ID: id, Rank: rank, Size: len(devs), Library: path, Timeout: limit, hooks: hooks{anyDevice: true},
			})
		})
	}
	wg.Wait()
	return groups, errs
}

func devices(t *testing.T, n int) (devs []*vmm.Device) {
	t.Helper()
	for range n {
		devs = append(devs, vmmtest.Device(t))
	}
	return devs
}

// ownBytes is what a member has.
func ownBytes(rank int) []byte { return bytes.Repeat([]byte{byte(rank + 1)}, 100*(rank+1)) }

// gatherOnce is a member's whole life: it gathers what all have into memory that grows and is
// registered, sums, and closes.
func gatherOnce(ctx context.Context, g *Group) (err error) {
	st, err := g.Device().NewStream()
	if err != nil {
		return err
	}
	all, mine := &growable.Vector[byte]{}, &growable.Vector[byte]{}
	defer func() { err = errors.Join(err, g.Abort(), all.Close(), mine.Close(), st.Close()) }()
	for _, v := range []**growable.Vector[byte]{&all, &mine} {
		if *v, err = growable.New[byte](g.Device(), growable.Options{}); err != nil {
			return err
		}
	}
	if err := mine.Append(ownBytes(g.Rank())...); err != nil {
		return err
	}
	reg, err := g.Register(ctx, all, RegisterOptions{})
	if err != nil {
		return err
	}
	if _, err := g.AllGather(ctx, st, all, mine); err != nil {
		return err
	}
	if err := g.Do(ctx, st, AllReduce(Part(all, 0, 100), Part(all, 0, 100), Uint8, Sum)); err != nil {
		return err
	}
	if err := g.Sync(ctx, st); err != nil {
		return err
	}
	got := make([]byte, all.Len())
	if _, err := all.ReadAt(got, 0); err != nil {
		return err
	}
	var want []byte
	for rank := range g.Size() {
		want = append(want, ownBytes(rank)...)
	}
	copy(want, bytes.Repeat([]byte{byte(g.Size())}, 100))
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%v instead of %v", got, want)
	}
	return errors.Join(reg.Close(), reg.Err(), g.Close())
}

// TestThroughTheBinding: a group's life on cgo/nccl.
func TestThroughTheBinding(t *testing.T) {
	t.Parallel()
	path, fake := fakeNCCL(t)
	groups, errs := joinAll(t, path, time.Minute, devices(t, 3)...)
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, "NCCL 2.28.9", groups[0].Engine())
	errs = together(groups, func(g *Group) error { return gatherOnce(t.Context(), g) })
	require.NoError(t, errors.Join(errs...))
	s := groups[1].Stats()
	require.Equal(t, s.Registered, s.Deregistered)
	require.NotZero(t, s.Registered)
	require.Zero(t, fake.Live())
}

// TestEachCallOfNCCLFails: whichever call fails, and whenever, all members get an error, and
// nothing is left.
func TestEachCallOfNCCLFails(t *testing.T) {
	t.Parallel()
	for _, symbol := range []string{
		"ncclCommInitRankConfig", "ncclCommSplit", "ncclCommGetAsyncError", "ncclCommRegister", "ncclCommDeregister",
		"ncclAllGather", "ncclSend", "ncclRecv", "ncclGroupStart", "ncclGroupEnd", "ncclAllReduce",
		"ncclCommFinalize", "ncclCommDestroy",
	} {
		t.Run(symbol, func(t *testing.T) { t.Parallel(); eachCallFails(t, symbol) })
	}
}

func eachCallFails(t *testing.T, symbol string) {
	path, fake := fakeNCCL(t)
	devs := devices(t, 2)
	limit := 100 * time.Millisecond // so long waits the member whose call does not fail
	live := func() []error {
		groups, errs := joinAll(t, path, limit, devs...)
		if errors.Join(errs...) != nil {
			for _, g := range groups {
				errs = append(errs, g.Abort())
			}
			return errs
		}
		return together(groups, func(g *Group) error { return gatherOnce(t.Context(), g) })
	}
	for _, code := range []int{2, 6} {
		failed := 0
		for k := 1; k <= testgate.Effort(2, 6, 6); {
			before := fake.Calls(symbol)
			fake.Fail(symbol, k, code)
			errs := live()
			if fake.Calls(symbol)-before < k {
				fake.Fail(symbol, 1<<30, 0) // it came not so far
				if errors.Is(errors.Join(errs...), os.ErrDeadlineExceeded) {
					limit *= 2 // the machine is busy: once more
					continue
				}
				require.NoError(t, errors.Join(errs...))
				break
			}
			failed++
			if symbol != "ncclCommRegister" { // the memory is used all the same
				require.Error(t, errors.Join(errs...), "the %d-th call", k)
			}
			for _, err := range errs {
				require.NotErrorIs(t, err, vmm.ErrBusy, "the %d-th call", k)
			}
			require.Zero(t, fake.Live(), "the %d-th call, %d", k, code)
			k++
		}
		require.NotZero(t, failed)
	}
	limit = time.Minute
	require.NoError(t, errors.Join(live()...))
}

// TestMisuseOnNCCL: members that die are told by NCCL, as over sockets; those that abort are not.
func TestMisuseOnNCCL(t *testing.T) {
	t.Parallel()
	runMisuse(t, misuseEngine{
		left: os.ErrDeadlineExceeded, blind: true,
		group: func(t *testing.T, limit time.Duration, devs []*vmm.Device) misuseGroup {
			path, fake := fakeNCCL(t)
			groups, errs := joinAll(t, path, limit, devs...)
			require.NoError(t, errors.Join(errs...))
			const remoteError = 6 // ncclRemoteError
			return misuseGroup{
				groups: groups, kill: func(rank int) { fake.Kill(rank, remoteError) },
				waiting: func() int { return fake.Live().Waiting },
			}
		},
	})
}
