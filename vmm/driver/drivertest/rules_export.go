package drivertest

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Address spans as dma-buf.
func rangeRules() []Rule {
	return []Rule{
		{Name: "range-export", Says: "a span of pages, of one chunk or several, is a descriptor of that size that is close-on-exec, where the device supports dma-buf", Source: measured, run: rangeExport},
		{Name: "range-refused", Says: "a span that is empty, no whole pages, or not all mapped is ErrInvalid", Source: measured, run: rangeRefused},
		{Name: "range-flags", Says: "a flag that the driver knows changes neither size nor close-on-exec; one that it does not know is ErrNotSupported", Source: manual, run: rangeFlags},
		{Name: "range-keeps", Says: "a dma-buf alone keeps memory; when it is closed, all of the memory comes back", Source: measured, run: onDevice(rangeKeeps)},
	}
}

// Memory shared by 64-byte handles.
func fabricRules() []Rule {
	return []Rule{
		{Name: "fabric-create", Says: "memory for fabric handles can be created where they are supported; elsewhere it is ErrNotSupported or ErrPermission, and the text says fabric", Source: measured, run: fabricCreate},
		{Name: "fabric-private", Says: "memory created without a fabric handle has none", Source: measured, run: fabricPrivate},
		{Name: "fabric-same", Says: "a handle imported by its name shows the exporter's bytes and cannot be exported again", Source: manual, needs: []driver.Feature{driver.FeatureShareFabric}, run: onDevice(fabricSame)},
		{Name: "fabric-foreign", Says: "an unknown name is ErrInvalid, or ErrNotSupported where there is no fabric", Source: measured, run: fabricForeign},
	}
}

// exportRange returns a dma-buf as a file that is closed at the end of the case.
func (c *check) exportRange(p driver.Ptr, n uint64) *os.File {
	c.Helper()
	fd, err := c.d.ExportRange(p, n, 0)
	if errors.Is(err, driver.ErrNotSupported) && c.d.Supports(0, driver.FeatureDMABuf) == nil {
		c.Errorf("export %d bytes: %v, and Supports says that it is there", n, err)
	}
	c.optional(err, "RangeExporter")
	return c.exported(fd)
}

// isDMABuf checks that a descriptor is close-on-exec and of n bytes.
func (c *check) isDMABuf(f *os.File, n uint64) {
	c.Helper()
	c.cloexec(f)
	info := valueOf(f.Stat()).must(c, "stat")
	equal(c, info.Size(), int64(n), "the size of a descriptor")
}

func rangeExport(c *check) {
	c.dev(0)
	p, _ := c.chunks(3)
	for _, s := range []struct{ off, n uint64 }{
		{0, c.gran}, {0, 3 * c.gran}, {c.gran, 2 * c.gran}, {pageSize, pageSize}, {c.gran - pageSize, 2 * pageSize},
	} {
		c.isDMABuf(c.exportRange(p+driver.Ptr(s.off), s.n), s.n)
	}
	c.must(c.d.Supports(0, driver.FeatureDMABuf), "ask for what was just done")
}

// pageSize is a multiple of the page size of any host that GPUs are used on.
const pageSize = 4096

func rangeRefused(c *check) {
	c.dev(0)
	p, _ := c.chunks(3)
	c.close(c.exportRange(p, 3*c.gran))
	c.unmap(c.chunk(p, 1), c.gran)
	for _, bad := range []struct {
		p driver.Ptr
		n uint64
	}{
		{p, 0}, {p + 1, pageSize}, {p, pageSize + 1}, {p, 2 * c.gran}, {p, 3 * c.gran}, {c.chunk(p, 1), c.gran},
		{c.chunk(p, 2), 2 * c.gran}, {p, 1 << 62}, {p, math.MaxUint64 - pageSize + 1}, {0, pageSize},
	} {
		fd, err := c.d.ExportRange(bad.p, bad.n, 0)
		c.want(err, fmt.Sprintf("export %d bytes at %v", bad.n, bad.p), driver.ErrInvalid)
		equal(c, fd, -1, "the descriptor of a refused export")
	}
	c.close(c.exportRange(p, c.gran))
}

func rangeFlags(c *check) {
	c.dev(0)
	p, _ := c.chunks(1)
	c.close(c.exportRange(p, c.gran)) // else there is no dma-buf at all
	for flags := driver.DMABufFlags(1); flags != 0; flags <<= 1 {
		fd, err := c.d.ExportRange(p, c.gran, flags)
		if err != nil || flags != driver.DMABufPCIe {
			c.want(err, fmt.Sprintf("export with flags %#x", flags), driver.ErrNotSupported)
			continue
		}
		c.isDMABuf(c.exported(fd), c.gran)
	}
}

func rangeKeeps(c *check, d driver.Device) {
	before := c.freeMemory(d)
	h := c.create(c.gran)
	p := c.mapped(h, driver.AccessReadWrite)
	f := c.exportRange(p, c.gran)
	c.unmap(p, c.gran)
	c.release(h)
	c.taken(d, c.gran, before, "with a dma-buf open")
	c.close(f)
	c.allFree(d, before, "after the dma-buf was closed")
}

func inFabric() driver.Prop { return driver.Prop{Location: at(0), Share: driver.ShareFabric} }

func fabricCreate(c *check) {
	supported := c.d.Supports(0, driver.FeatureShareFabric)
	h, err := c.d.Create(c.gran, inFabric())
	if err == nil {
		c.held.handles[h] = true
		c.must(supported, "ask for what was just done")
		return
	}
	c.want(supported, "ask for fabric handles", driver.ErrNotSupported)
	c.want(err, "create memory for fabric handles", driver.ErrNotSupported, driver.ErrPermission)
	if !strings.Contains(err.Error(), "fabric") {
		c.Errorf("%v does not say what there is none of", err)
	}
}

func fabricPrivate(c *check) {
	for _, h := range []driver.Handle{c.create(c.gran), c.createAs(c.gran, shared())} {
		_, err := c.d.ExportFabric(h)
		if errors.Is(err, driver.ErrNotSupported) {
			c.skip("no FabricSharer")
		}
		c.want(err, "export memory without a fabric handle", driver.ErrInvalid)
	}
	c.want(errOf(c.d.ExportFabric(0)), "export handle 0", driver.ErrInvalid)
}

func fabricSame(c *check, d driver.Device) {
	h := c.createAs(c.gran, inFabric())
	p := c.mapped(h, driver.AccessReadWrite)
	c.write(d, p, c.gran, 3)
	c.want(errOf(c.d.Export(h)), "export it as a descriptor", driver.ErrInvalid)
	name := valueOf(c.d.ExportFabric(h)).must(c, "export")
	for _, size := range []uint64{0, c.gran + 1} {
		c.want(errOf(c.d.ImportFabric(name, size, inFabric())), fmt.Sprintf("import %d bytes", size), driver.ErrInvalid)
	}
	// The same memory, seen from both handles.
	imported := valueOf(c.d.ImportFabric(name, c.gran, inFabric())).must(c, "import")
	c.held.handles[imported] = true
	q := c.mapped(imported, driver.AccessReadWrite)
	c.reads(d, q, c.gran, 3)
	c.write(d, q, c.gran, 4)
	c.reads(d, p, c.gran, 4)
	c.want(errOf(c.d.ExportFabric(imported)), "export what was imported", driver.ErrInvalid)
}

func fabricForeign(c *check) {
	var junk [64]byte
	for i := range junk {
		junk[i] = byte(i) + 1
	}
	kind := driver.ErrInvalid
	prop := inFabric()
	if c.d.Supports(0, driver.FeatureShareFabric) != nil {
		kind, prop = driver.ErrNotSupported, shared()
	}
	for _, name := range [][64]byte{{}, junk} {
		c.want(errOf(c.d.ImportFabric(name, c.gran, prop)), "import a name of nothing", kind)
	}
}
