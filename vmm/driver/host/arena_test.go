//go:build linux

package host

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestManySmallChunks: more chunks than the process may have descriptors, and than the
// kernel may have mappings.
func TestManySmallChunks(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	n := maxMapCount() + 1000
	if n > 1<<17 {
		t.Skipf("needs a smaller vm.max_map_count than %d, to pass it", maxMapCount())
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}))
	d := New(Config{Granularity: 4096})
	v := open(t, d, 0)
	page := d.granularity
	before := memoryFiles(holds(t))
	p := reserved(t, d, uint64(n)*page)
	handles := make([]driver.Handle, n)
	for i := range handles {
		handles[i] = create(t, d, page, home)
		require.NoError(t, d.Map(p+driver.Ptr(uint64(i)*page), page, handles[i]))
	}
	require.NoError(t, d.SetAccess(p, uint64(n)*page, grant(0, driver.AccessReadWrite)))
	arenas := (n*int(page) + arenaSize - 1) / arenaSize
	require.Equal(t, before+arenas, memoryFiles(holds(t)))
	require.Equal(t, arenas, d.mappings)
	require.Equal(t, arenas, inside(t, p, uint64(n)*page))
	require.Equal(t, uint64(n)*page, used(d))

	// They are apart all the same.
	last := p + driver.Ptr(uint64(n-1)*page)
	require.NoError(t, v.CopyIn(last-1, []byte{1, 2}))
	require.NoError(t, d.Unmap(last, page))
	require.ErrorIs(t, v.CopyIn(last, []byte{3}), driver.ErrInvalid)
	require.NoError(t, d.Map(last, page, handles[n-1]))
	require.NoError(t, d.SetAccess(last, page, grant(0, driver.AccessRead)))
	require.Equal(t, arenas+1, d.mappings)
	got := make([]byte, 2)
	require.NoError(t, v.CopyOut(got, last-1))
	require.Equal(t, []byte{1, 2}, got)

	require.NoError(t, d.Unmap(p, uint64(n)*page))
	for _, h := range handles {
		require.NoError(t, d.Release(h))
	}
	require.NoError(t, d.Free(p, uint64(n)*page))
	require.Equal(t, before, memoryFiles(holds(t)))
	require.Zero(t, used(d))
	require.Empty(t, d.arenas.nonFull)
}

// pagesOf is how many bytes of pages the file of a handle has.
func pagesOf(t *testing.T, d *Driver, h driver.Handle) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(d.handles[h].memory.fd, &st))
	return st.Blocks * 512
}

// TestFreedPartsAreEmpty: pages go back at once, and the next memory reads zero.
func TestFreedPartsAreEmpty(t *testing.T) {
	d := New(Config{Memory: 64 * mib, Granularity: 4096})
	v := open(t, d, 0)
	const size = 256 << 10
	stays := create(t, d, size, home)
	p := reserved(t, d, size)
	for range 3 {
		h := create(t, d, size, home)
		require.Equal(t, uint64(size), d.handles[h].memory.part.off, "the same part each time")
		require.Equal(t, d.handles[stays].memory.fd, d.handles[h].memory.fd)
		require.NoError(t, d.Map(p, size, h))
		require.NoError(t, d.SetAccess(p, size, grant(0, driver.AccessReadWrite)))
		got := make([]byte, size)
		require.NoError(t, v.CopyOut(got, p))
		require.True(t, bytes.Equal(make([]byte, size), got))
		require.NoError(t, v.CopyIn(p, pattern(size)))
		require.EqualValues(t, size, pagesOf(t, d, stays))
		require.NoError(t, d.Release(h))
		require.EqualValues(t, size, pagesOf(t, d, stays))
		require.NoError(t, d.Unmap(p, size))
		require.Zero(t, pagesOf(t, d, stays))
	}
	require.NoError(t, d.Free(p, size))
	require.NoError(t, d.Release(stays))
}

// TestPartThatCannotBeEmptied is never used again. A pipe stands for a file that takes
// no holes.
func TestPartThatCannotBeEmptied(t *testing.T) {
	d := New(Config{Memory: 64 * mib, Granularity: 4096})
	page := d.granularity
	before := holds(t)
	stays, h := create(t, d, page, home), create(t, d, page, home)
	a := d.handles[h].memory.part.arena
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	fd := a.fd
	a.fd = pipe[1]
	require.NoError(t, d.Release(h))
	a.fd = fd
	require.NoError(t, unix.Close(pipe[0]))
	require.NoError(t, unix.Close(pipe[1]))
	require.Equal(t, page, used(d))

	h = create(t, d, page, home)
	require.Equal(t, 2*page, d.handles[h].memory.part.off)
	require.NoError(t, d.Release(h))
	require.NoError(t, d.Release(stays))
	require.Equal(t, before, holds(t), "it does not keep the arena")
}

// TestSmallAndSharedChunks: what can be shared has a file of its own, and so has what
// is large.
func TestSmallAndSharedChunks(t *testing.T) {
	d := New(Config{Memory: 64 * mib, Granularity: 4096})
	page := d.granularity
	var all []driver.Handle
	files := map[int]bool{}
	for _, c := range []struct {
		size uint64
		prop driver.Prop
	}{{page, home}, {arenaChunk - page, home}, {page, home}, {arenaChunk, home}, {page, shared}, {page, frozen}} {
		h := create(t, d, c.size, c.prop)
		all = append(all, h)
		files[d.handles[h].memory.fd] = true
	}
	require.Len(t, files, 4)
	for _, h := range all {
		require.NoError(t, d.Release(h))
	}
}

// TestArenaBelowTheFileSizeLimit: an arena is no larger than the process may have a
// file.
func TestArenaBelowTheFileSizeLimit(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: mib, Max: mib}))
	d := New(Config{Memory: 64 * mib, Granularity: 4096})
	small, large := create(t, d, mib/2, home), create(t, d, mib, home)
	require.NotEqual(t, d.handles[small].memory.fd, d.handles[large].memory.fd)
	_, err := d.Create(mib+d.granularity, home)
	require.ErrorIs(t, err, driver.ErrLimit)
	require.ErrorContains(t, err, "RLIMIT_FSIZE")
	require.NoError(t, d.Release(small))
	require.NoError(t, d.Release(large))
}

// TestArenasInParallel: chunks of goroutines do not meet in one arena.
func TestArenasInParallel(t *testing.T) {
	d := New(Config{Memory: 1 << 30, Granularity: 4096})
	v := open(t, d, 0)
	page := d.granularity
	stays := create(t, d, page, home)
	var all sync.WaitGroup
	for g := range 4 {
		p := reserved(t, d, arenaChunk)
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(g)))
			got := make([]byte, arenaChunk)
			for range 150 {
				size := (1 + random.Uint64N(60)) * page
				h, err := d.Create(size, home)
				if err != nil {
					t.Error(err)
					return
				}
				holds := func(b byte) error {
					if err := v.CopyOut(got[:size], p); err != nil {
						return err
					}
					if !bytes.Equal(got[:size], bytes.Repeat([]byte{b}, int(size))) {
						return fmt.Errorf("not all bytes are %d", b)
					}
					return nil
				}
				own := byte(g + 1)
				steps := []func() error{
					func() error { return d.Map(p, size, h) },
					func() error { return d.SetAccess(p, size, grant(0, driver.AccessReadWrite)) },
					func() error { return holds(0) },
					func() error { return v.CopyIn(p, bytes.Repeat([]byte{own}, int(size))) },
					func() error { return holds(own) },
					func() error { return d.Release(h) },
					func() error { return d.Unmap(p, size) },
				}
				for _, step := range steps {
					if err := step(); err != nil {
						t.Error(err)
						return
					}
				}
			}
			if err := d.Free(p, arenaChunk); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.Equal(t, page, used(d))
	require.Zero(t, pagesOf(t, d, stays))
	a := d.handles[stays].memory.part.arena
	require.Equal(t, []part{{a, page, arenaSize - page}}, a.free, "what was free is one part again")
	require.NoError(t, d.Release(stays))
}

// TestLastPartsInParallel: an arena is closed when its last two parts are freed at once.
func TestLastPartsInParallel(t *testing.T) {
	d := New(Config{Granularity: 4096})
	before := holds(t)
	for range 2000 {
		var s arenas
		p, err := s.take(d.granularity, d.newArena)
		require.NoError(t, err)
		q, err := s.take(d.granularity, d.newArena)
		require.NoError(t, err)
		var both sync.WaitGroup
		both.Go(func() { s.give(p) })
		s.give(q)
		both.Wait()
		require.Empty(t, s.nonFull)
	}
	require.Equal(t, before, holds(t))
}

// TestArenaIsTheModels compares random calls with a map of which page is taken.
func TestArenaIsTheModels(t *testing.T) {
	const pages = 64
	random := rand.New(rand.NewPCG(2, 3))
	d := New(Config{Granularity: 4096})
	page := d.granularity
	made := 0
	newArena := func(uint64) (*arena, error) {
		made++
		a, err := d.newArena(page)
		if err == nil { // a small one, so that it is full at times
			a.longest = pages * page
			a.free = []part{{a, 0, pages * page}}
		}
		return a, err
	}
	before := holds(t)
	taken := map[*arena][pages]bool{}
	var parts []part
	var s arenas
	for range 4000 {
		if len(parts) > 0 && random.IntN(100) < 48 {
			i := random.IntN(len(parts))
			p := parts[i]
			parts = append(parts[:i], parts[i+1:]...)
			s.give(p)
			is := taken[p.arena]
			for k := p.off / page; k < p.end()/page; k++ {
				is[k] = false
			}
			taken[p.arena] = is
			if is == [pages]bool{} {
				delete(taken, p.arena)
			}
			continue
		}
		size := (1 + random.Uint64N(9)) * page
		fits := false
		for _, is := range taken {
			run := uint64(0)
			for k := range is {
				if run++; is[k] {
					run = 0
				}
				fits = fits || run*page >= size
			}
		}
		was := made
		p, err := s.take(size, newArena)
		require.NoError(t, err)
		require.Equal(t, !fits, made > was, "a new arena only where no other has one")
		is := taken[p.arena]
		for k := p.off / page; k < p.end()/page; k++ {
			require.False(t, is[k], "taken twice")
			is[k] = true
		}
		taken[p.arena] = is
		parts = append(parts, p)
	}
	require.Greater(t, made, 2)
	for _, p := range parts {
		s.give(p)
	}
	require.Equal(t, before, holds(t))
	require.Empty(t, s.nonFull)
}

// TestMappingCountWithParts compares the count with /proc, where the kernel joins parts
// of an arena and splits them again.
func TestMappingCountWithParts(t *testing.T) {
	const places = 12
	d := New(Config{Devices: 2, Memory: 64 * mib, Granularity: 4096})
	page := d.granularity
	random := rand.New(rand.NewPCG(4, 5))
	size := places * page
	p := reserved(t, d, size)
	var handles []driver.Handle
	for range places {
		handles = append(handles, create(t, d, page, home))
	}
	handles = append(handles, create(t, d, page, shared))
	at := func(i int) driver.Ptr { return p + driver.Ptr(uint64(i)*page) }
	var is [places]bool
	joined := 0
	steps := testgate.Effort(600, 3000, 3000)
	for range steps {
		i, n := random.IntN(places), 1+random.IntN(4)
		j := min(i+n, places)
		switch random.IntN(5) {
		case 0, 1:
			for k := i; k < j; k++ {
				if h := handles[k]; !is[k] {
					if random.IntN(4) == 0 { // not in the place where it could be joined
						h = handles[random.IntN(len(handles))]
					}
					require.NoError(t, d.Map(at(k), page, h))
					is[k] = true
				}
			}
		case 2:
			for i < j && is[i] {
				if i++; i == j || !is[i] {
					require.NoError(t, d.Unmap(at(i-1), page))
					is[i-1] = false
				}
			}
		default:
			for i < j && !is[i] {
				i++
			}
			k := i
			for k < j && is[k] {
				k++
			}
			if k > i {
				a := []driver.Access{driver.AccessNone, driver.AccessRead, driver.AccessReadWrite}[random.IntN(3)]
				require.NoError(t, d.SetAccess(at(i), uint64(k-i)*page, grant(random.IntN(2), a)))
			}
		}
		kernel := inside(t, p, size)
		require.Equal(t, kernel, d.mappings)
		mapped := 0
		for k := range is {
			if is[k] {
				mapped++
			}
		}
		if mapped > 2 && kernel < mapped {
			joined++
		}
	}
	require.Greater(t, joined, steps/30, "the kernel has joined nothing: this test tests little")
	for k := range is {
		if is[k] {
			require.NoError(t, d.Unmap(at(k), page))
		}
	}
	require.Equal(t, 1, d.mappings)
	require.NoError(t, d.Free(p, size))
	for _, h := range handles {
		require.NoError(t, d.Release(h))
	}
}

// TestGivingUpAtTheLimit: where no mapping may be taken any more, access that splits a
// joined mapping is refused, and giving one of its parts up works.
func TestGivingUpAtTheLimit(t *testing.T) {
	d := New(Config{Memory: 64 * mib, Granularity: 4096, Mappings: 2})
	page := d.granularity
	p := reserved(t, d, 4*page)
	var handles []driver.Handle
	for i := range driver.Ptr(3) {
		handles = append(handles, create(t, d, page, home))
		require.NoError(t, d.Map(p+i*driver.Ptr(page), page, handles[i]))
	}
	middle := p + driver.Ptr(page)
	require.NoError(t, d.SetAccess(p, 3*page, grant(0, driver.AccessReadWrite)))
	require.Equal(t, 2, d.mappings)
	require.ErrorIs(t, d.SetAccess(middle, page, grant(0, driver.AccessRead)), driver.ErrLimit)
	a, err := d.Access(middle, on(0))
	require.NoError(t, err)
	require.Equal(t, driver.AccessReadWrite, a)
	require.Equal(t, "rw-s", rights(t, middle))
	require.Equal(t, 2, d.mappings)

	require.NoError(t, d.SetAccess(middle, page, grant(0, driver.AccessNone)))
	require.NoError(t, d.Unmap(middle, page))
	require.Equal(t, 4, d.mappings)
	_, err = d.Reserve(page, 0)
	require.ErrorIs(t, err, driver.ErrLimit)
	require.NoError(t, d.Map(middle, page, handles[1]), "in place of a gap")
	require.NoError(t, d.Unmap(middle, page))
	require.NoError(t, d.Unmap(p, page))
	require.NoError(t, d.Unmap(p+driver.Ptr(2*page), page))
	require.NoError(t, d.Free(p, 4*page))
	for _, h := range handles {
		require.NoError(t, d.Release(h))
	}
}

// TestAccessOnItsWay: one SetAccess that splits one half and joins the other needs more
// mappings on its way than before or after it.
func TestAccessOnItsWay(t *testing.T) {
	const n, before, peak = 8, 4, 3
	for _, limit := range []int{before + peak - 1, before + peak} {
		d := New(Config{Devices: 2, Memory: 64 * mib, Granularity: 4096, Mappings: limit})
		page := d.granularity
		p := reserved(t, d, n*page)
		at := func(i int) driver.Ptr { return p + driver.Ptr(uint64(i)*page) }
		var handles []driver.Handle
		for i := range n {
			handles = append(handles, create(t, d, page, home))
			require.NoError(t, d.Map(at(i), page, handles[i]))
		}
		// The first half is joined while device 0 may write all of it, the second half
		// is not.
		require.NoError(t, d.SetAccess(p, n*page, grant(0, driver.AccessReadWrite)))
		for _, i := range []int{0, 2} {
			require.NoError(t, d.SetAccess(at(i), page, grant(1, driver.AccessReadWrite)))
		}
		for _, i := range []int{5, 7} {
			require.NoError(t, d.SetAccess(at(i), page, grant(0, driver.AccessNone)))
		}
		require.Equal(t, before, d.mappings)
		err := d.SetAccess(p, n*page, grant(0, driver.AccessRead))
		if limit == before+peak {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, driver.ErrLimit)
		}
		require.Equal(t, before, d.mappings)
		require.Equal(t, before, inside(t, p, n*page))
		require.NoError(t, d.Unmap(p, n*page))
		require.NoError(t, d.Free(p, n*page))
		for _, h := range handles {
			require.NoError(t, d.Release(h))
		}
	}
}

// TestGivingUpAtTheProcessLimit is the same at the limit of the process, which leaves
// some mappings for that.
func TestGivingUpAtTheProcessLimit(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	limit := maxMapCount()
	if limit > 1<<17 {
		t.Skipf("needs a smaller vm.max_map_count than %d, to reach it", limit)
	}
	d := New(Config{Memory: 64 * mib, Granularity: 4096})
	page := d.granularity
	const n = 2 * spareForLess
	p := reserved(t, d, (n+1)*page)
	for i := range driver.Ptr(n) {
		require.NoError(t, d.Map(p+i*driver.Ptr(page), page, create(t, d, page, home)))
	}
	_, undo := sieve(t, New(Config{Memory: 64 * mib, Granularity: 4096}), limit)
	// Every second one, until that is refused too.
	var err error
	given := 0
	for i := driver.Ptr(1); i < n && err == nil; i += 2 {
		if err = d.Unmap(p+i*driver.Ptr(page), page); err == nil {
			given++
		}
	}
	require.ErrorIs(t, err, driver.ErrLimit)
	require.InDelta(t, spareForLess/2, given, 8)
	all, _ := mapped()
	require.Less(t, all, limit-spareForLess+16, "the rest is the Go runtime's")
	require.NoError(t, d.Unmap(p+driver.Ptr((n-1)*page), page), "at the end it takes none")
	undo()
	require.NoError(t, d.Unmap(p+driver.Ptr((n-3)*page), page))
}
