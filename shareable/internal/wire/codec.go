package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

func append32(b []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(b, v) }
func append64(b []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(b, v) }

func appendString(b []byte, s string) []byte {
	return append(append32(b, uint32(len(s))), s...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append32(b, 1)
	}
	return append32(b, 0)
}

// appendIf appends v if has is true, else as many zeros.
func appendIf(b []byte, has bool, v [32]byte) []byte {
	if !has {
		v = [32]byte{}
	}
	return append(b, v[:]...)
}

// truncateText shortens a text for people to the MaxText bytes that a peer accepts.
func truncateText(s string) string { return s[:min(len(s), MaxText)] }

// decoder reads the fields of a payload one after the other. After the first error
// every method returns zeros, and end returns that error.
type decoder struct {
	of  Type
	b   []byte
	err error
}

func (d *decoder) failf(format string, args ...any) {
	if d.err == nil {
		e := protocolf(format, args...)
		e.What = d.of.String() + ": " + e.What
		d.err = e
	}
	d.b = nil
}

func (d *decoder) take(n int, what string) []byte {
	if d.err != nil {
		return nil
	}
	if n > len(d.b) {
		d.failf("%d bytes left for %s of %d", len(d.b), what, n)
		return nil
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) u32(what string) uint32 {
	if b := d.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) u64(what string) uint64 {
	if b := d.take(8, what); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// within reads a number that must lie between lo and hi.
func (d *decoder) within(what string, lo, hi uint32) uint32 {
	v := d.u32(what)
	if d.err == nil && (v < lo || v > hi) {
		d.failf("%s %d is not from %d to %d", what, v, lo, hi)
		return 0
	}
	return v
}

func (d *decoder) zero()                 { d.within("reserved field", 0, 0) }
func (d *decoder) bool(what string) bool { return d.within(what, 0, 1) == 1 }

func (d *decoder) id(what string) (id [16]byte) {
	copy(id[:], d.take(len(id), what))
	return id
}

func (d *decoder) hash(what string) (h [32]byte) {
	copy(h[:], d.take(len(h), what))
	return h
}

// hashIf reads what appendIf wrote.
func (d *decoder) hashIf(what string, has bool) [32]byte {
	h := d.hash(what)
	if !has && h != [32]byte{} {
		d.failf("%s although its flag is 0", what)
		return [32]byte{}
	}
	return h
}

func (d *decoder) bytes(what string, most uint32) []byte {
	return d.take(int(d.within("length of "+what, 0, most)), what)
}

func (d *decoder) string(what string, most uint32) string {
	return string(d.bytes(what, most))
}

func (d *decoder) blob(what string, most uint32) []byte {
	if b := d.bytes(what, most); len(b) > 0 {
		return bytes.Clone(b)
	}
	return nil
}

func (d *decoder) name() string {
	s := d.string("name", MaxName)
	if d.err == nil {
		if bad := badName(s); bad != "" {
			d.failf("%s", bad)
			return ""
		}
	}
	return s
}

// CheckName returns nil for a valid object name: 1 to MaxName bytes of
// [A-Za-z0-9._:@/-] without "..".
func CheckName(name string) error {
	if bad := badName(name); bad != "" {
		return protocolf("%s", bad)
	}
	return nil
}

// IDName is the name that every object of a store has, beside others.
func IDName(id uint64) string { return "@" + strconv.FormatUint(id, 10) }

// ParseIDName is the reverse of IDName.
func ParseIDName(name string) (id uint64, ok bool) {
	digits, ok := strings.CutPrefix(name, "@")
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseUint(digits, 10, 64)
	return id, err == nil && IDName(id) == name
}

func badName(name string) string {
	if name == "" || len(name) > MaxName {
		return fmt.Sprintf("name of %d bytes, not 1 to %d", len(name), MaxName)
	}
	for i := range len(name) {
		c := name[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && strings.IndexByte("._:@/-", c) < 0 {
			return fmt.Sprintf("name with byte %#x at %d", c, i)
		}
	}
	if strings.Contains(name, "..") {
		return "name with two dots in a row"
	}
	return ""
}
