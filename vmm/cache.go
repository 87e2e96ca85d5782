package vmm

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// cache is memory of a device that nobody uses and that the next growth of a
// Range may have: releasing memory is the dear half of shrinking. Only private
// memory comes here, what was created here and could never leave the process.
type cache struct {
	mu        sync.Mutex
	threshold uint64
	bytes     uint64
	clock     uint64
	kept      map[driver.Prop][]spare // the smallest first, of one size the newest last
}

// spare is one kept piece of memory.
type spare struct {
	h    driver.Handle
	size uint64
	at   uint64 // when it came, by the cache's clock
}

// SetThreshold is how many bytes of memory that nobody uses any more the device
// keeps for its ranges to grow with, instead of giving them back; as
// sql.DB.SetMaxIdleConns it can be changed at any time, and gives the old
// value. The default is 0: nothing is kept. What is kept goes where memory runs
// out, in Trim and in Close. Memory that was shareable or imported is never
// kept, and Create and Alloc never take what was.
func (d *Device) SetThreshold(bytes uint64) (old uint64) {
	if d == nil {
		return 0
	}
	d.cache.mu.Lock()
	old, d.cache.threshold = d.cache.threshold, bytes
	out := d.evict(bytes)
	d.cache.mu.Unlock()
	d.discard(out) //nolint:errcheck // counted as stuck
	return old
}

// Trim unmaps what retired and waits no longer, and gives back kept memory, the
// oldest first, until no more than keep bytes of it are left. Freed is how many
// bytes of the device's memory the driver got back meanwhile.
func (d *Device) Trim(keep uint64) (freed uint64, err error) {
	if err := d.live(); err != nil {
		return 0, d.fail("trim", 0, keep, err)
	}
	freed, err = d.trim(keep)
	return freed, d.fail("trim", 0, keep, err)
}

func (d *Device) trim(keep uint64) (freed uint64, err error) {
	before := d.meter.released.Load()
	_, err = d.drain()
	if d.waiting() > 0 {
		d.rouse() // the goroutine may have looked while we had them
	}
	err = also(err, "and", d.discard(d.over(keep)))
	return d.meter.released.Load() - before, err
}

// relieve empties the caches of all Devices on the port and says whether that
// gave memory back.
func (p *port) relieve() bool {
	p.mu.Lock()
	devs := slices.Clone(p.devices)
	p.mu.Unlock()
	var freed uint64
	for _, d := range devs {
		n, _ := d.trim(0) // what will not go back is counted as stuck
		freed += n
	}
	return freed > 0
}

// discard gives memory that was kept back to the driver.
func (d *Device) discard(all []*memory) (failed error) {
	for _, m := range all {
		failed = also(failed, "and", m.giveBack())
	}
	return failed
}

// keep takes memory that nobody uses any more; false if it is to go back.
func (d *Device) keep(m *memory) bool {
	if !m.private || m.prop.Home != d.home() { // no range of d asks for other memory
		return false
	}
	c := &d.cache
	c.mu.Lock()
	if m.size > c.threshold {
		c.mu.Unlock()
		return false
	}
	out := d.evict(c.threshold - m.size)
	c.put(m)
	d.meter.cached.add(m.size)
	c.mu.Unlock()
	d.discard(out) //nolint:errcheck // counted as stuck
	return true
}

// put needs c.mu.
func (c *cache) put(m *memory) {
	if c.kept == nil {
		c.kept = map[driver.Prop][]spare{}
	}
	c.clock++
	all := c.kept[m.prop]
	i, _ := slices.BinarySearchFunc(all, m.size+1, spare.bySize)
	c.kept[m.prop] = slices.Insert(all, i, spare{m.h, m.size, c.clock})
	c.bytes += m.size
}

func (s spare) bySize(size uint64) int { return cmp.Compare(s.size, size) }

// take gives the largest kept memory of the kind from least to most bytes, with
// one reference; nil if there is none.
func (d *Device) take(p driver.Prop, least, most uint64) *memory {
	c := &d.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.kept[p]
	end := len(all)
	if most < math.MaxUint64 {
		end, _ = slices.BinarySearchFunc(all, most+1, spare.bySize)
	}
	if end == 0 || all[end-1].size < least {
		return nil
	}
	s := all[end-1]
	c.kept[p] = slices.Delete(all, end-1, end)
	c.bytes -= s.size
	d.meter.cached.sub(s.size)
	return d.memory(s, p)
}

// memory is kept memory that is in use again. It is a new object: whoever still
// has a Segment of the old one has no claim to it.
func (d *Device) memory(s spare, p driver.Prop) *memory {
	m := &memory{dev: d, h: s.h, size: s.size, prop: p, private: true, created: true}
	m.refs.Store(1)
	return m
}

// over takes the oldest out of the cache until no more than keep bytes are left.
func (d *Device) over(keep uint64) (out []*memory) {
	d.cache.mu.Lock()
	defer d.cache.mu.Unlock()
	return d.evict(keep)
}

// evict is over with the cache's lock held.
func (d *Device) evict(keep uint64) (out []*memory) {
	c := &d.cache
	for c.bytes > keep {
		p, i := c.oldest(keep == 0)
		s := c.kept[p][i]
		c.kept[p] = slices.Delete(c.kept[p], i, i+1)
		c.bytes -= s.size
		d.meter.cached.sub(s.size)
		out = append(out, &memory{dev: d, h: s.h, size: s.size, prop: p, created: true})
	}
	return out
}

// oldest finds what came first, or anything. It needs c.mu and something kept.
func (c *cache) oldest(anything bool) (kind driver.Prop, at int) {
	first := uint64(math.MaxUint64)
	for p, all := range c.kept {
		if anything && len(all) > 0 {
			return p, len(all) - 1
		}
		for i, s := range all {
			if s.at < first {
				kind, at, first = p, i, s.at
			}
		}
	}
	return kind, at
}
