//go:build linux

package host

import (
	"crypto/rand"
	"encoding/binary"
	"os"
	"strconv"

	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

var _ driver.LegacyIPC = (*device)(nil)

// A handle says where another process finds the memory or the event, and ends in a
// number that no other has: a file of this process, which has the same 64 bytes as a mark.
const handleMagic = "cuvmmIPC"

// What a handle is of.
const (
	ofMemory = 1
	ofEvent  = 2
)

// ipcHandle is the first 48 bytes of a handle, in their order. The last 16 of its 64 bytes are random,
// so that no two handles are the same.
type ipcHandle struct {
	Magic   [8]byte
	Kind    byte
	_       byte
	Dev     uint16
	FD      uint32 // of the process that made it
	Process uint64 // see wordOf
	Off     uint64
	N       uint64 // bytes, for memory

	Namespace uint64 // of Process
}

// name is the 64 bytes of a new handle.
func (h ipcHandle) name() (b [64]byte) {
	copy(h.Magic[:], handleMagic)
	_, _ = binary.Encode(b[:], binary.LittleEndian, h) // 48 bytes
	_, _ = rand.Read(b[48:])
	return b
}

// parseHandle takes a handle of that kind apart.
func parseHandle(verb string, kind byte, b driver.IPCHandle) (ipcHandle, error) {
	var h ipcHandle
	_, err := binary.Decode(b[:], binary.LittleEndian, &h)
	if err != nil || string(h.Magic[:]) != handleMagic || h.Kind != kind || h.Process == 0 {
		return h, refuse(verb, driver.ErrInvalid, "no handle of the host driver for that")
	}
	return h, nil
}

// openFile opens the file of a handle, which must be a memory file of this package.
// Anything else is not opened, because to open it may block or have effects.
func (d *Driver) openFile(verb string, h ipcHandle) (int, error) {
	of := "self"
	if !isSelf(h.Process, h.Namespace) {
		if self, err := d.self(); err != nil {
			return -1, err
		} else if h.Namespace != self.Namespace || !processes.Shown() {
			return -1, refuse(verb, driver.ErrInvalid, "process %d or /proc here is of another pid namespace", pidOf(h.Process))
		}
		of = strconv.Itoa(pidOf(h.Process))
	}
	name := "/proc/" + of + "/fd/" + strconv.FormatUint(uint64(h.FD), 10)
	link, err := os.Readlink(name)
	if err != nil || link != "/memfd:"+memfdName+" (deleted)" {
		return -1, refuse(verb, driver.ErrInvalid, "process %d has ended or has freed it, or is not this user's", pidOf(h.Process))
	}
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == unix.EMFILE || err == unix.ENFILE {
		return -1, d.fail("open", driver.ErrOutOfMemory, err)
	}
	if err != nil {
		return -1, refuse(verb, driver.ErrInvalid, "open %s: %w", name, err)
	}
	if _, _, err := d.inspect(verb, fd); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// MemHandle marks the block with its handle.
func (v *device) MemHandle(p driver.Ptr) (h driver.IPCHandle, err error) {
	const verb = "MemHandle"
	err = v.withMemory(verb, func() error {
		r := v.context.d.region(uint64(p))
		if r == nil || r.block == nil || r.base != uint64(p) || r.block.context != v.context || r.block.pool != nil || r.file == nil {
			return refuse(verb, driver.ErrInvalid, "at %v is no plain memory of host:%d", p, v.context.state.ordinal)
		}
		if r.block.name == [64]byte{} {
			id, err := v.context.d.self()
			if err != nil {
				return err
			}
			self := ipcHandle{Kind: ofMemory, Dev: uint16(v.context.state.ordinal), FD: uint32(r.file.fd), Process: wordOf(id), Namespace: id.Namespace, Off: r.off, N: r.block.n}
			name := self.name()
			if err := v.context.d.mark(r.file, r.off, r.size, name); err != nil {
				return err
			}
			r.block.name = name
		}
		h = r.block.name
		return nil
	})
	return h, err
}

// OpenMem maps the memory of a handle, of any other Driver.
func (v *device) OpenMem(name driver.IPCHandle) (p driver.Ptr, err error) {
	const verb = "OpenMem"
	err = v.withMemory(verb, func() error {
		if r := v.context.opened[name]; r != nil {
			r.block.opens++
			p = driver.Ptr(r.base)
			return nil
		}
		h, err := parseHandle(verb, ofMemory, name)
		if err != nil {
			return err
		}
		on, err := v.reaches(verb, uint32(h.Dev))
		if err != nil {
			return err
		}
		if v.context.d.made(h) {
			return refuse(verb, driver.ErrInvalid, "the handle is of this process, which has the memory already")
		}
		r, err := v.openBlock(verb, h, name)
		if err != nil {
			return err
		}
		r.block = &block{context: v.context, n: h.N, name: name, foreign: on, opens: 1}
		v.context.opened[name] = r
		v.context.d.insert(r)
		p = driver.Ptr(r.base)
		return nil
	})
	return p, err
}

// made reports whether a handle of memory is one of this Driver's.
func (d *Driver) made(h ipcHandle) bool {
	if !isSelf(h.Process, h.Namespace) {
		return false
	}
	for _, r := range d.regions {
		if r.block != nil && r.file != nil && r.file.fd == int(h.FD) {
			return true
		}
	}
	return false
}

// openBlock maps the block of a handle.
func (v *device) openBlock(verb string, h ipcHandle, name [64]byte) (*region, error) {
	d := v.context.d
	fd, err := d.openFile(verb, h)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, d.fail("fstat", driver.ErrInvalid, err)
	}
	size := wholePages(h.N)
	if h.N > addressLimit || !inFile(h.Off, size, h.N, uint64(st.Size)) {
		return nil, refuse(verb, driver.ErrInvalid, "no handle of the host driver for that")
	}
	return d.mapForeign(verb, fd, h.Off, size, name)
}

// CloseMem unmaps the memory with the last close. If work still uses it, the devices are
// lost.
func (v *device) CloseMem(p driver.Ptr) error {
	const verb = "CloseMem"
	return v.withMemory(verb, func() error {
		d := v.context.d
		r := d.region(uint64(p))
		if r == nil || r.block == nil || r.base != uint64(p) || r.block.context != v.context || r.block.opens == 0 {
			return refuse(verb, driver.ErrInvalid, "nothing was opened at %v", p)
		}
		if r.block.opens > 1 {
			r.block.opens--
			return nil
		}
		d.loseIfUsed(within(r.base, r.end()))
		d.remove(r)
		if err := d.unmapBlock(r); err != nil {
			return err
		}
		delete(v.context.opened, r.block.name)
		return nil
	})
}
