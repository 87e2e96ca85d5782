package pool_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

func Example() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	s, err := dev.NewStream()
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	p, err := pool.New(dev, pool.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()

	// Allocated, used and freed in the order of the stream, without a wait.
	a, err := p.Alloc(s, 1000)
	if err != nil {
		log.Fatal(err)
	}
	if err := s.Fill(a.Ptr(), 7, 1, a.Size()); err != nil {
		log.Fatal(err)
	}
	if err := p.Free(s, a); err != nil {
		log.Fatal(err)
	}

	// The same stream has the memory again, though the fill may still run.
	b, err := p.Alloc(s, 1000)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(b.Ptr() == a.Ptr(), b.Size())
	fmt.Println(errors.Is(p.Free(s, a), pool.ErrDoubleFree), p.Free(s, b))
	// Output:
	// true 1000
	// true <nil>
}

// The peak of each phase of a program: read it, reset it, and begin the next phase.
func ExamplePool_ResetPeaks() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	s, err := dev.NewStream()
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	p, err := pool.New(dev, pool.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	for _, size := range []uint64{4 << 20, 1 << 20} { // two phases
		b, err := p.Alloc(s, size)
		if err != nil {
			log.Fatal(err)
		}
		if err := errors.Join(p.Free(s, b), s.Sync()); err != nil {
			log.Fatal(err)
		}
		stats, err := p.Stats()
		if err := errors.Join(err, p.ResetPeaks()); err != nil {
			log.Fatal(err)
		}
		fmt.Println(stats.UsedPeak)
	}
	// Output:
	// 4194304
	// 1048576
}
