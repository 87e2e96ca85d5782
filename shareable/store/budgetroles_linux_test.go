package store

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// budgetVar is the variable of the environment that has the bytes of the budget of a server's device.
const budgetVar = "STORE_TEST_BUDGET"

// budgetDeadline is that of demands in these tests.
const budgetDeadline = 300 * time.Millisecond

// budgetChunk is the size of all memory that members make. Each piece has a file of its own.
const budgetChunk = 2 << 20

// memberChunk is budgetChunk, or on a GPU more than what contexts differ by.
var memberChunk = map[bool]uint64{false: budgetChunk, true: 64 << 20}[withCUDA]

// refusedLine begins the lines of stderr that have the error of a refused growth.
const refusedLine = "refused: "

// memberVectors is how many a member has.
const memberVectors = 3

// memberVector is memory whose bytes are known.
type memberVector struct {
	mu sync.Mutex
	g  *vmm.Range
}

// memberProcess is a process that is a member of a budget.
type memberProcess struct {
	*part
	dev     *vmm.Device
	m       *budget.Member
	vectors [memberVectors]memberVector
	ops     atomic.Int64
	freezes atomic.Bool // it stops itself once it is asked to give
}

// playMember is a member: its arguments are the path, its name, its least in bytes, the bytes of the budget, and a
// number for what is random.
func playMember(p *part) {
	x := &memberProcess{part: p}
	var numbers [3]uint64
	for i := range numbers {
		var err error
		numbers[i], err = strconv.ParseUint(p.args[2+i], 10, 64)
		p.must(err)
	}
	x.dev = p.device(nil)
	first, err := x.dev.NewStream() // on a GPU it makes the context
	p.must(err)
	p.must(first.Close())
	stop := x.dev.OnPressure(x.gives)
	x.join(numbers[0])
	for i := range x.vectors {
		var err error
		x.vectors[i].g, err = x.dev.NewRange(vmm.RangeOptions{Max: 4 * numbers[1], Chunk: memberChunk})
		p.must(err)
	}
	p.say("ready")
	over := make(chan struct{})
	var loop sync.WaitGroup
	for {
		switch word, n := p.next(); word {
		case "run":
			loop.Go(func() { x.run(over, rand.New(rand.NewPCG(65, numbers[2])), int(numbers[1]/memberChunk)) })
			p.say("run")
		case "ops":
			p.say("ops", x.ops.Load())
		case "grow":
			p.must(x.vectors[0].resize(n))
			p.say("grow")
		case "freeze":
			x.freezes.Store(true)
			p.say("freeze")
		case "fork": // a process that has all its connections
			p.say("fork", x.fork())
		case "steal": // what no lease bounds
			_, err := p.drv.Create(n, vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice, ID: x.dev.Info().Ordinal}})
			p.must(err)
			p.say("steal")
		case "again": // it leaves, and joins once more
			close(over)
			loop.Wait()
			over = make(chan struct{})
			x.leave()
			x.join(numbers[0])
			p.say("again")
		case "leave":
			close(over)
			loop.Wait()
			x.leave()
			stop()
			for i := range x.vectors {
				p.must(x.vectors[i].g.Close())
			}
			p.must(x.dev.Close())
			p.say("leave")
			os.Exit(0)
		default:
			p.must(fmt.Errorf("no command %q", word))
		}
	}
}

// join makes the process a member. Others may have to give first, and a server may have to begin.
func (x *memberProcess) join(least uint64) {
	for end := time.Now().Add(inTime); ; {
		m, err := budget.Join(context.Background(), x.args[0], x.dev, budget.JoinOptions{Name: x.args[1], Least: least})
		if err == nil {
			x.m = m
			return
		}
		if !errors.Is(err, vmm.ErrOutOfMemory) || time.Now().After(end) {
			x.must(err)
		}
		fmt.Fprintf(os.Stderr, "%s%q\n", refusedLine, err)
	}
}

// fork starts a process that has all sockets of this one, and returns its id.
func (x *memberProcess) fork() int {
	cmd := exec.Command("sleep", "60")
	list, err := os.ReadDir("/proc/self/fd")
	x.must(err)
	for _, e := range list {
		link, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if n, err := strconv.Atoi(e.Name()); err == nil && n > 2 && strings.HasPrefix(link, "socket:") {
			fd, err := unix.Dup(n)
			x.must(err)
			cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(fd), link))
		}
	}
	x.check(len(cmd.ExtraFiles) > 0, "no socket")
	x.must(cmd.Start())
	return cmd.Process.Pid
}

// leave gives all back.
func (x *memberProcess) leave() {
	for i := range x.vectors {
		x.must(x.vectors[i].resize(0))
	}
	x.must(x.m.Close())
}

// run has a random need of memory, until over.
func (x *memberProcess) run(over <-chan struct{}, r *rand.Rand, chunks int) {
	for {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(r.IntN(4)) * time.Millisecond):
		}
		v := &x.vectors[r.IntN(memberVectors)]
		if err := v.resize(uint64(r.IntN(1+chunks/4)) * memberChunk); err != nil {
			x.check(errors.Is(err, vmm.ErrOutOfMemory), "grow: %v", err)
			s := x.m.Stats()
			fmt.Fprintf(os.Stderr, "%s%q lease %d created %d\n", refusedLine, err, s.Lease, s.Created)
		}
		x.must(x.vectors[r.IntN(memberVectors)].look(r))
		x.ops.Add(1)
	}
}

// resize brings a vector to a length. All its bytes are looked at before some go.
func (v *memberVector) resize(n uint64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n > v.g.Len() {
		if err := v.g.Grow(n - v.g.Len()); err != nil {
			return err
		}
		for at := v.g.Len(); at < n; at += memberChunk {
			if err := v.g.Append(waveAt(at, int(memberChunk))); err != nil {
				return err
			}
		}
		return nil
	}
	return v.shrink(n)
}

// shrink needs mu.
func (v *memberVector) shrink(n uint64) error {
	if err := checkWave(v.g, v.g.Len()); err != nil {
		return err
	}
	if err := v.g.SetLen(n); err != nil {
		return err
	}
	return v.g.Clip()
}

// look looks at a part of the bytes.
func (v *memberVector) look(r *rand.Rand) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return checkWave(v.g, uint64(r.IntN(1+int(v.g.Len()/memberChunk)))*memberChunk)
}

// gives is its function of OnPressure: what vectors have that nothing is done with.
func (x *memberProcess) gives(need error) (released bool) {
	var e *vmm.OpError
	if !errors.As(need, &e) {
		return false
	}
	if x.freezes.Swap(false) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
	size := e.Size
	for i := range x.vectors {
		v := &x.vectors[i]
		if size == 0 || !v.mu.TryLock() {
			continue
		}
		had := v.g.Cap()
		x.must(v.shrink(min(v.g.Len(), had-min(had, size)) / memberChunk * memberChunk))
		gone := had - v.g.Cap()
		released = released || gone > 0
		size -= min(size, gone)
		v.mu.Unlock()
	}
	return released
}

// playThief sends a JOIN of another process, its third argument, and says how that is refused.
func playThief(p *part) {
	raw, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: p.args[0], Net: "unixpacket"})
	p.must(err)
	c, err := wire.NewConn(raw)
	p.must(err)
	gran, err := strconv.ParseUint(p.args[1], 10, 64)
	p.must(err)
	join, err := hex.DecodeString(p.args[2])
	p.must(err)
	p.must(c.Write(wire.TypeHello, 0, 0, wire.Hello{Backend: wire.BackendHost, Granularity: gran}.Append(nil)))
	_, err = c.Read()
	p.must(err)
	p.must(c.Write(wire.TypeJoin, 1, 0, join))
	f, err := c.Read()
	p.must(err)
	e, err := wire.DecodeError(f.Payload)
	p.must(err)
	p.say("refused", e.Code)
}
