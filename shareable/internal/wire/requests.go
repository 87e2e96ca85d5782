package wire

// Backends of a HELLO.
const (
	BackendHost uint32 = 1
	BackendCUDA uint32 = 2
)

// Access of an ATTACH and of an OBJECT.
const (
	AccessRead      uint32 = 1
	AccessReadWrite uint32 = 2
)

// Flags of an ATTACH.
const (
	AttachPublish  uint32 = 1 << iota // asks for PUBLISH frames
	AttachUnsealed                    // asks for a store's object even if it is not sealed
	AttachBare                        // takes a store's sealed object without control page and wake socket
	AttachAgain                       // has had the object before, from a server that has ended since
)

// States of an object.
const (
	StateLive   uint32 = 1
	StateSealed uint32 = 2
	StateClosed uint32 = 3
)

// Codes of an ERROR.
const (
	CodeProtocol     uint32 = 1
	CodeVersion      uint32 = 2
	CodePermission   uint32 = 3
	CodeNotFound     uint32 = 4
	CodeLimit        uint32 = 5
	CodeBusy         uint32 = 6
	CodeNotSupported uint32 = 7
	CodeInternal     uint32 = 8
	CodeClosed       uint32 = 9
	CodeNotSealed    uint32 = 10
	CodeAborted      uint32 = 11
	CodeSealed       uint32 = 12
	CodeInvalid      uint32 = 13
	CodeBounds       uint32 = 14
	CodeOutOfMemory  uint32 = 15
	CodeTooSlow      uint32 = 16
)

// FeatureKept is a feature of an owner's HELLO: another process replaces the owner when it ends.
const FeatureKept = 1

// Hello is the first frame of each side.
type Hello struct {
	Features    uint64
	Instance    [16]byte // of an owner: random, another one after each start
	UUID        [16]byte // of the device
	Backend     uint32
	PID         uint32
	Granularity uint64   // bytes
	TokenLen    uint32   // 0: no token
	Token       [32]byte // zeros after TokenLen
}

// SetToken sets the token, of 32 bytes at most; empty: none.
func (h *Hello) SetToken(token []byte) {
	h.Token = [32]byte{}
	h.TokenLen = uint32(copy(h.Token[:], token))
}

// Append appends the payload to b.
func (h Hello) Append(b []byte) []byte {
	b = append64(b, h.Features)
	b = append(b, h.Instance[:]...)
	b = append(b, h.UUID[:]...)
	b = append32(b, h.Backend)
	b = append32(b, h.PID)
	b = append64(b, h.Granularity)
	b = append32(append32(b, h.TokenLen), 0)
	return append(b, h.Token[:]...)
}

// DecodeHello is the reverse of Hello.Append.
func DecodeHello(payload []byte) (Hello, error) {
	d := decoder{of: TypeHello, b: payload}
	h := Hello{
		Features:    d.u64("features"),
		Instance:    d.id("instance"),
		UUID:        d.id("UUID"),
		Backend:     d.within("backend", BackendHost, BackendCUDA),
		PID:         d.u32("pid"),
		Granularity: d.u64("granularity"),
		TokenLen:    d.within("token length", 0, uint32(len(Hello{}.Token))),
	}
	d.zero()
	h.Token = d.hash("token")
	token := h.Token
	if h.SetToken(token[:h.TokenLen]); h.Token != token {
		d.failf("token of more than its %d bytes", h.TokenLen)
	}
	return finish(&d, h)
}

// List asks for the objects whose ids are above After.
type List struct {
	After uint64
}

// Append appends the payload to b.
func (l List) Append(b []byte) []byte { return append64(b, l.After) }

// DecodeList is the reverse of List.Append.
func DecodeList(payload []byte) (List, error) {
	d := decoder{of: TypeList, b: payload}
	return finish(&d, List{After: d.u64("id")})
}

// Entry is an object in a LISTED.
type Entry struct {
	ID     uint64
	State  uint32
	Length uint64 // bytes
	Name   string
}

const entryLeast = 8 + 4 + 4 + 8 + 4 + 1

// Listed is the reply to LIST. The ids rise. MaxEntries entries always fit.
type Listed struct {
	More    bool // there are objects with higher ids
	Entries []Entry
}

// Append appends the payload to b.
func (l Listed) Append(b []byte) []byte {
	b = append32(appendBool(b, l.More), uint32(len(l.Entries)))
	for _, e := range l.Entries {
		b = append64(b, e.ID)
		b = append32(append32(b, e.State), 0)
		b = append64(b, e.Length)
		b = appendString(b, e.Name)
	}
	return b
}

// DecodeListed is the reverse of Listed.Append.
func DecodeListed(payload []byte) (Listed, error) {
	d := decoder{of: TypeListed, b: payload}
	l := Listed{More: d.bool("more")}
	n := d.u32("count")
	// The count is checked against the bytes that are there before anything is
	// allocated for it.
	if uint64(n)*entryLeast > uint64(len(d.b)) {
		d.failf("%d bytes left for %d entries", len(d.b), n)
	}
	if l.More && n == 0 {
		d.failf("more is 1 without an entry")
	}
	if d.err == nil && n > 0 {
		l.Entries = make([]Entry, 0, n)
	}
	for i := range n {
		e := Entry{ID: d.u64("id"), State: d.state()}
		d.zero()
		e.Length = d.u64("length")
		e.Name = d.name()
		if i > 0 && e.ID <= l.Entries[i-1].ID {
			d.failf("id %d after %d", e.ID, l.Entries[i-1].ID)
		}
		if d.err != nil {
			break
		}
		l.Entries = append(l.Entries, e)
	}
	return finish(&d, l)
}

// Stat asks for the description of an object.
type Stat struct {
	Name string
}

// Append appends the payload to b.
func (s Stat) Append(b []byte) []byte { return appendString(b, s.Name) }

// DecodeStat is the reverse of Stat.Append.
func DecodeStat(payload []byte) (Stat, error) {
	d := decoder{of: TypeStat, b: payload}
	return finish(&d, Stat{Name: d.name()})
}

// Attach asks for an object, and for the events that follow.
type Attach struct {
	Access uint32
	Flags  uint32
	Name   string
	After  uint64 // with AttachAgain: the id of the last chunk that the reader has
}

// Append appends the payload to b.
func (a Attach) Append(b []byte) []byte {
	b = appendString(append32(append32(b, a.Access), a.Flags), a.Name)
	if a.Flags&AttachAgain != 0 {
		b = append64(b, a.After)
	}
	return b
}

// DecodeAttach is the reverse of Attach.Append.
func DecodeAttach(payload []byte) (Attach, error) {
	d := decoder{of: TypeAttach, b: payload}
	a := Attach{
		Access: d.access(),
		Flags:  d.within("flags", 0, AttachPublish|AttachUnsealed|AttachBare|AttachAgain),
		Name:   d.name(),
	}
	if a.Flags&AttachAgain != 0 {
		a.After = d.u64("chunk")
	}
	return finish(&d, a)
}

// Resync asks for the chunks from the id Next on to be sent again.
type Resync struct {
	Object uint64
	Next   uint64 // 0: all of them
	Batch  uint32 // fds in one frame from now on at most, 1 to MaxFDs
}

// Append appends the payload to b.
func (r Resync) Append(b []byte) []byte {
	return append32(append32(append64(append64(b, r.Object), r.Next), r.Batch), 0)
}

// DecodeResync is the reverse of Resync.Append.
func DecodeResync(payload []byte) (Resync, error) {
	d := decoder{of: TypeResync, b: payload}
	r := Resync{
		Object: d.u64("object"),
		Next:   d.u64("next id"),
		Batch:  d.within("batch", 1, MaxFDs),
	}
	d.zero()
	return finish(&d, r)
}

// Detach ends an attachment. The reply is DONE.
type Detach struct {
	Object uint64
}

// Append appends the payload to b.
func (d Detach) Append(b []byte) []byte { return append64(b, d.Object) }

// DecodeDetach is the reverse of Detach.Append.
func DecodeDetach(payload []byte) (Detach, error) {
	d := decoder{of: TypeDetach, b: payload}
	return finish(&d, Detach{Object: d.u64("object")})
}

// Ack acknowledges chunks and a generation. It has no reply.
type Ack struct {
	Object     uint64
	Chunk      uint64 // the highest id mapped
	Generation uint64 // the generation applied
}

// Append appends the payload to b.
func (a Ack) Append(b []byte) []byte {
	return append64(append64(append64(b, a.Object), a.Chunk), a.Generation)
}

// DecodeAck is the reverse of Ack.Append.
func DecodeAck(payload []byte) (Ack, error) {
	d := decoder{of: TypeAck, b: payload}
	return finish(&d, Ack{Object: d.u64("object"), Chunk: d.u64("chunk"), Generation: d.u64("generation")})
}

// Error is the reply to a request that fails, or says why the connection ends.
type Error struct {
	Code uint32
	Text string // for people; Append keeps the first MaxText bytes
}

// Append appends the payload to b.
func (e Error) Append(b []byte) []byte {
	return appendString(append32(append32(b, e.Code), 0), truncateText(e.Text))
}

// DecodeError is the reverse of Error.Append.
func DecodeError(payload []byte) (Error, error) {
	d := decoder{of: TypeError, b: payload}
	e := Error{Code: d.within("code", CodeProtocol, CodeTooSlow)}
	d.zero()
	e.Text = d.string("text", MaxText)
	return finish(&d, e)
}

// finish returns v, or the decoder's error if the payload was invalid or too long.
func finish[T any](d *decoder, v T) (T, error) {
	if d.err == nil && len(d.b) > 0 {
		d.failf("%d bytes too many", len(d.b))
	}
	if d.err != nil {
		var none T
		return none, d.err
	}
	return v, nil
}
