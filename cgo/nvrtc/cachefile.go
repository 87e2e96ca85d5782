//go:build cgo && linux

package nvrtc

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
)

// A kept result is a file: the magic, the SHA-256 of the key and of what follows, and
// then fields, each after its length in 8 bytes: the kind, the log, the image, and for
// each expression itself and its lowered name. Nothing comes after them.
const (
	magic      = "cuvmmrtc"
	format     = 1 // a part of the key, too
	prefixSize = len(magic) + 4 + sha256.Size
)

// key is what a result depends on.
type key [sha256.Size]byte

// key of a compilation.
func (c *Compiler) key(source string, o Options) key {
	fields := [][]byte{{format}, number(c.major), number(c.minor), []byte(o.Arch), []byte(o.Name), []byte(source)}
	list := func(texts ...string) {
		fields = append(fields, number(len(texts)))
		for _, text := range texts {
			fields = append(fields, []byte(text))
		}
	}
	list(o.Flags...) // their order counts
	list(o.Expressions...)
	for _, name := range slices.Sorted(maps.Keys(o.Headers)) {
		list(name, o.Headers[name])
	}
	return sha256.Sum256(pack(fields))
}

func number(n int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }

// pack joins fields so that no two lists of fields give the same bytes.
func pack(fields [][]byte) (all []byte) {
	for _, f := range fields {
		all = append(all, number(len(f))...)
		all = append(all, f...)
	}
	return all
}

// unpack undoes pack. It returns nil for what pack did not make.
func unpack(all []byte) (fields [][]byte) {
	for len(all) > 0 {
		if len(all) < 8 {
			return nil
		}
		n := binary.LittleEndian.Uint64(all)
		all = all[8:]
		if n > uint64(len(all)) {
			return nil
		}
		fields = append(fields, all[:n:n])
		all = all[n:]
	}
	return fields
}

// seal is the sum of a file's body. With the key in it, a file of another key is not
// mistaken for this one's.
func seal(k key, body []byte) []byte {
	h := sha256.New()
	h.Write(k[:])
	h.Write(body)
	return h.Sum(nil)
}

// encode is the file of a result.
func encode(k key, r *Result) []byte {
	fields := [][]byte{[]byte(r.Kind), []byte(r.Log), r.Image}
	for _, e := range slices.Sorted(maps.Keys(r.Names)) {
		fields = append(fields, []byte(e), []byte(r.Names[e]))
	}
	body := pack(fields)
	file := binary.LittleEndian.AppendUint32([]byte(magic), format)
	return append(append(file, seal(k, body)...), body...)
}

// decode undoes encode. It returns nil for what encode did not make of that key.
func decode(k key, file []byte) *Result {
	if len(file) < prefixSize || string(file[:len(magic)]) != magic || binary.LittleEndian.Uint32(file[len(magic):]) != format {
		return nil
	}
	body := file[prefixSize:]
	if !bytes.Equal(file[prefixSize-sha256.Size:prefixSize], seal(k, body)) {
		return nil
	}
	fields := unpack(body)
	if len(fields) < 3 || len(fields)%2 == 0 {
		return nil
	}
	r := &Result{Kind: Kind(fields[0]), Log: string(fields[1]), Image: fields[2], Names: map[string]string{}, Cached: true}
	for i := 3; i < len(fields); i += 2 {
		r.Names[string(fields[i])] = string(fields[i+1])
	}
	return r
}
