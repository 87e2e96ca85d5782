package budget

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/lending"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// sharing is what package shareable does for this one.
var sharing = door.Through[serve.Sharing[*shareable.Server, *shareable.View, shareable.Options, shareable.AttachOptions]]()

// defaultName is the name of the socket if no path is given: that of vmmstored.
const defaultName = "store"

// Budget is what the members of one device may have together.
type Budget struct {
	Device *vmm.Device
	Bytes  uint64
	// Free returns how many bytes of the device are free. The broker lends no more than these and the memory of its
	// members, because other processes have the rest. It calls Free for each ask that an operation waits for, so
	// Free must not wait. Nil: the broker does not know how much others have.
	Free func() (uint64, error) `json:"-"`
}

// Report is the state of a budget: who holds what, and who waits.
type Report = lending.Report

// MemberReport is the state of a member, as the broker knows it.
type MemberReport = lending.Member

// Reports asks the broker at path for the state of its budgets, by device. dev is any device of the same driver. The
// errors are those of shareable.Attach.
func Reports(ctx context.Context, path string, dev *vmm.Device, o shareable.AttachOptions) ([]Report, error) {
	var all struct {
		Budgets []Report `json:"budgets"`
	}
	err := call(ctx, path, dev, o, wire.TypeReport, nil, wire.TypeReported, func(f wire.Frame) error {
		r, err := wire.DecodeReported(f.Payload)
		if err == nil {
			err = json.Unmarshal(r.JSON, &all)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask for the budget: %w", err)
	}
	return all.Budgets, nil
}

// Change is what SetTerms changes; nil leaves a value as it is. Sizes are bytes.
type Change struct {
	Member      string  // whose Least and Most
	Least, Most *uint64 // Most 0: no bound but the budget
	Budget      *uint64 // of the device; promises stand, though they may be more
}

// SetTerms changes what a member is promised and may have, or the budget of dev, at the broker at path. A member that
// has more than it may have then is asked to give it. The errors are those of shareable.Attach, and vmm.ErrInvalid
// and vmm.ErrLimit for terms that cannot be.
func SetTerms(ctx context.Context, path string, dev *vmm.Device, c Change, o shareable.AttachOptions) error {
	if dev == nil {
		return fmt.Errorf("set terms: %w: no device", vmm.ErrInvalid)
	}
	t := wire.Terms{UUID: dev.Info().UUID, Member: c.Member}
	set := func(flag uint32, from, to *uint64) {
		if from != nil {
			t.Flags |= flag
			*to = *from
		}
	}
	set(wire.TermsLeast, c.Least, &t.Least)
	set(wire.TermsMost, c.Most, &t.Most)
	set(wire.TermsBudget, c.Budget, &t.Budget)
	if t.Flags == 0 || t.Flags != wire.TermsBudget && c.Member == "" {
		return fmt.Errorf("set terms: %w: nothing to change, or no member is named", vmm.ErrInvalid)
	}
	if c.Member != "" {
		if err := wire.CheckName(c.Member); err != nil {
			return fmt.Errorf("set terms: %w: %w", vmm.ErrInvalid, err)
		}
	}
	if err := call(ctx, path, dev, o, wire.TypeTerms, t.Append(nil), wire.TypeDone, func(wire.Frame) error { return nil }); err != nil {
		return fmt.Errorf("set terms: %w", err)
	}
	return nil
}

// call makes one request over a connection of its own.
func call(ctx context.Context, path string, dev *vmm.Device, o shareable.AttachOptions, t wire.Type, payload []byte, reply wire.Type, done func(wire.Frame) error) error {
	c, err := sharing.Dial(ctx, cmp.Or(path, defaultName), dev, o, serve.Notified{Event: func(wire.Frame) error { return nil }})
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Call(ctx, t, payload, reply, done)
}
