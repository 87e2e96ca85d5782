package ipc

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// BlockToken names a block of a pool of ours, which an Exporter exports, to an Importer in
// another process. It is plain data: 64 bytes, which may come by any means.
type BlockToken struct{ Raw [64]byte }

// The bytes of a BlockToken. The sum tells garbage from a token before any other process is
// asked. It proves nothing.
const (
	blockMagic   = "cuvmmBlk"
	atInstance   = 8  // 16 bytes: of the exporter's server
	atBlockName  = 24 // 16 bytes, random
	atBlockSize  = 40 // 8 bytes, little endian
	atSum        = 48 // 16 bytes: the first of the SHA-256 of all before
	blockSumSize = rawSize - atSum
)

// newBlockToken makes a token, which is like no other.
func newBlockToken(instance [16]byte, size uint64) (t BlockToken, err error) {
	copy(t.Raw[:], blockMagic)
	copy(t.Raw[atInstance:], instance[:])
	if _, err := rand.Read(t.Raw[atBlockName:atBlockSize]); err != nil {
		return BlockToken{}, err
	}
	binary.LittleEndian.PutUint64(t.Raw[atBlockSize:], size)
	sum := t.sum()
	copy(t.Raw[atSum:], sum[:])
	return t, nil
}

func (t BlockToken) sum() (sum [blockSumSize]byte) {
	whole := sha256.Sum256(t.Raw[:atSum])
	copy(sum[:], whole[:])
	return sum
}

// check returns ErrHandle for what no Exporter has made.
func (t BlockToken) check() error {
	sum := t.sum()
	if string(t.Raw[:atInstance]) != blockMagic || string(t.Raw[atSum:]) != string(sum[:]) || t.Size() == 0 {
		return fmt.Errorf("%w: not a token of an Exporter", ErrHandle)
	}
	return nil
}

// Size is how many bytes the block has.
func (t BlockToken) Size() uint64 { return binary.LittleEndian.Uint64(t.Raw[atBlockSize:]) }

// instance is that of the exporter's server.
func (t BlockToken) instance() [16]byte { return [16]byte(t.Raw[atInstance:atBlockName]) }

// name is under which the exporter's server has the block.
func (t BlockToken) name() string {
	return "block-" + hex.EncodeToString(t.Raw[atBlockName:atBlockSize])
}

// MarshalText is the text form: one line of base64 of Raw, then lines for people.
func (t BlockToken) MarshalText() ([]byte, error) {
	kind, size := blockTokenKind, t.Size()
	return appendText(t.Raw, t.fields(&kind, &size)), nil
}

// UnmarshalText reads the text form, a line of base64 alone, or the 64 bytes themselves.
// Anything else is ErrHandle, and leaves the token as it was.
func (t *BlockToken) UnmarshalText(text []byte) error {
	if t == nil {
		return fmt.Errorf("%w: nil", ErrHandle)
	}
	kind, size := "", uint64(0)
	raw, err := parseText(text, t.fields(&kind, &size))
	read := BlockToken{Raw: raw}
	switch {
	case err != nil:
		return err
	case kind != "" && kind != blockTokenKind:
		return fmt.Errorf("%w: it is of kind %q", ErrHandle, kind)
	case size != 0 && size != read.Size():
		return fmt.Errorf("%w: its size is %d and not %d", ErrHandle, read.Size(), size)
	}
	if err := read.check(); err != nil {
		return err
	}
	*t = read
	return nil
}

const blockTokenKind = "pool-block"

func (BlockToken) fields(kind *string, size *uint64) []field {
	return []field{{name: "kind", text: kind}, {name: "size", value: size, base: 10}}
}
