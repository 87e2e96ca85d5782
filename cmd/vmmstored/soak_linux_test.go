package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
)

// soak is a daemon whose server is killed again and again, while its secret changes.
type soak struct {
	t           *testing.T
	path, token string
	dev         *vmm.Device
	flushed     []atomic.Int64 // of the durable object of each client

	mu       sync.Mutex
	begin    time.Duration // the longest time from a kill to the next server that serves
	refused  time.Duration // the longest time for which a client was refused
	refusals int
}

// rotate writes another secret, at once.
func (s *soak) rotate() error {
	if err := os.WriteFile(s.token+".new", []byte(rand.Text()), 0o600); err != nil {
		return err
	}
	return os.Rename(s.token+".new", s.token)
}

// soakClient makes random requests and remembers what the replies have promised.
type soakClient struct {
	*soak
	i       int
	random  *mathrand.Rand
	c       *store.Client
	sealed  map[string]int // bytes
	deleted []string
	made    int
	done    int       // requests with a reply
	since   time.Time // when it was first refused, if it is now
}

func (x *soakClient) own() string { return fmt.Sprint("durable", x.i) }

// connect connects with the secret of now, until a server takes it. It measures for how long it is
// refused, by the clock of this process: the bound is part of what is tested.
func (x *soakClient) connect(ctx context.Context) {
	if x.c != nil {
		_ = x.c.Close()
		x.c = nil
	}
	for ctx.Err() == nil {
		secret, err := os.ReadFile(x.token)
		if err == nil {
			x.c, err = store.Connect(ctx, x.path, x.dev, store.ClientOptions{Token: secret, Timeout: inTime})
		}
		switch {
		case err == nil:
			if !x.since.IsZero() {
				x.mu.Lock()
				x.refused = max(x.refused, time.Since(x.since))
				x.refusals++
				x.mu.Unlock()
			}
			x.since = time.Time{}
			return
		case errors.Is(err, vmm.ErrPermission):
			if x.since.IsZero() {
				x.since = time.Now()
			}
		case !passes(err) && ctx.Err() == nil:
			x.t.Errorf("client %d connects: %v", x.i, err)
		}
		select {
		case <-time.After(20 * time.Millisecond): // what is asked is not how often it can be refused
		case <-ctx.Done():
		}
	}
}

// passes reports whether a client can get the error because a server has ended, or its secret is
// another one now, or its own writer has not been let go yet.
func passes(err error) bool {
	for _, e := range []error{
		vmm.ErrPermission, vmm.ErrClosed, vmm.ErrBusy, shareable.ErrOwnerGone, shareable.ErrAborted, shareable.ErrRetired,
		context.DeadlineExceeded, os.ErrDeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// run makes requests until ctx ends.
func (x *soakClient) run(ctx context.Context) {
	for ctx.Err() == nil {
		if x.c == nil {
			x.connect(ctx)
			continue
		}
		sub, cancel := context.WithTimeout(ctx, time.Second)
		what, err := x.request(sub)
		cancel()
		switch {
		case err == nil:
			x.done++
		case ctx.Err() != nil:
		case errors.Is(err, errPromise) || !passes(err):
			x.t.Errorf("client %d, %s: %v", x.i, what, err)
			return
		default:
			if errors.Is(err, vmm.ErrPermission) {
				x.since = time.Now()
			}
			x.connect(ctx)
		}
		select {
		case <-time.After(time.Duration(x.random.IntN(3000)) * time.Microsecond):
		case <-ctx.Done():
		}
	}
}

var errPromise = errors.New("a promise is broken")

func promised(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errPromise, fmt.Sprintf(format, args...))
}

// request makes one request, or several that belong together.
func (x *soakClient) request(ctx context.Context) (what string, err error) {
	n := x.random.IntN(9)
	if len(x.sealed) >= 30 {
		n = 2
	}
	switch n {
	case 0, 1:
		return "seal", x.seal(ctx)
	case 2:
		for name := range x.sealed {
			err := x.c.Delete(ctx, name, store.DeleteOptions{})
			if delete(x.sealed, name); err == nil { // else it may be so or not
				x.deleted = append(x.deleted, name)
			}
			if errors.Is(err, shareable.ErrNotFound) {
				err = promised("%s was sealed and is not there", name)
			}
			return "delete", err
		}
	case 3, 4:
		return "append", x.append(ctx)
	case 5:
		for name, size := range x.sealed {
			return "get", x.has(ctx, name, size, store.GetOptions{})
		}
	case 6:
		other := x.random.IntN(len(x.flushed))
		return "follow", x.has(ctx, fmt.Sprint("durable", other), int(x.flushed[other].Load()), store.GetOptions{Unsafe: true})
	case 7:
		return "look", x.looks(ctx)
	case 8:
		return "link", x.link(ctx)
	}
	return "nothing", nil
}

func (x *soakClient) seal(ctx context.Context) error {
	x.made++
	name := fmt.Sprintf("sealed%d/%d", x.i, x.made)
	data := contentsOf(name, 1+x.random.IntN(5000))
	w, err := x.c.Create(ctx, name, store.CreateOptions{Size: uint64(len(data))})
	if err != nil {
		return err
	}
	defer w.Close() //nolint:errcheck // it is sealed or lost
	if err := w.Append(data); err != nil {
		return err
	}
	if err := w.Seal(ctx, shareable.SealOptions{}); err != nil {
		return err
	}
	x.sealed[name] = len(data)
	return nil
}

// append continues with the client's durable object. A writer that it had before, and that was refused
// since, may have the lease still: it is revoked.
func (x *soakClient) append(ctx context.Context) error {
	flushed := int(x.flushed[x.i].Load())
	if flushed > 1<<20 {
		return nil
	}
	w, err := x.c.Append(ctx, x.own(), store.AppendOptions{})
	switch {
	case errors.Is(err, shareable.ErrNotFound) && flushed > 0:
		return promised("%d bytes were flushed, and the object is not there", flushed)
	case errors.Is(err, shareable.ErrNotFound):
		w, err = x.c.Create(ctx, x.own(), store.CreateOptions{Size: 8 << 20, Growable: true, Durable: true})
	case errors.Is(err, vmm.ErrBusy):
		return x.c.Revoke(ctx, x.own())
	}
	if err != nil {
		return err
	}
	defer w.Close() //nolint:errcheck // what was flushed counts
	has := int(w.Len())
	if has < flushed {
		return promised("%d bytes were flushed, and %d are there", flushed, has)
	}
	more := contentsOf(x.own(), has+1000)[has:]
	if err := w.Append(more); err != nil {
		return err
	}
	if err := w.Flush(ctx); err != nil {
		return err
	}
	x.flushed[x.i].Store(int64(has + len(more)))
	return nil
}

// has looks at an object of which so many bytes were promised. Its length does not go back.
func (x *soakClient) has(ctx context.Context, name string, size int, o store.GetOptions) error {
	v, err := x.c.Get(ctx, name, o)
	switch {
	case errors.Is(err, shareable.ErrNotFound) && size > 0:
		return promised("%s has %d bytes, and is not there", name, size)
	case errors.Is(err, shareable.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	defer v.Close() //nolint:errcheck // it is only read
	n := v.Len()
	got := make([]byte, n)
	if _, err := v.ReadAt(got, 0); err != nil {
		return err
	}
	now := v.Len()
	if err := v.Err(); err != nil {
		return err // what it has is not promised any more
	}
	if int(n) < size || now < n {
		return promised("%s: %d bytes, then %d, and %d were promised", name, n, now, size)
	}
	if !bytes.Equal(got, contentsOf(name, len(got))) {
		return promised("%s has other bytes", name)
	}
	return nil
}

// looks asks for what was deleted, and for lists.
func (x *soakClient) looks(ctx context.Context) error {
	if len(x.deleted) > 0 {
		name := x.deleted[x.random.IntN(len(x.deleted))]
		if _, err := x.c.Stat(ctx, name); err == nil {
			return promised("%s was deleted and is there", name)
		} else if !errors.Is(err, shareable.ErrNotFound) {
			return err
		}
	}
	list, err := x.c.List(ctx, store.ListOptions{Prefix: fmt.Sprintf("sealed%d/", x.i)})
	if err != nil {
		return err
	}
	var names []string
	for _, i := range list {
		names = append(names, i.Names...)
	}
	for name := range x.sealed {
		if !slices.Contains(names, name) {
			return promised("%s was sealed and is not listed", name)
		}
	}
	return nil
}

// link gives an object another name for a moment.
func (x *soakClient) link(ctx context.Context) error {
	for name := range x.sealed {
		x.made++
		alias := fmt.Sprintf("alias%d/%d", x.i, x.made)
		if err := x.c.Link(ctx, name, alias); err != nil {
			return err
		}
		if _, err := x.c.Stat(ctx, alias); errors.Is(err, shareable.ErrNotFound) {
			return promised("%s was linked and is not there", alias)
		} else if err != nil {
			return err
		}
		if err := x.c.Unlink(ctx, alias); err != nil {
			return err
		}
		if _, err := x.c.Stat(ctx, alias); err == nil {
			return promised("%s was unlinked and is there", alias)
		} else if !errors.Is(err, shareable.ErrNotFound) {
			return err
		}
		break
	}
	return nil
}

// TestServersDieWhileTheSecretChanges: the server is killed 200 ms after each time that it serves, and the
// secret changes each second. A server reads that when it begins, a client at each try. Nothing is lost
// that was promised, nothing that was deleted comes back, lengths only grow, and no client is refused for
// longer than a server needs to begin and a second more. It runs by the clock: what is tested is a
// schedule of several processes.
func TestServersDieWhileTheSecretChanges(t *testing.T) {
	testgate.Long(t)
	dir := t.TempDir()
	s := &soak{t: t, path: filepath.Join(dir, "s"), token: filepath.Join(dir, "token"), dev: testDevice(t), flushed: make([]atomic.Int64, 8)}
	require.NoError(t, s.rotate())
	out, in := io.Pipe()
	p := &program{}
	serving, lines, last := make(chan struct{}, 16), atomic.Int64{}, output{}
	scanned := make(chan struct{})
	go func() {
		defer close(scanned)
		for l := bufio.NewScanner(out); l.Scan(); {
			text := l.Text()
			switch {
			case strings.Contains(text, "connection refused"), strings.Contains(text, "lease taken away"):
				continue // of a client's secret, one for each that it tries, and of what a client has revoked
			case strings.Contains(text, "msg=serving"):
				serving <- struct{}{}
			}
			lines.Add(1)
			_, _ = fmt.Fprintln(&last, text)
		}
	}()
	t.Cleanup(func() { _ = in.Close(); <-scanned }) // after the program's
	p.start(t, in, "--socket="+s.path, "--token-file="+s.token)
	<-serving

	ctx, cancel := context.WithTimeout(t.Context(), testgate.Effort(20*time.Second, 20*time.Second, 5*time.Minute))
	defer cancel()
	var others, clients sync.WaitGroup
	var kills int64
	var began atomic.Int64 // when the server has begun that serves
	others.Go(func() {
		for {
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
				return
			}
			killed := time.Now()
			if err := syscall.Kill(p.server(t), syscall.SIGKILL); err != nil {
				t.Errorf("kill: %v", err)
			}
			kills++
			select {
			case <-serving:
			case <-time.After(inTime):
				t.Errorf("no server begins")
				return
			}
			began.Store(killed.UnixNano())
			s.mu.Lock()
			s.begin = max(s.begin, time.Since(killed))
			s.mu.Unlock()
		}
	})
	others.Go(func() {
		for rotated := int64(-1); ; rotated = time.Now().UnixNano() {
			// Where a server needs longer than a second to begin, none would serve with the newest secret.
			for pause := time.Second; pause == time.Second || began.Load() <= rotated; pause = 10 * time.Millisecond {
				select {
				case <-time.After(pause):
				case <-ctx.Done():
					return
				}
			}
			if err := s.rotate(); err != nil {
				t.Errorf("rotate: %v", err)
			}
		}
	})
	var all []*soakClient
	for i := range s.flushed {
		x := &soakClient{soak: s, i: i, random: mathrand.New(mathrand.NewPCG(56, uint64(i))), sealed: map[string]int{}}
		all = append(all, x)
		clients.Go(func() { x.run(ctx) })
	}
	clients.Wait()
	cancel()
	others.Wait()

	// The last server may have begun before the secret changed.
	require.NoError(t, syscall.Kill(p.server(t), syscall.SIGKILL))
	<-serving
	kills++
	requests := 0
	for _, x := range all {
		x.connect(t.Context())
		for name, size := range x.sealed {
			require.NoError(t, x.has(t.Context(), name, size, store.GetOptions{}))
		}
		for _, name := range x.deleted {
			_, err := x.c.Stat(t.Context(), name)
			require.ErrorIs(t, err, shareable.ErrNotFound, name)
		}
		require.NoError(t, x.has(t.Context(), x.own(), int(x.flushed[x.i].Load()), store.GetOptions{Unsafe: true}))
		require.NotZero(t, x.done)
		requests += x.done
		require.NoError(t, x.c.Close())
	}
	t.Logf("%d kills, %d requests; a server begins in %v at most; %d times refused, %v at most; %d lines of log", kills, requests, s.begin, s.refusals, s.refused, lines.Load())
	require.LessOrEqual(t, s.refused, s.begin+time.Second)
	if !testing.Short() { // the secret has changed, then
		require.NotZero(t, s.refusals)
	}
	require.LessOrEqual(t, lines.Load(), 3*kills+1, last.String())
}

// TestSoakSeesWhatIsLost is the control of the test above: what another client does to its objects is
// a broken promise.
func TestSoakSeesWhatIsLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &soak{t: t, path: filepath.Join(dir, "s"), token: filepath.Join(dir, "token"), dev: testDevice(t), flushed: make([]atomic.Int64, 1)}
	require.NoError(t, s.rotate())
	started(t, "--socket="+s.path, "--token-file="+s.token)
	x := &soakClient{soak: s, random: mathrand.New(mathrand.NewPCG(56, 0)), sealed: map[string]int{}}
	ctx := t.Context()
	x.connect(ctx)
	t.Cleanup(func() { require.NoError(t, x.c.Close()) })
	require.NoError(t, x.seal(ctx))
	require.NoError(t, x.append(ctx))
	const sealed = "sealed0/1"
	require.NoError(t, x.has(ctx, sealed, x.sealed[sealed], store.GetOptions{}))
	require.NoError(t, x.looks(ctx))
	require.ErrorIs(t, x.has(ctx, sealed, x.sealed[sealed]+1, store.GetOptions{}), errPromise, "it is shorter")
	x.flushed[0].Add(1)
	require.ErrorIs(t, x.append(ctx), errPromise, "it is shorter")
	x.deleted = []string{sealed}
	require.ErrorIs(t, x.looks(ctx), errPromise, "it is there")
	x.deleted = nil
	require.NoError(t, x.c.Delete(ctx, sealed, store.DeleteOptions{}))
	require.ErrorIs(t, x.looks(ctx), errPromise, "it is not listed")
	require.ErrorIs(t, x.has(ctx, sealed, 1, store.GetOptions{}), errPromise, "it is not there")
	require.NoError(t, x.c.Delete(ctx, x.own(), store.DeleteOptions{}))
	require.ErrorIs(t, x.append(ctx), errPromise, "it is not there")
	w, err := x.c.Create(ctx, sealed, store.CreateOptions{Size: 10})
	require.NoError(t, err)
	require.NoError(t, w.Append(make([]byte, 10)))
	require.NoError(t, w.Seal(ctx, shareable.SealOptions{}))
	require.NoError(t, w.Close())
	require.ErrorIs(t, x.has(ctx, sealed, 10, store.GetOptions{}), errPromise, "other bytes")
}
