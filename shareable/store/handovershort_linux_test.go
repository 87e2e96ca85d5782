package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/vmm"
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
		s, err := TakeOver(ctx, dev, p.args[0], Options{MaxConns: 100})
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
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "k", CreateOptions{Size: 1 << 20, Growable: true, Durable: true})
	for i := range 100 { // more than one frame of descriptors
		sealed(t, c, fmt.Sprint(i), waveAt(0, 1000))
	}
	b := got(t, c, "k", GetOptions{Unsafe: true})
	next := spawn(t, "short", s.Path())
	next.expect("ready")
	fails := 0
	for room := 1; ; room++ {
		how := next.ask("try", room)
		require.NoError(t, w.Append(waveAt(w.Len(), 100)))
		require.NoError(t, w.Flush(within(t)))
		require.NoError(t, b.Wait(within(t), w.Len()))
		require.NoError(t, checkWave(b, b.Len()))
		again, err := Connect(t.Context(), s.Path(), c.Device(), ClientOptions{})
		require.NoError(t, err, "room for %d: %s", room, how)
		require.NoError(t, again.Close())
		if how == "done" {
			break
		}
		t.Logf("room for %d: %s", room, how)
		fails++
	}
	require.True(t, s.Wait())
	require.Greater(t, fails, 10)
	t.Logf("%d times without enough descriptors", fails)
	require.NoError(t, w.Close())
	require.NoError(t, b.Close())
}
