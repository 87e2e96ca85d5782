package wire

import (
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "record the bytes in testdata anew")

// payload is what every struct of a payload can do.
type payload interface{ Append([]byte) []byte }

// kind is a type of frame with a payload: how it is decoded, one that has
// something in every field, and any.
type kind struct {
	of     Type
	fds    uint16
	decode func([]byte) (payload, error)
	full   payload
	any    *rapid.Generator[payload]
}

func decoding[T payload](decode func([]byte) (T, error)) func([]byte) (payload, error) {
	return func(b []byte) (payload, error) { return decode(b) }
}

func drawing[T payload](draw func(*rapid.T) T) *rapid.Generator[payload] {
	return rapid.Custom(func(t *rapid.T) payload { return draw(t) })
}

// filled is an array of n rising bytes from first on.
func filled[T ~[16]byte | ~[32]byte](first byte) (a T) {
	for i := range len(a) {
		a[i] = first + byte(i)
	}
	return a
}

var kinds = slices.Concat(readerKinds, storeKinds, budgetKinds)

// readerKinds are the types of a reader and its owner.
var readerKinds = []kind{
	{
		of: TypeHello, decode: decoding(DecodeHello),
		full: Hello{
			Features: 0x0102030405060708, Instance: filled[[16]byte](0x10), UUID: filled[[16]byte](0x20),
			Backend: BackendCUDA, PID: 4242, Granularity: 2 << 20, TokenLen: 32, Token: filled[[32]byte](0x40),
		},
		any: drawing(func(t *rapid.T) Hello {
			h := Hello{
				Features: anyU64(t), Instance: anyID(t), UUID: anyID(t), Backend: from(t, BackendHost, BackendCUDA),
				PID: rapid.Uint32().Draw(t, "pid"), Granularity: anyU64(t),
			}
			h.SetToken(rapid.SliceOfN(rapid.Byte(), 0, len(h.Token)).Draw(t, "token"))
			return h
		}),
	}, {
		of: TypeList, decode: decoding(DecodeList), full: List{After: 0x0102030405060708},
		any: drawing(func(t *rapid.T) List { return List{After: anyU64(t)} }),
	}, {
		of: TypeStat, decode: decoding(DecodeStat), full: Stat{Name: "model/weights@3"},
		any: drawing(func(t *rapid.T) Stat { return Stat{Name: anyName(t)} }),
	}, {
		of: TypeAttach, decode: decoding(DecodeAttach),
		full: Attach{Access: AccessReadWrite, Flags: AttachPublish, Name: "model/weights@3"},
		any: drawing(func(t *rapid.T) Attach {
			a := Attach{Access: from(t, AccessRead, AccessReadWrite), Flags: from(t, 0, AttachPublish|AttachUnsealed|AttachBare|AttachAgain), Name: anyName(t)}
			if a.Flags&AttachAgain != 0 {
				a.After = anyU64(t)
			}
			return a
		}),
	}, {
		of: TypeResync, decode: decoding(DecodeResync), full: Resync{Object: 7, Next: 12, Batch: 16},
		any: drawing(func(t *rapid.T) Resync {
			return Resync{Object: anyU64(t), Next: anyU64(t), Batch: from(t, 1, MaxFDs)}
		}),
	}, {
		of: TypeDetach, decode: decoding(DecodeDetach), full: Detach{Object: 7},
		any: drawing(func(t *rapid.T) Detach { return Detach{Object: anyU64(t)} }),
	}, {
		of: TypeAck, decode: decoding(DecodeAck), full: Ack{Object: 7, Chunk: 12, Generation: 3},
		any: drawing(func(t *rapid.T) Ack { return Ack{anyU64(t), anyU64(t), anyU64(t)} }),
	}, {
		of: TypeChunks, fds: 2, decode: decoding(DecodeChunks),
		full: Chunks{Object: 7, Generation: 3, Records: []Chunk{{11, 4 << 20, 2 << 20}, {12, 6 << 20, 8 << 20}}},
		any: drawing(func(t *rapid.T) Chunks {
			one := rapid.Custom(func(t *rapid.T) Chunk { return Chunk{anyU64(t), anyU64(t), anyU64(t)} })
			return Chunks{anyU64(t), anyU64(t), rapid.SliceOfN(one, 1, MaxFDs).Draw(t, "records")}
		}),
	}, {
		of: TypePublish, decode: decoding(DecodePublish), full: Publish{Object: 7, Length: 1 << 33, Generation: 3, Timeline: 99},
		any: drawing(func(t *rapid.T) Publish { return Publish{anyU64(t), anyU64(t), anyU64(t), anyU64(t)} }),
	}, {
		of: TypeRetire, decode: decoding(DecodeRetire), full: Retire{Object: 7, Generation: 4, Capacity: 4 << 20},
		any: drawing(func(t *rapid.T) Retire { return Retire{anyU64(t), anyU64(t), anyU64(t)} }),
	}, {
		of: TypeSealed, decode: decoding(DecodeSealed),
		full: Sealed{Object: 7, Length: 1 << 33, HasDigest: true, Digest: filled[[32]byte](0x60)},
		any: drawing(func(t *rapid.T) Sealed {
			s := Sealed{Object: anyU64(t), Length: anyU64(t), HasDigest: rapid.Bool().Draw(t, "has")}
			if s.HasDigest {
				s.Digest = anyHash(t)
			}
			return s
		}),
	}, {
		of: TypeDeleted, decode: decoding(DecodeDeleted), full: Deleted{Object: 7},
		any: drawing(func(t *rapid.T) Deleted { return Deleted{Object: anyU64(t)} }),
	}, {
		of: TypeClosing, decode: decoding(DecodeClosing), full: Closing{Reason: "the owner closes"},
		any: drawing(func(t *rapid.T) Closing { return Closing{Reason: anyText(t)} }),
	}, {
		of: TypeError, decode: decoding(DecodeError), full: Error{Code: CodeNotFound, Text: "no object of this name"},
		any: drawing(func(t *rapid.T) Error { return Error{Code: from(t, CodeProtocol, CodeTooSlow), Text: anyText(t)} }),
	}, {
		of: TypeListed, decode: decoding(DecodeListed),
		full: Listed{More: true, Entries: []Entry{{7, StateLive, 1 << 33, "model/weights@3"}, {9, StateSealed, 5, "b"}}},
		any: drawing(func(t *rapid.T) Listed {
			var l Listed
			for range rapid.IntRange(0, 5).Draw(t, "entries") {
				last := uint64(0)
				if n := len(l.Entries); n > 0 {
					last = l.Entries[n-1].ID
				}
				l.Entries = append(l.Entries, Entry{
					last + rapid.Uint64Range(1, math.MaxUint64/8).Draw(t, "id"), from(t, StateLive, StateClosed), anyU64(t), anyName(t),
				})
			}
			l.More = len(l.Entries) > 0 && rapid.Bool().Draw(t, "more")
			return l
		}),
	}, {
		of: TypeObject, fds: 2, decode: decoding(DecodeObject),
		full: Object{
			ID: 7, Max: 1 << 40, Generation: 3, Length: 1 << 33, Queued: 1<<33 + 96, Capacity: 1 << 34, Base: 512,
			State: StateSealed, Access: AccessReadWrite,
			Elem:  Elem{Bits: 8, Size: 2, Hash: filled[[32]byte](0x80), Dtype: `{"names":["A"],"formats":["<f2"],"offsets":[0],"itemsize":2}`},
			Shape: []uint64{2, 3, 5}, Pitch: 64, Instance: filled[[16]byte](0x10),
			Name: "model/weights@3", Meta: []byte("half precision"),
		},
		any: drawing(func(t *rapid.T) Object {
			o := Object{
				ID: rapid.Uint64Min(1).Draw(t, "id"), Max: anyU64(t), Generation: anyU64(t), Length: anyU64(t), Queued: anyU64(t), Capacity: anyU64(t), Base: anyU64(t),
				State: from(t, StateLive, StateClosed), Access: from(t, AccessRead, AccessReadWrite),
				Instance: anyID(t), Name: anyName(t), Meta: some(rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "meta")),
			}
			o.Elem, o.Shape, o.Pitch = anyLayout(t)
			return o
		}),
	},
}

func anyU64(t *rapid.T) uint64              { return rapid.Uint64().Draw(t, "number") }
func from(t *rapid.T, lo, hi uint32) uint32 { return rapid.Uint32Range(lo, hi).Draw(t, "choice") }
func anyText(t *rapid.T) string             { return rapid.StringN(0, 50, MaxText).Draw(t, "text") }

func anyID(t *rapid.T) (id [16]byte) {
	copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
	return id
}

func anyHash(t *rapid.T) (h [32]byte) {
	copy(h[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "hash"))
	return h
}

func anyName(t *rapid.T) string {
	return rapid.StringMatching(`([A-Za-z0-9_:@/-]\.?){1,128}`).Draw(t, "name")
}

// some is s, or nil if it is empty, which is what decoders answer.
func some[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}

func (k kind) frame(body []byte) []byte {
	h := Header{Major: Major, Type: k.of, FDs: k.fds, Len: uint32(len(body)), Request: 0x0A0B0C0D, Sequence: 0x1112131415161718}
	return append(h.Append(nil), body...)
}

func TestRoundTrip(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.of.String(), rapid.MakeCheck(func(t *rapid.T) {
			want := k.any.Draw(t, "payload")
			b := want.Append([]byte("before"))
			require.Equal(t, "before", string(b[:6]))
			got, err := k.decode(b[6:])
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.LessOrEqual(t, len(b)-6, MaxPayload)
		}))
	}
}

func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Header{
			Major: Major, Minor: rapid.Byte().Draw(t, "minor"), Flags: FlagOptional,
			Type: Type(rapid.Uint16Range(100, math.MaxUint16).Draw(t, "type")), FDs: rapid.Uint16Range(0, MaxFDs).Draw(t, "fds"),
			Len: rapid.Uint32Range(0, MaxPayload).Draw(t, "len"), Request: rapid.Uint32().Draw(t, "request"), Sequence: anyU64(t),
		}
		got, err := DecodeHeader(append(h.Append(nil), make([]byte, h.Len)...))
		require.NoError(t, err)
		require.Equal(t, h, got)
	})
}

// The bytes of version 1 stay what they are.
func TestRecordedBytes(t *testing.T) {
	all := slices.Concat(kinds, []kind{{of: TypeDone}, {of: TypeCount}, {of: TypeReport}, {of: TypeLeave}})
	for _, k := range all {
		t.Run(k.of.String(), func(t *testing.T) {
			var body []byte
			if k.full != nil {
				body = k.full.Append(nil)
			}
			frame := k.frame(body)
			path := filepath.Join("testdata", "v1", strings.ToLower(k.of.String())+".hex")
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(lines(frame)), 0o644))
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			recorded, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
			require.NoError(t, err)
			require.Equal(t, lines(recorded), lines(frame))

			h, err := DecodeHeader(recorded)
			require.NoError(t, err)
			require.Equal(t, k.of, h.Type)
			require.Equal(t, k.fds, h.FDs)
			require.Equal(t, recorded[:HeaderSize], h.Append(nil))
			if k.full != nil {
				got, err := k.decode(recorded[HeaderSize:])
				require.NoError(t, err)
				require.Equal(t, k.full, got)
			}
		})
	}
	files, err := os.ReadDir(filepath.Join("testdata", "v1"))
	require.NoError(t, err)
	require.Len(t, files, len(all))
}

// lines is b in hex, 16 bytes a line.
func lines(b []byte) string {
	var out strings.Builder
	for row := range slices.Chunk(b, 16) {
		fmt.Fprintf(&out, "% x\n", row)
	}
	return out.String()
}

// Every payload that is cut short or too long is refused.
func TestDecodersWantTheExactLength(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.of.String(), func(t *testing.T) {
			b := k.full.Append(nil)
			for n := range len(b) {
				got, err := k.decode(b[:n])
				require.ErrorAs(t, err, new(*ProtocolError), "%d of %d bytes", n, len(b))
				require.ErrorContains(t, err, k.of.String())
				zero, _ := k.decode(nil)
				require.Equal(t, zero, got)
			}
			_, err := k.decode(append(b, 0))
			require.ErrorAs(t, err, new(*ProtocolError))
		})
	}
}

func TestMaxEntriesFit(t *testing.T) {
	var l Listed
	for i := range MaxEntries {
		l.Entries = append(l.Entries, Entry{uint64(i + 1), StateLive, 0, strings.Repeat("n", MaxName)})
	}
	b := l.Append(nil)
	require.LessOrEqual(t, len(b), MaxPayload)
	require.Greater(t, len(b)+len(b)/MaxEntries, MaxPayload)
	got, err := DecodeListed(b)
	require.NoError(t, err)
	require.Equal(t, l, got)
}

func TestObjectFits(t *testing.T) {
	o := Object{
		ID: 1, State: StateLive, Access: AccessRead, Shape: []uint64{1, 1, 1, 1},
		Name: strings.Repeat("n", MaxName), Meta: make([]byte, MaxMeta), Elem: Elem{Dtype: strings.Repeat("d", MaxDtype)},
	}
	b := o.Append(nil)
	require.LessOrEqual(t, len(b), MaxPayload)
	_, err := DecodeObject(b)
	require.NoError(t, err)
	o.Meta = make([]byte, MaxMeta+1)
	_, err = DecodeObject(o.Append(nil))
	require.ErrorContains(t, err, "length of metadata 32769 is not from 0 to 32768")
	o.Meta, o.Elem.Dtype = nil, strings.Repeat("d", MaxDtype+1)
	_, err = DecodeObject(o.Append(nil))
	require.ErrorContains(t, err, "length of dtype 4097 is not from 0 to 4096")
	o.Elem = Elem{Kind: KindInt, Dtype: "d"}
	_, err = DecodeObject(o.Append(nil))
	require.ErrorContains(t, err, "a dtype of elements of kind 1")
}

func TestLongTextsAreClipped(t *testing.T) {
	long := strings.Repeat("x", MaxText+1)
	e, err := DecodeError(Error{Code: CodeLimit, Text: long}.Append(nil))
	require.NoError(t, err)
	require.Equal(t, long[:MaxText], e.Text)
	c, err := DecodeClosing(Closing{Reason: long}.Append(nil))
	require.NoError(t, err)
	require.Equal(t, long[:MaxText], c.Reason)
}

func TestDecodedIsACopy(t *testing.T) {
	b := Object{ID: 1, State: StateLive, Access: AccessRead, Name: "name", Meta: []byte("meta")}.Append(nil)
	o, err := DecodeObject(b)
	require.NoError(t, err)
	clear(b)
	require.Equal(t, "name", o.Name)
	require.Equal(t, "meta", string(o.Meta))
}
