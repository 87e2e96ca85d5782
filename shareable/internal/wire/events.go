package wire

import "fmt"

// Chunk is a piece of an object's memory.
type Chunk struct {
	ID     uint64 // never used again
	Offset uint64 // bytes
	Size   uint64 // bytes
}

// end is the offset of the chunk's end; the caller has checked for overflow.
func (c Chunk) end() uint64 { return c.Offset + c.Size }

// String returns the id, the offset and the size.
func (c Chunk) String() string {
	return fmt.Sprintf("%d at %d of %d bytes", c.ID, c.Offset, c.Size)
}

const (
	chunksFixed = 8 + 8 + 4 + 4
	chunkSize   = 8 + 8 + 8
)

// Chunks sends memory: fd i of the frame is that of record i.
type Chunks struct {
	Object     uint64
	Generation uint64
	Records    []Chunk // 1 to MaxFDs
}

// Append appends the payload to b.
func (c Chunks) Append(b []byte) []byte {
	b = append64(append64(b, c.Object), c.Generation)
	b = append32(append32(b, uint32(len(c.Records))), 0)
	for _, r := range c.Records {
		b = append64(append64(append64(b, r.ID), r.Offset), r.Size)
	}
	return b
}

// DecodeChunks is the reverse of Chunks.Append. Conn.Read has checked that there
// are as many fds as records; a Tracker checks the records.
func DecodeChunks(payload []byte) (Chunks, error) {
	d := decoder{of: TypeChunks, b: payload}
	c := Chunks{Object: d.u64("object"), Generation: d.u64("generation")}
	n := int(d.within("count", 1, MaxFDs))
	d.zero()
	if d.err == nil && len(d.b) != n*chunkSize {
		d.failf("%d bytes left for %d records", len(d.b), n)
	}
	if d.err == nil {
		c.Records = make([]Chunk, n)
	}
	for i := range c.Records {
		c.Records[i] = Chunk{ID: d.u64("id"), Offset: d.u64("offset"), Size: d.u64("size")}
	}
	return finish(&d, c)
}

// Publish tells a reader that asked for it how many bytes are done.
type Publish struct {
	Object     uint64
	Length     uint64 // bytes
	Generation uint64
	Timeline   uint64 // rises within a generation; an owner of this package sends the length
}

// Append appends the payload to b.
func (p Publish) Append(b []byte) []byte {
	return append64(append64(append64(append64(b, p.Object), p.Length), p.Generation), p.Timeline)
}

// DecodePublish is the reverse of Publish.Append.
func DecodePublish(payload []byte) (Publish, error) {
	d := decoder{of: TypePublish, b: payload}
	return finish(&d, Publish{
		Object:     d.u64("object"),
		Length:     d.u64("length"),
		Generation: d.u64("generation"),
		Timeline:   d.u64("timeline"),
	})
}

// Retire takes back the chunks from Capacity on.
type Retire struct {
	Object     uint64
	Generation uint64 // the new one
	Capacity   uint64 // bytes
}

// Append appends the payload to b.
func (r Retire) Append(b []byte) []byte {
	return append64(append64(append64(b, r.Object), r.Generation), r.Capacity)
}

// DecodeRetire is the reverse of Retire.Append.
func DecodeRetire(payload []byte) (Retire, error) {
	d := decoder{of: TypeRetire, b: payload}
	return finish(&d, Retire{Object: d.u64("object"), Generation: d.u64("generation"), Capacity: d.u64("capacity")})
}

// Sealed says that neither length nor bytes will change any more.
type Sealed struct {
	Object    uint64
	Length    uint64 // bytes
	HasDigest bool
	Digest    [32]byte // SHA-256 of the bytes
}

// Append appends the payload to b.
func (s Sealed) Append(b []byte) []byte {
	b = append64(append64(b, s.Object), s.Length)
	b = append32(appendBool(b, s.HasDigest), 0)
	return appendIf(b, s.HasDigest, s.Digest)
}

// DecodeSealed is the reverse of Sealed.Append.
func DecodeSealed(payload []byte) (Sealed, error) {
	d := decoder{of: TypeSealed, b: payload}
	s := Sealed{Object: d.u64("object"), Length: d.u64("length"), HasDigest: d.bool("digest")}
	d.zero()
	s.Digest = d.hashIf("digest", s.HasDigest)
	return finish(&d, s)
}

// Deleted says that an object is no longer published.
type Deleted struct {
	Object uint64
}

// Append appends the payload to b.
func (d Deleted) Append(b []byte) []byte { return append64(b, d.Object) }

// DecodeDeleted is the reverse of Deleted.Append.
func DecodeDeleted(payload []byte) (Deleted, error) {
	d := decoder{of: TypeDeleted, b: payload}
	return finish(&d, Deleted{Object: d.u64("object")})
}

// Closing is the last frame of an owner.
type Closing struct {
	Reason string // for people; Append keeps the first MaxText bytes
}

// Append appends the payload to b.
func (c Closing) Append(b []byte) []byte { return appendString(b, truncateText(c.Reason)) }

// DecodeClosing is the reverse of Closing.Append.
func DecodeClosing(payload []byte) (Closing, error) {
	d := decoder{of: TypeClosing, b: payload}
	return finish(&d, Closing{Reason: d.string("reason", MaxText)})
}
