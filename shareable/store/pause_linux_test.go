package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// leaseOfPaused allows for signs of life that are late.
const leaseOfPaused = 3 * time.Second

// playPaused is a server at its first argument, which may be stopped. With another argument the
// looks that it has missed count.
func playPaused(p *part) {
	o := Options{LeaseTime: leaseOfPaused}
	o.hooks.pauses = len(p.args) > 1
	s, err := Listen(p.device(nil), p.args[0], o)
	p.must(err)
	p.say("ready")
	read := func(f func() uint64) uint64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return f()
	}
	looks := func() uint64 { return s.looks }
	for {
		switch word, n := p.next(); word {
		case "looks": // so many later
			from := read(looks)
			p.eventually("it looks", func() bool { return read(looks) >= from+n })
			p.say("looks")
		case "waits": // a client does
			p.eventually("a client waits", func() bool { return read(func() uint64 { return uint64(len(s.byName["k"].waiting)) }) == n })
			p.say("waits")
		}
	}
}

// playAppender makes the object of its second argument, or waits for it, and appends when it is told to.
func playAppender(p *part) {
	ctx := context.Background()
	c, err := Connect(ctx, p.args[0], p.device(nil), ClientOptions{})
	p.must(err)
	w, err := c.OpenAppend(ctx, p.args[1], CreateOptions{Size: 1 << 20, Growable: true, Wait: true})
	p.must(err)
	p.say("writes", w.Len())
	for {
		switch word, _ := p.next(); word {
		case "append":
			if err = w.Append([]byte{1}); err == nil {
				err = w.Flush(ctx)
			}
			p.say("append", err)
		case "close":
			p.say("close", w.Close())
		}
	}
}

// TestPauseTakesNoLease: a pause of the server, of a writer and of one that waits, longer than
// the time of a lease, takes no lease: the writer has stood still no longer than the server. As a
// negative control the looks count that the server missed.
func TestPauseTakesNoLease(t *testing.T) {
	t.Parallel()
	for _, control := range []bool{false, true} {
		t.Run(fmt.Sprintf("control=%v", control), func(t *testing.T) {
			t.Parallel()
			if control {
				pausedGroups(t, 1, 1, "control")
				return
			}
			pausedGroups(t, testgate.Effort(1, 10, 10), testgate.Effort(1, 20, 200)) // 200 pauses, of ten groups at a time
		})
	}
}

// pausedGroups pauses groups of a server, a writer and one that waits. With an argument for the servers
// the writers lose their leases.
func pausedGroups(t *testing.T, groups, rounds int, control ...string) {
	t.Helper()
	var servers, writers, waiters children
	for range groups {
		args := append([]string{socketAt(t)}, control...)
		s := spawn(t, "paused", args...)
		s.expect("ready")
		w := spawn(t, "appender", args[0], "k")
		w.expect("writes")
		waiters = append(waiters, spawn(t, "appender", args[0], "k"))
		s.ask("waits", 1)
		servers, writers = append(servers, s), append(writers, w)
	}
	all := slices.Concat(servers, writers, waiters)
	for i := range rounds {
		worst := i%2 == 0 // the server sees the last sign of life, and none before it looks again
		if worst {
			writers.signal(syscall.SIGSTOP)
			servers.askEach("looks", 1)
		}
		all.signal(syscall.SIGSTOP)
		<-time.After(leaseOfPaused * 5 / 4)
		if worst {
			servers.signal(syscall.SIGCONT)
			servers.askEach("looks", 1)
		}
		all.signal(syscall.SIGCONT)
		if control != nil {
			require.NotEqual(t, "<nil>", writers[0].ask("append"))
			waiters[0].expect("writes")
			return
		}
		require.Equal(t, slices.Repeat([]string{"<nil>"}, groups), writers.askEach("append"), "round %d", i)
		servers.askEach("looks", 2)
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	require.Equal(t, slices.Repeat([]string{"<nil>"}, groups), writers.askEach("close"))
	for _, c := range waiters {
		require.Equal(t, strconv.Itoa(rounds), c.expect("writes")) // it has waited all the time
	}
}

// children are processes that do the same.
type children []*child

// signal sends each a signal.
func (all children) signal(s syscall.Signal) {
	for _, c := range all {
		require.NoError(c.t, c.cmd.Process.Signal(s))
	}
}

// askEach is ask of each, at the same time.
func (all children) askEach(word string, args ...any) (replies []string) {
	for _, c := range all {
		c.t.Helper()
		c.tell(append([]any{word}, args...)...)
	}
	for _, c := range all {
		replies = append(replies, c.expect(word))
	}
	return replies
}

// TestPauseAfterADeath: a pause in the time in which a writer may come back to the next server takes it
// nothing of that time.
func TestPauseAfterADeath(t *testing.T) {
	const back = 2 * time.Second
	t.Setenv(returnVar, back.String())
	t.Setenv(healthVar, inTime.String())
	k, path, c := kept(t)
	w := spawn(t, "appender", path, "k")
	w.expect("writes")
	require.NoError(t, syscall.Kill(w.pid(), syscall.SIGSTOP))
	k.ask("kill")
	require.Eventually(t, func() bool { s, err := c.Stats(within(t)); return err == nil && s.Restarts == 1 }, inTime, step)
	server, err := strconv.Atoi(k.ask("pid"))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(k.pid(), syscall.SIGSTOP))
	require.NoError(t, syscall.Kill(server, syscall.SIGSTOP))
	<-time.After(back)
	require.NoError(t, syscall.Kill(server, syscall.SIGCONT))
	require.NoError(t, syscall.Kill(k.pid(), syscall.SIGCONT))
	<-time.After(2 * awaitedPause) // it has looked
	require.NoError(t, syscall.Kill(w.pid(), syscall.SIGCONT))
	require.Equal(t, "<nil>", w.ask("append"))
	k.ask("close")
}
