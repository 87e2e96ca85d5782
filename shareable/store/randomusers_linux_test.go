package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// user is a client that makes random requests and looks at every byte that it gets.
type user struct {
	random  *rand.Rand
	c       *Client
	writers []*Writer
	buffers []*shareable.View
	linked  sync.Mutex
	conns   []*net.UnixConn // of those whose connections are cut; nil elements have ended
}

// newUser connects a user to a daemon. With cut, its connections can be ended.
func newUser(ctx context.Context, path string, dev *vmm.Device, seed uint64, cut bool) (u *user, err error) {
	u = &user{random: rand.New(rand.NewPCG(seed, 17))}
	o := ClientOptions{Timeout: time.Minute}
	if !cut {
		u.c, err = Connect(ctx, path, dev, o)
		return u, err
	}
	dial := func(ctx context.Context) (*net.UnixConn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unixpacket", path)
		for errors.Is(err, syscall.EAGAIN) && ctx.Err() == nil {
			c, err = d.DialContext(ctx, "unixpacket", path)
		}
		if err != nil {
			return nil, err
		}
		conn, _ := c.(*net.UnixConn)
		u.linked.Lock()
		defer u.linked.Unlock()
		u.conns = append(u.conns, conn)
		return conn, nil
	}
	u.c, err = newClient(ctx, "", dial, dev, o)
	return u, err
}

// cut ends about half of the connections, as a death of the process would.
func (u *user) cut() {
	u.linked.Lock()
	defer u.linked.Unlock()
	for _, c := range u.conns {
		if u.random.IntN(2) == 0 {
			_, _ = c.CloseWrite(), c.CloseRead()
		}
	}
	u.conns = slices.DeleteFunc(u.conns, func(c *net.UnixConn) bool { _, err := c.SyscallConn(); return err != nil })
}

// name is one of few, so that users meet.
func (u *user) name() string { return fmt.Sprint("soak/", u.random.IntN(40)) }

// patience is a context that ends soon, or not.
func (u *user) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	const ms = time.Millisecond
	limits := []time.Duration{0, ms, 10 * ms, 20 * ms, 50 * ms, 50 * ms, 100 * ms, 100 * ms}
	return context.WithTimeout(ctx, limits[u.random.IntN(len(limits))])
}

// wordsAt is what stands at an offset of the object with that seed.
func wordsAt(seed, off uint64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		x := (seed + off + uint64(i)) * 0x9E3779B97F4A7C15
		b[i] = byte(x >> 56)
	}
	return b
}

// lookAt reads the first n bytes, or as many as are left of them, and compares each.
func lookAt(r io.ReaderAt, meta []byte, n uint64) error {
	if len(meta) != 8 {
		return fmt.Errorf("metadata %x", meta)
	}
	got := make([]byte, n)
	m, err := r.ReadAt(got, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if want := wordsAt(binary.LittleEndian.Uint64(meta), 0, m); !bytes.Equal(got[:m], want) {
		return fmt.Errorf("%w: %d of %d bytes are not what was written", errWrongBytes, m, n)
	}
	return nil
}

var errWrongBytes = errors.New("wrong bytes")

// usual reports whether users that meet, or that are cut off, can get the error.
func usual(err error) bool {
	for _, e := range []error{
		vmm.ErrBusy, vmm.ErrClosed, vmm.ErrFull, vmm.ErrPermission, vmm.ErrBounds, context.DeadlineExceeded, os.ErrDeadlineExceeded,
		shareable.ErrNotFound, shareable.ErrNotSealed, shareable.ErrSealed, shareable.ErrAborted, shareable.ErrOwnerGone, shareable.ErrRetired,
	} {
		if errors.Is(err, e) {
			return !errors.Is(err, errWrongBytes)
		}
	}
	return err == nil
}

// steps are the requests of a user.
var steps = []struct {
	name string
	do   func(u *user, ctx context.Context) error
}{
	{"create", (*user).create},
	{"create", (*user).create},
	{"append", (*user).append},
	{"append", (*user).append},
	{"take", (*user).take},
	{"end", (*user).end},
	{"end", (*user).end},
	{"get", (*user).get},
	{"get", (*user).get},
	{"get all", (*user).getAll},
	{"look", (*user).look},
	{"close", (*user).closeBuffer},
	{"list", func(u *user, ctx context.Context) error {
		_, err := u.c.List(ctx, ListOptions{Prefix: "soak/1", Labels: map[string]string{"k": ""}})
		return err
	}},
	{"stat", func(u *user, ctx context.Context) error { _, err := u.c.Stat(ctx, u.name()); return err }},
	{"link", func(u *user, ctx context.Context) error { return u.c.Link(ctx, u.name(), u.name()) }},
	{"unlink", func(u *user, ctx context.Context) error { return u.c.Unlink(ctx, u.name()) }},
	{"delete", func(u *user, ctx context.Context) error { return u.c.Delete(ctx, u.name(), DeleteOptions{}) }},
	{"delete by force", func(u *user, ctx context.Context) error {
		return u.c.Delete(ctx, u.name(), DeleteOptions{Force: true, Timeout: time.Minute})
	}},
	{"watch", func(u *user, ctx context.Context) error {
		short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		defer cancel()
		events, err := u.c.Watch(short, "soak/")
		if err != nil {
			return err
		}
		left := u.random.IntN(20)
		for _, e := range events {
			if err = e; left == 0 || err != nil {
				break
			}
			left--
		}
		return err
	}},
	{"stats", func(u *user, ctx context.Context) error { _, err := u.c.Stats(ctx); return err }},
}

func (u *user) create(ctx context.Context) error {
	if len(u.writers) > 3 {
		return u.end(ctx)
	}
	name := u.name()
	if u.random.IntN(20) == 0 {
		name = ""
	}
	o := CreateOptions{
		Size: 1 + u.random.Uint64N(256<<10), Growable: u.random.IntN(2) == 0, Durable: u.random.IntN(2) == 0,
		Meta: binary.LittleEndian.AppendUint64(nil, u.random.Uint64()), Labels: map[string]string{"k": name},
	}
	w, err := u.c.Create(ctx, name, o)
	if err == nil {
		u.writers = append(u.writers, w)
	}
	return err
}

// take continues with an object that another has written to.
func (u *user) take(ctx context.Context) error {
	if len(u.writers) > 3 {
		return u.end(ctx)
	}
	w, err := u.c.Append(ctx, u.name(), AppendOptions{Wait: u.random.IntN(2) == 0})
	if err != nil {
		return err
	}
	u.writers = append(u.writers, w)
	return lookAt(w.Range(), w.Meta(), w.Len())
}

func (u *user) append(context.Context) error {
	if len(u.writers) == 0 {
		return nil
	}
	w := u.writers[u.random.IntN(len(u.writers))]
	n := min(u.random.Uint64N(20_000), w.Max()-w.Len())
	return w.Append(wordsAt(binary.LittleEndian.Uint64(w.Meta()), w.Len(), int(n)))
}

// end ends a writer in one of three ways.
func (u *user) end(ctx context.Context) (err error) {
	if len(u.writers) == 0 {
		return nil
	}
	i := u.random.IntN(len(u.writers))
	w := u.writers[i]
	u.writers = slices.Delete(u.writers, i, i+1)
	switch u.random.IntN(4) {
	case 0:
		err = w.Abort(ctx)
	case 1:
	default:
		err = w.Seal(ctx, shareable.SealOptions{Digest: u.random.IntN(2) == 0})
	}
	return errors.Join(err, w.Close())
}

func (u *user) options() GetOptions {
	o := GetOptions{Wait: u.random.IntN(2) == 0, Unsafe: u.random.IntN(2) == 0}
	o.Write = o.Unsafe && u.random.IntN(2) == 0
	return o
}

func (u *user) keep(b *shareable.View) error {
	err := lookAt(b, b.Meta(), b.Len())
	if n := b.Len(); err == nil && b.Writable() && n > 0 { // what is there already
		_, err = b.WriteAt(wordsAt(binary.LittleEndian.Uint64(b.Meta()), 0, int(n)), 0)
	}
	u.buffers = append(u.buffers, b)
	if len(u.buffers) > 8 {
		err = errors.Join(err, u.closeBuffer(context.Background()))
	}
	return err
}

func (u *user) get(ctx context.Context) error {
	b, err := u.c.Get(ctx, u.name(), u.options())
	if err != nil {
		return err
	}
	return u.keep(b)
}

func (u *user) getAll(ctx context.Context) error {
	all, err := u.c.GetAll(ctx, []string{u.name(), u.name()}, u.options())
	for _, b := range all {
		err = errors.Join(err, u.keep(b))
	}
	return err
}

func (u *user) look(context.Context) (err error) {
	for _, b := range u.buffers {
		err = errors.Join(err, lookAt(b, b.Meta(), b.Len()))
	}
	return err
}

func (u *user) closeBuffer(context.Context) error {
	if len(u.buffers) == 0 {
		return nil
	}
	i := u.random.IntN(len(u.buffers))
	b := u.buffers[i]
	u.buffers = slices.Delete(u.buffers, i, i+1)
	return b.Close()
}

// run makes n requests, and closes everything. Errors that have to be expected are none.
func (u *user) run(ctx context.Context, n int) error {
	for i := range n {
		s := steps[u.random.IntN(len(steps))]
		sub, cancel := u.patience(ctx)
		err := s.do(u, sub)
		cancel()
		if !usual(err) {
			return fmt.Errorf("request %d, %s: %w", i, s.name, err)
		}
		if u.random.IntN(50) == 0 {
			u.cut()
		}
	}
	for len(u.writers) > 0 {
		if err := u.end(ctx); !usual(err) {
			return err
		}
	}
	for len(u.buffers) > 0 {
		if err := u.closeBuffer(ctx); err != nil {
			return err
		}
	}
	return u.c.Close()
}

// userVar tells a process of TestRandomUsers what to do.
const userVar = "STORE_TEST_USER"

// TestUserProcess is a user in a process of its own, which is killed. In any other process it
// does nothing.
func TestUserProcess(t *testing.T) {
	var path string
	var seed uint64
	var n int
	if _, err := fmt.Sscan(os.Getenv(userVar), &path, &seed, &n); err != nil {
		t.Skip("is run by another test")
	}
	u, err := newUser(t.Context(), path, smallPages(t), seed, false)
	require.NoError(t, err)
	require.NoError(t, u.run(t.Context(), n))
}

// killedUser runs a user in processes that are killed, until the last one has made its n
// requests.
func killedUser(path string, seed uint64, n int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(seed, 18))
	for kills := 4; kills >= 0; kills-- {
		cmd := exec.CommandContext(context.Background(), self, "-test.run=^TestUserProcess$", "-test.timeout=20m")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d", userVar, path, seed+uint64(kills), n))
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		var said strings.Builder
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Start(); err != nil {
			return err
		}
		var timer *time.Timer
		if kills > 0 {
			timer = time.AfterFunc(time.Duration(random.IntN(int(time.Second))), func() { _ = cmd.Process.Kill() })
		}
		err := cmd.Wait()
		if timer != nil {
			timer.Stop()
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() && kills > 0 {
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, said.String())
		}
	}
	return nil
}

// TestRandomUsers: users make random requests of a daemon, lose their connections and are killed.
// Every byte that one reads is right, and afterwards the daemon has what it had before.
func TestRandomUsers(t *testing.T) {
	t.Parallel()
	users, requests, processes := testgate.Effort(8, 16, 64), testgate.Effort(50, 100, 1000), testgate.Effort(1, 2, 8)
	d := startDaemon(t, smallDevice)
	dev := smallPages(t)
	before := d.usage()
	var tasks sync.WaitGroup
	errs := make([]error, users)
	for i := range users {
		tasks.Go(func() {
			if i < processes {
				errs[i] = killedUser(d.path, uint64(1000*i), requests)
				return
			}
			u, err := newUser(t.Context(), d.path, dev, uint64(i), i%2 == 0)
			if err == nil {
				err = u.run(t.Context(), requests)
			}
			errs[i] = err
		})
	}
	tasks.Wait()
	require.NoError(t, errors.Join(errs...))

	c, err := Connect(t.Context(), d.path, dev, ClientOptions{})
	require.NoError(t, err)
	all, err := c.List(t.Context(), ListOptions{})
	require.NoError(t, err)
	for _, i := range all {
		if err := c.Delete(t.Context(), i.ID.String(), DeleteOptions{}); err != nil { // a writer's end may come in between
			require.ErrorIs(t, err, shareable.ErrNotFound)
		}
	}
	var x Stats
	require.Eventually(t, func() bool {
		x, err = c.Stats(t.Context())
		return err == nil && x.Objects == 0 && x.Bytes == 0 && x.Leases == 0 && x.Waits == 0 && x.Clients == 1
	}, inTime, step, "%+v", &x)
	t.Logf("%d objects were left; %+v", len(all), x)
	require.NoError(t, c.Close())
	var after usage
	require.Eventually(t, func() bool {
		after = d.usage()
		return after.fds <= before.fds && after.goroutines <= before.goroutines && after.device == before.device
	}, inTime, 10*step, "%v", before)
	t.Logf("before: %v; afterwards: %v", before, after)
}
