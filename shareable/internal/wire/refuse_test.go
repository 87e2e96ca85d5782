package wire

import (
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// with is b with v, little-endian, at the offset at.
func with[T uint8 | uint16 | uint32 | uint64](b []byte, at int, v T) []byte {
	b = append([]byte(nil), b...)
	switch v := any(v).(type) {
	case uint8:
		b[at] = v
	case uint16:
		binary.LittleEndian.PutUint16(b[at:], v)
	case uint32:
		binary.LittleEndian.PutUint32(b[at:], v)
	case uint64:
		binary.LittleEndian.PutUint64(b[at:], v)
	}
	return b
}

func TestHeaderRefused(t *testing.T) {
	var (
		list   = kind{of: TypeList}.frame(List{}.Append(nil))
		chunks = kind{of: TypeChunks, fds: 1}.frame(Chunks{Records: []Chunk{{1, 0, 1}}}.Append(nil))
		object = kind{of: TypeObject, fds: 1}.frame(make([]byte, 200))
		count  = kind{of: TypeCount}.frame(nil)
		page   = kind{of: TypePage, fds: 1}.frame(Page{}.Append(nil))
	)
	for _, test := range []struct {
		name   string
		packet []byte
		want   string // "" if it is right
	}{
		{"a LIST", list, ""},
		{"a COUNT", count, ""},
		{"a CHUNKS", chunks, ""},
		{"nothing", nil, "frame of 0 bytes, shorter than a header"},
		{"a byte less than a header", list[:31], "frame of 31 bytes, shorter than a header"},
		{"a header without its payload", list[:32], "LIST with 0 bytes of payload instead of 8"},
		{"a byte too many", append(list[:40:40], 0), "LIST with 9 bytes of payload instead of 8"},
		{"another magic", with[uint32](list, 0, 0x4D565542), "frame begins with 0x4d565542 instead of 0x4d565543"},
		{"version 2", with[uint8](list, 4, 2), "peer speaks version 2.0, not 1.0"},
		{"version 0", with[uint8](list, 4, 0), "peer speaks version 0.0, not 1.0"},
		{"version 1.9", with[uint8](list, 5, 9), ""},
		{"type 0", with[uint16](list, 6, 0), "frame of the unknown type 0"},
		{"type 21", with[uint16](list, 6, 21), ""},
		{"type 34", with[uint16](list, 6, 34), "frame of the unknown type 34"},
		{"an optional type 34", with[uint32](with[uint16](list, 6, 34), 8, FlagOptional), ""},
		{"type 63", with[uint16](list, 6, 63), "frame of the unknown type 63"},
		{"type 77", with[uint16](list, 6, 77), ""},
		{"type 99", with[uint16](list, 6, 99), "frame of the unknown type 99"},
		{"flag 1", with[uint32](list, 8, 2), "LIST with unknown flags 0x2"},
		{"an fd too many", with[uint16](list, 12, 1), "LIST with 1 fds, over 0"},
		{"a reserved field", with[uint16](list, 14, 0x100), "LIST with 0x100 in a reserved field"},
		{"a payload of 4 GiB", with[uint32](list, 16, 1<<32-1), "LIST with 8 bytes of payload instead of 4294967295"},
		{"the two pages", object, ""},
		{"three pages", with[uint16](object, 12, 3), "OBJECT with 3 fds, over 2"},
		{"a PAGE", page, ""},
		{"two pages of one", with[uint16](page, 12, 2), "PAGE with 2 fds, over 1"},
		{"a PAGE without its fd", with[uint16](page, 12, 0), "PAGE without fds"},
		{"an EVENT with an fd", kind{of: TypeEvent, fds: 1}.frame(Event{Kind: EventLost}.Append(nil)), "EVENT with 1 fds, over 0"},
		{"a GROW with an fd", kind{of: TypeGrow, fds: 1}.frame(Grow{}.Append(nil)), "GROW with 1 fds, over 0"},
		{"a COUNT with more", kind{of: TypeCount}.frame(make([]byte, 8)), "COUNT with 8 bytes of payload"},
		{"chunks without fds", with[uint16](chunks, 12, 0), "CHUNKS without fds"},
		{"more fds than records", with[uint16](chunks, 12, 2), "CHUNKS with 2 fds and 48 bytes of payload"},
		{"65 fds", with[uint16](chunks, 12, 65), "CHUNKS with 65 fds, over 64"},
		{"65,535 fds", with[uint16](chunks, 12, 65535), "CHUNKS with 65535 fds, over 64"},
		{"a DONE with more", kind{of: TypeDone}.frame(make([]byte, 1)), "DONE with 1 bytes of payload"},
		{"the longest", kind{of: TypeClosing}.frame(make([]byte, MaxPayload)), ""},
		{"one longer", kind{of: TypeClosing}.frame(make([]byte, MaxPayload+1)), "CLOSING of 65537 bytes, over 65536"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h, err := DecodeHeader(test.packet)
			if test.want == "" {
				require.NoError(t, err)
				require.Equal(t, test.packet[:HeaderSize], h.Append(nil))
				return
			}
			require.ErrorAs(t, err, new(*ProtocolError))
			require.EqualError(t, err, "protocol: "+test.want)
			version := strings.HasPrefix(test.want, "peer speaks")
			require.Equal(t, version, errors.Is(err, ErrVersion))
			if !version {
				require.Zero(t, h)
			}
		})
	}
}

func TestPayloadRefused(t *testing.T) {
	bytes := map[Type][]byte{}
	decode := map[Type]func([]byte) (payload, error){}
	for _, k := range kinds {
		bytes[k.of], decode[k.of] = k.full.Append(nil), k.decode
	}
	var (
		hello    = bytes[TypeHello]
		object   = bytes[TypeObject]
		listed   = bytes[TypeListed]
		chunks   = bytes[TypeChunks]
		sealed   = bytes[TypeSealed]
		tokenAt  = 8 + 16 + 16 + 4 + 4 + 8
		elemAt   = 7*8 + 4 + 4
		shapeAt  = elemAt + 4 + 4 + 8 + 32
		pitchAt  = shapeAt + 8 + 4*8
		metaAt   = pitchAt + 8 + 16 + 4 + 15
		secondAt = 8 + 24 + 4 + 15
	)
	for _, test := range []struct {
		of      Type
		payload []byte
		want    string
	}{
		{TypeHello, with[uint32](hello, 40, 0), "backend 0 is not from 1 to 2"},
		{TypeHello, with[uint32](hello, 40, 3), "backend 3 is not from 1 to 2"},
		{TypeHello, with[uint32](hello, tokenAt, 33), "token length 33 is not from 0 to 32"},
		{TypeHello, with[uint32](hello, tokenAt, 0), "token of more than its 0 bytes"},
		{TypeHello, with[uint32](hello, tokenAt, 31), "token of more than its 31 bytes"},
		{TypeHello, with[uint8](hello, tokenAt+7, 1), "reserved field 16777216 is not from 0 to 0"},
		{TypeStat, Stat{Name: ""}.Append(nil), "name of 0 bytes, not 1 to 256"},
		{TypeStat, Stat{Name: strings.Repeat("n", 257)}.Append(nil), "length of name 257 is not from 0 to 256"},
		{TypeStat, with[uint32](bytes[TypeStat], 0, 1<<32-1), "length of name 4294967295 is not from 0 to 256"},
		{TypeStat, with[uint32](bytes[TypeStat], 0, 16), "15 bytes left for name of 16"},
		{TypeStat, Stat{Name: "a/../b"}.Append(nil), "name with two dots in a row"},
		{TypeStat, Stat{Name: "a b"}.Append(nil), "name with byte 0x20 at 1"},
		{TypeStat, Stat{Name: "a\x00"}.Append(nil), "name with byte 0x0 at 1"},
		{TypeStat, Stat{Name: "é"}.Append(nil), "name with byte 0xc3 at 0"},
		{TypeAttach, Attach{Access: 0, Name: "n"}.Append(nil), "access 0 is not from 1 to 2"},
		{TypeAttach, Attach{Access: 3, Name: "n"}.Append(nil), "access 3 is not from 1 to 2"},
		{TypeAttach, Attach{Access: 1, Flags: 16, Name: "n"}.Append(nil), "flags 16 is not from 0 to 15"},
		{TypeAttach, Attach{Access: 1, Name: "[n]"}.Append(nil), "name with byte 0x5b at 0"},
		{TypeResync, Resync{Batch: 0}.Append(nil), "batch 0 is not from 1 to 64"},
		{TypeResync, Resync{Batch: 65}.Append(nil), "batch 65 is not from 1 to 64"},
		{TypeResync, with[uint32](bytes[TypeResync], 20, 1), "reserved field 1 is not from 0 to 0"},
		{TypeError, Error{Code: 0}.Append(nil), "code 0 is not from 1 to 16"},
		{TypeError, Error{Code: 17}.Append(nil), "code 17 is not from 1 to 16"},
		{TypeError, with[uint32](bytes[TypeError], 8, 1025), "length of text 1025 is not from 0 to 1024"},
		{TypeClosing, with[uint32](bytes[TypeClosing], 0, 1025), "length of reason 1025 is not from 0 to 1024"},
		{TypeChunks, with[uint32](chunks, 16, 0), "count 0 is not from 1 to 64"},
		{TypeChunks, with[uint32](chunks, 16, 65), "count 65 is not from 1 to 64"},
		{TypeChunks, with[uint32](chunks, 16, 3), "48 bytes left for 3 records"},
		{TypeChunks, with[uint32](chunks, 16, 1), "48 bytes left for 1 records"},
		{TypeChunks, with[uint32](chunks, 20, 1), "reserved field 1 is not from 0 to 0"},
		{TypeSealed, with[uint32](sealed, 16, 0), "digest although its flag is 0"},
		{TypeSealed, with[uint32](sealed, 16, 2), "digest 2 is not from 0 to 1"},
		{TypeListed, with[uint32](listed, 0, 2), "more 2 is not from 0 to 1"},
		{TypeListed, with[uint32](listed, 4, 1<<32-1), "bytes left for 4294967295 entries"},
		{TypeListed, with[uint32](listed, 4, 3), "bytes left for 3 entries"},
		{TypeListed, with[uint32](listed, 4, 1), "29 bytes too many"},
		{TypeListed, Listed{More: true}.Append(nil), "more is 1 without an entry"},
		{TypeListed, with[uint32](listed, 16, 0), "state 0 is not from 1 to 3"},
		{TypeListed, with[uint32](listed, 20, 5), "reserved field 5 is not from 0 to 0"},
		{TypeListed, with[uint64](listed, secondAt, 7), "id 7 after 7"},
		{TypeObject, with[uint32](object, 56, 4), "state 4 is not from 1 to 3"},
		{TypeObject, with[uint32](object, 60, 0), "access 0 is not from 1 to 2"},
		{TypeObject, with[uint32](object, elemAt, 6), "element kind 6 is not from 0 to 5"},
		{TypeObject, with[uint32](object, shapeAt, 5), "number of dimensions 5 is not from 0 to 4"},
		{TypeObject, with[uint32](object, shapeAt, 4), "dimension 3 of 4 is 0"},
		{TypeObject, with[uint32](object, shapeAt, 2), "5 as dimension 2 of 2"},
		{TypeObject, with[uint32](object, shapeAt+4, 1), "reserved field 1 is not from 0 to 0"},
		{TypeObject, with[uint64](object, shapeAt+8, 1<<63), "rows of [9223372036854775808 3 5] elements of 2 bytes, 64 bytes apart"},
		{TypeObject, with[uint64](with[uint64](object, elemAt+8, 0), shapeAt+8, 1<<63), "rows of [9223372036854775808 3 5] elements of 0 bytes, 64 bytes apart"},
		{TypeObject, with[uint64](with[uint64](object, shapeAt+8, 1<<60), pitchAt, 0), "rows of [1152921504606846976 3 5] elements of 2 bytes, 0 bytes apart"},
		{TypeObject, with[uint64](object, pitchAt, 1<<63), "rows of [2 3 5] elements of 2 bytes, 9223372036854775808 bytes apart"},
		{TypeObject, with[uint64](object, 0, 0), "object 0"},
		{TypeObject, with[uint64](object, pitchAt, 59), "rows of [2 3 5] elements of 2 bytes, 59 bytes apart"},
		{TypeObject, with[uint32](object, metaAt, MaxMeta), "bytes left for metadata of 32768"},
		{TypeObject, with[uint32](object, metaAt, 1<<31), "length of metadata 2147483648 is not from 0 to 32768"},
		{TypeObject, with[uint8](object, metaAt-1, '\n'), "name with byte 0xa at 14"},
		{TypeObject, with[uint32](object, metaAt+4+14, MaxDtype+1), "length of dtype 4097 is not from 0 to 4096"},
		{TypeObject, with[uint32](object, metaAt+4+14, MaxDtype), "bytes left for dtype of 4096"},
		{TypeObject, with[uint32](object, elemAt, KindFloat), "a dtype of elements of kind 3"},
	} {
		t.Run(test.of.String()+"/"+test.want, func(t *testing.T) {
			_, err := decode[test.of](test.payload)
			require.ErrorAs(t, err, new(*ProtocolError))
			require.ErrorContains(t, err, "protocol: "+test.of.String()+": ")
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", ".", "a.b.c", "/x", "a:b@c-d_e/F0", strings.Repeat("z", 256), "@Z9"} {
		require.NoError(t, CheckName(name), name)
	}
	for _, name := range []string{"", "..", "a..", "a b", "a\n", "a\\b", "`", "{", "[", "a,b", strings.Repeat("z", 257)} {
		require.ErrorAs(t, CheckName(name), new(*ProtocolError), name)
	}
}

func TestTypeNames(t *testing.T) {
	seen := map[string]bool{}
	for of := range Type(100) {
		known := of >= TypeHello && of <= TypeTerms || of >= TypeChunks && of <= TypeDemand
		require.Equal(t, known, of.name() != "", "%d", of)
		require.False(t, seen[of.String()])
		seen[of.String()] = true
	}
	require.Equal(t, "type 99", Type(99).String())
}

// A payload that announces more than it has is refused before room is made.
func TestDecodersAllocateLittle(t *testing.T) {
	listed := with[uint32](Listed{}.Append(nil), 4, 1<<32-1)
	meta := Object{ID: 1, State: StateLive, Access: AccessRead, Name: "n", Meta: []byte("m")}.Append(nil)
	meta = with[uint32](meta, len(meta)-9, MaxMeta)
	chunks := with[uint32](make([]byte, chunksFixed), 16, MaxFDs)
	found := with[uint32](Found{}.Append(nil), 4, 1<<32-1)
	names := with[uint32](Found{Entries: []Info{{ID: 1, State: StateLive}}}.Append(nil), 8+5*8+6*4, MaxNames)
	labels := with[uint32](Query{}.Append(nil), 12, MaxLabels)
	counters := with[uint32](Counters{}.Append(nil), 0, MaxCounters)
	for _, decode := range []func() error{
		func() error { _, err := DecodeListed(listed); return err },
		func() error { _, err := DecodeObject(meta); return err },
		func() error { _, err := DecodeChunks(chunks); return err },
		func() error { _, err := DecodeFound(found); return err },
		func() error { _, err := DecodeFound(names); return err },
		func() error { _, err := DecodeQuery(labels); return err },
		func() error { _, err := DecodeCounters(counters); return err },
	} {
		require.Error(t, decode())
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 100 {
			_ = decode()
		}
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100*1024))
	}
}
