package ipc

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// Token names a block of a pool in a process that has imported the pool. It is plain data.
type Token struct {
	Raw  [64]byte // a CUmemPoolPtrExportData on CUDA
	Size uint64   // of the block in bytes; for a token that does not tell it, set it before Import
}

// MarshalText is the text form: one line of base64 of Raw, then lines for the rest.
func (t Token) MarshalText() ([]byte, error) {
	kind := tokenKind
	return appendText(t.Raw, t.fields(&kind)), nil
}

// UnmarshalText reads the text form, a line of base64 alone, or the 64 bytes themselves.
// Anything else is ErrHandle, and leaves the token as it was.
func (t *Token) UnmarshalText(text []byte) error {
	if t == nil {
		return fmt.Errorf("%w: nil", ErrHandle)
	}
	var read Token
	kind := ""
	raw, err := parseText(text, read.fields(&kind))
	if err == nil && kind != "" && kind != tokenKind {
		err = fmt.Errorf("%w: it is of kind %q", ErrHandle, kind)
	}
	if err != nil {
		return err
	}
	read.Raw = raw
	*t = read
	return nil
}

const tokenKind = "block"

func (t *Token) fields(kind *string) []field {
	return []field{{name: "kind", text: kind}, {name: "size", value: &t.Size, base: 10}}
}

// ExportPool returns a new, close-on-exec descriptor of a pool, by which another process
// imports it. The pool must have been made by pool.NewDriver with Options.Share: a default
// pool, and any other that was not, is ErrNotShared. The driver keeps the memory of such a
// pool as long as a descriptor of it or an import is left. The caller must close it.
func ExportPool(p *pool.DriverPool) (fd int, err error) {
	defer func() { err = fail(p.Device(), "export pool", 0, 0, err) }()
	handle, release, err := p.Hold()
	if err != nil {
		return -1, err
	}
	defer release()
	calls, err := sharer(p.Device())
	if err != nil {
		return -1, err
	}
	if fd, err = calls.ExportPool(handle); err != nil {
		return -1, notShared(err)
	}
	return fd, nil
}

// ExportPointer returns a token of a block, with which a process that has imported the pool
// imports the block. Work that writes the block may still run: the importer waits for an
// event of it. The block must not be freed before every importer has freed it. If it is
// imported in this process, freeing it is vmm.ErrBusy until then. Errors are ErrNotShared,
// pool.ErrDoubleFree, pool.ErrForeignBlock, and vmm.ErrInvalid for a block of 0 bytes.
func ExportPointer(p *pool.DriverPool, b pool.Block) (_ Token, err error) {
	defer func() { err = fail(p.Device(), "export block", b.Ptr(), b.Size(), err) }()
	release, err := p.HoldBlock(b)
	if err != nil {
		return Token{}, err
	}
	defer release()
	calls, err := sharer(p.Device())
	if err != nil {
		return Token{}, err
	}
	raw, err := calls.ExportPointer(b.Ptr())
	if err != nil {
		return Token{}, notShared(err)
	}
	tokens.addOwn(keyOf(p.Device(), raw), ownBlock{p, b})
	return Token{Raw: raw, Size: b.Size()}, nil
}

// sharer is the driver's device with the calls that share pools.
func sharer(dev *vmm.Device) (driver.PoolSharer, error) {
	raw, err := dev.Raw()
	if err != nil {
		return nil, err
	}
	calls, ok := raw.(driver.PoolSharer)
	if !ok {
		return nil, fmt.Errorf("%w: pools that other processes can import", vmm.ErrNotSupported)
	}
	return calls, nil
}

// notShared names why a pool that is open cannot be exported.
func notShared(err error) error {
	if errors.Is(err, vmm.ErrInvalid) {
		return fmt.Errorf("%w: %w", ErrNotShared, err)
	}
	return err
}
