package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// playDaemon is a server at its first argument.
func playDaemon(p *part) {
	var contexts atomic.Int64
	dev := p.device(func(c drivertest.Call) error {
		if c.Name == "Open" || c.Name == "ExportRange" {
			contexts.Add(1)
		}
		return nil
	})
	o := Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if len(p.args) > 2 {
		var err error
		o.Timeout, err = time.ParseDuration(p.args[2])
		p.must(err)
	}
	s, err := Listen(dev, p.args[0], o)
	p.must(err)
	noContext := func() int64 {
		d, ok := p.drv.(interface{ ContextActive(int) (bool, error) })
		p.check(ok == withCUDA, "a driver of type %T", p.drv)
		if ok {
			active, err := d.ContextActive(0)
			p.must(err)
			p.check(!active, "the daemon has a context")
		}
		return contexts.Load()
	}
	p.say("ready")
	for {
		switch word, _ := p.next(); word {
		case "stats":
			b, err := json.Marshal(s.Stats())
			p.must(err)
			p.say("stats", string(b))
		case "use":
			b, err := json.Marshal(reportUsage())
			p.must(err)
			p.say("use", string(b))
		case "contexts":
			p.say("contexts", noContext())
		case "close":
			p.must(s.Close())
			p.must(dev.Close())
			p.say("close")
			os.Exit(0)
		default:
			p.must(fmt.Errorf("no command %q", word))
		}
	}
}

// playKeeper is a Keeper at its first argument, whose servers are processes of the role "kept".
func playKeeper(p *part) {
	self, err := os.Executable()
	p.must(err)
	var looks atomic.Int64
	var once sync.Once
	serves := make(chan struct{}) // closed once the first one does
	health := time.Second
	if d, err := time.ParseDuration(os.Getenv(healthVar)); err == nil {
		health = d
	}
	k, err := NewKeeper(KeeperOptions{Path: p.args[0], Command: func() *exec.Cmd {
		cmd := exec.Command(self, p.args[1:]...)
		p.args = p.args[:1] // for the first one alone
		cmd.Env = append(os.Environ(), partVar+"=kept")
		cmd.Stderr = os.Stderr
		return cmd
	}, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), HealthTime: health, Changed: func(s KeeperState) {
		switch s {
		case KeeperHealthy:
			looks.Add(1)
		case KeeperServes:
			once.Do(func() { close(serves) })
		}
	}})
	p.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- k.Run(ctx) }()
	p.say("ready")
	for {
		switch word, n := p.next(); word {
		case "looks": // so many later
			for last := looks.Load() + int64(n); looks.Load() < last; {
				<-time.After(step)
			}
			p.say("looks")
		case "reload":
			p.must(k.Reload(ctx))
			p.say("reload")
		case "kill": // the one that serves; with luck another one that begins
			pid := servedBy()
			for ; pid == 0; pid = servedBy() { // between two: 0 would be all processes of the group
				<-time.After(step)
			}
			p.must(syscall.Kill(pid, syscall.SIGKILL))
			p.say("kill")
		case "pid": // before the first server os has a child of its own, which asks for pidfds
			<-serves
			p.say("pid", servedBy())
		case "close":
			cancel()
			p.must(<-over)
			p.must(k.Close())
			p.say("close")
			os.Exit(0)
		default:
			p.must(fmt.Errorf("no command %q", word))
		}
	}
}

// forgetVar is the variable of the environment that sets hooks.forget.
const forgetVar = "STORE_TEST_FORGET"

// optionsVar is the variable of the environment that has Options.
const optionsVar = "STORE_TEST_OPTIONS"

// returnVar is the variable of the environment that sets returnTime.
const returnVar = "STORE_TEST_RETURN"

// servedBy is the first child of this process; 0 if there is none.
func servedBy() int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	if err != nil {
		return 0
	}
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, t := range tasks {
		more, _ := os.ReadFile(t)
		b = append(b, more...)
	}
	for _, f := range bytes.Fields(b) {
		if n, err := strconv.Atoi(string(f)); err == nil {
			return n
		}
	}
	return 0
}

// playKept serves for a Keeper. With an argument it kills itself at that step.
func playKept(p *part) {
	dev := p.device(nil)
	o := Options{}
	if s := os.Getenv(optionsVar); s != "" {
		p.must(json.Unmarshal([]byte(s), &o))
	}
	o.hooks.forget = os.Getenv(forgetVar) != ""
	size, how, _ := strings.Cut(os.Getenv(budgetVar), ",")
	if n, err := strconv.ParseUint(size, 10, 64); err == nil {
		o.hooks.alone, o.Evict = ","+how == storeAlone, ","+how == storeEvicts
		o.Budgets = []budget.Budget{{Device: dev, Bytes: n}}
		o.hooks.deadline = budgetDeadline
	}
	if d, err := time.ParseDuration(os.Getenv(returnVar)); err == nil {
		returnTime = d
	}
	if len(p.args) > 0 {
		last, err := strconv.ParseInt(p.args[0], 10, 64)
		p.must(err)
		var steps atomic.Int64
		o.hooks.step = func() {
			if steps.Add(1) == last {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
	}
	began := o.hangs(p)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	p.must(ServeKept(ctx, dev, o, began))
	p.must(dev.Close())
}

// use is what a process uses.
type use struct {
	FDs, Goroutines int
	Heap            uint64
}

func reportUsage() use {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	l, _ := os.ReadDir("/proc/self/fd")
	return use{len(l), runtime.NumGoroutine(), m.HeapAlloc}
}

// waves are 256 bytes of a wave, for each value that their upper address bits give.
var waves = sync.OnceValue(func() *[256][256]byte {
	w := new([256][256]byte)
	for i := range w {
		for at := range w[i] {
			w[i][at] = byte(i ^ at)
		}
	}
	return w
})

// waveAt is what stands at each offset of the object.
func waveAt(off uint64, n int) []byte { return putWave(make([]byte, n), off) }

// putWave is waveAt in memory that there is.
func putWave(b []byte, off uint64) []byte {
	for i := 0; i < len(b); {
		at := off + uint64(i)
		i += copy(b[i:], waves()[byte(at>>8^at>>16*7)][at%256:])
	}
	return b
}

// checkWave reads the first n bytes of r and looks at each.
func checkWave(r io.ReaderAt, n uint64) error {
	const piece = 300_000 // of no power of two, so reads cross the ends of chunks
	has, want := make([]byte, min(n, piece)), make([]byte, min(n, piece))
	for at := uint64(0); at < n; at += piece {
		k := min(n-at, piece)
		if _, err := r.ReadAt(has[:k], int64(at)); err != nil {
			return err
		}
		if !bytes.Equal(has[:k], putWave(want[:k], at)) {
			return fmt.Errorf("%d bytes are not what was written", n)
		}
	}
	return nil
}

// layoutOfK and metaOfK describe the object that writers follow each other on.
func layoutOfK() vmm.Layout {
	return vmm.Layout{Kind: vmm.ElemUint, Bits: 8, Size: 1, Pitch: 1, Hash: [32]byte{77}}
}

const metaOfK = "the meta of k"

const (
	sizeOfK  = 512 << 20
	muchOfK  = sizeOfK - 64<<20 // from here on the writers append little
	nameOfK  = "k"
	atMostAt = 4096 // bytes of one Append
)

// playWriter takes the object over that its second argument names, looks at every byte, and
// appends until it is killed, or loses its device.
func playWriter(p *part) {
	ctx := context.Background()
	dev := p.device(nil)
	c, err := Connect(ctx, p.args[0], dev, ClientOptions{})
	p.must(err)
	w, err := c.Append(ctx, p.args[1], AppendOptions{Wait: true})
	p.must(err)
	found := w.Len()
	p.must(checkWave(w.Range(), found))
	p.check(w.Layout().Equal(layoutOfK()) && string(w.Meta()) == metaOfK, "layout %v, meta %q", w.Layout(), w.Meta())
	appends := p.appender(w, p.args[2])
	p.must(appends(1 + rand.IntN(atMostAt)))
	p.say("first", found)
	var lost atomic.Bool
	var loop sync.WaitGroup
	loop.Go(func() {
		for i := 0; ; i++ {
			n := 1 + rand.IntN(atMostAt)
			if w.Len() > muchOfK {
				n = 1
			}
			err := appends(n)
			has := w.Len()
			if err == nil && i%8 == 0 {
				if err = w.Flush(ctx); err == nil {
					p.say("has", has)
				}
			}
			if err != nil && (lost.Load() || errors.Is(err, vmm.ErrDeviceLost)) {
				return
			}
			p.must(err)
		}
	})
	for {
		switch word, _ := p.next(); word {
		case "lose":
			lost.Store(true)
			p.must(loseDevice(dev))
			loop.Wait()
			err := w.Append([]byte{0})
			p.check(errors.Is(err, vmm.ErrDeviceLost), "after the device was lost: %v", err)
			p.must(w.Close())
			p.must(c.Close())
			p.say("lost")
			os.Exit(0)
		case "close":
			p.must(w.Close())
			p.say("close")
		}
	}
}

// appender is a function that appends what comes next.
func (p *part) appender(w *Writer, mode string) func(n int) error {
	if mode != "on" {
		return func(n int) error { return w.Append(waveAt(w.Len(), n)) }
	}
	s, err := w.Range().Device().NewStream()
	p.must(err)
	return func(n int) error { return w.Range().AppendOn(s, waveAt(w.Len(), n)) }
}

// loseDevice unmaps memory that queued work is to write to. That is a fault, and the end of
// all devices of the process.
func loseDevice(dev *vmm.Device) error {
	raw, err := dev.Raw()
	if err != nil {
		return err
	}
	drv, prop := dev.Driver(), vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice, ID: dev.Info().Ordinal}}
	size, err := drv.Granularity(prop)
	if err != nil {
		return err
	}
	at, err := drv.Reserve(size, 0)
	if err != nil {
		return err
	}
	h, err := drv.Create(size, prop)
	if err != nil {
		return err
	}
	word, b, err := raw.(driver.HostAllocator).AllocHost(4096)
	if err != nil {
		return err
	}
	clear(b)
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	err = errors.Join(
		drv.Map(at, size, h),
		drv.SetAccess(at, size, []driver.Grant{{To: prop.Location, Access: driver.AccessReadWrite}}),
		raw.(driver.StreamMemOps).WaitValue(s.Raw(), word, 1, 4),
		raw.Fill(at, 0xee, 1, size, s.Raw()),
		drv.Unmap(at, size),
	)
	if err != nil {
		return err
	}
	b[0] = 1
	if err := dev.Sync(); !errors.Is(err, vmm.ErrDeviceLost) {
		return fmt.Errorf("the device is not lost: %w", err)
	}
	return nil
}

// playReaders is as many readers of the second argument's object as the third says. They
// look at each byte as soon as it is there, while it is replaced by one writer after the
// other.
func playReaders(p *part) {
	ctx := context.Background()
	dev := p.device(nil)
	c, err := Connect(ctx, p.args[0], dev, ClientOptions{})
	p.must(err)
	n, err := strconv.Atoi(p.args[2])
	p.must(err)
	var all []*follower
	for range n {
		b, err := c.Get(ctx, p.args[1], GetOptions{Unsafe: true})
		p.must(err)
		f := &follower{b: b}
		all = append(all, f)
		go func() { p.must(f.follow(ctx)) }()
	}
	p.say("ready")
	for {
		switch word, n := p.next(); word {
		case "seen": // the longest that any of them has seen
			var most uint64
			for _, f := range all {
				most = max(most, f.seen.Load())
			}
			p.say("seen", most)
		case "upto": // all of them have seen as much
			for _, f := range all {
				p.eventually(fmt.Sprintf("%d bytes seen", n), func() bool { return f.seen.Load() >= n })
			}
			p.say("upto")
		case "sealed":
			for _, f := range all {
				sub, cancel := context.WithTimeout(ctx, inTime)
				p.must(f.b.WaitSealed(sub))
				cancel()
				p.check(f.b.Len() == n, "%d bytes instead of %d", f.b.Len(), n)
				p.must(checkWave(f.b, n))
			}
			p.say("sealed")
		}
	}
}

// follower is a reader that looks at each byte once it is there.
type follower struct {
	b    *shareable.View
	seen atomic.Uint64
}

// follow returns when the object is sealed and all of it was looked at.
func (f *follower) follow(ctx context.Context) error {
	var buf []byte
	for {
		sealed := f.b.Sealed()
		if sealed {
			if err := f.b.WaitSealed(ctx); err != nil {
				return err
			}
		}
		from, n := f.seen.Load(), f.b.Len()
		if n < from {
			return fmt.Errorf("the length goes back from %d to %d", from, n)
		}
		for n > from {
			part := min(n-from, 1<<20)
			buf = append(buf[:0], make([]byte, part)...)
			if _, err := f.b.ReadAt(buf, int64(from)); err != nil {
				return fmt.Errorf("read %d bytes from %d on: %w", part, from, err)
			}
			if want := waveAt(from, int(part)); !bytes.Equal(buf, want) {
				return fmt.Errorf("bytes from %d to %d are not what was written", from, from+part)
			}
			from += part
			f.seen.Store(from)
		}
		if sealed {
			return nil
		}
		if err := f.b.Wait(ctx, from+1); err != nil && !f.b.Sealed() {
			return err
		}
	}
}
