package drivertest

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func shareRules() []Rule {
	return needing([]Rule{
		{Name: "export-private", Says: "memory created without a way to share cannot be exported", Source: measured, run: exportPrivate},
		{Name: "export-cloexec", Says: "an exported descriptor does not pass to programs that this one starts", Source: measured, run: exportCloexec},
		{Name: "export-keeps", Says: "a descriptor alone keeps memory and data; when it is closed, all of the memory comes back", Source: measured, run: onDevice(exportKeeps)},
		{Name: "import-same", Says: "an imported handle shows the exporter's bytes, starts without access, and outlives the exporter's handle", Source: measured, run: onDevice(importSame)},
		{Name: "import-leaves-fd", Says: "import does not close the descriptor, and closing it harms no handle", Source: measured, run: importLeavesFD},
		{Name: "import-twice", Says: "one descriptor can be imported twice, and both handles can be mapped", Source: measured, run: onDevice(importTwice)},
		{Name: "import-foreign", Says: "a descriptor of anything else is ErrInvalid, and the device stays healthy", Source: measured, run: onDevice(importForeign)},
		{Name: "import-size", Says: "a wrong size fails at import or at map, as ErrInvalid", Source: measured, run: importSize},
		{Name: "import-refused", Says: "import with LocationOwner is ErrInvalid, with a device that does not exist ErrNoDevice", Source: seam, run: importRefused},
		{Name: "import-location", Says: "Properties says where imported memory is, whichever location Import was passed, and that it cannot be exported", Source: measured, devices: 2, run: importLocation},
		{Name: "share-read-only", Says: "memory shared read-only is never writable for an importer, and the owner keeps writing", Source: seam, run: onDevice(shareReadOnly)},
		{Name: "share-freed", Says: "Freed is false until memory is released and its last descriptor closed", Source: seam, run: shareFreed},
	}, driver.FeatureShareFD)
}

func shared() driver.Prop { return driver.Prop{Location: at(0), Share: driver.ShareFD} }

// sharedChunk is one mapped, shareable granule of device 0, filled with b.
func (c *check) sharedChunk(b byte) (driver.Ptr, driver.Handle) {
	c.Helper()
	h := c.createAs(c.gran, shared())
	p := c.mapped(h, driver.AccessReadWrite)
	c.write(c.dev(0), p, c.gran, b)
	return p, h
}

// export returns a descriptor as a file that is closed at the end of the case.
func (c *check) export(h driver.Handle) *os.File {
	c.Helper()
	fd := valueOf(c.d.Export(h)).must(c, "export handle %d", h)
	return c.exported(fd)
}

// exported is a descriptor that an export returned, as a file that is closed at the end of
// the case.
func (c *check) exported(fd int) *os.File {
	c.Helper()
	f := os.NewFile(uintptr(fd), "exported")
	if f == nil {
		c.Fatalf("exported descriptor is %d", fd)
	}
	return c.later(f)
}

// later closes a file at the end of the case, if the case has not.
func (c *check) later(f *os.File) *os.File {
	c.Cleanup(func() { _ = f.Close() })
	return f
}

func (c *check) importAs(f *os.File, size uint64, p driver.Prop) driver.Handle {
	c.Helper()
	h := valueOf(c.d.Import(int(f.Fd()), size, p)).must(c, "import")
	c.held.handles[h] = true
	return h
}

func (c *check) close(f *os.File) {
	c.Helper()
	c.must(f.Close(), "close the descriptor")
}

func exportPrivate(c *check) {
	c.want(errOf(c.d.Export(c.create(c.gran))), "export private memory", driver.ErrInvalid)
	c.want(errOf(c.d.Export(0)), "export handle 0", driver.ErrInvalid)
	h := c.createAs(c.gran, shared())
	c.release(h)
	c.want(errOf(c.d.Export(h)), "export a released handle", driver.ErrInvalid)
}

func exportCloexec(c *check) {
	_, h := c.sharedChunk(1)
	c.cloexec(c.export(h))
}

// cloexec checks that a descriptor is close-on-exec.
func (c *check) cloexec(f *os.File) {
	c.Helper()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd()))
	if errors.Is(err, os.ErrNotExist) {
		c.skip("no /proc/self/fdinfo")
	}
	c.must(err, "read the descriptor's flags")
	_, flags, _ := strings.Cut(string(info), "flags:")
	flags, _, _ = strings.Cut(flags, "\n")
	bits := valueOf(strconv.ParseUint(strings.TrimSpace(flags), 8, 64)).must(c, "parse the descriptor's flags")
	const cloexec = 0o2000000 // in /proc, whatever the architecture's O_CLOEXEC
	if bits&cloexec == 0 {
		c.Errorf("exported descriptor has flags %#o, without close-on-exec", bits)
	}
}

func exportKeeps(c *check, d driver.Device) {
	before := c.freeMemory(d)
	p, h := c.sharedChunk(5)
	f := c.export(h)
	c.unmap(p, c.gran)
	c.release(h)
	c.taken(d, c.gran, before, "with a descriptor open")
	// Not only the memory is kept, but its bytes too.
	again := c.importAs(f, c.gran, shared())
	q := c.mapped(again, driver.AccessReadWrite)
	c.reads(d, q, c.gran, 5)
	c.unmap(q, c.gran)
	c.release(again)
	c.taken(d, c.gran, before, "after the importer went")
	c.close(f)
	c.allFree(d, before, "with the descriptor closed")
}

func importSame(c *check, d driver.Device) {
	p, h := c.sharedChunk(1)
	f := c.export(h)
	imported := c.importAs(f, c.gran, shared())
	q := c.placed(imported)
	c.noAccess(d, q)
	c.access(q, c.gran, grant(0, driver.AccessReadWrite))
	c.reads(d, q, c.gran, 1)
	c.write(d, q, c.gran, 2)
	c.reads(d, p, c.gran, 2)
	c.close(f)
	c.unmap(p, c.gran)
	c.release(h)
	c.reads(d, q, c.gran, 2)
}

func importLeavesFD(c *check) {
	_, h := c.sharedChunk(3)
	f := c.export(h)
	imported := c.importAs(f, c.gran, shared())
	if _, err := f.Stat(); err != nil {
		c.Errorf("the descriptor after import: %v", err)
	}
	c.close(f)
	c.reads(c.dev(0), c.mapped(imported, driver.AccessReadWrite), c.gran, 3)
}

func importTwice(c *check, d driver.Device) {
	_, h := c.sharedChunk(4)
	f := c.export(h)
	first, second := c.importAs(f, c.gran, shared()), c.importAs(f, c.gran, shared())
	if first == second {
		c.Fatalf("both imports are handle %d", first)
	}
	p, q := c.mapped(first, driver.AccessReadWrite), c.mapped(second, driver.AccessReadWrite)
	c.reads(d, p, c.gran, 4)
	c.unmap(p, c.gran)
	c.release(first)
	c.reads(d, q, c.gran, 4)
	c.want(errOf(c.d.Export(second)), "export what was imported", driver.ErrInvalid)
}

// foreign opens files that are no memory: those of the paths that are there, an empty one,
// and both ends of a pipe.
func (c *check) foreign(paths ...string) map[string]*os.File {
	c.Helper()
	files := map[string]*os.File{}
	for _, path := range paths {
		if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
			files[path] = c.later(f)
		}
	}
	empty := valueOf(os.Create(filepath.Join(c.TempDir(), "empty"))).must(c, "make a file")
	files["an empty file"] = c.later(empty)
	r, w, err := os.Pipe()
	c.must(err, "make a pipe")
	files["the reading end of a pipe"], files["the writing end of a pipe"] = c.later(r), c.later(w)
	return files
}

// noImport checks that none of the files can be imported, and that all stay open.
func (c *check) noImport(files map[string]*os.File, f func(fd int) error) {
	c.Helper()
	for what, file := range files {
		c.want(f(int(file.Fd())), "import "+what, driver.ErrInvalid)
		if _, err := file.Stat(); err != nil {
			c.Errorf("%s after the refused import: %v", what, err)
		}
	}
}

func importForeign(c *check, d driver.Device) {
	foreign := c.foreign("/dev/null", "/dev/zero", "/dev/nvidiactl")
	full := valueOf(os.Create(filepath.Join(c.TempDir(), "full"))).must(c, "make a file")
	c.must(full.Truncate(int64(c.gran)), "size a file")
	foreign["a file of the right size"] = c.later(full)
	// Like a memfd, but without seals.
	if f, err := os.CreateTemp("/dev/shm", "drivertest"); err == nil {
		c.Cleanup(func() { _ = os.Remove(f.Name()) })
		c.must(f.Truncate(int64(c.gran)), "size a file")
		foreign["a shared memory file of the right size"] = c.later(f)
	}
	dir := valueOf(os.Open(c.TempDir())).must(c, "open a directory")
	foreign["a directory"] = c.later(dir)
	c.noImport(foreign, func(fd int) error { return errOf(c.d.Import(fd, c.gran, shared())) })
	for _, fd := range []int{-1, math.MaxInt32, math.MinInt} {
		c.want(errOf(c.d.Import(fd, c.gran, shared())), fmt.Sprintf("import descriptor %d", fd), driver.ErrInvalid)
	}
	p, _ := c.chunks(1)
	c.write(d, p, c.gran, 1)
	c.must(d.Sync(), "sync afterwards")
}

func importSize(c *check) {
	prop := shared()
	h := c.createAs(2*c.gran, prop)
	f := c.export(h)
	p := c.reserve(4 * c.gran)
	for _, size := range []uint64{0, 1, c.gran, c.gran + 1, 3 * c.gran, 4 * c.gran, 1 << 63, -c.gran} {
		doing := fmt.Sprintf("import %d bytes of %d", size, 2*c.gran)
		got, err := c.d.Import(int(f.Fd()), size, prop)
		if err == nil {
			c.held.handles[got] = true
			err = c.d.Map(p, size, got)
		}
		c.want(err, doing, driver.ErrInvalid)
	}
	c.mapHandle(p, 2*c.gran, c.importAs(f, 2*c.gran, prop))
}

func importRefused(c *check) {
	_, h := c.sharedChunk(1)
	f := c.export(h)
	c.want(errOf(c.d.Import(int(f.Fd()), c.gran, driver.Prop{Share: driver.ShareFD})), "import onto Here", driver.ErrInvalid)
	c.want(errOf(c.d.Import(int(f.Fd()), c.gran, driver.Prop{Location: at(len(c.info)), Share: driver.ShareFD})), "import onto a device that is not there", driver.ErrNoDevice)
}

func importLocation(c *check) {
	for dev := range 2 {
		h := c.createAs(c.gran, driver.Prop{Location: at(dev), Share: driver.ShareFD})
		f := c.export(h)
		for told := range 2 {
			imported := c.importAs(f, c.gran, driver.Prop{Location: at(told), Share: driver.ShareFD})
			c.created(imported, driver.Prop{Location: at(dev)})
			c.release(imported)
		}
		c.created(h, driver.Prop{Location: at(dev), Share: driver.ShareFD})
		c.release(h)
		c.want(errOf(c.d.Properties(h)), "ask for the properties of a released handle", driver.ErrInvalid)
		c.close(f)
	}
}

// created checks what a handle's memory was created with.
func (c *check) created(h driver.Handle, want driver.Prop) {
	c.Helper()
	got := valueOf(c.d.Properties(h)).must(c, "ask for the properties of handle %d", h)
	equal(c, got, want, "the properties of handle %d", h)
}

func shareReadOnly(c *check, d driver.Device) {
	prop := driver.Prop{Location: at(0), Share: driver.ShareFD | driver.ShareReadOnly}
	h := valueOf(c.d.Create(c.gran, prop)).optional(c, "memory that is shared read-only")
	c.held.handles[h] = true
	p := c.mapped(h, driver.AccessReadWrite)
	c.write(d, p, c.gran, 1)
	// Only now, because the first export may seal the memory against new writable
	// mappings.
	f := c.export(h)
	imported := c.importAs(f, c.gran, prop)
	q := c.mapped(imported, driver.AccessRead)
	c.reads(d, q, c.gran, 1)
	c.write(d, p, c.gran, 2)
	c.reads(d, q, c.gran, 2)
	c.want(c.d.SetAccess(q, c.gran, []driver.Grant{grant(0, driver.AccessReadWrite)}), "ask to write what is shared read-only", driver.ErrPermission)
	c.refusesWrites(d, q)

	// Nor does it help to import it with other properties.
	upgraded, err := c.d.Import(int(f.Fd()), c.gran, shared())
	if err == nil {
		c.held.handles[upgraded] = true
		err = c.d.SetAccess(c.placed(upgraded), c.gran, []driver.Grant{grant(0, driver.AccessReadWrite)})
	}
	c.want(err, "import it as writable", driver.ErrPermission)
}

func shareFreed(c *check) {
	h := c.createAs(c.gran, shared())
	f := c.export(h)
	freed := func(want bool, when string) {
		c.Helper()
		equal(c, valueOf(c.d.Freed(h)).optional(c, "FreeReporter"), want, "Freed %s", when)
	}
	freed(false, "before the release")
	c.release(h)
	freed(false, "with a descriptor open")
	c.close(f)
	freed(true, "after the last descriptor")
}
