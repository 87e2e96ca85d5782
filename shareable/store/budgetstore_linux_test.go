package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// What follows the bytes in budgetVar: the server evicts, or it is no member of its own budget.
const (
	storeEvicts = ",evicts"
	storeAlone  = ",alone"
)

// othersOf are the members of a budget but for the store.
func othersOf(r budget.Report) (all []budget.MemberReport) {
	return slices.DeleteFunc(slices.Clone(r.Members), func(m budget.MemberReport) bool { return m.Name == memberName })
}

// storeIn is the store as a member.
func storeIn(t *testing.T, r budget.Report) budget.MemberReport {
	t.Helper()
	i := slices.IndexFunc(r.Members, func(m budget.MemberReport) bool { return m.Name == memberName })
	require.GreaterOrEqual(t, i, 0, "%+v", r)
	return r.Members[i]
}

// reported is the one budget of a server.
func reported(t *testing.T, path string) budget.Report {
	t.Helper()
	all, err := budget.Reports(t.Context(), path, testDevice(t), shareable.AttachOptions{})
	require.NoError(t, err)
	require.Len(t, all, 1)
	return all[0]
}

// isUnused waits until the store is the only member of a budget, and has nothing.
func isUnused(t *testing.T, path string, bytes uint64) {
	t.Helper()
	await(t, func() string {
		all, err := budget.Reports(t.Context(), path, testDevice(t), shareable.AttachOptions{})
		if err == nil && len(all) == 1 && len(all[0].Members) == 1 {
			if s := all[0].Members[0]; s.Name == memberName && s.Created == 0 && s.Lease+all[0].Idle == bytes { // what it has no use for others get when they ask
				return ""
			}
		}
		return fmt.Sprintf("%+v, %v", all, err)
	})
}

// together looks from outside at what the servers of a Keeper and the members of a budget have.
type together struct {
	parent int
	pids   []int         // of members
	rest   func() uint64 // bytes of members in this process
	most   uint64        // that there were at a moment
	looks  int
	stop   func()
}

// servers are the processes that a Keeper has started.
func (x *together) servers() (pids []int) {
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", x.parent))
	for _, name := range names {
		b, _ := os.ReadFile(name)
		for _, f := range bytes.Fields(b) {
			if pid, err := strconv.Atoi(string(f)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// files is all memory, by inode: the two servers of a reload have the same.
func (x *together) files() files {
	all := files{}
	for _, pid := range append(x.servers(), x.pids...) {
		maps.Copy(all, filesOf(pid))
	}
	return all
}

// look counts what there was at a moment: files that were there before it and after it.
func (x *together) look() {
	first := x.files()
	sum := x.rest()
	then := x.files()
	for file, size := range first {
		if _, still := then[file]; still {
			sum += size
		}
	}
	x.most = max(x.most, sum)
	x.looks++
}

// watching looks all the time, until stop.
func watching(t *testing.T, k *child, rest func() uint64, members ...*child) *together {
	x := &together{parent: k.pid(), rest: rest}
	for _, m := range members {
		x.pids = append(x.pids, m.pid())
	}
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			x.look()
			select {
			case <-over:
				return
			default:
			}
		}
	}()
	x.stop = func() { close(over); <-ended }
	return x
}

// chunksObject makes a sealed object of so many chunks.
func chunksObject(t *testing.T, c *Client, name string, chunks uint64) {
	t.Helper()
	w, err := c.Create(within(t), name, CreateOptions{Size: chunks * budgetChunk})
	require.NoError(t, err, name)
	require.NoError(t, w.Append([]byte{1}))
	require.NoError(t, w.SetLen(w.Max()))
	require.NoError(t, w.Seal(within(t), shareable.SealOptions{}))
	require.NoError(t, w.Close())
}

// replaced waits until another server serves.
func replaced(t *testing.T, k *child, how string) {
	t.Helper()
	was := k.ask("pid")
	k.ask(how)
	await(t, func() string {
		if is := k.ask("pid"); is == was || is == "0" {
			return is
		}
		return ""
	})
}

// storeAndMember runs a store that has half of a budget and a member that wants all, and returns the most that both
// had at a moment, as seen from outside.
func storeAndMember(t *testing.T, bytes uint64, start func(*testing.T, string, uint64, ...string) *child, act func(*child, *Client, *countedMember)) *together {
	c := &counted{t: t, path: socketAt(t)}
	k := start(t, c.path, bytes)
	a := c.join("a", 0)
	client, err := Connect(t.Context(), c.path, testDevice(t), ClientOptions{})
	require.NoError(t, err)
	seen := watching(t, k, func() uint64 { return uint64(c.bytes.Load()) })
	act(k, client, a)
	seen.stop()
	seen.look()
	require.NoError(t, client.Close())
	a.leave()
	k.ask("close")
	t.Logf("%d looks, %d bytes of %d at most", seen.looks, seen.most, bytes)
	return seen
}

// TestStoreIsAMember: a store and a member together never have more than the budget, as seen from outside, when
// objects come and go, and when the server is killed or reloaded. Each gets what the other has beyond its share.
func TestStoreIsAMember(t *testing.T) {
	if withCUDA {
		t.Skip("each member has a driver of its own")
	}
	t.Parallel()
	const bytes = 16 * budgetChunk
	seen := storeAndMember(t, bytes, budgetKeeper, func(k *child, c *Client, a *countedMember) {
		refused := func(err error) {
			t.Helper()
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
		}
		a.grow(10)
		chunksObject(t, c, "x", 6)
		chunksObject(t, c, "y", 2) // a gives what is beyond its share
		require.EqualValues(t, 8*budgetChunk, a.g.Cap())
		_, err := c.Create(within(t), "z", CreateOptions{Size: budgetChunk})
		refused(err)
		require.ErrorContains(t, err, "the share of this process is", "the broker's words")
		for _, how := range []string{"kill", "reload", "kill"} {
			replaced(t, k, how)
			s := storeIn(t, reported(t, a.path))
			require.EqualValues(t, 8*budgetChunk, s.Lease, "before anyone can ask")
			require.EqualValues(t, 8*budgetChunk, s.Created)
			await(t, func() string {
				if err := a.m.Stats().Err; err != nil {
					return err.Error()
				}
				return ""
			})
			refused(a.g.Grow(budgetChunk))
		}
		require.NoError(t, c.Delete(within(t), "x", DeleteOptions{})) // another server has created it
		a.grow(14)
		refused(a.g.Grow(budgetChunk))
		require.NoError(t, c.Delete(within(t), "y", DeleteOptions{}))
		a.grow(16)
		chunksObject(t, c, "x", 8)
		require.EqualValues(t, 8*budgetChunk, a.g.Cap())
		require.NoError(t, c.Delete(within(t), "x", DeleteOptions{}))
	})
	require.EqualValues(t, bytes, seen.most)
}

func aloneKeeper(t *testing.T, path string, bytes uint64, step ...string) *child {
	t.Helper()
	return budgetKeeperThat(t, storeAlone, path, bytes, step...)
}

// TestStoreAloneIsSeen is the control of the test above: a store that is no member passes the budget.
func TestStoreAloneIsSeen(t *testing.T) {
	if withCUDA {
		t.Skip("each member has a driver of its own")
	}
	t.Parallel()
	const bytes = 16 * budgetChunk
	seen := storeAndMember(t, bytes, aloneKeeper, func(_ *child, c *Client, a *countedMember) {
		a.grow(16)
		chunksObject(t, c, "x", 1)
		require.EqualValues(t, 16*budgetChunk, a.g.Cap())
	})
	require.EqualValues(t, 17*budgetChunk, seen.most)
}

// TestStoreIsAMemberInStorms: members with random needs, and clients that create and delete objects, while servers are
// killed and reloaded. Seen from outside, they never have more than the budget together.
func TestStoreIsAMemberInStorms(t *testing.T) {
	if withCUDA {
		t.Skip("it looks at memory of the host driver")
	}
	t.Parallel()
	const bytes = 32 * budgetChunk
	path := socketAt(t)
	k := budgetKeeper(t, path, bytes)
	var members []*child
	for i := range 2 {
		m := spawn(t, "member", path, fmt.Sprint("m", i), "0", fmt.Sprint(bytes), fmt.Sprint(i))
		m.expect("ready")
		members = append(members, m)
	}
	c, err := Connect(t.Context(), path, testDevice(t), ClientOptions{})
	require.NoError(t, err)
	seen := watching(t, k, func() uint64 { return 0 }, members...)
	for _, m := range members {
		m.ask("run")
	}
	random := rand.New(rand.NewPCG(66, uint64(os.Getpid())))
	var has []string
	made, refused := 0, 0
	for i := range testgate.Effort(60, 300, 2000) {
		switch {
		case i%20 == 19:
			replaced(t, k, []string{"kill", "reload"}[i/20%2])
		case len(has) > 0 && random.IntN(3) == 0:
			n := random.IntN(len(has))
			require.NoError(t, c.Delete(within(t), has[n], DeleteOptions{}))
			has = slices.Delete(has, n, n+1)
		default:
			name := fmt.Sprint("o", i)
			w, err := c.Create(within(t), name, CreateOptions{Size: uint64(1+random.IntN(4)) * budgetChunk, Durable: true})
			if errors.Is(err, vmm.ErrOutOfMemory) {
				refused++
				continue
			}
			require.NoError(t, err)
			require.NoError(t, w.Append([]byte{1}))
			if random.IntN(2) == 0 {
				require.NoError(t, w.Seal(within(t), shareable.SealOptions{}))
			}
			require.NoError(t, w.Close())
			has = append(has, name)
			made++
		}
	}
	for _, name := range has {
		require.NoError(t, c.Delete(within(t), name, DeleteOptions{}))
	}
	for _, m := range members {
		m.ask("leave")
		m.wait()
	}
	isUnused(t, path, bytes)
	seen.stop()
	t.Logf("%d objects, %d refused; %d looks, %d bytes of %d at most", made, refused, seen.looks, seen.most, uint64(bytes))
	require.LessOrEqual(t, seen.most, uint64(bytes))
	require.Greater(t, seen.most, uint64(bytes/2), "control: it is seen")
	require.NotZero(t, made)
	require.NoError(t, c.Close())
	k.ask("close")
}

// memberStore is a server that has a budget, and half of it in objects of two chunks.
func memberStore(t *testing.T, objects int, o Options) (*Server, *Client, *counted) {
	t.Helper()
	if withCUDA {
		t.Skip("each member has a driver of its own")
	}
	o.Budgets = []budget.Budget{{Device: testDevice(t), Bytes: hostileBudget}}
	o.hooks.deadline = budgetDeadline
	s := listening(t, o)
	c := clientOf(t, s)
	for i := range objects {
		chunksObject(t, c, fmt.Sprint("o", i), 2)
	}
	return s, c, &counted{t: t, path: s.Path()}
}

// TestStoreEvictsForMembers: what another member needs of the store beyond its share goes by eviction, the least
// recently used first, and nothing that a client has or that is more than is needed.
func TestStoreEvictsForMembers(t *testing.T) {
	t.Parallel()
	s, c, all := memberStore(t, 8, Options{Evict: true})
	b := got(t, c, "o0", GetOptions{})
	a := all.join("a", 0)
	a.grow(3)
	require.Equal(t, []string{"o0", "o3", "o4", "o5", "o6", "o7"}, names(t, c))
	a.grow(8)
	require.Equal(t, []string{"o0", "o5", "o6", "o7"}, names(t, c))
	require.ErrorIs(t, a.g.Grow(budgetChunk), vmm.ErrOutOfMemory, "above its share")
	require.Equal(t, []string{"o0", "o5", "o6", "o7"}, names(t, c))
	require.EqualValues(t, 4, s.Stats().Evicted)
	require.Equal(t, byte(1), contents(t, b)[0])
	a.leave()
}

// TestStoreEvictsItsOwnFirst: an object that needs memory has the store's own evicted before others are asked.
func TestStoreEvictsItsOwnFirst(t *testing.T) {
	t.Parallel()
	_, c, all := memberStore(t, 3, Options{Evict: true})
	a := all.join("a", 0)
	a.grow(10)
	chunksObject(t, c, "n", 2)
	require.Equal(t, []string{"o1", "o2", "n"}, names(t, c))
	require.EqualValues(t, 10*budgetChunk, a.g.Cap())
	a.leave()
}

// TestStoreGrowsAtNoOnesCost: an object that grows gets twice its memory if that is free, and others give only what it
// needs.
func TestStoreGrowsAtNoOnesCost(t *testing.T) {
	t.Parallel()
	s, c, all := memberStore(t, 0, Options{})
	a := all.join("a", 0)
	a.grow(10)
	w := writer(t, c, "x", CreateOptions{Size: 16 * budgetChunk, Growable: true})
	require.NoError(t, w.Grow(4*budgetChunk))
	require.NoError(t, w.SetLen(w.Cap()))
	require.NoError(t, w.Grow(budgetChunk))
	require.LessOrEqual(t, w.Cap(), uint64(6*budgetChunk))
	require.EqualValues(t, 10*budgetChunk, a.g.Cap())
	require.NoError(t, w.SetLen(w.Cap()))
	require.NoError(t, w.Grow(7*budgetChunk-w.Cap()))
	require.EqualValues(t, 7*budgetChunk, w.Cap())
	require.EqualValues(t, 9*budgetChunk, a.g.Cap())
	require.NoError(t, w.Abort(t.Context()))
	require.Zero(t, s.Stats().Evicted)
	a.leave()
}

// TestStoreGrowsWithoutEviction: what an object gets beyond its need costs no other one, where the limit is the store's.
func TestStoreGrowsWithoutEviction(t *testing.T) {
	t.Parallel()
	s, c, _ := memberStore(t, 1, Options{Evict: true, MaxBytes: 8 * budgetChunk})
	w := writer(t, c, "x", CreateOptions{Size: 8 * budgetChunk, Growable: true})
	require.NoError(t, w.Grow(4*budgetChunk))
	require.NoError(t, w.SetLen(w.Cap()))
	require.NoError(t, w.Grow(budgetChunk))
	require.Zero(t, s.Stats().Evicted)
	require.LessOrEqual(t, w.Cap(), uint64(6*budgetChunk))
	require.NoError(t, w.SetLen(w.Cap()))
	require.NoError(t, w.Grow(7*budgetChunk-w.Cap()))
	require.EqualValues(t, 1, s.Stats().Evicted, "control: it needs that")
	require.NoError(t, w.Abort(t.Context()))
}

// TestStoreAsksForAllAtOnce: for an object that there is no room for, no one gives a part.
func TestStoreAsksForAllAtOnce(t *testing.T) {
	if withCUDA {
		t.Skip("each member has a driver of its own")
	}
	t.Parallel()
	if has := testDevice(t).Info().Memory; has < 4*maxChunk {
		t.Skipf("4 GiB of memory, which nothing touches; the host has %d bytes", has)
	}
	s, err := Listen(vmmtest.Device(t), socketAt(t), Options{
		Budgets: []budget.Budget{{Device: testDevice(t), Bytes: 4 * maxChunk}}, hooks: hooks{deadline: budgetDeadline},
	})
	require.NoError(t, err)
	c := clientOf(t, s)
	dev := vmmtest.Device(t)
	m, err := budget.Join(t.Context(), s.Path(), dev, budget.JoinOptions{Name: "a"})
	require.NoError(t, err)
	g, err := dev.NewRange(vmm.RangeOptions{Max: 4 * maxChunk, Chunk: maxChunk})
	require.NoError(t, err)
	require.NoError(t, g.Grow(3*maxChunk)) // which nothing touches
	stop := dev.OnPressure(func(error) bool { return g.Clip() == nil })
	_, err = c.Create(within(t), "x", CreateOptions{Size: 3 * maxChunk})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.EqualValues(t, 3*maxChunk, g.Cap())
	w, err := c.Create(within(t), "x", CreateOptions{Size: 2 * maxChunk})
	require.NoError(t, err)
	require.Zero(t, g.Cap())
	require.NoError(t, w.Abort(t.Context()))
	stop()
	require.NoError(t, g.Close())
	require.NoError(t, m.Close())
	require.NoError(t, s.Close())
}

// TestStoreGivesNothingInUse: without eviction a store gives what no object has, and errors name it.
func TestStoreGivesNothingInUse(t *testing.T) {
	t.Parallel()
	s, c, all := memberStore(t, 7, Options{})
	a := all.join("a", 0)
	a.grow(2)
	err := a.g.Grow(budgetChunk)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, `"store" gave`)
	require.Len(t, names(t, c), 7)
	require.NoError(t, c.Delete(t.Context(), "o3", DeleteOptions{}))
	a.grow(4)
	require.Zero(t, s.Stats().Evicted)
	a.leave()
}

// TestStoreCountsWhatClientsKeep: memory that a client has after the object has gone counts until it is free.
func TestStoreCountsWhatClientsKeep(t *testing.T) {
	t.Parallel()
	s, _, all := memberStore(t, 0, Options{LeaseTime: leaseLooks * 100 * time.Millisecond}) // it looks that often
	p := spawn(t, "keeps", s.Path())
	require.Equal(t, fmt.Sprint(hostileBudget/max(s.gran, 1<<20)), p.expect("refused"))
	require.Zero(t, s.Stats().Bytes)
	require.EqualValues(t, hostileBudget, storeIn(t, reported(t, s.Path())).Lease)
	a := all.join("a", 0)
	err := a.g.Grow(budgetChunk)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, `"store" gave`)
	p.tell("end")
	p.wait()
	a.grow(16)
	a.leave()
}

// TestStoreWaitsForItsKeeper: the keeper has the memory of an object that has gone a moment longer. It is there for
// the next object all the same, and no more is evicted than is needed.
func TestStoreWaitsForItsKeeper(t *testing.T) {
	if withCUDA {
		t.Skip("each member has a driver of its own")
	}
	t.Parallel()
	const bytes = 16 * budgetChunk
	c := &counted{t: t, path: socketAt(t)}
	k := budgetKeeperThat(t, storeEvicts, c.path, bytes)
	client, err := Connect(t.Context(), c.path, testDevice(t), ClientOptions{})
	require.NoError(t, err)
	for i := range 20 {
		chunksObject(t, client, fmt.Sprint("x", i), 16)
		require.NoError(t, client.Delete(within(t), fmt.Sprint("x", i), DeleteOptions{}))
	}
	for i := range 16 {
		chunksObject(t, client, fmt.Sprint("o", i), 1)
	}
	a := c.join("a", 0)
	for i := range uint64(8) {
		a.grow(1 + i)
		require.Len(t, names(t, client), int(15-i))
	}
	for most := uint64(7); most > 0; most-- { // it is asked for as much by an operator
		bytes := most * budgetChunk
		require.NoError(t, budget.SetTerms(t.Context(), c.path, testDevice(t), budget.Change{Member: memberName, Most: &bytes}, shareable.AttachOptions{}))
		await(t, func() string {
			if s := storeIn(t, reported(t, c.path)); s.Lease > bytes || s.Gives > 0 {
				return fmt.Sprintf("%+v", s)
			}
			return ""
		})
		require.Len(t, names(t, client), int(most))
	}
	require.NoError(t, client.Close())
	a.leave()
	k.ask("close")
}

// TestStoreBeginsBeyondTheBudget: a server that has more than the budget of its own begins all the same, and gets no
// more until it has less.
func TestStoreBeginsBeyondTheBudget(t *testing.T) {
	if withCUDA {
		t.Skip("each member has a driver of its own")
	}
	t.Parallel()
	c := &counted{t: t, path: socketAt(t)}
	k := budgetKeeper(t, c.path, 16*budgetChunk)
	client, err := Connect(t.Context(), c.path, testDevice(t), ClientOptions{})
	require.NoError(t, err)
	a := c.join("a", 0)
	a.grow(2)
	chunksObject(t, client, "x", 6)
	chunksObject(t, client, "y", 4)
	less := uint64(8 * budgetChunk)
	require.NoError(t, budget.SetTerms(t.Context(), c.path, testDevice(t), budget.Change{Budget: &less}, shareable.AttachOptions{}))
	replaced(t, k, "kill")
	require.EqualValues(t, 10*budgetChunk, storeIn(t, reported(t, c.path)).Lease)
	_, err = client.Create(within(t), "z", CreateOptions{Size: budgetChunk})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.NoError(t, client.Delete(within(t), "x", DeleteOptions{}))
	chunksObject(t, client, "z", 2)
	require.NoError(t, client.Close())
	a.leave()
	k.ask("close")
}

// TestStoreHasTermsToo: what an operator promises the store lasts when another server serves, also if the budget is
// less than all are promised by then.
func TestStoreHasTermsToo(t *testing.T) {
	if withCUDA {
		t.Skip("each member has a driver of its own")
	}
	t.Parallel()
	const bytes = 16 * budgetChunk
	path := socketAt(t)
	k := budgetKeeper(t, path, bytes)
	change := func(q budget.Change) {
		t.Helper()
		require.NoError(t, budget.SetTerms(t.Context(), path, testDevice(t), q, shareable.AttachOptions{}))
	}
	least, most, less := uint64(4*budgetChunk), uint64(6*budgetChunk), uint64(2*budgetChunk)
	change(budget.Change{Member: memberName, Least: &least, Most: &most})
	for _, how := range []string{"kill", "reload"} {
		replaced(t, k, how)
		s := storeIn(t, reported(t, path))
		require.Equal(t, []uint64{least, most}, []uint64{s.Least, s.Most}, how)
		change(budget.Change{Budget: &less})
	}
	k.ask("close")
}
