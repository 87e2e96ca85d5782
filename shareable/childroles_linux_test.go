package shareable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

const (
	crashChunk = 2 << 20
	crashMax   = 64 << 20
)

// playOwner listens at its first argument and publishes "x", which readers may
// write to. Its second argument is Options.AckTimeout.
func playOwner(p *part) {
	ctx := context.Background()
	dev := p.device(host.Config{})
	g, err := dev.NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: crashMax, Chunk: crashChunk})
	p.must(err)
	o := Options{}
	if len(p.args) > 1 {
		o.AckTimeout, err = time.ParseDuration(p.args[1])
		p.must(err)
	}
	s, err := Listen(dev, p.args[0], o)
	p.must(err)
	x, err := s.Publish("x", g, PublishOptions{Write: true})
	p.must(err)
	waveTable()
	p.say("ready", fmt.Sprintf("%x", s.Instance()))
	seed := uint64(0)
	for {
		switch verb, n := p.next(); verb {
		case "seed":
			seed = n
		case "append":
			p.must(appendWave(g, seed, n))
			p.must(x.Flush(ctx))
			p.say("published", x.Len())
		case "sent": // replies when as many frames of chunks have gone out
			p.eventually("the frames go out", func() bool {
				// While a frame is not acknowledged, a chunk is sent only if it has been exported.
				// Nothing wakes the writer when it has.
				s.mu.Lock()
				for ses := range s.sessions {
					ses.wakeWriter()
				}
				s.mu.Unlock()
				return s.Stats().Frames >= n
			})
			p.say("sent")
		case "retire":
			p.must(x.Retire(ctx, n))
			p.must(g.Clip())
			p.say("retired")
		case "hold":
			p.hold(dev, g, x, n)
			p.say("held")
		case "loop":
			p.loop(g, x, rand.New(rand.NewPCG(n, 1)))
		default:
			p.must(fmt.Errorf("no command %q", verb))
		}
	}
}

// hold queues n more bytes after a word that is never written.
func (p *part) hold(dev *vmm.Device, g *vmm.Range, x *Publication, n uint64) {
	raw, err := dev.Raw()
	p.must(err)
	word, b, err := raw.(driver.HostAllocator).AllocHost(4096)
	p.must(err)
	clear(b)
	from := g.Len()
	p.must(g.Grow(from + n))
	st, err := dev.NewStream()
	p.must(err)
	p.must(raw.(driver.StreamMemOps).WaitValue(st.Raw(), word, 1, 4))
	p.must(st.Fill(g.Ptr()+vmm.Ptr(from), 0x66, 1, n))
	e, err := st.Record()
	p.must(err)
	p.must(x.PublishAfter(from+n, e))
}

// loop appends as fast as it can, and takes back now and then, until it is killed.
func (p *part) loop(g *vmm.Range, x *Publication, r *rand.Rand) {
	p.say("looping")
	for {
		n := 1 + r.Uint64N(150<<10)
		if g.Len()+n > 24<<20 || r.IntN(100) == 0 {
			p.must(x.Flush(context.Background()))
			p.must(x.Retire(context.Background(), r.Uint64N(g.Len()+1)))
			p.must(g.Clip())
		}
		p.must(appendWave(g, 0, n))
	}
}

// playReader attaches to "x" at its first argument.
func playReader(p *part) {
	raise := func(c drivertest.Call) error {
		if len(p.args) > 1 && p.args[1] == "raise" && c.Name == "Import" && !withCUDA {
			return oneMore() // for the descriptor that the host's driver keeps of it
		}
		return nil
	}
	dev := p.device(host.Config{}, raise)
	var v *View
	restore := func() error { return nil }
	p.say("ready")
	for {
		switch verb, n := p.next(); verb {
		case "attach": // n is AttachOptions.Timeout in milliseconds, 0 the default
			var err error
			o := AttachOptions{MaxChunks: crashMax / crashChunk, Timeout: time.Duration(n) * time.Millisecond}
			v, err = Attach(context.Background(), p.args[0], "x", dev, o)
			p.answer("attached", err)
		case "wait":
			p.answer("there", waitFor(v, n))
		case "verify":
			n, err := sound(v, 0)
			p.must(err)
			p.say("sound", n)
		case "orphaned":
			p.eventually("the view has ended", func() bool { return v.Err() != nil })
			p.answer("orphaned", v.Err())
		case "close":
			p.answer("closed", v.Close())
		case "settled": // the connections that have ended are closed
			p.eventually("they are closed", func() bool { return left() == 0 })
			p.say("settled", "ok")
		case "fds":
			n, err := processFDs()
			p.must(err)
			p.say("fds", n)
		case "few":
			var err error
			restore, err = fewLeft(int(n))
			p.answer("few", err)
		case "enough":
			p.answer("enough", restore())
		default:
			p.must(fmt.Errorf("no command %q", verb))
		}
	}
}

// answer says how it went.
func (p *part) answer(word string, err error) {
	if err == nil {
		p.say(word, "ok")
		return
	}
	p.say(word, err)
}

// playReaders is many readers at once, each of which holds every length that it
// sees to the bytes below it: the path, how many, the chunk, and the last length.
func playReaders(p *part) {
	var nums [3]uint64
	for i := range nums {
		n, err := strconv.ParseUint(p.args[1+i], 10, 64)
		p.must(err)
		nums[i] = n
	}
	readers, last := nums[0], nums[1]
	dev, err := vmm.OpenDriver(host.New(host.Config{Granularity: 4096}), 0)
	p.must(err)
	var all sync.WaitGroup
	looks := make([]uint64, readers)
	for i := range looks {
		v, err := Attach(context.Background(), p.args[0], "x", dev, AttachOptions{})
		p.must(err)
		all.Go(func() {
			r := rand.New(rand.NewPCG(nums[2], uint64(i)))
			for n := uint64(0); n < last; looks[i]++ {
				p.must(waitFor(v, n+1))
				now := v.Len()
				if now <= n {
					p.must(fmt.Errorf("%d bytes after %d", now, n))
				}
				n = now
				p.must(spots(v, n, r))
			}
			if n, err := sound(v, 0); err != nil || n != last {
				p.must(fmt.Errorf("%d bytes of %d: %w", n, last, err))
			}
		})
	}
	p.say("ready")
	all.Wait()
	sum := uint64(0)
	for _, n := range looks {
		sum += n
	}
	p.say("looks", sum)
	p.next()
}

// spots looks at some places below n, the last bytes among them.
func spots(v *View, n uint64, r *rand.Rand) error {
	var b [16]byte
	for i := range 4 {
		size := min(n, uint64(len(b)))
		at := n - size
		if i > 0 {
			at = r.Uint64N(at + 1)
		}
		if _, err := v.ReadAt(b[:size], int64(at)); err != nil {
			return err
		}
		if want := wave(0, at, size); !bytes.Equal(b[:size], want) {
			return fmt.Errorf("at %d of %d: %x, not %x", at, n, b[:size], want)
		}
	}
	return nil
}

// playConnections opens connections, its second argument says how many, and leaves
// them at all stages; then it waits to be killed.
func playConnections(p *part) {
	n, err := strconv.Atoi(p.args[1])
	p.must(err)
	seed, err := strconv.ParseUint(p.args[2], 10, 64)
	p.must(err)
	dev := p.device(host.Config{})
	r := rand.New(rand.NewPCG(seed, 2))
	var kept []any // nothing is closed before its time
	var all sync.WaitGroup
	p.say("ready")
	p.next()
	for range n {
		switch stage := r.IntN(6); stage {
		case 5: // views that map, in their own time
			waits := r.IntN(2) == 0
			all.Go(func() {
				v, err := Attach(context.Background(), p.args[0], "x", dev, AttachOptions{})
				if err == nil && waits {
					_ = waitFor(v, 1)
				}
			})
		default:
			c, err := p.stage(stage)
			if err == nil {
				kept = append(kept, c)
			}
		}
	}
	p.say("up", len(kept))
	all.Wait()
	p.next()
}

// stage is a connection that got so far: made, greeted by half, greeted, told
// to attach, with the answer and its fds read.
func (p *part) stage(so int) (*wire.Conn, error) {
	raw, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: p.args[0], Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	c, err := wire.NewConn(raw)
	if err != nil || so == 0 {
		return c, err
	}
	if so == 1 {
		_, err := raw.Write([]byte("half"))
		return c, err
	}
	h := wire.Hello{Backend: wire.BackendHost, PID: 1, Granularity: crashChunk}
	if err := c.Write(wire.TypeHello, 0, 0, h.Append(nil)); err != nil || so == 2 {
		return c, err
	}
	a := wire.Attach{Access: wire.AccessRead, Flags: wire.AttachPublish, Name: "x"}
	if err := c.Write(wire.TypeAttach, 1, 0, a.Append(nil)); err != nil || so == 3 {
		return c, err
	}
	for range 3 { // HELLO, OBJECT, CHUNKS: the fds stay open
		if _, err := c.Read(); err != nil {
			return c, err
		}
	}
	return c, nil
}

// drained is a reader that takes PUBLISH frames too, and holds every frame to
// the protocol until the owner is gone.
func drained(t *testing.T, path string) <-chan error {
	c := greeted(t, path)
	a := wire.Attach{Access: wire.AccessRead, Flags: wire.AttachPublish, Name: "x"}
	require.NoError(t, c.Write(wire.TypeAttach, 1, 0, a.Append(nil)))
	ended := make(chan error, 1)
	go func() { ended <- keepUp(c) }()
	return ended
}

func keepUp(c *wire.Conn) error {
	var track *wire.Tracker
	var object, length, generation uint64
	for {
		f, err := c.Read()
		if errors.Is(err, unix.ECONNRESET) {
			continue // what was sent before is still to be read
		}
		if disconnected(err) {
			return nil
		}
		if err != nil {
			return err
		}
		switch f.Type {
		case wire.TypeObject:
			var o wire.Object
			if o, err = wire.DecodeObject(f.Payload); err == nil {
				object, generation = o.ID, o.Generation
				track, err = wire.NewTracker(o, wire.Limits{Granularity: crashChunk})
			}
		case wire.TypeChunks:
			var m wire.Chunks
			var fresh []wire.Chunk
			if m, err = wire.DecodeChunks(f.Payload); err == nil {
				fresh, _, err = track.Chunks(m)
				track.Mapped(len(fresh))
			}
		case wire.TypeRetire:
			var m wire.Retire
			if m, err = wire.DecodeRetire(f.Payload); err == nil {
				_, _, err = track.Retire(m)
			}
		case wire.TypePublish:
			var m wire.Publish
			m, err = wire.DecodePublish(f.Payload)
			if err == nil && m.Generation == generation && m.Length < length {
				err = fmt.Errorf("%d bytes after %d in generation %d", m.Length, length, generation)
			}
			length, generation = m.Length, m.Generation
		default:
			err = fmt.Errorf("unexpected %v", f.Type)
		}
		_ = f.Close()
		if err == nil && (f.Type == wire.TypeChunks || f.Type == wire.TypeRetire) {
			err = c.Write(wire.TypeAck, 0, 0, wire.Ack{Object: object, Chunk: track.LastID(), Generation: track.Generation()}.Append(nil))
		}
		if err != nil && !disconnected(err) {
			return err
		}
	}
}

// playPasser sends its second argument, a file, to the server at its first, and reports
// whether some other process still has a lock on that file.
func playPasser(p *part) {
	raw, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: p.args[0], Net: "unixpacket"})
	p.must(err)
	c, err := wire.NewConn(raw)
	p.must(err)
	p.must(c.Write(wire.TypeHello, 0, 0, wire.Hello{Backend: wire.BackendHost, Granularity: 4096}.Append(nil)))
	_, err = c.Read()
	p.must(err)
	fd, err := unix.Open(p.args[1], unix.O_RDONLY|unix.O_CLOEXEC, 0)
	p.must(err)
	p.must(c.Write(wire.TypeList, 1, 0, wire.List{}.Append(nil), fd))
	for err == nil {
		_, err = c.Read()
	}
	p.must(c.Close())
	lock := unix.Flock_t{Type: unix.F_RDLCK}
	p.must(unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &lock))
	if lock.Type == unix.F_UNLCK {
		p.say("lock lost")
	}
	p.say("lock held")
}
