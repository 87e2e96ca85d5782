package main

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// kernels are the built-in kernels on a device, and a stream for them. They are loaded when
// they are first needed.
type kernels struct {
	dev *vmm.Device

	mu     sync.Mutex // guards what follows
	loaded bool
	err    error // why they could not be loaded
	all    *kernel.Builtins
	stream *vmm.Stream
}

// load returns the kernels. Its error is ErrNotSupported where the device runs none.
func (k *kernels) load() (*kernel.Builtins, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.loaded || k.err != nil {
		return k.all, k.err
	}
	if k.err = k.open(); k.err != nil {
		k.err = errors.Join(k.err, k.free())
		return nil, k.err
	}
	k.loaded = true
	return k.all, nil
}

func (k *kernels) open() (err error) {
	if k.all, err = kernel.LoadBuiltins(k.dev); err != nil {
		return err
	}
	if k.stream, err = k.dev.NewStream(); err != nil {
		return err
	}
	return k.try()
}

func (k *kernels) free() error {
	err := errors.Join(k.stream.Close(), k.all.Close())
	k.all, k.stream = nil, nil
	return err
}

// close frees the kernels, if they were loaded.
func (k *kernels) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.loaded = false
	return k.free()
}

var errWrongKernels = errors.New("the device's kernels do not fill, copy and compare as the host does")

// try makes sure that the kernels do what the host does: that they write its pattern, copy
// it, and find a byte that the host has changed. Besides, the first launch of a kernel may
// wait for the device, which a launch behind a gate must not; here is none.
func (k *kernels) try() (err error) {
	const half, flipped = 64 << 10, 20001
	r, err := grownRange(device{Device: k.dev}, shape{size: 2 * half})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	low := span{r.Ptr(), half, vmm.AccessReadWrite}
	high := span{r.Ptr() + half, half, vmm.AccessReadWrite}
	seed := kernel.Pattern{Seed: 1}

	if err := k.all.FillPattern(k.stream, low, seed); err != nil {
		return err
	}
	if err := k.all.Copy(k.stream, high, low); err != nil {
		return err
	}
	want, got := make([]byte, half), make([]byte, half)
	verify.Pattern(seed).Fill(want, 0)
	if err := errors.Join(k.stream.Sync(), k.dev.CopyOut(got, high.at)); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errWrongKernels
	}
	if err := k.dev.CopyIn(high.at+flipped, []byte{^want[flipped]}); err != nil {
		return err
	}
	// low is still as it was filled.
	for _, x := range []struct {
		in         span
		bad, first uint64
	}{{low, 0, 0}, {high, 1, flipped}} {
		bad, first, err := k.all.VerifyPattern(k.stream, x.in, seed)
		if err == nil && (bad != x.bad || first != x.first) {
			err = fmt.Errorf("%w: they count %d wrong bytes instead of %d", errWrongKernels, bad, x.bad)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fill writes the pattern and waits for it.
func (k *kernels) fill(m span, p verify.Pattern) error {
	if err := k.all.FillPattern(k.stream, m, kernel.Pattern(p)); err != nil {
		return err
	}
	return k.stream.Sync()
}

// comparer returns what compares memory at this address by the kernels.
func (k *kernels) comparer(at driver.Ptr) verify.Compare {
	return func(off, n uint64, p verify.Pattern) (bad, first uint64, err error) {
		return k.all.VerifyPattern(k.stream, span{at + driver.Ptr(off), n, vmm.AccessRead}, kernel.Pattern(p))
	}
}

// span is memory as a kernel takes it, of whichever kind.
type span struct {
	at     driver.Ptr
	size   uint64
	access vmm.Access
}

// MemoryArg implements kernel.Memory.
func (s span) MemoryArg(m *vmm.MemoryArg) {
	*m = vmm.MemoryArg{Span: vmm.Span{Addr: s.at, Size: s.size, Access: s.access}, Count: s.size, Stride: 1}
}

// loadKernels loads what will fill and compare the memory of devices, before memory that is
// measured fills them. Whoever needs the kernels gets the error.
func loadKernels(devs []device) {
	for _, dev := range devs {
		_, _ = dev.ownKernels()
	}
}

// ownKernels returns the kernels that fill and compare the device's memory, nil if it is
// copied to the host for that: it is the host's, or the device runs no kernels.
func (d device) ownKernels() (*kernels, error) {
	if d.kernels == nil || !d.checksItself() {
		return nil, nil
	}
	switch _, err := d.kernels.load(); {
	case errors.Is(err, vmm.ErrNotSupported):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return d.kernels, nil
}
