package store

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// ID is an object for good: no other object gets it, neither of this server nor of one
// that is started later.
type ID struct {
	Instance [16]byte // of the server: Client.Instance
	Number   uint64   // of the object in it
}

// IDOf is the ID of the object that a View of Client.Get, or another View of a store's, shows.
func IDOf(v *shareable.View) ID { return ID{Instance: v.Instance(), Number: v.ID()} }

// String is the ID as a text that every call takes in place of a name.
func (id ID) String() string {
	return wire.IDName(id.Number) + ":" + hex.EncodeToString(id.Instance[:])
}

// ParseID is the reverse of ID.String. If s has another form, it returns vmm.ErrInvalid.
func ParseID(s string) (ID, error) {
	number, instance, _ := strings.Cut(s, ":")
	n, ok := wire.ParseIDName(number)
	b, err := hex.DecodeString(instance)
	id := ID{Number: n}
	if !ok || err != nil || copy(id.Instance[:], b) != len(b) || id.String() != s {
		return ID{}, fmt.Errorf("%w: %q is no ID", vmm.ErrInvalid, s)
	}
	return id, nil
}

// MarshalText is ID.String.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is ParseID.
func (id *ID) UnmarshalText(b []byte) (err error) {
	*id, err = ParseID(string(b))
	return err
}

// target is what a request is about, as the server knows it.
type target struct {
	name     string   // a name, or @ and a number
	instance [16]byte // the server that it has to be; zero: any
}

// resolveTarget makes a target of a name, an ID as text, or @ and a number.
func resolveTarget(nameOrID string) (target, error) {
	if strings.HasPrefix(nameOrID, "@") {
		if id, err := ParseID(nameOrID); err == nil {
			return target{name: wire.IDName(id.Number), instance: id.Instance}, nil
		}
		if _, ok := wire.ParseIDName(nameOrID); !ok {
			return target{}, fmt.Errorf("%w: %q is no ID", vmm.ErrInvalid, nameOrID)
		}
		return target{name: nameOrID}, nil
	}
	return target{name: nameOrID}, checkName(nameOrID)
}

// check is ErrNotFound if the server is not that of the target.
func (t target) check(instance [16]byte) error {
	if t.instance != [16]byte{} && t.instance != instance {
		return fmt.Errorf("%w: %s is of another server, or of one before its restart", shareable.ErrNotFound, t.name)
	}
	return nil
}

// checkName is nil if an object can have the name.
func checkName(name string) error {
	if err := wire.CheckName(name); err != nil {
		return fmt.Errorf("%w: %w", vmm.ErrInvalid, err)
	}
	return nil
}
