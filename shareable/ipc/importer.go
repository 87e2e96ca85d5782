package ipc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// Importer imports blocks that the Exporter of another process exports. Safe for concurrent use.
// The caller must Close it. Until then Close of the Device returns ErrBusy.
type Importer struct {
	// Immutable.
	dev  *vmm.Device
	path string
	opts shareable.AttachOptions
	keep func()        // lets the device close
	stop chan struct{} // closed by Close: nothing is tried again later

	closing sync.Mutex     // Close alone takes it
	unmaps  sync.WaitGroup // of memory that was given up

	mu     sync.Mutex // not held across waits
	closed bool
	blocks int // users of all mappings
	mapped map[BlockToken]*blockMapping
	failed []*blockMapping // given up, and not unmapped yet: Close tries again
}

// blockMapping is the memory of a token here.
type blockMapping struct {
	// Immutable.
	token BlockToken
	ready chan struct{} // closed once view and err are set

	// Set before ready is closed.
	view *shareable.View
	err  error

	// Guarded by Importer.mu while the mapping has users.
	users  int          // ImportedBlocks that are not freed, and calls of Import
	before []*vmm.Event // of those that were freed in stream order: the unmap comes after them
}

// NewImporter makes an Importer of what the server at path exports; path and o are as for
// shareable.Attach. It makes no connection. dev is the device for which memory is mapped.
// Without o.Write the memory can be read only. The caller must Close the Importer.
func NewImporter(dev *vmm.Device, path string, o shareable.AttachOptions) (*Importer, error) {
	keep, err := dev.KeepOpen("importer of blocks")
	if err != nil {
		return nil, fail(dev, "make importer", 0, 0, err)
	}
	o.UIDs, o.Token = slices.Clone(o.UIDs), slices.Clone(o.Token)
	return &Importer{dev: dev, path: path, opts: o, keep: keep, stop: make(chan struct{}), mapped: map[BlockToken]*blockMapping{}}, nil
}

var (
	errNoImporter     = fmt.Errorf("%w: no importer", vmm.ErrInvalid)
	errImporterClosed = fmt.Errorf("%w: importer", vmm.ErrClosed)
)

// Import maps the block of a token and returns when it is mapped. A token that is imported gets
// another ImportedBlock of the same memory, which is unmapped when the last of them is freed; so
// it does if its exporter has gone meanwhile, which ImportedBlock.Err tells.
//
// Errors are ErrHandle for what no Exporter has made, ErrNotExported for a block that is not
// exported any more, ErrExporterGone if no exporter is at the path, or another one than the
// token's, and those of shareable.Attach. The caller must free the ImportedBlock, before its
// owner can free the block.
func (i *Importer) Import(ctx context.Context, t BlockToken) (*ImportedBlock, error) {
	if i == nil || i.dev == nil {
		return nil, fail(nil, "import block", 0, 0, errNoImporter)
	}
	b, err := i.importBlock(ctx, t)
	if err != nil {
		return nil, fail(i.dev, "import block", 0, t.Size(), err)
	}
	return b, nil
}

func (i *Importer) importBlock(ctx context.Context, t BlockToken) (*ImportedBlock, error) {
	if ctx == nil {
		return nil, fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	if err := t.check(); err != nil {
		return nil, err
	}
	for {
		m, first, err := i.join(t)
		if err != nil {
			return nil, err
		}
		if first {
			m.view, m.err = i.attach(ctx, t)
			close(m.ready)
		}
		select {
		case <-m.ready:
			if err = m.err; err == nil {
				return &ImportedBlock{in: i, m: m}, nil
			}
		case <-ctx.Done():
			err, first = ctx.Err(), true
		}
		i.leave(m)
		if first {
			return nil, err
		}
		// The call that attached has failed, maybe because its own context ended.
	}
}

// join counts another user of a token's mapping, and says whether it is the first, which has to
// make the mapping.
func (i *Importer) join(t BlockToken) (m *blockMapping, first bool, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil, false, errImporterClosed
	}
	m = i.mapped[t]
	if m == nil {
		m, first = &blockMapping{token: t, ready: make(chan struct{})}, true
		i.mapped[t] = m
	}
	m.users++
	i.blocks++
	return m, first, nil
}

// leave undoes join for a call of Import that returns an error.
func (i *Importer) leave(m *blockMapping) {
	i.mu.Lock()
	last := i.leaveLocked(m)
	i.mu.Unlock()
	if last {
		go i.unmap(m)
	}
}

// leaveLocked undoes join. It reports whether the memory has to be unmapped: then i.unmaps counts
// that. It needs i.mu.
func (i *Importer) leaveLocked(m *blockMapping) (last bool) {
	m.users--
	i.blocks--
	failed := false
	select {
	case <-m.ready:
		failed = m.err != nil
	default:
	}
	// A new Import of the token does not wait for what is given up: it gets a mapping of its own.
	if (m.users == 0 || failed) && i.mapped[m.token] == m {
		delete(i.mapped, m.token)
	}
	if m.users > 0 || failed {
		return false
	}
	i.unmaps.Add(1)
	return true
}

// attach maps the block of a token.
func (i *Importer) attach(ctx context.Context, t BlockToken) (*shareable.View, error) {
	v, err := shareable.Attach(ctx, i.path, t.name(), i.dev, i.opts)
	if errors.Is(err, shareable.ErrNotFound) {
		return nil, i.whyNotFound(ctx, t, err)
	}
	if err == nil {
		// All of a block is published from the beginning. Of a View that has ended too little may be.
		if n := v.Published(); n != t.Size() && v.Err() == nil {
			err = fmt.Errorf("%w: the block has %d bytes", ErrHandle, n)
		} else if err = v.Wait(ctx, t.Size()); err == nil {
			return v, nil
		}
		err = joinErr(err, v.Close())
	}
	return nil, exporterGone(err)
}

// whyNotFound tells a block that is not exported any more from an exporter that was started anew.
func (i *Importer) whyNotFound(ctx context.Context, t BlockToken, cause error) error {
	instance, err := shareable.InstanceAt(ctx, i.path, i.dev, i.opts)
	if err != nil {
		return exporterGone(err)
	}
	if instance != t.instance() {
		return fmt.Errorf("%w: another one is at %s", ErrExporterGone, i.path)
	}
	return fmt.Errorf("%w: %w", ErrNotExported, cause)
}

// exporterGone is an error of a View or of making one.
func exporterGone(err error) error {
	if errors.Is(err, shareable.ErrOwnerGone) {
		return fmt.Errorf("%w: %w", ErrExporterGone, err)
	}
	return err
}

// unmapRetry is the pause between two tries to unmap during a capture, whose end nothing tells.
const unmapRetry = 5 * time.Millisecond

// unmap unmaps memory that has no users, after the work of the streams in which it was freed.
func (i *Importer) unmap(m *blockMapping) {
	defer i.unmaps.Done()
	for {
		err := m.unmap()
		if err == nil {
			return
		}
		if passes(err) {
			select {
			case <-time.After(unmapRetry):
				continue
			case <-i.stop:
			}
		}
		i.addFailed(m)
		return
	}
}

// passes says whether an error of unmapping will pass by itself.
func passes(err error) bool { return errors.Is(err, vmm.ErrCapturing) || errors.Is(err, vmm.ErrBusy) }

func (i *Importer) addFailed(m *blockMapping) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.failed = append(i.failed, m)
}

// unmap waits for work, and unmaps. After an error it can be called again. The exporter counts
// the View as an importer until the View is closed. A View that is closed disconnects first, so
// all work has to have ended before.
func (m *blockMapping) unmap() error {
	for len(m.before) > 0 {
		if err := m.before[0].Sync(); err != nil && !lost(err) {
			return err
		}
		if err := m.before[0].Close(); err != nil && !lost(err) {
			return err
		}
		m.before = m.before[1:]
	}
	err := m.view.Close()
	if lost(err) {
		err = m.view.Close() // of the addresses alone
	}
	return err
}

// Close gives the Importer up. While a block is imported it returns ErrBusy and changes nothing.
// It waits for the work after which blocks were freed; while a stream is being captured it
// returns vmm.ErrCapturing. After an error it can be called again. Twice is fine, and so is a nil
// Importer. Functions of vmm.Device.OnSync must not call it.
func (i *Importer) Close() error {
	if i == nil || i.dev == nil {
		return nil
	}
	i.closing.Lock()
	defer i.closing.Unlock()
	return fail(i.dev, "close importer", 0, 0, i.close())
}

func (i *Importer) close() error {
	i.mu.Lock()
	n, first := i.blocks, !i.closed
	if n == 0 && first {
		i.closed = true
		close(i.stop)
	}
	i.mu.Unlock()
	if n > 0 {
		return fmt.Errorf("%w: %d blocks are imported", vmm.ErrBusy, n)
	}
	i.unmaps.Wait()
	for len(i.failed) > 0 { // nothing else uses it any more
		if err := i.failed[0].unmap(); err != nil {
			return err
		}
		i.failed = i.failed[1:]
	}
	i.keep()
	return nil
}
