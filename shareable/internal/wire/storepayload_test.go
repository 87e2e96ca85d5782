package wire

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var fullLabels = []Label{{"owner", "training"}, {"stage", ""}}

// storeKinds are the types of a store's clients.
var storeKinds = []kind{
	{
		of: TypeCreate, decode: decoding(DecodeCreate),
		full: Create{
			Flags: StoreGrowable | StoreDurable, Device: 3, Size: 1 << 33,
			Elem:  Elem{Bits: 8, Size: 2, Hash: filled[[32]byte](0x80), Dtype: `{"names":["A"],"formats":["<f2"],"offsets":[0],"itemsize":2}`},
			Shape: []uint64{2, 3, 5}, Pitch: 64,
			Name: "model/weights@3", Meta: []byte("half precision"), Labels: fullLabels,
		},
		any: drawing(func(t *rapid.T) Create {
			c := Create{
				Flags: from(t, 0, StoreGrowable|StoreDurable|StoreHost), Device: rapid.Uint32().Draw(t, "device"), Size: anyU64(t),
				Name: anyOptionalName(t), Meta: some(rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "meta")), Labels: anyLabels(t),
			}
			c.Elem, c.Shape, c.Pitch = anyLayout(t)
			return c
		}),
	}, {
		of: TypeLease, decode: decoding(DecodeLease), full: Lease{Wait: true, Name: "model/weights@3"},
		any: drawing(func(t *rapid.T) Lease { return Lease{Wait: rapid.Bool().Draw(t, "wait"), Name: anyName(t)} }),
	}, {
		of: TypeMapped, decode: decoding(DecodeMapped), full: Mapped{Object: 7},
		any: drawing(func(t *rapid.T) Mapped { return Mapped{Object: anyU64(t)} }),
	}, {
		of: TypeGrow, decode: decoding(DecodeGrow), full: Grow{Object: 7, After: 12, Capacity: 1 << 33},
		any: drawing(func(t *rapid.T) Grow { return Grow{anyU64(t), anyU64(t), anyU64(t)} }),
	}, {
		of: TypeWrote, decode: decoding(DecodeWrote), full: Wrote{Object: 7},
		any: drawing(func(t *rapid.T) Wrote { return Wrote{Object: anyU64(t)} }),
	}, {
		of: TypeSeal, decode: decoding(DecodeSeal),
		full: Seal{Object: 7, Length: 1 << 33, HasDigest: true, Digest: filled[[32]byte](0x60)},
		any: drawing(func(t *rapid.T) Seal {
			s := Seal{Object: anyU64(t), Length: anyU64(t), HasDigest: rapid.Bool().Draw(t, "has")}
			if s.HasDigest {
				s.Digest = anyHash(t)
			}
			return s
		}),
	}, {
		of: TypeRelease, decode: decoding(DecodeRelease), full: Release{Object: 7, Abort: true},
		any: drawing(func(t *rapid.T) Release { return Release{anyU64(t), rapid.Bool().Draw(t, "abort")} }),
	}, {
		of: TypeDelete, decode: decoding(DecodeDelete), full: Delete{Force: true, Timeout: 1500, Name: "model/weights@3"},
		any: drawing(func(t *rapid.T) Delete {
			return Delete{Force: rapid.Bool().Draw(t, "force"), Timeout: rapid.Uint32().Draw(t, "timeout"), Name: anyName(t)}
		}),
	}, {
		of: TypeWait, decode: decoding(DecodeWait), full: Wait{Name: "model/weights@3"},
		any: drawing(func(t *rapid.T) Wait { return Wait{Unsealed: rapid.Bool().Draw(t, "unsealed"), Name: anyName(t)} }),
	}, {
		of: TypeLink, decode: decoding(DecodeLink), full: Link{Name: "@7", As: "model/weights@3"},
		any: drawing(func(t *rapid.T) Link { return Link{Name: anyName(t), As: anyName(t)} }),
	}, {
		of: TypeUnlink, decode: decoding(DecodeUnlink), full: Unlink{Name: "model/weights@3"},
		any: drawing(func(t *rapid.T) Unlink { return Unlink{Name: anyName(t)} }),
	}, {
		of: TypeQuery, decode: decoding(DecodeQuery), full: Query{After: 7, Prefix: "model/", Labels: fullLabels},
		any: drawing(func(t *rapid.T) Query {
			return Query{After: anyU64(t), Prefix: anyOptionalName(t), Labels: anyLabels(t)}
		}),
	}, {
		of: TypeFound, decode: decoding(DecodeFound),
		full: Found{More: true, Entries: []Info{
			{
				ID: 7, State: StateLive, Flags: StoreGrowable | StoreLeased, Device: 3, Readers: 2, Length: 96, Capacity: 4 << 20, Max: 1 << 33,
				Names: []string{"model/weights@3", "latest"}, Labels: fullLabels,
			},
			{ID: 9, State: StateSealed, Length: 5, Capacity: 2 << 20, Max: 2 << 20},
		}},
		any: drawing(func(t *rapid.T) Found {
			var f Found
			last := uint64(0)
			for range rapid.IntRange(0, 3).Draw(t, "entries") {
				last += rapid.Uint64Range(1, math.MaxUint64/8).Draw(t, "id")
				f.Entries = append(f.Entries, Info{
					ID: last, State: from(t, StateLive, StateClosed), Flags: from(t, 0, 2*StoreLeased-1), Device: rapid.Uint32().Draw(t, "device"),
					Readers: rapid.Uint32().Draw(t, "readers"), Length: anyU64(t), Capacity: anyU64(t), Max: anyU64(t),
					Names:  some(rapid.SliceOfN(rapid.Custom(anyName), 0, MaxNames).Draw(t, "names")),
					Labels: anyLabels(t),
				})
			}
			f.More = last > 0 && rapid.Bool().Draw(t, "more")
			return f
		}),
	}, {
		of: TypeCounters, decode: decoding(DecodeCounters), full: Counters{Values: []uint64{1, 0, 1 << 40}},
		any: drawing(func(t *rapid.T) Counters {
			return Counters{Values: some(rapid.SliceOfN(rapid.Uint64(), 0, MaxCounters).Draw(t, "values"))}
		}),
	}, {
		of: TypeWatch, decode: decoding(DecodeWatch), full: Watch{Prefix: "model/"},
		any: drawing(func(t *rapid.T) Watch { return Watch{Prefix: anyOptionalName(t)} }),
	}, {
		of: TypeEvent, decode: decoding(DecodeEvent), full: Event{Kind: EventSealed, ID: 7, Length: 1 << 33, Name: "model/weights@3"},
		any: drawing(func(t *rapid.T) Event {
			return Event{Kind: from(t, EventCreated, EventLost), ID: anyU64(t), Length: anyU64(t), Name: anyOptionalName(t)}
		}),
	}, {
		of: TypePage, fds: 1, decode: decoding(DecodePage), full: Page{Object: 7},
		any: drawing(func(t *rapid.T) Page { return Page{Object: anyU64(t)} }),
	}, {
		of: TypeRevoke, decode: decoding(DecodeRevoke), full: Revoke{Name: "a/b"},
		any: drawing(func(t *rapid.T) Revoke { return Revoke{Name: anyName(t)} }),
	}, {
		of: TypeReported, decode: decoding(DecodeReported), full: Reported{JSON: []byte(`{"objects":1}`)},
		any: drawing(func(t *rapid.T) Reported { return Reported{JSON: []byte(rapid.StringN(1, 100, 400).Draw(t, "json"))} }),
	}, {
		of: TypeReplace, decode: decoding(DecodeReplace), full: Replace{Old: 7, New: 9},
		any: drawing(func(t *rapid.T) Replace { return Replace{Old: anyU64(t), New: anyU64(t)} }),
	}, {
		of: TypeResume, decode: decoding(DecodeResume), full: Resume{Token: [16]byte{1, 15: 9}},
		any: drawing(func(t *rapid.T) Resume {
			return Resume{Token: [16]byte{rapid.ByteMin(1).Draw(t, "token")}}
		}),
	},
}

func anyOptionalName(t *rapid.T) string {
	if rapid.Bool().Draw(t, "named") {
		return anyName(t)
	}
	return ""
}

// anyLabels draws labels with any bytes in them.
func anyLabels(t *rapid.T) (labels []Label) {
	text := func(least, most int) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), least, most).Draw(t, "bytes")) })
	}
	keys := rapid.SliceOfNDistinct(text(1, MaxLabelKey), 0, MaxLabels, rapid.ID).Draw(t, "keys")
	slices.Sort(keys)
	for _, k := range keys {
		labels = append(labels, Label{k, text(0, MaxLabelValue).Draw(t, "value")})
	}
	return labels
}

// anyLayout draws an element, a row of it, and a pitch that the row fits into.
func anyLayout(t *rapid.T) (e Elem, shape []uint64, pitch uint64) {
	e = Elem{
		Kind: from(t, KindOpaque, KindBool), Bits: rapid.Uint32().Draw(t, "bits"),
		Size: rapid.Uint64Range(0, 1<<15-1).Draw(t, "size"), Hash: anyHash(t),
	}
	shape = some(rapid.SliceOfN(rapid.Uint64Range(1, 1<<12), 0, MaxDims).Draw(t, "shape"))
	if row, ok := rowSize(e.Size, shape); ok && rapid.Bool().Draw(t, "pitched") {
		pitch = rapid.Uint64Range(row, math.MaxInt64).Draw(t, "pitch")
	}
	if e.Kind == KindOpaque {
		e.Dtype = rapid.StringN(0, -1, 300).Draw(t, "dtype")
	}
	return e, shape, pitch
}

// longest is the longest label whose key is the i-th.
func longest(i int) Label {
	return Label{strings.Repeat(string(rune('a'+i)), MaxLabelKey), strings.Repeat("v", MaxLabelValue)}
}

func TestMaxInfosFit(t *testing.T) {
	var f Found
	for i := range MaxInfos {
		e := Info{ID: uint64(i + 1), State: StateLive}
		for k := range MaxNames {
			e.Names = append(e.Names, strings.Repeat("n", MaxName))
			e.Labels = append(e.Labels, longest(k))
		}
		f.Entries = append(f.Entries, e)
	}
	b := f.Append(nil)
	require.LessOrEqual(t, len(b), MaxPayload)
	require.Greater(t, len(b)+f.Entries[0].Size(), MaxPayload)
	require.Len(t, b, len(Found{}.Append(nil))+MaxInfos*f.Entries[0].Size())
	got, err := DecodeFound(b)
	require.NoError(t, err)
	require.Equal(t, f, got)
}

// A CREATE and a QUERY fit into a frame, whatever their names and labels are.
func TestStoreRequestsFit(t *testing.T) {
	name := strings.Repeat("n", MaxName)
	c := Create{Shape: []uint64{1, 1, 1, 1}, Name: name, Meta: make([]byte, MaxMeta), Elem: Elem{Dtype: strings.Repeat("d", MaxDtype)}}
	q := Query{Prefix: name}
	for i := range MaxLabels {
		c.Labels, q.Labels = append(c.Labels, longest(i)), append(q.Labels, longest(i))
	}
	for _, p := range []payload{c, q} {
		require.LessOrEqual(t, len(p.Append(nil)), MaxPayload)
	}
	_, err := DecodeCreate(c.Append(nil))
	require.NoError(t, err)
	_, err = DecodeQuery(q.Append(nil))
	require.NoError(t, err)
	c.Meta = make([]byte, MaxMeta+1)
	_, err = DecodeCreate(c.Append(nil))
	require.ErrorContains(t, err, "length of metadata 32769 is not from 0 to 32768")
}

// The smallest entry of a FOUND is what its count is checked against.
func TestSmallestInfo(t *testing.T) {
	require.Equal(t, infoLeast, Info{}.Size())
}

func TestOfStore(t *testing.T) {
	for of := range Type(100) {
		require.Equal(t, of >= 8 && of <= 30, of.OfStore(), "%v", of)
	}
}
