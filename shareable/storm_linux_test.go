package shareable

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// playVandal connects to the server at its first argument again and again, and sends
// what comes into its mind, by the seed in its second, until it is killed.
func playVandal(p *part) {
	seed, err := strconv.ParseUint(p.args[1], 10, 64)
	p.must(err)
	r := rand.New(rand.NewPCG(seed, 3))
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	p.must(err)
	p.say("ready")
	for {
		if err := vandalize(p.args[0], r, null); err != nil {
			<-time.After(time.Millisecond) // no place, or no server
		}
	}
}

// vandalize makes one connection. It returns an error only if there was none.
func vandalize(path string, r *rand.Rand, null int) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // it ends here
	limit := unix.NsecToTimeval(int64(20 * time.Millisecond))
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit),
		unix.Connect(fd, &unix.SockaddrUnix{Name: path})); err != nil {
		return err
	}
	var sequence uint64
	send := func(of wire.Type, flags uint32, body []byte, fds int) error {
		sequence++
		h := wire.Header{Major: wire.Major, Type: of, Flags: flags, FDs: uint16(fds), Len: uint32(len(body)), Request: uint32(sequence), Sequence: sequence}
		return sendRaw(fd, raw(h, body), unix.UnixRights(slicesOf(null, fds)...))
	}
	if send(wire.TypeHello, 0, wire.Hello{Backend: wire.BackendHost, Granularity: 4096}.Append(nil), 0) != nil {
		return nil
	}
	for range r.IntN(40) {
		var err error
		switch k := r.IntN(100); {
		case k < 30:
			err = send(wire.TypeAttach, 0, wire.Attach{Access: wire.AccessRead, Flags: r.Uint32N(2), Name: "x"}.Append(nil), 0)
		case k < 50:
			err = send(wire.TypeResync, 0, wire.Resync{Object: 1, Next: r.Uint64N(9), Batch: 1 + r.Uint32N(64)}.Append(nil), 0)
		case k < 60:
			err = send(wire.TypeDetach, 0, wire.Detach{Object: 1}.Append(nil), 0)
		case k < 80:
			err = send(wire.TypeAck, 0, wire.Ack{Object: 1, Chunk: r.Uint64N(4), Generation: r.Uint64N(3)}.Append(nil), 0)
		case k < 83:
			err = send(999, wire.FlagOptional, nil, r.IntN(65))
		case k < 85:
			junk := make([]byte, r.IntN(200))
			for i := range junk {
				junk[i] = byte(r.Uint32())
			}
			err = sendRaw(fd, junk, unix.UnixRights(slicesOf(null, r.IntN(100))...))
		default:
			for err == nil {
				err = skipPacket(fd)
			}
			err = nil
		}
		if err != nil {
			return nil
		}
	}
	if r.IntN(2) == 0 {
		<-time.After(time.Duration(r.Int64N(int64(200 * time.Millisecond))))
	}
	return nil
}

func slicesOf(fd, n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = fd
	}
	return all
}

// skipPacket reads a packet and closes its descriptors.
func skipPacket(fd int) error {
	oob := make([]byte, 2048)
	n, m, _, _, err := unix.Recvmsg(fd, make([]byte, wire.MaxFrame), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil || n == 0 {
		return errors.Join(err, unix.EPIPE)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:m])
	for i := 0; err == nil && i < len(messages); i++ {
		var fds []int
		fds, err = unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
	return err
}

// honestReader is an honest reader in the storm: it reads what there is and checks it.
type honestReader struct {
	stop  atomic.Bool
	looks atomic.Uint64
	done  chan error
}

func readsOn(v *View) *honestReader {
	f := &honestReader{done: make(chan error, 1)}
	go func() {
		for !f.stop.Load() {
			// What is taken back while it is read is an error or old, and no matter.
			s := v.Snapshot()
			if _, err := sound(v, 0); err != nil && v.Valid(s) {
				f.done <- err
				return
			}
			if v.Err() != nil {
				f.done <- v.Err()
				return
			}
			f.looks.Add(1)
			<-time.After(time.Millisecond)
		}
		f.done <- nil
	}()
	return f
}

// TestStorm: processes that send anything, while the owner grows, clips and takes back,
// and honest readers follow. No honest reader notices, and everything is as before when
// they have gone.
func TestStorm(t *testing.T) {
	for name, takes := range map[string]bool{"descriptors arrive": true, "descriptors are refused": false} {
		t.Run(name, func(t *testing.T) {
			length := testgate.Effort[time.Duration](100, 3000, 75_000) * time.Millisecond
			o := Options{AckTimeout: patience, RequestTimeout: patience, MaxConns: 64, MaxConnsPerUID: 64}
			o.hooks.takeFDs = takes
			storm(t, o, length)
		})
	}
}

func storm(t *testing.T, o Options, length time.Duration) {
	const most = 16 * mib
	s, p, g := smallOwner(t, o, 64<<10, most)
	dev := pageDevice(t)
	require.NoError(t, appendWave(g, 0, 4*64<<10))
	attach := func() *View {
		v, err := Attach(t.Context(), s.Path(), "x", dev, AttachOptions{Timeout: patience})
		require.NoError(t, err)
		return v
	}
	quiet := func() {
		if n := g.Len(); n < 4*64<<10 {
			require.NoError(t, appendWave(g, 0, 4*64<<10-n))
		}
		require.NoError(t, p.Flush(t.Context()))
		require.NoError(t, p.Retire(t.Context(), 4*64<<10))
		require.NoError(t, g.Clip())
		require.NoError(t, p.Flush(t.Context()))
		soon(t, "every reader has gone", func() bool { return s.Stats().Conns == 0 })
	}
	v := attach()
	require.NoError(t, waitFor(v, 4*64<<10))
	require.NoError(t, v.Close())
	quiet()
	before := tally(t, s, g.Device())

	views := []*View{attach(), attach()}
	var followers []*honestReader
	for _, v := range views {
		followers = append(followers, readsOn(v))
	}
	var vandals []*child
	for i := range 4 {
		c := spawn(t, "vandal", s.Path(), strconv.Itoa(i))
		c.expect("ready")
		vandals = append(vandals, c)
	}
	r := rand.New(rand.NewPCG(5, 6))
	steps := map[string]int{}
	for end := time.Now().Add(length); time.Now().Before(end); {
		require.NoError(t, stormStep(t, p, g, r, most, steps))
		for _, f := range followers {
			if len(f.done) > 0 {
				require.NoError(t, <-f.done)
			}
		}
	}
	var all sync.WaitGroup
	for _, c := range vandals {
		all.Go(c.kill)
	}
	all.Wait()
	looks := uint64(0)
	for i, f := range followers {
		f.stop.Store(true)
		require.NoError(t, <-f.done)
		looks += f.looks.Load()
		require.NoError(t, waitFor(views[i], g.Len()))
		require.Equal(t, g.Len(), whole(t, views[i]))
		require.NoError(t, views[i].Close())
	}
	quiet()
	isAsBefore(t, s, g.Device(), before)
	t.Logf("%v, %d looks, %+v", steps, looks, s.Stats())
	v = attach()
	require.NoError(t, waitFor(v, g.Len()))
	require.Equal(t, g.Len(), whole(t, v))
	require.NoError(t, v.Close())
}

// stormStep is one thing that an owner does.
func stormStep(t *testing.T, p *Publication, g *vmm.Range, r *rand.Rand, most uint64, steps map[string]int) error {
	switch k := r.IntN(100); {
	case k < 50 && g.Len() < most/2:
		steps["append"]++
		return appendWave(g, 0, 1+r.Uint64N(300<<10))
	case k < 70:
		steps["grow and clip"]++
		return errors.Join(g.Grow(min(most, g.Len()+(1+r.Uint64N(4))*64<<10)), g.Clip())
	case k < 85:
		steps["retire"]++
		if err := p.Flush(t.Context()); err != nil {
			return err
		}
		return p.Retire(t.Context(), r.Uint64N(g.Len()+1))
	}
	steps["clip"]++
	return g.Clip()
}
