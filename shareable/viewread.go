package shareable

import (
	"fmt"
	"io"

	"github.com/cuvmm/cuvmm/internal/prefix"
	"github.com/cuvmm/cuvmm/vmm"
)

// Snapshot is the prefix of a View that could be read at one moment. Nothing is
// copied: unless the object is sealed, the owner may still write to its bytes.
type Snapshot struct {
	Ptr        vmm.Ptr
	Len        uint64 // bytes
	Generation uint64
}

// Snapshot returns the prefix that can be read now. After Close it is empty.
func (v *View) Snapshot() Snapshot {
	if v == nil || v.dev == nil {
		return Snapshot{}
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.closed {
		return Snapshot{}
	}
	return Snapshot{Ptr: v.first(), Len: v.lenLocked(), Generation: v.generation}
}

// Valid reports whether the owner has taken none of the object's bytes back since the snapshot.
// Call it after reading: if it returns true, the bytes read before are those of the snapshot.
func (v *View) Valid(s Snapshot) bool {
	if v == nil || v.dev == nil {
		return false
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.closed || s.Ptr != v.first() || s.Generation != v.generation || s.Len > v.mapped {
		return false
	}
	if v.sealed { // the page has no meaning any more
		return s.Len <= v.sealedLen
	}
	// The page shows a new generation before RETIRE arrives on the socket.
	return v.detached || v.page == nil || v.page.generation() == s.Generation
}

// Host returns the first Len bytes as a slice. It returns vmm.ErrNotSupported if the CPU cannot
// address the memory, as on CUDA. The slice is valid until Close; access to it afterwards crashes
// the process. If the owner takes back bytes of it, the View keeps them mapped and detaches from
// the owner (ErrRetired).
func (v *View) Host() ([]byte, error) {
	if v == nil || v.dev == nil {
		return nil, errNoView
	}
	// hostLen changes under the lock that also guards a retirement, so that no
	// memory is unmapped below a slice.
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.checkOpenLocked(); err != nil {
		return nil, err
	}
	n := v.lenLocked()
	b, err := prefix.HostBytes(v.dev.Driver(), v.first(), n)
	if err != nil {
		return nil, err
	}
	v.hostLen = max(v.hostLen, n)
	return b, nil
}

// ReadAt copies bytes from off on to p. It does not wait for queued work. Beyond
// Len it returns io.EOF, as Range.ReadAt does.
func (v *View) ReadAt(p []byte, off int64) (int, error) {
	if v == nil || v.dev == nil {
		return 0, errNoView
	}
	// The lock is not held during the copy: what is unmapped meanwhile waits for
	// the copy, as any unmap does.
	v.mu.RLock()
	have, err := v.lenLocked(), v.checkOpenLocked()
	v.mu.RUnlock()
	if err == nil && off < 0 {
		err = fmt.Errorf("%w: offset %d", vmm.ErrBounds, off)
	}
	if err != nil {
		return 0, err
	}
	n, eof := prefix.Part(len(p), off, have)
	if n > 0 {
		if err := v.dev.CopyOut(p[:n], v.first()+vmm.Ptr(off)); err != nil {
			return 0, err
		}
	}
	return n, eof
}

// Writable reports whether WriteAt can write: the memory is mapped for writing (AttachOptions.Write),
// the View follows its owner, and has not heard that the object is sealed.
func (v *View) Writable() bool { return v != nil && v.opts.Write && v.Err() == nil && !v.Sealed() }

// WriteAt copies p to the memory from off on. It writes nothing and returns Err if the View no
// longer follows its owner, vmm.ErrPermission if the View is mapped for reading or Sealed, and
// vmm.ErrBounds beyond Len. A seal does not wait for writers that use a View: until WaitSealed
// returns, WriteAt may still change sealed bytes, as device work queued before may.
func (v *View) WriteAt(p []byte, off int64) (int, error) {
	if v == nil || v.dev == nil {
		return 0, errNoView
	}
	switch n := v.Len(); {
	case v.Err() != nil:
		return 0, v.Err()
	case !v.opts.Write:
		return 0, fmt.Errorf("%w: %q is mapped for reading", vmm.ErrPermission, v.Name())
	case v.Sealed():
		return 0, fmt.Errorf("%w: %q is sealed", vmm.ErrPermission, v.Name())
	case off < 0 || uint64(off) > n || uint64(len(p)) > n-uint64(off):
		return 0, fmt.Errorf("%w: %d bytes from %d on, of %d", vmm.ErrBounds, len(p), off, n)
	case len(p) == 0:
		return 0, nil
	}
	if err := v.dev.CopyIn(v.first()+vmm.Ptr(off), p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Layout is the layout of the bytes as the owner described it, and the zero Layout if it
// did not.
func (v *View) Layout() vmm.Layout {
	if v == nil || v.dev == nil {
		return vmm.Layout{}
	}
	l := vmm.Layout{
		Kind: vmm.ElemKind(v.obj.Elem.Kind), Bits: int(v.obj.Elem.Bits), Size: v.obj.Elem.Size,
		Pitch: v.obj.Pitch, Hash: v.obj.Elem.Hash, Dtype: v.obj.Elem.Dtype,
	}
	for _, n := range v.obj.Shape {
		l.Shape = append(l.Shape, int(n))
	}
	return l
}

var (
	_ io.ReaderAt = (*View)(nil)
	_ io.WriterAt = (*View)(nil)
)
