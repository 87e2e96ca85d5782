package wire

// The requests of a store's clients, beside STAT and ATTACH, and their replies.

// Flags of a CREATE and of an Info.
const (
	StoreGrowable uint32 = 1 << iota // the memory grows up to Size
	StoreDurable                     // stays when its writer ends
	StoreHost                        // host memory, on the NUMA node Device
	StoreLeased                      // a client may write to it now; in an Info only
)

// Label is a name and a value that a store's clients choose.
type Label struct {
	Key, Value string
}

// Create makes an object and leases it. The reply is OBJECT, with the control page that the
// client maps for writing.
type Create struct {
	Flags  uint32
	Device uint32 // ordinal; with StoreHost the NUMA node
	Size   uint64 // bytes; of a growable object at most
	Elem   Elem
	Shape  []uint64 // of a row
	Pitch  uint64
	Name   string // may be empty
	Meta   []byte
	Labels []Label
}

// Append appends the payload to b.
func (c Create) Append(b []byte) []byte {
	b = append64(append32(append32(b, c.Flags), c.Device), c.Size)
	b = appendLayout(b, c.Elem, c.Shape, c.Pitch)
	b = appendString(b, c.Name)
	b = appendString(b, string(c.Meta))
	return appendString(appendLabels(b, c.Labels), c.Elem.Dtype)
}

// DecodeCreate is the reverse of Create.Append.
func DecodeCreate(payload []byte) (Create, error) {
	d := decoder{of: TypeCreate, b: payload}
	c := Create{
		Flags:  d.within("flags", 0, StoreGrowable|StoreDurable|StoreHost),
		Device: d.u32("device"),
		Size:   d.u64("size"),
	}
	c.Elem, c.Shape, c.Pitch = d.layout()
	c.Name = d.optionalName()
	c.Meta = d.blob("metadata", MaxMeta)
	c.Labels = d.labels()
	d.dtype(&c.Elem)
	return finish(&d, c)
}

// Lease asks to write to an object that was created before. The reply is OBJECT as after
// CREATE; ERROR if another client writes to it.
type Lease struct {
	Wait bool // the reply comes once no other client writes to it
	Name string
}

// Append appends the payload to b.
func (l Lease) Append(b []byte) []byte {
	return appendString(append32(appendBool(b, l.Wait), 0), l.Name)
}

// DecodeLease is the reverse of Lease.Append.
func DecodeLease(payload []byte) (Lease, error) {
	d := decoder{of: TypeLease, b: payload}
	l := Lease{Wait: d.bool("wait")}
	d.zero()
	l.Name = d.name()
	return finish(&d, l)
}

// Mapped says that the control page of a lease is mapped: from then on no process can map
// it for writing, and readers get it. The reply is DONE.
type Mapped struct {
	Object uint64
}

// Append appends the payload to b.
func (m Mapped) Append(b []byte) []byte { return append64(b, m.Object) }

// DecodeMapped is the reverse of Mapped.Append.
func DecodeMapped(payload []byte) (Mapped, error) {
	d := decoder{of: TypeMapped, b: payload}
	return finish(&d, Mapped{Object: d.u64("object")})
}

// Grow asks for the chunks of a leased object with ids above After. If the object ends
// below Capacity, it grows first. The reply is CHUNKS, with MaxFDs chunks at most.
type Grow struct {
	Object   uint64
	After    uint64 // a chunk's id
	Capacity uint64 // bytes
}

// Append appends the payload to b.
func (g Grow) Append(b []byte) []byte {
	return append64(append64(append64(b, g.Object), g.After), g.Capacity)
}

// DecodeGrow is the reverse of Grow.Append.
func DecodeGrow(payload []byte) (Grow, error) {
	d := decoder{of: TypeGrow, b: payload}
	return finish(&d, Grow{Object: d.u64("object"), After: d.u64("after id"), Capacity: d.u64("capacity")})
}

// Wrote says that the control page has changed, so that readers are woken. It has no
// reply.
type Wrote struct {
	Object uint64
}

// Append appends the payload to b.
func (w Wrote) Append(b []byte) []byte { return append64(b, w.Object) }

// DecodeWrote is the reverse of Wrote.Append.
func DecodeWrote(payload []byte) (Wrote, error) {
	d := decoder{of: TypeWrote, b: payload}
	return finish(&d, Wrote{Object: d.u64("object")})
}

// Seal ends a lease and makes the length final. The reply is DONE.
type Seal struct {
	Object    uint64
	Length    uint64 // bytes
	HasDigest bool
	Digest    [32]byte // SHA-256 of the bytes
}

// Append appends the payload to b.
func (s Seal) Append(b []byte) []byte {
	b = append64(append64(b, s.Object), s.Length)
	b = append32(appendBool(b, s.HasDigest), 0)
	return appendIf(b, s.HasDigest, s.Digest)
}

// DecodeSeal is the reverse of Seal.Append.
func DecodeSeal(payload []byte) (Seal, error) {
	d := decoder{of: TypeSeal, b: payload}
	s := Seal{Object: d.u64("object"), Length: d.u64("length"), HasDigest: d.bool("digest")}
	d.zero()
	s.Digest = d.hashIf("digest", s.HasDigest)
	return finish(&d, s)
}

// Release ends a lease. An object that is not durable, or any with Abort, goes. The reply
// is DONE.
type Release struct {
	Object uint64
	Abort  bool
}

// Append appends the payload to b.
func (r Release) Append(b []byte) []byte {
	return append32(appendBool(append64(b, r.Object), r.Abort), 0)
}

// DecodeRelease is the reverse of Release.Append.
func DecodeRelease(payload []byte) (Release, error) {
	d := decoder{of: TypeRelease, b: payload}
	r := Release{Object: d.u64("object"), Abort: d.bool("abort")}
	d.zero()
	return finish(&d, r)
}

// Delete removes an object and all its names. With Force its readers unmap it, or are
// disconnected after Timeout. The reply is DONE.
type Delete struct {
	Force   bool
	Timeout uint32 // ms
	Name    string
}

// Append appends the payload to b.
func (x Delete) Append(b []byte) []byte {
	return appendString(append32(appendBool(b, x.Force), x.Timeout), x.Name)
}

// DecodeDelete is the reverse of Delete.Append.
func DecodeDelete(payload []byte) (Delete, error) {
	d := decoder{of: TypeDelete, b: payload}
	return finish(&d, Delete{Force: d.bool("force"), Timeout: d.u32("timeout"), Name: d.name()})
}

// Wait waits until an object is there and sealed. The reply is OBJECT without descriptors;
// ERROR if the object goes before it is sealed.
type Wait struct {
	Unsealed bool // it need not be sealed
	Name     string
}

// Append appends the payload to b.
func (w Wait) Append(b []byte) []byte {
	if b = appendString(b, w.Name); w.Unsealed {
		b = appendBool(b, true)
	}
	return b
}

// DecodeWait is the reverse of Wait.Append.
func DecodeWait(payload []byte) (Wait, error) {
	d := decoder{of: TypeWait, b: payload}
	w := Wait{Name: d.name()}
	if len(d.b) > 0 { // clients of before this field leave it out
		w.Unsealed = d.bool("unsealed")
	}
	return finish(&d, w)
}

// Link adds a name to an object. The reply is DONE.
type Link struct {
	Name string
	As   string // the new one
}

// Append appends the payload to b.
func (l Link) Append(b []byte) []byte { return appendString(appendString(b, l.Name), l.As) }

// DecodeLink is the reverse of Link.Append.
func DecodeLink(payload []byte) (Link, error) {
	d := decoder{of: TypeLink, b: payload}
	return finish(&d, Link{Name: d.name(), As: d.name()})
}

// Unlink removes a name from its object, which stays. The reply is DONE.
type Unlink struct {
	Name string
}

// Append appends the payload to b.
func (u Unlink) Append(b []byte) []byte { return appendString(b, u.Name) }

// DecodeUnlink is the reverse of Unlink.Append.
func DecodeUnlink(payload []byte) (Unlink, error) {
	d := decoder{of: TypeUnlink, b: payload}
	return finish(&d, Unlink{Name: d.name()})
}

// Query asks for the objects whose ids are above After, that have a name with the prefix,
// and that have all the labels. A label with an empty value matches any. The reply is FOUND.
type Query struct {
	After  uint64
	Prefix string // may be empty; then objects without a name match too
	Labels []Label
}

// Append appends the payload to b.
func (q Query) Append(b []byte) []byte {
	return appendLabels(appendString(append64(b, q.After), q.Prefix), q.Labels)
}

// DecodeQuery is the reverse of Query.Append.
func DecodeQuery(payload []byte) (Query, error) {
	d := decoder{of: TypeQuery, b: payload}
	return finish(&d, Query{After: d.u64("id"), Prefix: d.optionalName(), Labels: d.labels()})
}

// Info describes an object of a store.
type Info struct {
	ID       uint64
	State    uint32
	Flags    uint32
	Device   uint32
	Readers  uint32 // connections that have it attached
	Length   uint64 // bytes
	Capacity uint64 // bytes of memory
	Max      uint64 // bytes
	UID      uint32 // who made it
	Waiting  uint32 // requests that wait for its lease
	Created  uint64 // Unix time in nanoseconds
	Names    []string
	Labels   []Label
}

// infoLeast is how many bytes an Info has at least.
const infoLeast = 6*4 + 5*8 + 4 + 4

// Found is the reply to QUERY. The ids rise. MaxInfos entries always fit.
type Found struct {
	More    bool // there may be objects with higher ids
	Entries []Info
}

// Append appends the payload to b.
func (f Found) Append(b []byte) []byte {
	b = append32(appendBool(b, f.More), uint32(len(f.Entries)))
	for _, e := range f.Entries {
		b = e.append(b)
	}
	return b
}

// Size is how many bytes the entry takes in a FOUND.
func (i Info) Size() int { return len(i.append(nil)) }

func (i Info) append(b []byte) []byte {
	for _, v := range []uint64{i.ID, i.Length, i.Capacity, i.Max, i.Created} {
		b = append64(b, v)
	}
	for _, v := range []uint32{i.State, i.Flags, i.Device, i.Readers, i.UID, i.Waiting, uint32(len(i.Names))} {
		b = append32(b, v)
	}
	for _, n := range i.Names {
		b = appendString(b, n)
	}
	return appendLabels(b, i.Labels)
}

// DecodeFound is the reverse of Found.Append.
func DecodeFound(payload []byte) (Found, error) {
	d := decoder{of: TypeFound, b: payload}
	f := Found{More: d.bool("more")}
	n := d.u32("count")
	// The count is checked against the bytes that are there before anything is
	// allocated for it.
	if uint64(n)*infoLeast > uint64(len(d.b)) {
		d.failf("%d bytes left for %d entries", len(d.b), n)
	}
	if f.More && n == 0 {
		d.failf("more is 1 without an entry")
	}
	if d.err == nil && n > 0 {
		f.Entries = make([]Info, 0, n)
	}
	for i := range n {
		e := d.info()
		if i > 0 && e.ID <= f.Entries[i-1].ID {
			d.failf("id %d after %d", e.ID, f.Entries[i-1].ID)
		}
		if d.err != nil {
			break
		}
		f.Entries = append(f.Entries, e)
	}
	return finish(&d, f)
}

func (d *decoder) info() Info {
	i := Info{ID: d.u64("id"), Length: d.u64("length"), Capacity: d.u64("capacity"), Max: d.u64("max"), Created: d.u64("time")}
	i.State = d.state()
	i.Flags = d.within("flags", 0, StoreGrowable|StoreDurable|StoreHost|StoreLeased)
	i.Device, i.Readers, i.UID, i.Waiting = d.u32("device"), d.u32("readers"), d.u32("user"), d.u32("requests")
	for range d.within("number of names", 0, MaxNames) {
		name := d.name()
		if d.err != nil {
			return i
		}
		i.Names = append(i.Names, name)
	}
	i.Labels = d.labels()
	return i
}

// Counters is the reply to COUNT, which has no payload: the counters of a store, in the
// order that docs/reference/protocol.md has.
type Counters struct {
	Values []uint64 // MaxCounters at most
}

// Append appends the payload to b.
func (c Counters) Append(b []byte) []byte {
	b = append32(append32(b, uint32(len(c.Values))), 0)
	for _, v := range c.Values {
		b = append64(b, v)
	}
	return b
}

// DecodeCounters is the reverse of Counters.Append.
func DecodeCounters(payload []byte) (Counters, error) {
	d := decoder{of: TypeCounters, b: payload}
	n := d.within("count", 0, MaxCounters)
	d.zero()
	var c Counters
	for range n {
		v := d.u64("counter")
		if d.err != nil {
			break
		}
		c.Values = append(c.Values, v)
	}
	return finish(&d, c)
}

// Watch asks for EVENT frames about objects that have a name with the prefix, or about all
// if it is empty. The reply is DONE, and comes before the first EVENT.
type Watch struct {
	Prefix string
}

// Append appends the payload to b.
func (w Watch) Append(b []byte) []byte { return appendString(b, w.Prefix) }

// DecodeWatch is the reverse of Watch.Append.
func DecodeWatch(payload []byte) (Watch, error) {
	d := decoder{of: TypeWatch, b: payload}
	return finish(&d, Watch{Prefix: d.optionalName()})
}

// Kinds of an EVENT.
const (
	EventCreated uint32 = iota + 1
	EventSealed
	EventDeleted
	EventAborted
	EventEvicted
	EventReleased // the lease has ended, and the object stays
	EventLost     // events before this one were dropped, because the client did not read them
)

// Event says what has happened to an object of a store.
type Event struct {
	Kind   uint32
	ID     uint64 // 0 of EventLost
	Length uint64 // bytes; of EventLost how many were dropped
	Name   string // may be empty
}

// Append appends the payload to b.
func (e Event) Append(b []byte) []byte {
	b = append64(append64(append32(append32(b, e.Kind), 0), e.ID), e.Length)
	return appendString(b, e.Name)
}

// DecodeEvent is the reverse of Event.Append.
func DecodeEvent(payload []byte) (Event, error) {
	d := decoder{of: TypeEvent, b: payload}
	e := Event{Kind: d.within("kind", EventCreated, EventLost)}
	d.zero()
	e.ID, e.Length, e.Name = d.u64("id"), d.u64("length"), d.optionalName()
	return finish(&d, e)
}

// Page has a reader map another control page of an object: its writer is another one. It
// comes with the descriptor.
type Page struct {
	Object uint64
}

// Append appends the payload to b.
func (p Page) Append(b []byte) []byte { return append64(b, p.Object) }

// DecodePage is the reverse of Page.Append.
func DecodePage(payload []byte) (Page, error) {
	d := decoder{of: TypePage, b: payload}
	return finish(&d, Page{Object: d.u64("object")})
}

func appendLabels(b []byte, labels []Label) []byte {
	b = append32(b, uint32(len(labels)))
	for _, l := range labels {
		b = appendString(appendString(b, l.Key), l.Value)
	}
	return b
}

// labels reads labels, whose keys are sorted and differ.
func (d *decoder) labels() (labels []Label) {
	for i := range d.within("number of labels", 0, MaxLabels) {
		l := Label{Key: d.string("label", MaxLabelKey), Value: d.string("value of a label", MaxLabelValue)}
		if d.err == nil && (l.Key == "" || i > 0 && l.Key <= labels[i-1].Key) {
			d.failf("label %q at %d", l.Key, i)
		}
		if d.err != nil {
			return nil
		}
		labels = append(labels, l)
	}
	return labels
}

// optionalName reads a name, or an empty string.
func (d *decoder) optionalName() string {
	s := d.string("name", MaxName)
	if d.err == nil && s != "" {
		if bad := badName(s); bad != "" {
			d.failf("%s", bad)
			return ""
		}
	}
	return s
}

// Resume is what a client sends first on each connection: its requests are those of one client with
// that of before. It has no reply.
type Resume struct {
	Token [16]byte // random
}

// Append appends the payload to b.
func (r Resume) Append(b []byte) []byte { return append(b, r.Token[:]...) }

// DecodeResume is the reverse of Resume.Append.
func DecodeResume(payload []byte) (Resume, error) {
	d := decoder{of: TypeResume, b: payload}
	r := Resume{Token: d.id("token")}
	if r.Token == [16]byte{} {
		d.failf("a token of zeros")
	}
	return finish(&d, r)
}

// Replace has an object take the names of one that is no longer written to.
type Replace struct {
	Old, New uint64
}

// Append appends the payload to b.
func (r Replace) Append(b []byte) []byte { return append64(append64(b, r.Old), r.New) }

// DecodeReplace is the reverse of Replace.Append.
func DecodeReplace(payload []byte) (Replace, error) {
	d := decoder{of: TypeReplace, b: payload}
	return finish(&d, Replace{Old: d.u64("old object"), New: d.u64("new object")})
}

// Revoke ends the lease of an object.
type Revoke struct {
	Name string
}

// Append appends the payload to b.
func (r Revoke) Append(b []byte) []byte { return appendString(b, r.Name) }

// DecodeRevoke is the reverse of Revoke.Append.
func DecodeRevoke(payload []byte) (Revoke, error) {
	d := decoder{of: TypeRevoke, b: payload}
	return finish(&d, Revoke{Name: d.name()})
}

// Reported is what a store says of itself, in reply to REPORT: JSON.
type Reported struct {
	JSON []byte
}

// Append appends the payload to b.
func (r Reported) Append(b []byte) []byte { return append(append32(b, uint32(len(r.JSON))), r.JSON...) }

// DecodeReported is the reverse of Reported.Append.
func DecodeReported(payload []byte) (Reported, error) {
	d := decoder{of: TypeReported, b: payload}
	return finish(&d, Reported{JSON: d.blob("report", MaxReport)})
}
