package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// playShort takes over with room for as many descriptors as it is told, and says how that
// ends.
func playShort(p *part) {
	dev := p.device(nil)
	var was unix.Rlimit
	p.must(unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	p.say("ready")
	for {
		word, n := p.next()
		p.check(word == "try", "%q", word)
		few := was
		few.Cur = uint64(reportUsage().FDs) + n
		p.must(unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
		before := reportUsage()
		ctx, cancel := context.WithTimeout(context.Background(), inTime)
		s, err := takeOverAt(ctx, dev, p.args[0], Options{MaxConns: 100})
		p.check(ctx.Err() == nil, "it hangs: %v", err)
		cancel()
		p.must(unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
		p.check(err == nil || errors.Is(err, vmm.ErrLimit), "%v", err)
		if err == nil {
			p.say("try", "done")
			p.next()
			p.must(s.Close())
			os.Exit(0)
		}
		var now use
		for end := time.Now().Add(inTime); ; <-time.After(step) {
			if now = reportUsage(); now.FDs <= before.FDs && now.Goroutines <= before.Goroutines {
				break
			}
			p.check(time.Now().Before(end), "after %v: %+v before, %+v now", err, before, now)
		}
		p.say("try", err)
	}
}

// TestSuccessorWithoutDescriptors: a successor that runs out of descriptors at any moment
// returns an error and has nothing, and the store goes on.
func TestSuccessorWithoutDescriptors(t *testing.T) {
	o := Options{}
	o.hooks.anyTakesOver = true                     // the successor is no child of who began
	s, err := Listen(testDevice(t), socketAt(t), o) // of the successor's driver
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	c, err := Connect(t.Context(), s.Path(), testDevice(t), ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	w := writer(t, c, "k", CreateOptions{Size: 1 << 20, Growable: true, Durable: true})
	for i := range 100 { // more than one frame of descriptors
		sealed(t, c, fmt.Sprint(i), waveAt(0, 1000))
	}
	b := got(t, c, "k", GetOptions{Unsafe: true})
	next := spawn(t, "short", s.Path())
	next.expect("ready")
	fails := 0
	for free := 1; ; free += testgate.Effort(5, 1, 1) {
		how := next.ask("try", free)
		require.NoError(t, w.Append(waveAt(w.Len(), 100)))
		require.NoError(t, w.Flush(within(t)))
		require.NoError(t, b.Wait(within(t), w.Len()))
		require.NoError(t, checkWave(b, b.Len()))
		again, err := Connect(t.Context(), s.Path(), c.Device(), ClientOptions{})
		require.NoError(t, err, "%d descriptors free: %s", free, how)
		require.NoError(t, again.Close())
		if how == "done" {
			break
		}
		t.Logf("%d descriptors free: %s", free, how)
		fails++
	}
	require.True(t, s.Wait())
	require.Greater(t, fails, 10)
	t.Logf("%d times without enough descriptors", fails)
	require.NoError(t, w.Close())
	require.NoError(t, b.Close())
}

// TestResumeWithoutEach: whichever descriptor is missing, nothing is left of the server that
// was to go on, and the connections are as they were.
func TestResumeWithoutEach(t *testing.T) {
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "k", CreateOptions{Size: 1 << 20, Growable: true, Durable: true})
	require.NoError(t, w.Append(waveAt(0, 1000)))
	b := got(t, c, "k", GetOptions{Unsafe: true})
	sealed(t, c, "s", waveAt(0, 1000))
	half := connected(t, s) // it has a page that it has not mapped
	lease := wire.Create{Name: "h", Size: 1 << 20, Flags: wire.StoreDurable}.Append(nil)
	require.NoError(t, half.Call(t.Context(), wire.TypeCreate, lease, wire.TypeObject, ignore))
	gone := got(t, c, "s", GetOptions{}) // of an object without a name
	require.NoError(t, c.Delete(t.Context(), "s", DeleteOptions{}))
	require.NoError(t, connected(t, s).ask(wire.TypeWatch, wire.Watch{Prefix: "x"}.Append(nil)))
	none := serve.Conn(nil)
	s.mu.Lock()
	for conn, x := range s.clients {
		if len(x.leases) == 0 {
			none = conn
		}
	}
	s.mu.Unlock()
	require.NotNil(t, none)
	require.NoError(t, s.objects.Park(handoverTime, none))
	var once sync.Once
	goOn := func() { once.Do(func() { s.objects.Decide(false) }) }
	t.Cleanup(goOn) // before Close, which waits for it
	state, fds, release, err := s.state(none)
	require.NoError(t, err)
	o, err := Options{}.resolve()
	require.NoError(t, err)
	dev := vmmtest.Device(t)
	before := processFDs(t)
	for n := range len(fds) + 1 {
		var some []int
		for _, fd := range fds[:n] {
			own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			require.NoError(t, err)
			some = append(some, own)
		}
		next, _, err := resume(dev, o, state, some)
		if n < len(fds) {
			require.ErrorIs(t, err, shareable.ErrProtocol)
		} else {
			require.NoError(t, err)
			next.objects.Abandon()
			require.NoError(t, next.Close())
		}
		require.Eventually(t, func() bool { return processFDs(t) <= before }, inTime, step, "%d of %d descriptors", n, len(fds))
	}
	release()
	goOn()
	require.NoError(t, w.Append(waveAt(w.Len(), 1000)))
	require.NoError(t, b.Wait(within(t), 2000))
	require.NoError(t, checkWave(b, 2000))
	require.NoError(t, gone.Close())
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
}
