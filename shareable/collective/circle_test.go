package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// circles has members meet, and returns what they have, by rank.
func circles(t *testing.T, size int) []*circle {
	t.Helper()
	return circlesOn(t, nil, size)
}

// circlesOn is circles on a network; nil: TCP.
func circlesOn(t *testing.T, n *network, size int) []*circle {
	t.Helper()
	listen := func(ctx context.Context, address string) (net.Listener, error) {
		var lc net.ListenConfig
		return lc.Listen(ctx, "tcp", address)
	}
	if n != nil {
		listen = n.listen
	}
	at, err := listen(t.Context(), "127.0.0.1:0") // held: another process may take a number that is free
	require.NoError(t, err)
	m := meeting{address: at.Addr().String(), size: size, secret: []byte("s"), open: at, network: n}
	all := make([]*circle, size)
	done := make(chan error)
	for rank := range size {
		go func() {
			var err error
			all[rank], _, err = m.join(t.Context(), rank, idOf(ID{7}))
			done <- err
		}()
	}
	for range size {
		require.NoError(t, <-done)
	}
	t.Cleanup(func() {
		for _, c := range all {
			c.leave()
		}
	})
	return all
}

// die ends a member as the end of its process would.
func (c *circle) die() {
	c.hangUp(nil)
	c.leave()
}

// watched returns what a circle's watch reports.
func watched(c *circle) <-chan int {
	gone := make(chan int, 2*c.size)
	c.watch(func(why error) { gone <- rankIn(why) })
	return gone
}

// TestCircleGone: each member learns of each other one that has ended, and once.
func TestCircleGone(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		all := circles(t, 4)
		var gone []<-chan int
		if !late {
			for _, c := range all {
				gone = append(gone, watched(c))
			}
		}
		all[1].die()
		if late {
			require.Eventually(t, func() bool {
				all[3].mu.Lock()
				defer all[3].mu.Unlock()
				_, is := all[3].gone[1]
				return is
			}, 10*time.Second, time.Millisecond)
			for _, c := range all {
				gone = append(gone, watched(c))
			}
		}
		for _, rank := range []int{0, 2, 3} {
			require.Equal(t, 1, <-gone[rank])
		}
		all[3].hangUp(nil)
		for _, rank := range []int{0, 2} {
			require.Equal(t, 3, <-gone[rank])
		}
		all[0].die()
		require.Equal(t, 0, <-gone[2])
		for _, c := range gone {
			require.Empty(t, c)
		}
	}
}

// TestCircleLeave: a goodbye is no death.
func TestCircleLeave(t *testing.T) {
	t.Parallel()
	all := circles(t, 4)
	zero, three := watched(all[0]), watched(all[3])
	all[1].leave()
	all[1].leave()
	<-all[0].links[1].ended
	all[2].die()
	require.Equal(t, 2, <-zero)
	require.Equal(t, 2, <-three)
	all[0].leave()
	<-all[3].links[0].ended
	require.Empty(t, zero)
	require.Empty(t, three)
}

// TestCircleEnds: nothing is left of circles that were left.
func TestCircleEnds(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	all := circles(t, 3)
	all[2].die()
	next := shrinkAll(t.Context(), all[:2])
	for _, s := range next {
		require.NoError(t, s.err)
		s.next.leave()
	}
}

// shrunk is what shrink has returned.
type shrunk struct {
	next      *circle
	survivors []int
	id        ID
	err       error
}

// shrinkAll has members shrink, and returns what became of each.
func shrinkAll(ctx context.Context, all []*circle) []shrunk {
	got := make([]shrunk, len(all))
	done := make(chan struct{})
	for i, c := range all {
		go func() {
			s := &got[i]
			s.next, s.survivors, s.id, s.err = c.shrink(ctx, idOf(ID{8, byte(c.rank)}))
			done <- struct{}{}
		}()
	}
	for range all {
		<-done
	}
	return got
}

// without returns the circles but for those of the ranks.
func without(all []*circle, ranks ...int) (rest []*circle) {
	for rank, c := range all {
		if !slices.Contains(ranks, rank) {
			rest = append(rest, c)
		}
	}
	return rest
}

// requireCircle: the members have one circle, and hear of each other's end.
func requireCircle(t *testing.T, got []shrunk, survivors ...int) (all []*circle) {
	t.Helper()
	for i, s := range got {
		require.NoError(t, s.err)
		require.Equal(t, survivors, s.survivors)
		require.Equal(t, ID{8, byte(survivors[0])}, s.id)
		require.Equal(t, i, s.next.rank)
		require.Equal(t, len(got), s.next.size)
		t.Cleanup(s.next.leave)
		all = append(all, s.next)
	}
	return all
}

func TestShrink(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		size int
		dead []int
	}{
		{1, nil}, {2, nil}, {2, []int{0}}, {2, []int{1}}, {3, []int{0}}, {3, []int{1}}, {3, []int{2}}, {3, []int{0, 1}},
		{3, []int{1, 2}}, {4, nil}, {5, []int{0, 3}}, {5, []int{0, 1, 2, 3}},
	} {
		t.Run(fmt.Sprintf("%v of %d", c.dead, c.size), func(t *testing.T) {
			t.Parallel()
			all := circles(t, c.size)
			var survivors []int
			for rank := range c.size {
				if slices.Contains(c.dead, rank) {
					all[rank].die()
				} else {
					survivors = append(survivors, rank)
				}
			}
			next := requireCircle(t, shrinkAll(t.Context(), without(all, c.dead...)), survivors...)
			if len(next) < 2 {
				return
			}
			var gone []<-chan int
			for _, c := range next[:len(next)-1] {
				gone = append(gone, watched(c))
			}
			last := len(next) - 1
			next[last].die()
			for _, g := range gone {
				require.Equal(t, last, <-g)
			}
		})
	}
}

// TestShrinkAgain: one after the other ends, the first each time.
func TestShrinkAgain(t *testing.T) {
	t.Parallel()
	all := circles(t, 5)
	for len(all) > 1 {
		all[0].die()
		var survivors []int
		for rank := 1; rank < len(all); rank++ {
			survivors = append(survivors, rank)
		}
		all = requireCircle(t, shrinkAll(t.Context(), all[1:]), survivors...)
	}
}

// waitFor waits until so many members wait at c.
func waitFor(t *testing.T, c *circle, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return len(c.own.there()) == n }, 10*time.Second, time.Millisecond)
}

// TestShrinkLeaderDies: the others go on without a leader that ends before it has decided, also
// if they have accepted it.
func TestShrinkLeaderDies(t *testing.T) {
	t.Parallel()
	all := circles(t, 4)
	got := make(chan []shrunk, 1)
	go func() { got <- shrinkAll(t.Context(), all[1:]) }()
	waitFor(t, all[0], 3)
	all[0].die()
	next := requireCircle(t, <-got, 1, 2, 3)

	go func() { got <- shrinkAll(t.Context(), next[1:]) }()
	_, _, _, err := next[0].shrink(t.Context(), func() (ID, error) {
		require.Len(t, next[0].own.there(), 2)
		for _, l := range next[0].own.there() {
			l.close()
		}
		next[0].leave()
		return ID{}, errors.New("dead")
	})
	require.ErrorContains(t, err, "dead")
	requireCircle(t, <-got, 1, 2)
}

// TestShrinkNoID: if the leader cannot make an identity all have an error, and may try again.
func TestShrinkNoID(t *testing.T) {
	t.Parallel()
	all := circles(t, 2)
	got := make(chan []shrunk, 1)
	go func() { got <- shrinkAll(t.Context(), all[1:]) }()
	_, _, _, err := all[0].shrink(t.Context(), func() (ID, error) { return ID{}, errors.New("no identity") })
	require.ErrorContains(t, err, "no identity")
	err = (<-got)[0].err
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "no identity")
	requireCircle(t, shrinkAll(t.Context(), all), 0, 1)
}

// TestShrinkEnds: the end of the context ends shrink, and it may be called again.
func TestShrinkEnds(t *testing.T) {
	t.Parallel()
	all := circles(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan []shrunk, 1)
	go func() { got <- shrinkAll(ctx, all[1:2]) }()
	waitFor(t, all[0], 1)
	cancel()
	require.ErrorIs(t, (<-got)[0].err, context.Canceled)
	ctx, cancel = context.WithCancel(t.Context())
	go func() { got <- shrinkAll(ctx, all[:2]) }()
	waitFor(t, all[0], 1)
	cancel()
	for _, s := range <-got {
		require.ErrorIs(t, s.err, context.Canceled)
	}
	requireCircle(t, shrinkAll(t.Context(), all), 0, 1, 2)
	_, _, _, err := all[0].shrink(t.Context(), nil)
	require.ErrorIs(t, err, errLeft)
}

// TestShrinkLeftOut: a member that lives and does not come is left out, and told so.
func TestShrinkLeftOut(t *testing.T) {
	t.Parallel()
	for rank := range 3 {
		t.Run(fmt.Sprint(rank), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, n *network) {
				all := circlesOn(t, n, 3)
				ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
				defer cancel()
				rest := without(all, rank)
				got := shrinkAll(ctx, rest)
				requireCircle(t, got, rest[0].rank, rest[1].rank)
				_, _, _, err := all[rank].shrink(t.Context(), idOf(ID{9}))
				require.ErrorIs(t, err, ErrPeerGone)
				require.ErrorContains(t, err, "without this member")
			})
		})
	}
}

// split has members reach only those of their side.
func split(all []*circle, reaches func(from, to int) bool) {
	for from, c := range all {
		c.dial = func(ctx context.Context, address string) (net.Conn, error) {
			if to := slices.Index(c.addresses, address); !reaches(from, to) {
				return nil, fmt.Errorf("dial rank %d: %w", to, os.ErrDeadlineExceeded)
			}
			return c.dialer()(ctx, address)
		}
	}
}

// TestShrinkPartition: of the sides of a network that has split at most one goes on, in each way
// to split four members.
func TestShrinkPartition(t *testing.T) {
	t.Parallel()
	splits := 0
	for n := range 4 * 4 * 4 * 4 {
		side := []int{n % 4, n / 4 % 4, n / 16 % 4, n / 64}
		if side[0] != 0 || side[1] > 1 || side[2] > max(side[0], side[1])+1 || side[3] > max(side[0], side[1], side[2])+1 {
			continue // the same as another one
		}
		splits++
		t.Run(fmt.Sprint(side), func(t *testing.T) {
			t.Parallel()
			all := circles(t, 4)
			split(all, func(from, to int) bool { return side[from] == side[to] })
			sides := map[int][]int{}
			for rank, s := range side {
				sides[s] = append(sides[s], rank)
			}
			for rank, s := range shrinkAll(t.Context(), all) {
				ours := sides[side[rank]]
				if len(ours) > 2 || len(ours) == 2 && ours[0] == 0 {
					require.NoError(t, s.err)
					require.Equal(t, ours, s.survivors)
					t.Cleanup(s.next.leave)
					continue
				}
				require.ErrorIs(t, s.err, ErrPeerGone)
				require.ErrorContains(t, s.err, "not the larger part")
			}
		})
	}
	require.Equal(t, 15, splits)
}

// TestShrinkBrokenNetwork: whoever reaches whom, and whoever is dead, the members never make two
// groups.
func TestShrinkBrokenNetwork(t *testing.T) {
	t.Parallel()
	for seed := range testgate.Effort[uint64](10, 40, 400) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, n *network) {
				r := rand.New(rand.NewPCG(seed, 32))
				var blocked [5][5]bool
				for from := range 5 {
					for to := range 5 {
						blocked[from][to] = r.IntN(10) < 3
					}
				}
				all := circlesOn(t, n, 5)
				split(all, func(from, to int) bool { return !blocked[from][to] })
				dead := r.IntN(10) // no one, if it is 5 or more
				if dead < 5 {
					all[dead].die()
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				groups := map[ID]int{}
				for _, s := range shrinkAll(ctx, without(all, dead)) {
					if s.err == nil {
						groups[s.id]++
						t.Cleanup(s.next.leave)
					}
				}
				require.LessOrEqual(t, len(groups), 1, "%v", slices.Collect(maps.Keys(groups)))
			})
		})
	}
}

// TestShrinkAccepted: a member that has accepted a leader follows no other while that one may live:
// the leader may count it, and go on.
func TestShrinkAccepted(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		leader, accepted := i%2, i/2 == 1
		t.Run(fmt.Sprint(leader, accepted), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, n *network) {
				all := circlesOn(t, n, 3)
				split(all, func(_, to int) bool { return to != leader })
				if accepted {
					all[2].promised = leader
				}
				ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
				defer cancel()
				got := shrinkAll(ctx, without(all, leader))
				if !accepted {
					requireCircle(t, got, 1-leader, 2)
					return
				}
				require.ErrorIs(t, got[0].err, ErrPeerGone)
				require.ErrorIs(t, got[1].err, context.DeadlineExceeded)
			})
		})
	}
}

// tape is a connection of which the frames are recorded, or replayed.
type tape struct {
	net.Conn
	bytes.Buffer
}

func (p *tape) Write(b []byte) (int, error)      { return p.Buffer.Write(b) }
func (p *tape) Read(b []byte) (int, error)       { return p.Buffer.Read(b) }
func (p *tape) Close() error                     { return nil }
func (p *tape) SetWriteDeadline(time.Time) error { return nil }

// TestFrameReplay: a frame is good once, in its direction, on its connection and unchanged.
func TestFrameReplay(t *testing.T) {
	nonces := [2]nonce{newNonce(), newNonce()}
	record := &tape{}
	require.NoError(t, newLink(record, []byte("s"), nonces, 2).write(frame{Type: frameGoodbye}))
	text := record.Bytes()
	for name, c := range map[string]struct {
		plays    [][]byte
		accepted bool
		nonces   [2]nonce
		secret   string
		good     int
	}{
		"replayed":           {[][]byte{text, text}, true, nonces, "s", 1},
		"sent back":          {[][]byte{text}, false, nonces, "s", 0},
		"another connection": {[][]byte{text}, true, [2]nonce{nonces[0], newNonce()}, "s", 0},
		"another secret":     {[][]byte{text}, true, nonces, "t", 0},
		"changed":            {[][]byte{bytes.Replace(text, []byte("7"), []byte("8"), 1)}, true, nonces, "s", 0},
	} {
		p := &tape{}
		for _, b := range c.plays {
			p.Buffer.Write(b)
		}
		l := newLink(p, []byte(c.secret), c.nonces, 2)
		l.accepted = c.accepted
		for range c.good {
			f, err := l.next()
			require.NoError(t, err, name)
			require.Equal(t, frameGoodbye, f.Type, name)
		}
		_, err := l.next()
		require.ErrorIs(t, err, errMAC, name)
	}
}

// rankIn is the rank that an error of a member that is gone names.
func rankIn(why error) (rank int) {
	text := why.Error()
	rank, _ = strconv.Atoi(text[strings.LastIndex(text, " ")+1:])
	return rank
}

// TestShrinkLeaderDoesNotCome: of those that live some never call shrink, the lowest ranks first.
// The others go on if they are more.
func TestShrinkLeaderDoesNotCome(t *testing.T) {
	t.Parallel()
	for from := 1; from < 4; from++ {
		t.Run(strconv.Itoa(from), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, n *network) {
				all := circlesOn(t, n, 5)
				ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
				defer cancel()
				got := shrinkAll(ctx, all[from:])
				switch from {
				case 1:
					requireCircle(t, got, 1, 2, 3, 4)
					return
				case 2:
					requireCircle(t, got, 2, 3, 4)
					return
				}
				for _, s := range got {
					require.ErrorIs(t, s.err, ErrPeerGone)
				}
			})
		})
	}
}

// TestErrorsQuoteOtherMembers: what another member has said moves no cursor.
func TestErrorsQuoteOtherMembers(t *testing.T) {
	for _, c := range []code{codeLate, codeFailed, codeOtherSize} {
		require.ErrorContains(t, frame{Code: c, Rank: 2, Text: "\x1b[2J"}.goneError(), `"\x1b[2J"`)
	}
	require.ErrorContains(t, refusal{code: codeFailed, text: "\x1b[2J"}, `"\x1b[2J"`)
}
