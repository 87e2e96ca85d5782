package shareable

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// trader publishes blocks of its pool, and attaches to those of another process.
type trader struct {
	dev   *vmm.Device
	s     *vmm.Stream
	srv   *Server
	own   *pool.Pool
	other string // the other one's socket
	must  func(error)
	made  int
	live  map[string]publishedBlock
}

func newTrader(dev *vmm.Device, own, other string, must func(error)) *trader {
	x := &trader{dev: dev, other: other, must: must, live: map[string]publishedBlock{}}
	var err error
	x.s, err = dev.NewStream()
	must(err)
	x.own, err = pool.New(dev, pool.Options{Share: vmm.ShareFD, Max: 128 * mib})
	must(err)
	x.srv, err = Listen(dev, own, Options{})
	must(err)
	return x
}

// publish makes a block of n bytes that is v everywhere, and returns the name of it.
func (x *trader) publish(n uint64, v byte) string {
	b, err := x.own.Alloc(x.s, n)
	x.must(err)
	x.must(x.s.Fill(b.Ptr(), uint32(v), 1, n))
	x.must(x.s.Sync())
	x.made++
	name := fmt.Sprint("block-", x.made)
	x.live[name], err = publishBlock(x.srv, x.own, b, name, PublishOptions{Write: true})
	x.must(err)
	return name
}

// take attaches to a block, checks that it is v everywhere, and makes it v+1.
func (x *trader) take(name string, v byte) *View {
	view, err := x.attach(name)
	x.must(err)
	x.must(holds(x.dev, view.Ptr(), view.Len(), v))
	x.must(view.UsedBy(x.s))
	x.must(x.s.Fill(view.Ptr(), uint32(v+1), 1, view.Len()))
	x.must(x.s.Sync())
	return view
}

// attach maps all of a block.
func (x *trader) attach(name string) (*View, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v, err := Attach(ctx, x.other, name, x.dev, AttachOptions{Write: true})
	if err != nil {
		return nil, err
	}
	n := v.Published()
	if err := v.Wait(ctx, max(n, 1)); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// drop frees a block, which is to be v everywhere, once no other process has it.
func (x *trader) drop(name string, v byte) {
	b := x.live[name]
	x.must(holds(x.dev, b.Ptr(), b.Size(), v))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	x.must(b.span.CloseUnused(ctx))
	b.release()
	x.must(x.own.FreeNow(b.Block))
	delete(x.live, name)
}

// churn allocates, frees and trims until stop is closed.
func (x *trader) churn(seed uint64, stop <-chan struct{}) {
	r := rand.New(rand.NewPCG(seed, seed))
	s, err := x.dev.NewStream()
	x.must(err)
	var all []pool.Block
	for {
		select {
		case <-stop:
			for _, b := range all {
				x.must(x.own.Free(s, b))
			}
			x.must(s.Close())
			return
		default:
		}
		switch k := r.IntN(10); {
		case k < 5 && len(all) < 12:
			b, err := x.own.Alloc(s, []uint64{200, 40_000, mib, 6 * mib}[r.IntN(4)])
			x.must(err)
			x.must(s.Fill(b.Ptr(), 255, 1, b.Size()))
			all = append(all, b)
		case k < 9 && len(all) > 0:
			n := r.IntN(len(all))
			x.must(x.own.Free(s, all[n]))
			all[n] = all[len(all)-1]
			all = all[:len(all)-1]
		default:
			x.must(s.Sync())
			_, err := x.own.TrimTo(0)
			x.must(err)
		}
	}
}

func (x *trader) close() {
	x.must(x.srv.Close())
	x.must(x.own.Close())
	x.must(x.s.Close())
}

// playTrader is a trader that does as told. Its arguments are its own socket and the other
// one's.
func playTrader(p *part) {
	dev := p.device(host.Config{})
	x := newTrader(dev, p.args[0], p.args[1], p.must)
	taken := map[string]*View{}
	stop := make(chan struct{})
	var tasks sync.WaitGroup
	p.say("ready")
	for p.in.Scan() {
		words := append(strings.Fields(p.in.Text()), "", "")
		n, _ := strconv.ParseUint(words[1], 10, 64)
		v, name := byte(n), words[2]
		switch words[0] {
		case "publish":
			size, err := strconv.ParseUint(name, 10, 64)
			p.must(err)
			p.say("published", x.publish(size, v))
		case "take":
			taken[name] = x.take(name, v)
			p.say("taken")
		case "check":
			p.must(holds(dev, taken[name].Ptr(), taken[name].Len(), v))
			p.say("right")
		case "give":
			p.must(taken[name].Close())
			p.say("given")
		case "drop":
			x.drop(name, v)
			p.say("dropped")
		case "churn":
			tasks.Go(func() { x.churn(n, stop) })
			p.say("churns")
		}
	}
	close(stop)
	tasks.Wait()
	x.close()
	p.must(dev.Close())
	p.say("ended")
}

// trade starts a trader here and one in another process.
func trade(t *testing.T) (*trader, *child) {
	t.Helper()
	dir := filepath.Dir(socketAt(t))
	here, there := filepath.Join(dir, "here"), filepath.Join(dir, "there")
	dev := crashDevice(t)
	x := newTrader(dev, here, there, func(err error) {
		if err != nil {
			t.Error(err)
			panic(err) // in a goroutine as well
		}
	})
	c := spawn(t, "trader", there, here)
	c.expect("ready")
	return x, c
}

func TestBlocksOfTwoProcesses(t *testing.T) {
	t.Parallel()
	x, c := trade(t)
	stop := make(chan struct{})
	var tasks sync.WaitGroup
	tasks.Go(func() { x.churn(1, stop) })
	c.tell("churn", 2)
	c.expect("churns")
	sizes := []uint64{1, 300, 50_000, mib, 5 * mib}
	for round := range testgate.Effort(5, 30, 30) {
		n, v := sizes[round%len(sizes)], byte(round*4+1)
		// Ours, there.
		ours := x.publish(n, v)
		c.tell("take", v, ours)
		c.expect("taken")
		// Theirs, here.
		c.tell("publish", v+2, n)
		theirs := c.expect("published")
		b := x.take(theirs, v+2)
		// What either has written stays.
		c.tell("check", v+1, ours)
		c.expect("right")
		require.NoError(t, holds(x.dev, b.Ptr(), n, v+3))
		require.ErrorIs(t, x.own.FreeNow(x.live[ours].Block), vmm.ErrBusy)
		c.tell("give", 0, ours)
		c.expect("given")
		x.drop(ours, v+1)
		require.NoError(t, b.Close())
		c.tell("drop", v+3, theirs)
		c.expect("dropped")
	}
	require.NoError(t, c.in.Close())
	c.expect("ended")
	close(stop)
	tasks.Wait()
	x.close()
}

// A reader that is killed has let go.
func TestBlockReaderIsKilled(t *testing.T) {
	t.Parallel()
	x, c := trade(t)
	name := x.publish(5*mib, 1)
	c.tell("take", 1, name)
	c.expect("taken")
	require.ErrorIs(t, x.live[name].span.CloseUnused(noWait(t)), vmm.ErrBusy)
	c.kill()
	x.drop(name, 2)
	freed, err := x.own.TrimTo(0)
	require.NoError(t, err)
	require.NotZero(t, freed)
	x.close()
}

// What a killed owner has published stays mapped here.
func TestBlockOwnerIsKilled(t *testing.T) {
	t.Parallel()
	x, c := trade(t)
	c.tell("publish", 7, 5*mib)
	name := c.expect("published")
	v := x.take(name, 7)
	require.NoError(t, v.Err())
	c.kill()
	soon(t, "the owner has gone", func() bool { return v.Err() != nil })
	require.ErrorIs(t, v.Err(), ErrOwnerGone)
	require.EqualValues(t, 5*mib, v.Len())
	require.NoError(t, holds(x.dev, v.Ptr(), 5*mib, 8), "the memory stays")
	_, err := x.attach(name)
	require.ErrorIs(t, err, ErrOwnerGone)
	require.NoError(t, v.Close())
	x.close()
}

// Whichever process is killed at whatever moment: nothing stays held, and nothing open.
func TestKilledWhileBlocksAreTraded(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range testgate.Effort(3, 20, 60) {
		x, c := trade(t)
		ours := x.publish(3*mib, 1)
		c.tell("publish", 1, 2*mib)
		theirs := c.expect("published")
		c.tell("take", 1, ours)
		killed := make(chan struct{})
		after := time.Duration(r.Int64N(int64(10 * time.Millisecond)))
		go func() {
			defer close(killed)
			<-time.After(after)
			c.kill()
		}()
		attached := 0
		for ; ; attached++ {
			v, err := x.attach(theirs)
			if err != nil {
				require.ErrorIs(t, err, ErrOwnerGone)
				break
			}
			require.NoError(t, v.Close())
		}
		<-killed
		b := x.live[ours]
		ctx, cancel := contextIn(t, patience)
		require.NoError(t, b.span.CloseUnused(ctx))
		cancel()
		b.release()
		require.NoError(t, x.own.FreeNow(b.Block))
		require.Zero(t, x.srv.Stats().KeptFDs)
		x.close()
		t.Logf("killed after %v, attached %d times", after, attached)
	}
}
