package pool_test

import (
	"errors"
	"fmt"
	"log"
	"math"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// guide is what the listings of the CUDA programming guide's chapter on stream-ordered memory
// work with. The devices are two of host memory, or with VMM_TEST_DRIVER=cuda the first two GPUs.
type guide struct {
	*kernel.Builtins
	dev, peer     *vmm.Device // peer is nil where no other device reaches dev
	stream, other *vmm.Stream // of dev
	p             *pool.Pool
}

const (
	guideSize  = 4096    // bytes of a block
	guideChunk = 2 << 20 // bytes of a chunk in ExamplePool_SetReuse
)

// ok ends the program for an error.
func ok(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// the is the value of a call that may not fail.
func the[T any](v T, err error) T {
	ok(err)
	return v
}

func openGuide(o pool.Options) *guide {
	names := []string{"host:0", "host:1"}
	if onCUDA {
		names = []string{"cuda:0", "cuda:1"}
	}
	g := &guide{dev: the(vmm.Open(names[0]))}
	if can, err := g.dev.Driver().CanAccessPeer(0, 1); err == nil && can {
		g.peer = the(vmm.Open(names[1]))
	}
	g.Builtins = the(kernel.LoadBuiltins(g.dev))
	g.stream, g.other = the(g.dev.NewStream()), the(g.dev.NewStream())
	g.p = the(pool.New(g.dev, o))
	return g
}

// close ends the program with ErrBusy if a block is left.
func (g *guide) close() {
	ok(g.p.Close())
	ok(errors.Join(g.other.Close(), g.stream.Close(), g.Builtins.Close()))
	if g.peer != nil {
		ok(g.peer.Close())
	}
	ok(g.dev.Close())
}

// work queues a kernel that writes the numbers from first on to the memory's elements.
func (g *guide) work(s *vmm.Stream, m kernel.Memory, first uint32) {
	ok(kernel.Iota(g.Builtins, s, m, first, 1))
}

// sum is the sum of the memory's elements, after the work of the stream.
func (g *guide) sum(m kernel.Memory) uint64 {
	return the(kernel.SumUint[uint32](g.Builtins, g.stream, m))
}

// after has a stream wait for what another one has to do now.
func after(s, other *vmm.Stream) {
	e := the(other.Record())
	ok(errors.Join(s.Wait(e), e.Close()))
}

// Allocate, use and free in the order of one stream. Nothing waits. What the stream does next can
// have the memory at once, since it runs after what the stream did before.
func ExamplePool_Alloc() {
	g := openGuide(pool.Options{})
	defer g.close()

	b := the(g.p.Alloc(g.stream, guideSize))
	g.work(g.stream, b, 0)
	ok(g.p.Free(g.stream, b))

	next := the(g.p.Alloc(g.stream, guideSize))
	fmt.Println("the same memory again:", next.Ptr() == b.Ptr())
	g.work(g.stream, next, 1)
	ok(g.p.Free(g.stream, next))
	// Output:
	// the same memory again: true
}

// Allocate in one stream, use the memory in a second one and free it in a third one. Events order
// the three: the pool orders nothing but the free.
func ExamplePool_Free_threeStreams() {
	g := openGuide(pool.Options{})
	defer g.close()
	third := the(g.dev.NewStream())

	b := the(g.p.Alloc(g.stream, guideSize))
	after(g.other, g.stream)
	g.work(g.other, b, 0)
	after(third, g.other)
	ok(g.p.Free(third, b))
	fmt.Println("freed by the third")
	ok(third.Close())
	// Output:
	// freed by the third
}

// Free a block without an order. The pool asks nothing: the caller knows that the work has ended.
func ExamplePool_FreeNow() {
	g := openGuide(pool.Options{})
	defer g.close()

	b := the(g.p.Alloc(g.stream, guideSize))
	g.work(g.stream, b, 0)
	ok(g.stream.Sync())
	ok(g.p.FreeNow(b))
	fmt.Println("freed after a synchronisation")
	// Output:
	// freed after a synchronisation
}

// Memory of no pool is given up in the order of a stream, too. UsedBy says which stream uses the
// range. Clip does not wait for it: the memory goes back once the kernel has ended.
func Example_plainMemory() {
	g := openGuide(pool.Options{})
	defer g.close()

	r := the(g.dev.Alloc(guideSize))
	ok(r.UsedBy(g.stream))
	g.work(g.stream, r, 0)
	ok(errors.Join(r.SetLen(0), r.Clip()))
	fmt.Println("given up in stream order")
	ok(r.Close())
	// Output:
	// given up in stream order
}

// Allocate, use and free in a stream of another device. The memory is the pool's device's. Where
// no other device reaches that one, it takes the other's place.
func ExamplePool_Grant() {
	g := openGuide(pool.Options{})
	defer g.close()
	peer := g.dev
	if g.peer != nil {
		peer = g.peer
		ok(g.p.Grant(vmm.AccessReadWrite, peer))
	}
	s := the(peer.NewStream())

	b := the(g.p.Alloc(s, guideSize))
	ok(s.Fill(b.Ptr(), 7, 4, guideSize/4))
	after(g.stream, s) // the owner reads what the peer wrote, once it has
	fmt.Println("the peer wrote elements whose sum is", g.sum(b))
	ok(g.p.Free(s, b))
	ok(s.Close())
	// Output:
	// the peer wrote elements whose sum is 7168
}

// Use a block in a graph. It is allocated before and freed after the last replay: an allocation
// does not become part of a graph, and is refused in a capture.
func Example_graph() {
	g := openGuide(pool.Options{})
	defer g.close()

	b := the(g.p.Alloc(g.stream, guideSize))
	ok(g.stream.BeginCapture())
	ok(g.stream.Fill(b.Ptr(), 7, 4, guideSize/4))
	_, refused := g.p.Alloc(g.stream, guideSize)
	graph := the(g.stream.EndCapture())
	x := the(graph.Instantiate())
	ok(graph.Close())

	for range 2 {
		g.work(g.stream, b, 0)
		ok(x.Launch(g.stream))
		fmt.Println("a replayed Fill leaves a sum of", g.sum(b))
	}
	fmt.Println("Alloc during the capture is refused:", errors.Is(refused, vmm.ErrCapturing))
	ok(errors.Join(x.Close(), g.p.Free(g.stream, b)))
	// Output:
	// a replayed Fill leaves a sum of 7168
	// a replayed Fill leaves a sum of 7168
	// Alloc during the capture is refused: true
}

// A program with a phase that needs much memory and one that needs little. With the threshold at
// its greatest, synchronisations release nothing, so the rounds of the first phase reuse what the
// first of them created. TrimTo then releases it for others. With a threshold of 0, which is the
// default, each synchronisation would have.
func ExamplePool_SetReleaseThreshold() {
	g := openGuide(pool.Options{})
	defer g.close()
	round := func() {
		var blocks []pool.Block
		for i := range uint64(10) {
			blocks = append(blocks, the(g.p.Alloc(g.stream, (i+1)<<16)))
		}
		for _, b := range blocks {
			g.work(g.stream, b, 0)
			ok(g.p.Free(g.stream, b))
		}
		ok(g.stream.Sync())
	}

	ok(g.p.SetReleaseThreshold(math.MaxUint64))
	for range 10 {
		round()
	}
	many := the(g.p.Stats())
	freed := the(g.p.TrimTo(0)) // the stream is synchronised, so the pool knows that nothing uses the memory
	few := the(g.p.Stats())
	fmt.Println("created once:", many.Created == many.Reserved)
	fmt.Println("trimmed:", freed == many.Reserved, "left:", few.Reserved)

	ok(g.p.SetReleaseThreshold(0))
	round()
	few = the(g.p.Stats())
	fmt.Println("with a threshold of 0 a synchronisation leaves", few.Reserved)
	// Output:
	// created once: true
	// trimmed: true left: 0
	// with a threshold of 0 a synchronisation leaves 0
}

// When a stream may have memory that another stream has freed. The pool has one chunk, and a block
// is all of it, so that nothing else can be had.
func ExamplePool_SetReuse() {
	for _, policy := range []struct {
		name    string
		on      pool.Reuse
		between func(*guide) // what the program does after the free
	}{
		{"follow events", pool.ReuseFollowEvents, func(g *guide) { after(g.other, g.stream) }},
		{"opportunistic", pool.ReuseOpportunistic, func(*guide) {}},
		{"internal dependencies", pool.ReuseInternalDependencies, func(*guide) {}},
		{"none, after a synchronisation", 0, func(g *guide) { ok(g.stream.Sync()) }},
	} {
		g := openGuide(pool.Options{Max: guideChunk, ChunkSize: guideChunk})
		ok(errors.Join(g.p.SetReleaseThreshold(guideChunk), g.p.SetReuse(0)))
		b := the(g.p.Alloc(g.stream, guideChunk))
		g.work(g.stream, b, 0)
		ok(g.p.Free(g.stream, b))
		// Without the policy the memory is not the other stream's, even if the work has
		// ended meanwhile: no one has said so.
		if _, err := g.p.Alloc(g.other, guideChunk); !errors.Is(err, vmm.ErrOutOfMemory) {
			fmt.Println("with all policies off:", err)
		}

		ok(g.p.SetReuse(policy.on))
		policy.between(g)
		next, err := g.p.Alloc(g.other, guideChunk)
		for policy.on == pool.ReuseOpportunistic && errors.Is(err, vmm.ErrOutOfMemory) {
			<-time.After(time.Millisecond) // the work has to end by itself
			next, err = g.p.Alloc(g.other, guideChunk)
		}
		ok(err)
		fmt.Printf("%s: the same memory: %v, waits inserted: %d\n",
			policy.name, next.Ptr() == b.Ptr(), the(g.p.Stats()).Waits)
		g.work(g.other, next, 1)
		ok(g.p.Free(g.other, next))
		g.close()
	}
	// Output:
	// follow events: the same memory: true, waits inserted: 0
	// opportunistic: the same memory: true, waits inserted: 0
	// internal dependencies: the same memory: true, waits inserted: 1
	// none, after a synchronisation: the same memory: true, waits inserted: 0
}
