package ipc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// Exporter lets other processes import blocks of a Pool of ours, over a shareable.Server. While
// a block is exported its memory stays, and freeing it is vmm.ErrBusy. Safe for concurrent use.
// The caller must Close it, before the pool and the server.
type Exporter struct {
	// Immutable.
	srv    *shareable.Server
	pool   *pool.Pool
	noHold bool // set by tests only: an exported block can be freed

	mu     sync.Mutex // held across calls of the driver that export chunks
	closed bool
	blocks map[vmm.Ptr]*exported // by where they are, since a block that is held stays there
}

// exported is a block that is exported.
type exported struct {
	token BlockToken
	span  *shareable.Span
	free  func() // lets the block be freed
}

// NewExporter makes an Exporter of blocks of p. The pool must have been made with
// Options.Share = vmm.ShareFD, else NewExporter returns ErrNotShared. With vmm.ShareReadOnly, too,
// no importer can write. If the pool is of another driver than the server's device, Export
// returns vmm.ErrInvalid.
//
// Each block that is imported takes a connection of s: see shareable.Options.MaxConns and
// MaxConnsPerUID, and MaxObjects for those that are exported. The caller must Close the Exporter.
func NewExporter(s *shareable.Server, p *pool.Pool) (*Exporter, error) {
	var err error
	switch {
	case s == nil || s.Instance() == [16]byte{}:
		err = fmt.Errorf("%w: no server", vmm.ErrInvalid)
	case p.Device() == nil:
		err = fmt.Errorf("%w: no pool", vmm.ErrInvalid)
	case p.Share()&vmm.ShareFD == 0:
		err = ErrNotShared
	}
	if err != nil {
		return nil, fail(p.Device(), "make exporter", 0, 0, err)
	}
	return &Exporter{srv: s, pool: p, blocks: map[vmm.Ptr]*exported{}}, nil
}

var errNoExporter = fmt.Errorf("%w: no exporter", vmm.ErrInvalid)

// Export returns a token of a block, with which Importers in other processes, or in this one,
// import it until Unexport. A block that is exported already gets the same token; if b is longer
// than what was exported, as after pool.Pool.Resize, that is vmm.ErrBusy until Unexport. Work that
// writes the block may still run: an importer waits for an event of it. Other blocks lie in the
// same chunks, so an importer could read them, and write them if it writes: export to processes
// that may.
//
// From here on Free, FreeNow and Resize of the block, and Close of the pool, are vmm.ErrBusy.
// Errors are those of pool.Pool.HoldBlock, vmm.ErrLimit if the server has as many objects as it
// may, and vmm.ErrClosed.
func (e *Exporter) Export(b pool.Block) (BlockToken, error) {
	if e == nil || e.pool == nil {
		return BlockToken{}, fail(nil, "export block", 0, 0, errNoExporter)
	}
	t, err := e.export(b)
	if err != nil {
		return BlockToken{}, fail(e.pool.Device(), "export block", b.Ptr(), b.Size(), err)
	}
	return t, nil
}

func (e *Exporter) export(b pool.Block) (BlockToken, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return BlockToken{}, errExporterClosed
	}
	free, err := e.pool.HoldBlock(b)
	if err != nil {
		return BlockToken{}, err
	}
	if x := e.blocks[b.Ptr()]; x != nil {
		free() // x has a hold of its own
		if n := x.token.Size(); n < b.Size() {
			return BlockToken{}, fmt.Errorf("%w: only the first %d bytes are exported", vmm.ErrBusy, n)
		}
		return x.token, nil
	}
	x := &exported{free: free}
	if e.noHold {
		free()
	}
	if x.token, err = newBlockToken(e.srv.Instance(), b.Size()); err == nil {
		res := e.pool.Reservation()
		x.span, err = e.srv.PublishSpan(x.token.name(), res, uint64(b.Ptr()-res.Ptr()), b.Size(),
			shareable.PublishOptions{Write: e.pool.Share()&vmm.ShareReadOnly == 0})
	}
	if err != nil {
		free()
		return BlockToken{}, err
	}
	e.blocks[b.Ptr()] = x
	return x.token, nil
}

// Unexport ends the export of a block, which can be freed then. It waits until every importer
// has freed the block, or has ended; until then the block can still be imported. If ctx ends
// first, Unexport returns vmm.ErrBusy and the block stays exported; a ctx that has ended does
// not wait. A block that is not exported is ErrNotExported.
//
// An importer that never frees its block keeps it. Close of the server ends all imports: the
// importers then have memory that is not theirs any more.
func (e *Exporter) Unexport(ctx context.Context, b pool.Block) error {
	if e == nil || e.pool == nil {
		return fail(nil, "unexport block", 0, 0, errNoExporter)
	}
	return fail(e.pool.Device(), "unexport block", b.Ptr(), b.Size(), e.unexport(ctx, b))
}

func (e *Exporter) unexport(ctx context.Context, b pool.Block) error {
	if ctx == nil {
		return fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	for {
		x, err := e.endUnused(b)
		if x == nil || !errors.Is(err, vmm.ErrBusy) {
			return err
		}
		// No lock is held meanwhile. Another process may import the block again.
		if waited := x.span.WaitUnused(ctx); waited != nil {
			return fmt.Errorf("%w: %w", err, waited)
		}
	}
}

// endUnused ends the export of a block that is not imported, and returns what was exported.
func (e *Exporter) endUnused(b pool.Block) (*exported, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// The block may have been freed long ago, and another one be where it was.
	release, err := e.pool.HoldBlock(b)
	if err != nil {
		return nil, err
	}
	defer release()
	x := e.blocks[b.Ptr()]
	if x == nil {
		return nil, ErrNotExported
	}
	if err := x.span.CloseUnused(); err != nil {
		return x, err
	}
	x.free()
	delete(e.blocks, b.Ptr())
	return x, nil
}

// Importers is how many imports of a block there are now, each of which counts until it is freed
// or its process ends. It is 0 for a block that is not exported.
func (e *Exporter) Importers(b pool.Block) int {
	if e == nil {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.blocks[b.Ptr()]; x != nil {
		return x.span.Readers()
	}
	return 0
}

var errExporterClosed = fmt.Errorf("%w: exporter", vmm.ErrClosed)

// Close ends the exports of all blocks that are not imported. If there are others it returns
// vmm.ErrBusy, and can be called again. It does not wait. Twice is fine, and so is a nil
// Exporter.
func (e *Exporter) Close() error {
	if e == nil || e.pool == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var busy error
	for at, x := range e.blocks {
		if err := x.span.CloseUnused(); err != nil {
			busy = err
			continue
		}
		x.free()
		delete(e.blocks, at)
	}
	if busy != nil {
		return fail(e.pool.Device(), "close exporter", 0, 0, fmt.Errorf("%d blocks are imported: %w", len(e.blocks), busy))
	}
	e.closed = true
	return nil
}
