package ipc

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Kind is what a Handle is of.
type Kind uint8

// The kinds. Raw bytes tell no kind: they are KindUnknown, which opens as either.
const (
	KindUnknown Kind = iota
	KindMemory
	KindEvent
)

func (k Kind) String() string {
	switch k {
	case KindUnknown:
		return "unknown"
	case KindMemory:
		return "memory"
	case KindEvent:
		return "event"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Handle names plain memory, or an event, of another process. It is plain data. Raw is what
// the driver made and all that it needs. The rest is known only of handles that this package
// made. It serves to find out, before the driver is asked, whether the process that made the
// handle still runs.
type Handle struct {
	Raw  [64]byte // a CUipcMemHandle or a CUipcEventHandle on CUDA
	Kind Kind
	Size uint64 // of the memory in bytes; for a handle that does not tell it, set it before Open

	UUID         [16]byte // of the device
	PID          int      // of the process that made it; 0: not known, and so are the rest
	Start        uint64   // when that process began, in the system's clock ticks since it started
	Boot         string   // which start of the system that was
	PIDNamespace uint64   // in which PID counts
}

// MarshalText is the text form: one line of base64 of Raw, as programs in Python write it,
// then a line for each other field, and a last line "end". Fields that UnmarshalText would not
// read back are ErrHandle.
func (h Handle) MarshalText() ([]byte, error) {
	if h.Kind > KindEvent || h.PID < 0 || h.PID > math.MaxInt32 || strings.ContainsAny(h.Boot, "\r\n") {
		return nil, fmt.Errorf("%w: kind %v, process %d, boot %q", ErrHandle, h.Kind, h.PID, h.Boot)
	}
	f, _ := h.fields()
	return appendText(h.Raw, f), nil
}

// UnmarshalText reads the text form. It takes as well a line of base64 alone, and the 64
// bytes themselves. Anything else is ErrHandle, and leaves the handle as it was. Lines that
// it does not know are ignored.
func (h *Handle) UnmarshalText(text []byte) error {
	if h == nil {
		return fmt.Errorf("%w: nil", ErrHandle)
	}
	var read Handle
	fields, done := read.fields()
	// The values of an empty handle are not those of the text.
	raw, err := parseText(text, fields)
	if err == nil {
		err = done()
	}
	if err != nil {
		return err
	}
	read.Raw = raw
	*h = read
	return nil
}

// fields are the lines of a handle, each with its value. done sets the handle to values that
// were changed.
func (h *Handle) fields() (all []field, done func() error) {
	var kind, uuid string
	if h.Kind != KindUnknown {
		kind = h.Kind.String()
	}
	if h.UUID != ([16]byte{}) {
		uuid = hex.EncodeToString(h.UUID[:])
	}
	pid := uint64(h.PID)
	all = []field{
		{name: "kind", text: &kind},
		{name: "size", value: &h.Size, base: 10},
		{name: "device", text: &uuid},
		{name: "pid", value: &pid, base: 10},
		{name: "start", value: &h.Start, base: 10},
		{name: "boot", text: &h.Boot},
		{name: "pid-namespace", value: &h.PIDNamespace, base: 10},
	}
	return all, func() error {
		kinds := map[string]Kind{"": KindUnknown, "memory": KindMemory, "event": KindEvent}
		k, known := kinds[kind]
		b, err := hex.DecodeString(uuid)
		if !known || err != nil || len(b) != 0 && len(b) != len(h.UUID) || int64(pid) != int64(int32(pid)) || int32(pid) < 0 {
			return fmt.Errorf("%w: kind %q, device %q, process %d", ErrHandle, kind, uuid, pid)
		}
		h.Kind, h.PID = k, int(pid)
		copy(h.UUID[:], b)
		return nil
	}
}

// ReadFile reads a handle that WriteFile, or a program in Python, has written.
func ReadFile(path string) (Handle, error) {
	var h Handle
	text, err := readFile(path)
	if err == nil {
		err = h.UnmarshalText(text)
	}
	if err != nil {
		return Handle{}, fmt.Errorf("read handle %s: %w", path, err)
	}
	return h, nil
}

// WriteFile writes the text form of a handle. A file that is there is replaced at once, and
// only this user can read the new one.
func WriteFile(path string, h Handle) error {
	text, err := h.MarshalText()
	if err == nil {
		err = writeFile(path, text)
	}
	if err != nil {
		return fmt.Errorf("write handle %s: %w", path, err)
	}
	return nil
}

// newHandle is a handle of this process's own.
func newHandle(dev *vmm.Device, k Kind, raw driver.IPCHandle) Handle {
	h := Handle{Raw: raw, Kind: k, UUID: dev.Info().UUID}
	if self, boot, known := thisProcess(); known {
		h.PID, h.Start, h.Boot, h.PIDNamespace = self.PID, self.Start, boot, self.Namespace
	}
	return h
}

// thisProcess is which process this is, unless the system does not tell now.
func thisProcess() (self processes.ID, boot string, known bool) {
	boot, err := processes.Boot()
	if err == nil {
		self, err = processes.Self()
	}
	return self, boot, err == nil
}

// check finds out what can be known of a handle without the driver.
func (h Handle) check(want Kind) error {
	self, boot, known := thisProcess()
	made := processes.ID{PID: h.PID, Start: h.Start, Namespace: h.PIDNamespace}
	switch {
	case h.Raw == [64]byte{}:
		return fmt.Errorf("%w: 64 zero bytes", ErrHandle)
	case h.Kind != KindUnknown && h.Kind != want:
		return fmt.Errorf("%w of %v, but of %v", ErrHandle, want, h.Kind)
	case h.PID < 0:
		return fmt.Errorf("%w: process %d", ErrHandle, h.PID)
	case h.PID == 0 || h.Boot == "" || !known:
		return nil
	case h.Boot != boot:
		return fmt.Errorf("%w: the system has started anew", ErrExporterGone)
	case made == self:
		return ErrOwnHandle
	case processes.Ended(made):
		return fmt.Errorf("%w: process %d", ErrExporterGone, h.PID)
	}
	return nil
}

// explain adds to an error of the driver that the process of the handle has ended meanwhile.
func (h Handle) explain(want Kind, err error) error {
	if err == nil {
		return nil
	}
	if gone := h.check(want); gone != nil {
		return fmt.Errorf("%w: %w", gone, err)
	}
	return err
}

// readFile reads what may be a handle, and not more. It waits for nothing: to open a pipe takes as
// long as another process likes.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|noWait, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%w: no regular file", ErrHandle))
	}
	return io.ReadAll(io.LimitReader(f, maxText+1))
}

// writeFile replaces a file at once, so that no reader finds half of it. Only the user can
// read it: whoever has a handle can use the memory.
func writeFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
