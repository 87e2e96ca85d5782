//go:build cgo && linux

package collective

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/nccloop"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
)

// deadline is the time limit of the members that survive.
const deadline = time.Second

// TestKilledMembers kills a member before, within and after a call, over NVLink and over
// sockets. The other one has its error in time, and then continues with another group.
func TestKilledMembers(t *testing.T) {
	needsTwo(t)
	for name, env := range map[string][]string{"nvlink": nil, "sockets": sockets} {
		t.Run(name, func(t *testing.T) {
			m, err := startMember("survivor", 0, 2, "127.0.0.1:1", env...)
			require.NoError(t, err)
			defer m.kill()
			for m.out.Scan() {
				t.Log(m.out.Text())
				require.False(t, strings.HasPrefix(m.out.Text(), "failed:"), m.out.Text())
			}
			require.NoError(t, m.cmd.Wait())
		})
	}
}

// times is how often a member is killed at each moment.
func times() int {
	if testgate.Soak() { // a child knows of no other effort
		return 20
	}
	return 3
}

// big is the vector of the calls in which a member is killed.
const big = 256 << 20

// playVictim makes calls until it is killed: one, or on and on.
func playVictim(m *process) error {
	g, err := Join(m.ctx, m.dev, Options{Timeout: time.Minute})
	if err != nil {
		return err
	}
	st, err := m.dev.NewStream()
	if err != nil {
		return err
	}
	v, err := grown(m.dev, big)
	if err != nil {
		return err
	}
	fmt.Println("joined")
	for {
		if err := g.Do(m.ctx, st, AllReduce(v, v, Uint32, Sum)); err != nil {
			return err
		}
		if err := g.Sync(m.ctx, st); err != nil {
			return err
		}
		if os.Getenv("MEMBER_CLOSES") != "" {
			return errors.Join(g.Close(), v.Close(), st.Close())
		}
	}
}

// playSurvivor has victims.
func playSurvivor(m *process) error {
	v, err := grown(m.dev, big)
	if err != nil {
		return err
	}
	st, err := m.dev.NewStream()
	if err != nil {
		return err
	}
	s := survivor{process: m, v: v, st: st}
	for range 2 { // what the library and the driver keep for good is there then
		if _, err := s.round("after"); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
	}
	files, err := openFiles()
	if err != nil {
		return err
	}
	free, _, err := m.dev.MemInfo()
	if err != nil {
		return err
	}
	for name, end := range map[string]func(*Group) error{"Close": (*Group).Close, "Abort": (*Group).Abort} {
		before, err := openFiles()
		if err != nil {
			return err
		}
		const alone = 5
		for range alone {
			id, err := NewID("")
			if err != nil {
				return err
			}
			g, err := Join(m.ctx, m.dev, Options{ID: id, Size: 1})
			if err != nil {
				return err
			}
			if err := end(g); err != nil {
				return err
			}
		}
		now, err := openFiles()
		if err != nil {
			return err
		}
		fmt.Printf("%d groups of one that end with %s: descriptors more: %v\n", alone, name, more(before, now))
	}
	if err := s.closing(); err != nil {
		return err
	}
	if err := s.baseline(); err != nil {
		return err
	}
	for _, moment := range []string{"before", "within", "after", "queued"} {
		var most time.Duration
		kinds := map[string]int{}
		for i := range times() {
			took, err := s.round(moment)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", moment, i, err)
			}
			most = max(most, took)
			kinds[s.kind]++
		}
		nowFiles, err := openFiles()
		if err != nil {
			return err
		}
		nowFree, _, err := m.dev.MemInfo()
		if err != nil {
			return err
		}
		fmt.Printf("killed %s a call: %d times, the longest until the error %v (limit %v), errors %v; descriptors more: %v; memory %+d MiB\n",
			moment, times(), most, deadline+time.Second, kinds, more(files, nowFiles), (int64(free)-int64(nowFree))>>20)
		if most > deadline+time.Second {
			return fmt.Errorf("%v until the error", most)
		}
		if nowFree+(32<<20) < free {
			return errors.New("memory is left")
		}
	}
	return errors.Join(v.Close(), st.Close())
}

type survivor struct {
	*process
	v    *vmm.Range
	st   *vmm.Stream
	kind string // of the last error
}

// closing has groups that all members close, and says what is left of them.
func (s *survivor) closing() error {
	if err := os.Setenv("MEMBER_CLOSES", "1"); err != nil {
		return err
	}
	before, err := openFiles()
	if err != nil {
		return err
	}
	for range 3 {
		victim, g, err := s.join()
		if err != nil {
			return err
		}
		err = errors.Join(g.Do(s.ctx, s.st, AllReduce(s.v, s.v, Uint32, Sum)), g.Sync(s.ctx, s.st), g.Close())
		victim.wait()
		if err != nil {
			return err
		}
	}
	now, err := openFiles()
	fmt.Printf("3 groups of two that both close: descriptors more: %v\n", more(before, now))
	return errors.Join(err, os.Unsetenv("MEMBER_CLOSES"))
}

// baseline says what descriptors NCCL itself leaves: a C program does what round does.
func (s *survivor) baseline() error {
	for _, moment := range []string{"before", "after"} {
		before, err := openFiles()
		if err != nil {
			return err
		}
		for range times() {
			if err := again(func() error { return s.abortInC(moment) }); err != nil {
				return fmt.Errorf("the C program, killed %s a call: %w", moment, err)
			}
		}
		now, err := openFiles()
		if err != nil {
			return err
		}
		fmt.Printf("the C program, killed %s a call: %d times; descriptors more: %v\n", moment, times(), more(before, now))
	}
	return nil
}

// abortInC makes a group of the C program's, has the other member killed, and aborts.
func (s *survivor) abortInC(moment string) error {
	address, err := ownAddress(s.ctx)
	if err != nil {
		return err
	}
	victim, err := startMember("victim in C", 1, 2, address)
	if err != nil {
		return err
	}
	defer victim.kill()
	id, err := nccloop.NewID(ncclName)
	if err != nil {
		return err
	}
	if err := (meeting{address: address, size: 2}).giveID(s.ctx, id); err != nil {
		return err
	}
	l, err := nccloop.Open(cudaName, ncclName, s.dev.Info().Ordinal, id, 0, 2, nccloop.Nonblocking, 1<<20)
	if err != nil {
		return err
	}
	if moment == "after" {
		if _, err := l.Run(nccloop.AllReduce, []uint64{8, 8}, 1); err != nil {
			return err
		}
	}
	if err := victim.expect("joined"); err != nil {
		return err
	}
	victim.kill()
	return errors.Join(l.Begin(), l.Abort())
}

// playVictimInC is the C program's member that is killed.
func playVictimInC(m *process) error {
	id, err := meeting{address: os.Getenv(addressVar), size: 2}.takeID(m.ctx, 1)
	if err != nil {
		return err
	}
	l, err := nccloop.Open(cudaName, ncclName, m.dev.Info().Ordinal, id, 1, 2, nccloop.Nonblocking, 1<<20)
	if err != nil {
		return err
	}
	if err := l.Begin(); err != nil { // the other one makes the call, too, or kills this one before
		return err
	}
	fmt.Println("joined")
	select {}
}

// join makes a group with a new process.
func (s *survivor) join() (victim *member, g *Group, err error) {
	err = again(func() (err error) { victim, g, err = s.joinOnce(); return err })
	return victim, g, err
}

// again calls f anew if what was a free address has been taken by then.
func again(f func() error) (err error) {
	for range 5 {
		if err = f(); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return err
}

func (s *survivor) joinOnce() (*member, *Group, error) {
	address, err := ownAddress(s.ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := os.Setenv(addressVar, address); err != nil {
		return nil, nil, err
	}
	victim, err := startMember("victim", 1, 2, address)
	if err != nil {
		return nil, nil, err
	}
	g, err := Join(s.ctx, s.dev, Options{Timeout: 30 * time.Second})
	if err == nil {
		err = victim.expect("joined")
	}
	if err != nil {
		victim.kill()
		return nil, nil, errors.Join(err, g.Abort())
	}
	return victim, g, nil
}

// round joins a group, has the other member killed, and returns how long the error took.
func (s *survivor) round(moment string) (took time.Duration, err error) {
	victim, g, err := s.join()
	if err != nil {
		return 0, err
	}
	defer victim.kill()
	defer func() { err = errors.Join(err, g.Abort()) }()
	call := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(s.ctx, limit)
		defer cancel()
		if err := g.Do(ctx, s.st, AllReduce(s.v, s.v, Uint32, Sum)); err != nil {
			return err
		}
		return g.Sync(ctx, s.st)
	}
	if moment != "before" { // the members are connected
		for range 3 {
			if err := call(30 * time.Second); err != nil {
				return 0, fmt.Errorf("while both live: %w", err)
			}
		}
	}
	begun := time.Now()
	if moment == "within" {
		time.AfterFunc(time.Duration(rand.IntN(int(3*time.Millisecond))), victim.kill)
		begun = time.Now().Add(3 * time.Millisecond)
	} else {
		victim.kill()
	}
	for err == nil {
		if moment != "queued" {
			err = call(deadline)
		} else if err = g.Do(s.ctx, s.st, AllReduce(s.v, s.v, Uint32, Sum)); err == nil { // whatever waits for it ends
			err = s.st.Sync()
			if _, read := s.v.ReadAt(make([]byte, 1), 0); err != nil && read == nil {
				return 0, fmt.Errorf("bytes were read that are undefined: %w", err)
			}
		}
	}
	took = time.Since(begun)
	s.kind = "another"
	for name, kind := range map[string]error{"gone": ErrPeerGone, "late": context.DeadlineExceeded, "failed": ErrFailed} {
		if errors.Is(err, kind) {
			s.kind = name
		}
	}
	if s.kind == "another" {
		return took, err
	}
	if again := g.Do(s.ctx, s.st, AllReduce(s.v, s.v, Uint32, Sum)); !errors.Is(again, ErrAborted) {
		return took, fmt.Errorf("the group afterwards: %w", again)
	}
	alone, err := g.Shrink(s.ctx)
	if err != nil {
		return took, err
	}
	return took, errors.Join(s.goOn(alone), alone.Close())
}

// goOn uses the device, the stream that waited, and the group of one.
func (s *survivor) goOn(g *Group) error {
	at := s.v.Ptr()
	for range 100 {
		if err := s.v.SetLen(0); err != nil {
			return err
		}
		n, err := g.AllGather(s.ctx, s.st, s.v, Part(s.v, 0, 0))
		if err == nil {
			err = g.Sync(s.ctx, s.st)
		}
		if err == nil && (len(n) != 1 || n[0] != 0 || g.Size() != 1) {
			err = fmt.Errorf("%v were gathered by %d members", n, g.Size())
		}
		if err != nil {
			return fmt.Errorf("alone: %w", err)
		}
	}
	if err := errors.Join(s.v.Grow(big), s.v.SetLen(big)); err != nil || s.v.Ptr() != at {
		return fmt.Errorf("at %v instead of %v: %w", s.v.Ptr(), at, err)
	}
	r, err := s.dev.NewRange(vmm.RangeOptions{})
	if err != nil {
		return err
	}
	data := []byte("the device goes on")
	b := make([]byte, len(data))
	err = errors.Join(r.Append(data), s.st.Fill(s.v.Ptr(), 7, 4, 1024), s.st.Sync())
	if err == nil {
		_, err = r.ReadAt(b, 0)
	}
	if err == nil && string(b) != string(data) {
		err = fmt.Errorf("%q was read", b)
	}
	return errors.Join(err, r.Close())
}

// TestWindows: a window over several chunks is refused. Without that NCCL accepts it, and the
// next call loses the device.
func TestWindows(t *testing.T) {
	needsTwo(t)
	text := strings.Join(playAll(t, "window", time.Minute), "\n")
	require.Contains(t, text, "one chunk: good")
	require.Contains(t, text, "two chunks: refused")
	text = ""
	address := freeAddress(t)
	var all []*member
	for rank := range 2 {
		m, err := startMember("window", rank, 2, address, "MEMBER_ANY_WINDOW=1")
		require.NoError(t, err)
		all = append(all, m)
	}
	late := time.AfterFunc(time.Minute, func() { all[0].kill(); all[1].kill() })
	defer late.Stop()
	for _, m := range all {
		for m.out.Scan() {
			text += m.out.Text() + "\n"
		}
		_ = m.cmd.Wait()
	}
	t.Log(text)
	require.NotContains(t, text, "two chunks: good", "without the refusal the device is lost")
	require.Contains(t, text, "two chunks: accepted")
}

// playWindow uses a window over one chunk, and then over two.
func playWindow(m *process) (err error) {
	anyWindow := os.Getenv("MEMBER_ANY_WINDOW") != ""
	g, err := Join(m.ctx, m.dev, Options{Timeout: 10 * time.Second, hooks: hooks{anyWindow: anyWindow}})
	if err != nil {
		return err
	}
	st, err := m.dev.NewStream()
	if err != nil {
		return err
	}
	use := func(r *vmm.Range) error { // what lies at the end, of a length for which NCCL uses windows
		const n = 64 << 10
		last := Part(r, r.Len()-n, n)
		if err := g.Do(m.ctx, st, AllReduce(last, last, Float32, Sum)); err != nil {
			return err
		}
		return g.Sync(m.ctx, st)
	}
	const chunk = 8 << 20
	one, err := m.dev.NewRange(vmm.RangeOptions{Max: chunk, Chunk: chunk, Share: vmm.ShareFD})
	if err != nil {
		return err
	}
	if err := errors.Join(one.Grow(chunk), one.SetLen(chunk)); err != nil {
		return err
	}
	w, err := g.Register(m.ctx, one, RegisterOptions{Window: true})
	if err != nil {
		return fmt.Errorf("one chunk: %w", err)
	}
	if err := use(one); err != nil {
		return fmt.Errorf("one chunk: %w", err)
	}
	fmt.Println("one chunk: good")
	if err := w.Close(); err != nil {
		return err
	}
	two, err := m.dev.NewRange(vmm.RangeOptions{Max: 2 * chunk, Chunk: chunk, Share: vmm.ShareFD})
	if err != nil {
		return err
	}
	for range 2 {
		if err := errors.Join(two.Grow(chunk), two.SetLen(two.Len()+chunk)); err != nil {
			return err
		}
	}
	_, err = g.Register(m.ctx, two, RegisterOptions{Window: true})
	switch {
	case errors.Is(err, vmm.ErrInvalid):
		fmt.Println("two chunks: refused:", err)
		return errors.Join(g.Close(), one.Close(), two.Close(), st.Close())
	case err != nil:
		return err
	}
	fmt.Println("two chunks: accepted")
	if err := use(two); err != nil {
		return err
	}
	fmt.Println("two chunks: good")
	return nil
}
