package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// budgetKeeper is a Keeper whose servers have a budget, of which the store is a member. With a step the first one kills
// itself there.
func budgetKeeper(t *testing.T, path string, bytes uint64, step ...string) *child {
	t.Helper()
	return budgetKeeperThat(t, "", path, bytes, step...)
}

func budgetKeeperThat(t *testing.T, how, path string, bytes uint64, step ...string) *child {
	t.Helper()
	k := spawnWith(t, fmt.Sprint(budgetVar, "=", bytes, how), "keeper", append([]string{path}, step...)...)
	k.expect("ready")
	return k
}

// budgetStorm is members that come, go, stop and are killed.
type budgetStorm struct {
	t       *testing.T
	path    string
	server  *child
	budget  uint64
	random  *rand.Rand
	held    holders
	members []*stormMember
	joined  int
	ended   []*child
	counts  struct{ kills, stops, leaves, servers, reloads int }
}

// stormMember is a member of a storm.
type stormMember struct {
	c *child
	h *holder
}

func (s *budgetStorm) spawn(i int) {
	s.t.Helper()
	s.joined++
	least := s.budget / uint64(4*len(s.members)) / memberChunk * memberChunk * uint64(i%2)
	c := spawn(s.t, "member", s.path, fmt.Sprint("m", s.joined), fmt.Sprint(least), fmt.Sprint(s.budget), fmt.Sprint(s.joined))
	s.members[i] = &stormMember{c, s.held.add(s.t, c.pid())}
}

// newBudgetStorm has a server, with a budget of so many chunks, and members that have joined.
func newBudgetStorm(t *testing.T, chunks uint64, members int) *budgetStorm {
	t.Helper()
	if !withCUDA { // there all tests look at the same memory
		t.Parallel()
	}
	bytes := chunks * memberChunk
	s := &budgetStorm{t: t, path: socketAt(t), budget: bytes, random: rand.New(rand.NewPCG(65, rand.Uint64())), held: holders{budget: bytes}}
	s.members = make([]*stormMember, members)
	s.server = budgetKeeper(t, s.path, bytes)
	for i := range s.members {
		s.spawn(i)
	}
	for _, m := range s.members {
		m.c.expect("ready")
	}
	if withCUDA {
		s.held.on(t, testDevice(t))
	}
	return s
}

// started waits until a member has joined, and has it run.
func (m *stormMember) started() {
	m.c.t.Helper()
	m.c.expect("ready")
	m.c.ask("run")
}

func (m *stormMember) signal(s syscall.Signal) { _ = syscall.Kill(m.c.pid(), s) }

// stop stops a member, and returns once it has stopped.
func (m *stormMember) stop() {
	m.c.t.Helper()
	m.signal(syscall.SIGSTOP)
	require.Eventually(m.c.t, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.c.pid()))
		return err == nil && bytes.Contains(b, []byte(") T "))
	}, inTime, step)
}

// leave has a member give all back and end.
func (s *budgetStorm) leave(m *stormMember) {
	s.t.Helper()
	m.c.ask("leave")
	m.c.wait()
	s.ended = append(s.ended, m.c)
}

// act does something to the members, or to the server.
func (s *budgetStorm) act(k *child) {
	i := s.random.IntN(len(s.members))
	m := s.members[i]
	switch s.random.IntN(8) {
	case 0, 1:
		s.counts.kills++
		if s.random.IntN(2) == 0 {
			m.stop()
			s.held.stopped(m.h)
		}
		m.c.kill()
		s.ended = append(s.ended, m.c)
		s.spawn(i)
		s.members[i].started()
	case 2, 3:
		s.counts.stops++
		m.stop()
		<-time.After(time.Duration(s.random.Int64N(int64(3 * budgetDeadline))))
		m.signal(syscall.SIGCONT)
	case 4:
		s.counts.leaves++
		s.leave(m)
		s.spawn(i)
		s.members[i].started()
	case 5:
		s.counts.leaves++
		m.c.ask("again")
		m.c.ask("run")
	case 6:
		s.counts.servers++
		k.ask("kill")
	case 7:
		s.counts.reloads++
		k.ask("reload")
	}
}

const sizeInText = `(?:[\d.]+ [KMGTPE]iB \()?(\d+) bytes\)?`

var (
	refusalText = regexp.MustCompile(sizeInText + ` needed, and ` + sizeInText + ` lack; the share of this process is ` + sizeInText + `(; \S)?`)
	boundText   = regexp.MustCompile(sizeInText + ` needed, and (?:this process may have|all processes may have) ` + sizeInText)
)

// checkRefusals looks at each refused growth: what is needed is above the share, or the error says who has not given.
func checkRefusals(t *testing.T, all []*child) (n, named int) {
	t.Helper()
	for _, c := range all {
		for line := range strings.Lines(c.err.String()) {
			text, ok := strings.CutPrefix(line, refusedLine)
			require.True(t, ok, "%s", line)
			n++
			if m := refusalText.FindStringSubmatch(text); m != nil {
				need, _ := strconv.ParseUint(m[1], 10, 64)
				share, _ := strconv.ParseUint(m[3], 10, 64)
				if need <= share {
					require.NotEmpty(t, m[4], "below its share, and no one is named: %s", text)
					named++
				}
				continue
			}
			m := boundText.FindStringSubmatch(text)
			require.NotNil(t, m, "%s", text)
			need, _ := strconv.ParseUint(m[1], 10, 64)
			bound, _ := strconv.ParseUint(m[2], 10, 64)
			require.Greater(t, need, bound, text)
		}
	}
	return n, named
}

// TestBudgetStorm: members with random needs are killed, stopped, leave and come back, while servers are killed and
// reloaded. Seen from outside, what they hold never passes the budget; no byte is wrong; and who is refused below
// its share hears who has not given. It runs by the clock: what is tested is a schedule of several processes.
func TestBudgetStorm(t *testing.T) {
	s := newBudgetStorm(t, 64, map[bool]int{false: testgate.Effort(4, 8, 8), true: 4}[withCUDA])
	bytes, k := s.budget, s.server
	stop := s.held.watch()
	for _, m := range s.members {
		m.c.ask("run")
	}
	for end := time.Now().Add(testgate.Effort(time.Second, 10*time.Second, time.Minute)); time.Now().Before(end); {
		<-time.After(time.Duration(s.random.IntN(100)) * time.Millisecond)
		s.act(k)
	}
	ops := 0
	for _, m := range s.members {
		n, err := strconv.Atoi(m.c.ask("ops"))
		require.NoError(t, err)
		ops += n
		m.c.tell("leave")
	}
	for _, m := range s.members {
		m.c.expect("leave")
		m.c.wait()
		s.ended = append(s.ended, m.c)
	}
	isUnused(t, s.path, bytes)
	stop()
	s.held.look()
	require.Empty(t, s.held.all, "processes are left")
	require.Empty(t, s.held.passed)
	refused, named := checkRefusals(t, s.ended)
	t.Logf("%d processes, %+v; the last did %d operations; %d looks, %d bytes of %d at most; %d refusals, %d below the share",
		s.joined, s.counts, ops, s.held.looks, s.held.most, bytes, refused, named)
	require.NotZero(t, ops)
	k.ask("close")
}

// TestBudgetStormSees is the control of the test above: memory beside a lease is seen from outside.
func TestBudgetStormSees(t *testing.T) {
	s := newBudgetStorm(t, 8, 2)
	bytes, k := s.budget, s.server
	for _, m := range s.members {
		m.c.ask("grow", bytes/2)
	}
	s.held.look()
	require.Empty(t, s.held.passed)
	require.InDelta(t, bytes, s.held.most, float64(s.held.slack()), "all that there is is seen")
	s.members[1].c.ask("steal", memberChunk)
	s.held.look()
	require.NotEmpty(t, s.held.passed)
	m := s.members[0]
	m.stop()
	s.held.stopped(m.h)
	m.c.kill()
	s.held.look()
	require.Len(t, s.held.all, 1, "who is gone does not count")
	k.ask("close")
}

// TestStoreIsAMemberOfAGPU: a store and a member together never have more than a budget of a GPU, as seen from outside, also
// when the server is killed. Each gets what the other has beyond its share.
func TestStoreIsAMemberOfAGPU(t *testing.T) {
	if !withCUDA {
		t.Skip("needs a GPU; TestStoreIsAMember is the same on the host")
	}
	s := newBudgetStorm(t, 16, 1)
	m := s.members[0].c
	c, err := Connect(t.Context(), s.path, testDevice(t), ClientOptions{})
	require.NoError(t, err)
	create := func(name string, chunks uint64) error {
		w, err := c.Create(within(t), name, CreateOptions{Size: chunks * memberChunk, Durable: true})
		if err != nil {
			return err
		}
		require.NoError(t, w.Append(waveAt(0, int(memberChunk))))
		require.NoError(t, w.SetLen(w.Max()))
		return errors.Join(w.Seal(within(t), shareable.SealOptions{}), w.Close())
	}
	gets := func(name string, chunks uint64) { // the member looks at all its bytes first, perhaps for longer than the deadline
		await(t, func() string {
			if err := create(name, chunks); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	remove := func(name string) { require.NoError(t, c.Delete(within(t), name, DeleteOptions{})) }
	require.NoError(t, create("first", 1)) // with it the server has a context
	remove("first")
	s.held.on(t, s.held.card)
	stop := s.held.watch()

	m.ask("grow", 10*memberChunk)
	require.NoError(t, create("x", 6))
	gets("y", 2)
	for range 2 {
		replaced(t, s.server, "kill")
		r := storeIn(t, reported(t, s.path))
		require.EqualValues(t, 8*memberChunk, r.Lease, "before anyone can ask")
		require.EqualValues(t, 8*memberChunk, r.Created)
		require.ErrorIs(t, create("z", 1), vmm.ErrOutOfMemory)
		v := got(t, c, "x", GetOptions{})
		require.NoError(t, checkWave(v, memberChunk))
		require.NoError(t, v.Close())
	}
	remove("x") // another server has created it
	remove("y")
	m.ask("grow", 16*memberChunk)
	gets("x", 8)
	remove("x")
	stop()
	require.Empty(t, s.held.passed)
	require.InDelta(t, s.budget, s.held.most, float64(s.held.slack()))
	s.leave(s.members[0])
	isUnused(t, s.path, s.budget)
	s.server.ask("close")
}
