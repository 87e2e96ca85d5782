package vmm_test

import (
	"errors"
	"fmt"
	"log"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/vmm"
)

func Example() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	g, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 30})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()

	fmt.Fprint(g, "hello, ")
	fmt.Fprint(g, "device") // a Range is an io.Writer
	b := make([]byte, g.Len())
	_, err = g.ReadAt(b, 0)
	fmt.Println(string(b), g.Cap(), err)
	// Output: hello, device 2097152 <nil>
}

// A ring: one chunk mapped twice, side by side, so that bytes which wrap around are
// contiguous.
func ExampleReservation_ring() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	const size = 2 << 20
	r, err := dev.Reserve(2*size, vmm.ReserveOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	c, err := dev.Create(size, vmm.Prop{})
	if err != nil {
		log.Fatal(err)
	}
	if err := r.Map(0, c, c); err != nil {
		log.Fatal(err)
	}
	if err := c.Close(); err != nil { // the mappings keep the memory
		log.Fatal(err)
	}

	if err := dev.CopyIn(r.Ptr()+size-3, []byte("wrapped")); err != nil {
		log.Fatal(err)
	}
	b := make([]byte, 4)
	err = dev.CopyOut(b, r.Ptr())
	fmt.Println(string(b), err)
	// Output: pped <nil>
}

// Growth that does not wait: memory is mapped ahead, and the next growth reclaims memory
// that a Clip has released.
func ExampleRange_growth() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	dev.SetReleaseThreshold(64 << 20) // keep up to this much of released memory

	g, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 30, GrowAhead: 8 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()
	s, err := dev.NewStream()
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	if err := g.UsedBy(s); err != nil { // from now on Clip waits for no stream
		log.Fatal(err)
	}

	first := g.Ptr()
	if err := g.Append(make([]byte, 32<<20)); err != nil {
		log.Fatal(err)
	}
	if err := g.SetLen(1 << 20); err != nil {
		log.Fatal(err)
	}
	if err := g.Clip(); err != nil {
		log.Fatal(err)
	}
	if err := g.Append(make([]byte, 31<<20)); err != nil { // reclaims it
		log.Fatal(err)
	}
	fmt.Println(g.Len()>>20, "MiB", g.Ptr() == first)
	// Output: 32 MiB true
}

// A range that sleeps has no memory and keeps its address and contents.
func ExampleSleep() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	g, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 30})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()
	fmt.Fprint(g, "weights")
	first := g.Ptr()

	if err := vmm.Sleep(vmm.SleepKeep, g); err != nil {
		log.Fatal(err)
	}
	_, err = g.Write([]byte("more"))
	fmt.Println(dev.Stats().Committed, errors.Is(err, vmm.ErrAsleep))

	if err := vmm.Wake(g); err != nil {
		log.Fatal(err)
	}
	b := make([]byte, g.Len())
	_, err = g.ReadAt(b, 0)
	fmt.Println(string(b), g.Ptr() == first, err)
	// Output:
	// 0 true
	// weights true <nil>
}

// Ranges that do not fit together: when memory runs out, the one that was used longest ago sleeps.
func ExampleDevice_OnPressure() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	dev.SetLimit(5 << 20)

	var mu sync.Mutex
	var used []*vmm.Range // those that are awake, the last used at the end
	stop := dev.OnPressure(func(error) bool {
		mu.Lock()
		defer mu.Unlock()
		if len(used) == 0 {
			return false
		}
		oldest := used[0]
		used = used[1:]
		return vmm.Sleep(vmm.SleepKeep, oldest) == nil
	})
	defer stop()
	// use wakes the range, appends to it, and lets it sleep from then on. No lock is held while
	// the range may need memory: the function takes it.
	use := func(g *vmm.Range, b []byte) error {
		mu.Lock()
		used = slices.DeleteFunc(used, func(u *vmm.Range) bool { return u == g })
		mu.Unlock()
		err := vmm.Wake(g)
		if err == nil {
			err = g.Append(b)
		}
		mu.Lock()
		used = append(used, g)
		mu.Unlock()
		return err
	}

	var all []*vmm.Range
	defer func() {
		for _, g := range all {
			_ = g.Close()
		}
	}()
	for range 3 {
		g, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 30, Chunk: 2 << 20})
		if err != nil {
			log.Fatal(err)
		}
		all = append(all, g)
	}
	for _, i := range []int{0, 1, 0, 2} {
		if err := use(all[i], make([]byte, 1<<20)); err != nil {
			log.Fatal(err)
		}
	}
	for i, g := range all {
		fmt.Println(i, g.Len()>>20, g.Stats().Committed>>20)
	}
	// Output:
	// 0 2 2
	// 1 1 0
	// 2 1 2
}
