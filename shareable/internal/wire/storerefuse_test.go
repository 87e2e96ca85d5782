package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// labelled is labels as decoders read them, after so many bytes of something else.
func labelled(before []byte, labels ...Label) []byte { return appendLabels(before, labels) }

func TestStorePayloadRefused(t *testing.T) {
	bytes := map[Type][]byte{}
	decode := map[Type]func([]byte) (payload, error){}
	for _, k := range storeKinds {
		bytes[k.of], decode[k.of] = k.full.Append(nil), k.decode
	}
	var (
		create   = bytes[TypeCreate]
		found    = bytes[TypeFound]
		elemAt   = 4 + 4 + 8
		shapeAt  = elemAt + 4 + 4 + 8 + 32
		pitchAt  = shapeAt + 8 + 4*8
		nameAt   = pitchAt + 8
		metaAt   = nameAt + 4 + 15
		labelsAt = metaAt + 4 + 14
		bare     = create[:labelsAt:labelsAt] // a CREATE without its labels
		query    = bytes[TypeQuery][: 8+4+6 : 8+4+6]
		firstAt  = 4 + 4
		namesAt  = firstAt + 5*8 + 6*4
		secondAt = len(found) - infoLeast // it has neither names nor labels
		long     = strings.Repeat("n", 257)
		many     []Label
	)
	for i := range MaxLabels + 1 {
		many = append(many, Label{Key: string(rune('a' + i))})
	}
	for _, test := range []struct {
		of      Type
		payload []byte
		want    string
	}{
		{TypeCreate, with[uint32](create, 0, 8), "flags 8 is not from 0 to 7"},
		{TypeCreate, with[uint32](create, elemAt, 6), "element kind 6 is not from 0 to 5"},
		{TypeCreate, with[uint32](create, shapeAt, 5), "number of dimensions 5 is not from 0 to 4"},
		{TypeCreate, with[uint32](create, shapeAt+4, 1), "reserved field 1 is not from 0 to 0"},
		{TypeCreate, with[uint32](create, shapeAt, 4), "dimension 3 of 4 is 0"},
		{TypeCreate, with[uint64](create, pitchAt, 59), "rows of [2 3 5] elements of 2 bytes, 59 bytes apart"},
		{TypeCreate, Create{Name: long}.Append(nil), "length of name 257 is not from 0 to 256"},
		{TypeCreate, Create{Name: "a b"}.Append(nil), "name with byte 0x20 at 1"},
		{TypeCreate, Create{Name: "a..b"}.Append(nil), "name with two dots in a row"},
		{TypeCreate, with[uint32](create, metaAt, MaxMeta+1), "length of metadata 32769 is not from 0 to 32768"},
		{TypeCreate, with[uint32](create, elemAt, KindBool), "a dtype of elements of kind 5"},
		{TypeCreate, labelled(bare, many...), "number of labels 17 is not from 0 to 16"},
		{TypeCreate, labelled(bare, Label{"b", ""}, Label{"a", ""}), `label "a" at 1`},
		{TypeCreate, labelled(bare, Label{"a", "1"}, Label{"a", "2"}), `label "a" at 1`},
		{TypeCreate, labelled(bare, Label{"", "v"}), `label "" at 0`},
		{TypeCreate, labelled(bare, Label{strings.Repeat("k", 65), ""}), "length of label 65 is not from 0 to 64"},
		{TypeCreate, labelled(bare, Label{"k", long}), "length of value of a label 257 is not from 0 to 256"},
		{TypeCreate, with[uint32](labelled(bare, fullLabels...), labelsAt, 3), "0 bytes left for length of label of 4"},
		{TypeCreate, with[uint32](labelled(bare, fullLabels...), labelsAt, 1), "4 bytes too many"},
		{TypeLease, with[uint32](bytes[TypeLease], 0, 2), "wait 2 is not from 0 to 1"},
		{TypeLease, with[uint32](bytes[TypeLease], 4, 1), "reserved field 1 is not from 0 to 0"},
		{TypeLease, Lease{}.Append(nil), "name of 0 bytes, not 1 to 256"},
		{TypeSeal, with[uint32](bytes[TypeSeal], 16, 0), "digest although its flag is 0"},
		{TypeSeal, with[uint32](bytes[TypeSeal], 16, 2), "digest 2 is not from 0 to 1"},
		{TypeSeal, with[uint32](bytes[TypeSeal], 20, 1), "reserved field 1 is not from 0 to 0"},
		{TypeRelease, with[uint32](bytes[TypeRelease], 8, 2), "abort 2 is not from 0 to 1"},
		{TypeRelease, with[uint32](bytes[TypeRelease], 12, 1), "reserved field 1 is not from 0 to 0"},
		{TypeDelete, with[uint32](bytes[TypeDelete], 0, 2), "force 2 is not from 0 to 1"},
		{TypeDelete, Delete{}.Append(nil), "name of 0 bytes, not 1 to 256"},
		{TypeWait, Wait{}.Append(nil), "name of 0 bytes, not 1 to 256"},
		{TypeWait, Wait{Name: "[n]"}.Append(nil), "name with byte 0x5b at 0"},
		{TypeLink, Link{Name: "n"}.Append(nil), "name of 0 bytes, not 1 to 256"},
		{TypeLink, Link{As: "n"}.Append(nil), "name of 0 bytes, not 1 to 256"},
		{TypeLink, Link{Name: "n", As: ".."}.Append(nil), "name with two dots in a row"},
		{TypeUnlink, Unlink{}.Append(nil), "name of 0 bytes, not 1 to 256"},
		{TypeQuery, Query{Prefix: long}.Append(nil), "length of name 257 is not from 0 to 256"},
		{TypeQuery, Query{Prefix: "*"}.Append(nil), "name with byte 0x2a at 0"},
		{TypeQuery, labelled(query, Label{"b", ""}, Label{"b", ""}), `label "b" at 1`},
		{TypeQuery, labelled(query, many...), "number of labels 17 is not from 0 to 16"},
		{TypeFound, with[uint32](found, 0, 2), "more 2 is not from 0 to 1"},
		{TypeFound, with[uint32](found, 4, 1<<32-1), "bytes left for 4294967295 entries"},
		{TypeFound, with[uint32](found, 4, 1), "72 bytes too many"},
		{TypeFound, Found{More: true}.Append(nil), "more is 1 without an entry"},
		{TypeFound, with[uint64](found, secondAt, 7), "id 7 after 7"},
		{TypeFound, with[uint64](found, secondAt, 6), "id 6 after 7"},
		{TypeFound, with[uint32](found, firstAt+5*8, 0), "state 0 is not from 1 to 3"},
		{TypeFound, with[uint32](found, firstAt+5*8, 4), "state 4 is not from 1 to 3"},
		{TypeFound, with[uint32](found, firstAt+5*8+4, 16), "flags 16 is not from 0 to 15"},
		{TypeFound, with[uint32](found, namesAt, 17), "number of names 17 is not from 0 to 16"},
		{TypeFound, with[uint32](found, namesAt+4, 0), "name of 0 bytes, not 1 to 256"},
		{TypeFound, Found{Entries: []Info{{ID: 1, State: StateLive, Names: []string{"a b"}}}}.Append(nil), "name with byte 0x20 at 1"},
		{TypeFound, Found{Entries: []Info{{ID: 1, State: StateLive, Labels: many}}}.Append(nil), "number of labels 17 is not from 0 to 16"},
		{TypeFound, Found{Entries: []Info{{ID: 1, State: StateLive, Labels: []Label{{"b", ""}, {"a", ""}}}}}.Append(nil), `label "a" at 1`},
		{TypeCounters, Counters{Values: make([]uint64, 65)}.Append(nil), "count 65 is not from 0 to 64"},
		{TypeCounters, with[uint32](bytes[TypeCounters], 4, 1), "reserved field 1 is not from 0 to 0"},
		{TypeCounters, with[uint32](bytes[TypeCounters], 0, 2), "8 bytes too many"},
		{TypeWatch, Watch{Prefix: "a b"}.Append(nil), "name with byte 0x20 at 1"},
		{TypeEvent, with[uint32](bytes[TypeEvent], 0, 0), "kind 0 is not from 1 to 7"},
		{TypeEvent, with[uint32](bytes[TypeEvent], 0, 8), "kind 8 is not from 1 to 7"},
		{TypeEvent, with[uint32](bytes[TypeEvent], 4, 1), "reserved field 1 is not from 0 to 0"},
		{TypeResume, Resume{}.Append(nil), "a token of zeros"},
		{TypeEvent, Event{Kind: EventCreated, Name: "a b"}.Append(nil), "name with byte 0x20 at 1"},
	} {
		t.Run(test.of.String()+"/"+test.want, func(t *testing.T) {
			_, err := decode[test.of](test.payload)
			require.ErrorAs(t, err, new(*ProtocolError))
			require.ErrorContains(t, err, "protocol: "+test.of.String()+": ")
			require.ErrorContains(t, err, test.want)
		})
	}
}
