package ipc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// trader has a pool whose blocks it exports, and imports those of another process.
type trader struct {
	dev  *vmm.Device
	s    *vmm.Stream
	srv  *shareable.Server
	own  *pool.Pool
	ex   *ipc.Exporter
	in   *ipc.Importer
	live map[string]pool.Block // exported, by the text of the token
}

func newTrader(dev *vmm.Device, own, other string) *trader {
	x := &trader{dev: dev, live: map[string]pool.Block{}}
	var err error
	x.s, err = dev.NewStream()
	must(err)
	x.own, err = pool.New(dev, pool.Options{Share: vmm.ShareFD, Max: 128 * mib})
	must(err)
	x.srv, err = shareable.Listen(dev, own, shareable.Options{})
	must(err)
	x.ex, err = ipc.NewExporter(x.srv, x.own)
	must(err)
	x.in, err = ipc.NewImporter(dev, other, shareable.AttachOptions{Write: true})
	must(err)
	return x
}

// export makes a block of n bytes that is v everywhere, and returns its token as text.
func (x *trader) export(n uint64, v byte) string {
	b, err := x.own.Alloc(x.s, n)
	must(err)
	must(x.s.Fill(b.Ptr(), uint32(v), 1, n))
	must(x.s.Sync())
	token, err := x.ex.Export(b)
	must(err)
	text := quoted(token)
	x.live[text] = b
	return text
}

// take imports a block, checks that it is v everywhere, and makes it v+1.
func (x *trader) take(text string, v byte) *ipc.ImportedBlock {
	var token ipc.BlockToken
	unquoted(text, &token)
	b, err := x.in.Import(context.Background(), token)
	must(err)
	must(x.check(b.Ptr(), b.Size(), v))
	must(x.s.Fill(b.Ptr(), uint32(v+1), 1, b.Size()))
	must(x.s.Sync())
	return b
}

func (x *trader) check(at vmm.Ptr, n uint64, v byte) error {
	got := make([]byte, n)
	if err := x.dev.CopyOut(got, at); err != nil {
		return err
	}
	if !bytes.Equal(got, bytes.Repeat([]byte{v}, int(n))) {
		return fmt.Errorf("%d bytes are not all %d", n, v)
	}
	return nil
}

// drop unexports and frees a block, which is to be v everywhere.
func (x *trader) drop(text string, v byte) {
	b := x.live[text]
	must(x.check(b.Ptr(), b.Size(), v))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(x.ex.Unexport(ctx, b))
	must(x.own.FreeNow(b))
	delete(x.live, text)
}

// churn allocates, frees and trims until stop is closed.
func (x *trader) churn(seed uint64, stop <-chan struct{}) {
	r := rand.New(rand.NewPCG(seed, seed))
	s, err := x.dev.NewStream()
	must(err)
	var all []pool.Block
	for {
		select {
		case <-stop:
			for _, b := range all {
				must(x.own.Free(s, b))
			}
			must(s.Close())
			return
		default:
		}
		switch k := r.IntN(10); {
		case k < 5 && len(all) < 12:
			b, err := x.own.Alloc(s, []uint64{200, 40_000, mib, 6 * mib}[r.IntN(4)])
			must(err)
			must(s.Fill(b.Ptr(), 255, 1, b.Size()))
			all = append(all, b)
		case k < 9 && len(all) > 0:
			n := r.IntN(len(all))
			must(x.own.Free(s, all[n]))
			all[n] = all[len(all)-1]
			all = all[:len(all)-1]
		default:
			must(s.Sync())
			_, err := x.own.TrimTo(0)
			must(err)
		}
	}
}

func (x *trader) close() {
	must(x.in.Close())
	must(x.ex.Close())
	must(x.srv.Close())
	must(x.own.Close())
	must(x.s.Close())
}

// blocks is a trader that does as told. Its arguments come in the first line.
func (p *part) blocks() {
	words, _ := p.next()
	x := newTrader(p.dev, words[0], words[1])
	taken := map[string]*ipc.ImportedBlock{}
	stop := make(chan struct{})
	var tasks sync.WaitGroup
	fmt.Println("ready")
	for p.in.Scan() {
		what, rest, _ := strings.Cut(p.in.Text(), " ")
		first, text, _ := strings.Cut(rest, " ")
		v, _ := strconv.Atoi(first)
		switch what {
		case "export":
			n, err := strconv.ParseUint(text, 10, 64)
			must(err)
			fmt.Println(x.export(n, byte(v)))
		case "take":
			taken[text] = x.take(text, byte(v))
			fmt.Println("taken")
		case "check":
			must(x.check(taken[text].Ptr(), taken[text].Size(), byte(v)))
			fmt.Println("right")
		case "give":
			if v == 0 {
				must(taken[text].FreeNow())
			} else {
				must(taken[text].Free(x.s))
			}
			fmt.Println("given")
		case "drop":
			x.drop(text, byte(v))
			fmt.Println("dropped")
		case "churn":
			tasks.Go(func() { x.churn(uint64(v), stop) })
			fmt.Println("churns")
		}
	}
	close(stop)
	tasks.Wait()
	x.close()
}

// trade starts a trader here and one in another process.
func trade(t *testing.T, d vmmtest.Driver) (*trader, *child) {
	t.Helper()
	dir := t.TempDir()
	here, there := filepath.Join(dir, "here"), filepath.Join(dir, "there")
	x := newTrader(d.Device(t), here, there)
	c := spawn(t, "blocks", d.Name)
	require.Equal(t, "ready", c.does(there, here))
	return x, c
}

func TestBlocksOfTwoProcesses(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		x, c := trade(t, d)
		stop := make(chan struct{})
		var tasks sync.WaitGroup
		tasks.Go(func() { x.churn(1, stop) })
		require.Equal(t, "churns", c.does("churn", 2))
		sizes := []uint64{1, 300, 50_000, mib, 5 * mib}
		for round := range testgate.Effort(10, 30, 30) {
			n, v := sizes[round%len(sizes)], byte(round*4+1)
			// Ours, there.
			ours := x.export(n, v)
			require.Equal(t, "taken", c.does("take", v, ours))
			// Theirs, here.
			theirs := c.does("export", v+2, n)
			b := x.take(theirs, v+2)
			// What either has written stays.
			require.Equal(t, "right", c.does("check", v+1, ours))
			require.NoError(t, x.check(b.Ptr(), n, v+3))
			require.ErrorIs(t, x.own.FreeNow(x.live[ours]), vmm.ErrBusy)
			require.Equal(t, "given", c.does("give", round%2, ours))
			x.drop(ours, v+1)
			require.NoError(t, b.FreeNow())
			require.Equal(t, "dropped", c.does("drop", v+3, theirs))
		}
		require.NoError(t, c.in.Close())
		c.ends()
		close(stop)
		tasks.Wait()
		x.close()
	})
}

func TestBlockImporterIsKilled(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		x, c := trade(t, d)
		text := x.export(5*mib, 1)
		b := x.live[text]
		require.Equal(t, "taken", c.does("take", 1, text))
		require.ErrorIs(t, x.ex.Unexport(ended(t), b), vmm.ErrBusy)
		c.kill()
		x.drop(text, 2)
		freed, err := x.own.TrimTo(0)
		require.NoError(t, err)
		require.NotZero(t, freed)
		x.close()
	})
}

func TestBlockExporterIsKilled(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		x, c := trade(t, d)
		text := c.does("export", 7, 5*mib)
		b := x.take(text, 7)
		var token ipc.BlockToken
		unquoted(text, &token)
		require.NoError(t, b.Err())
		c.kill()
		require.Eventually(t, func() bool { return b.Err() != nil }, patience, tick)
		require.ErrorIs(t, b.Err(), ipc.ErrExporterGone)
		require.NoError(t, x.check(b.Ptr(), b.Size(), 8), "the memory stays")
		again, err := x.in.Import(t.Context(), token)
		require.NoError(t, err, "it is imported")
		require.NoError(t, again.Free(x.s))
		require.NoError(t, b.FreeNow())
		_, err = x.in.Import(t.Context(), token)
		require.ErrorIs(t, err, ipc.ErrExporterGone)
		x.close()
	})
}

// Whoever is killed at whatever moment: nothing stays held, and nothing open.
func TestKilledWhileBlocksAreTraded(t *testing.T) {
	for round := range 6 {
		x, c := trade(t, testDriver)
		ours, theirs := x.export(3*mib, 1), c.does("export", 1, 2*mib)
		var token ipc.BlockToken
		unquoted(theirs, &token)
		_, err := fmt.Fprintln(c.in, "take", 1, ours)
		require.NoError(t, err)
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			for range round * 300 {
				_ = os.Getpid() // some time, another one each round
			}
			c.kill()
		}()
		for {
			b, err := x.in.Import(t.Context(), token)
			if err != nil {
				require.True(t, errors.Is(err, ipc.ErrExporterGone), "%v", err)
				break
			}
			require.NoError(t, b.FreeNow())
		}
		<-killed
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		require.NoError(t, x.ex.Unexport(ctx, x.live[ours]))
		cancel()
		require.NoError(t, x.own.FreeNow(x.live[ours]))
		x.close()
	}
}
