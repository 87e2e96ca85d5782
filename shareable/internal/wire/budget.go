package wire

// Join makes the connection a member of the budget of a device. The reply is a LENT with number 0.
type Join struct {
	UUID    [16]byte // of the device
	Token   [16]byte // random, the same on each connection of the member
	Lease   uint64   // bytes: the lease that it has from an earlier connection
	Created uint64   // bytes of memory that it has
	Least   uint64   // bytes that are never taken from it
	Most    uint64   // bytes; MaxUint64: no bound
	Name    string
}

// Append appends the payload to b.
func (j Join) Append(b []byte) []byte {
	b = append(append(b, j.UUID[:]...), j.Token[:]...)
	for _, v := range []uint64{j.Lease, j.Created, j.Least, j.Most} {
		b = append64(b, v)
	}
	return appendString(b, j.Name)
}

// DecodeJoin is the reverse of Join.Append.
func DecodeJoin(payload []byte) (Join, error) {
	d := decoder{of: TypeJoin, b: payload}
	j := Join{
		UUID: d.id("UUID"), Token: d.id("token"),
		Lease: d.u64("lease"), Created: d.u64("created"), Least: d.u64("least"), Most: d.u64("most"), Name: d.name(),
	}
	if j.Token == [16]byte{} {
		d.failf("a token of zeros")
	}
	return finish(&d, j)
}

// Ask asks for a higher lease. The reply is a LENT with its number.
type Ask struct {
	Number  uint32 // of the member's, never 0
	Urgent  bool   // others are to give what they can; else what no one uses will do
	Need    uint64 // bytes: the least lease that is of use
	Want    uint64 // bytes, at least Need
	Created uint64 // bytes
}

// Append appends the payload to b.
func (a Ask) Append(b []byte) []byte {
	b = appendBool(append32(b, a.Number), a.Urgent)
	return append64(append64(append64(b, a.Need), a.Want), a.Created)
}

// DecodeAsk is the reverse of Ask.Append.
func DecodeAsk(payload []byte) (Ask, error) {
	d := decoder{of: TypeAsk, b: payload}
	a := Ask{Number: d.u32("number"), Urgent: d.bool("urgent"), Need: d.u64("need"), Want: d.u64("want"), Created: d.u64("created")}
	if d.err == nil && a.Number == 0 || a.Want < a.Need {
		d.failf("number %d, need %d, want %d", a.Number, a.Need, a.Want)
	}
	return finish(&d, a)
}

// Gave is the reply to a DEMAND, or with number 0 says what the member has. It has no reply.
type Gave struct {
	Number  uint32
	Given   uint64 // bytes by which the lease has fallen
	Created uint64 // bytes
	Why     string // too little was given; may be empty
}

// Append appends the payload to b.
func (g Gave) Append(b []byte) []byte {
	return appendString(append64(append64(append32(append32(b, g.Number), 0), g.Given), g.Created), truncateText(g.Why))
}

// DecodeGave is the reverse of Gave.Append.
func DecodeGave(payload []byte) (Gave, error) {
	d := decoder{of: TypeGave, b: payload}
	g := Gave{Number: d.u32("number")}
	d.zero()
	g.Given, g.Created, g.Why = d.u64("given"), d.u64("created"), d.string("reason", MaxText)
	return finish(&d, g)
}

// Flags of a TERMS.
const (
	TermsLeast uint32 = 1 << iota
	TermsMost
	TermsBudget
)

// Terms changes what a member is promised, or the budget of a device. The reply is DONE.
type Terms struct {
	UUID   [16]byte // of the device; zeros: the only one
	Flags  uint32   // which of the values count
	Least  uint64   // bytes
	Most   uint64   // bytes
	Budget uint64   // bytes
	Member string   // may be empty with TermsBudget alone
}

// Append appends the payload to b.
func (t Terms) Append(b []byte) []byte {
	b = append32(append32(append(b, t.UUID[:]...), t.Flags), 0)
	return appendString(append64(append64(append64(b, t.Least), t.Most), t.Budget), t.Member)
}

// DecodeTerms is the reverse of Terms.Append.
func DecodeTerms(payload []byte) (Terms, error) {
	d := decoder{of: TypeTerms, b: payload}
	t := Terms{UUID: d.id("UUID"), Flags: d.within("flags", 1, TermsLeast|TermsMost|TermsBudget)}
	d.zero()
	t.Least, t.Most, t.Budget, t.Member = d.u64("least"), d.u64("most"), d.u64("budget"), d.optionalName()
	return finish(&d, t)
}

// Lent says that the lease of a member has risen, or why not.
type Lent struct {
	Number uint32 // of the ASK; 0: of the JOIN, or the terms have changed
	Code   uint32 // as in ERROR; 0: the ASK has what it needs
	More   uint64 // bytes by which the lease rises
	Least  uint64 // bytes
	Most   uint64 // bytes
	Text   string // why the lease is less than was needed; may be empty
}

// Append appends the payload to b.
func (l Lent) Append(b []byte) []byte {
	b = append64(append32(append32(b, l.Number), l.Code), l.More)
	return appendString(append64(append64(b, l.Least), l.Most), truncateText(l.Text))
}

// DecodeLent is the reverse of Lent.Append.
func DecodeLent(payload []byte) (Lent, error) {
	d := decoder{of: TypeLent, b: payload}
	return finish(&d, Lent{
		Number: d.u32("number"), Code: d.u32("code"), More: d.u64("more"), Least: d.u64("least"), Most: d.u64("most"), Text: d.string("text", MaxText),
	})
}

// Demand asks a member to bring its lease down. The reply is GAVE.
type Demand struct {
	Number uint32
	Soft   bool   // only what no one uses
	Within uint32 // ms
	Lease  uint64 // bytes to come down to
}

// Append appends the payload to b.
func (m Demand) Append(b []byte) []byte {
	b = append32(appendBool(append32(b, m.Number), m.Soft), m.Within)
	return append64(append32(b, 0), m.Lease)
}

// DecodeDemand is the reverse of Demand.Append.
func DecodeDemand(payload []byte) (Demand, error) {
	d := decoder{of: TypeDemand, b: payload}
	m := Demand{Number: d.u32("number"), Soft: d.bool("soft"), Within: d.u32("time")}
	d.zero()
	m.Lease = d.u64("lease")
	return finish(&d, m)
}
