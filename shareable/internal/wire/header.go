package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The version of the protocol. A peer of another major version is refused.
const (
	Major = 1
	Minor = 0
)

// FlagOptional marks a frame that a peer skips when it does not know the type.
const FlagOptional uint32 = 1

const magic = 0x4D565543 // "CUVM"

// ErrVersion is what a ProtocolError is, by errors.Is, if the peer has another
// major version.
var ErrVersion = errors.New("another protocol version")

// ProtocolError is for a frame that breaks the protocol. The connection cannot be
// used any more.
type ProtocolError struct {
	What string // what was wrong, with the numbers

	version bool
}

// Error returns what was wrong.
func (e *ProtocolError) Error() string { return "protocol: " + e.What }

// Is reports whether target is ErrVersion and the peer has another major version.
func (e *ProtocolError) Is(target error) bool { return e.version && target == ErrVersion }

func protocolf(format string, args ...any) *ProtocolError {
	return &ProtocolError{What: fmt.Sprintf(format, args...)}
}

// Type is the type of a frame.
type Type uint16

// Requests are below 64. Those from RELEASE on are for a store, those from JOIN on for a budget.
const (
	TypeHello   Type = 1
	TypeList    Type = 2
	TypeStat    Type = 3
	TypeAttach  Type = 4
	TypeResync  Type = 5
	TypeDetach  Type = 6
	TypeAck     Type = 7
	TypeRelease Type = 8
	TypeCreate  Type = 9
	TypeSeal    Type = 10
	TypeDelete  Type = 11
	TypeWait    Type = 12
	TypeLease   Type = 13
	TypeMapped  Type = 14
	TypeGrow    Type = 15
	TypeWrote   Type = 16
	TypeLink    Type = 17
	TypeUnlink  Type = 18
	TypeQuery   Type = 19
	TypeCount   Type = 20
	TypeWatch   Type = 21
	TypeResume  Type = 22
	TypeReplace Type = 23
	TypeReport  Type = 24
	TypeRevoke  Type = 25
	TypeJoin    Type = 26
	TypeAsk     Type = 27
	TypeGave    Type = 28
	TypeLeave   Type = 29
	TypeTerms   Type = 30
)

// OfStore reports whether it is a request to a store.
func (t Type) OfStore() bool { return t >= TypeRelease && t <= TypeTerms }

// Replies and events are from 64 on.
const (
	TypeChunks   Type = 64
	TypePublish  Type = 65
	TypeRetire   Type = 66
	TypeSealed   Type = 67
	TypeDeleted  Type = 68
	TypeClosing  Type = 69
	TypeError    Type = 70
	TypeListed   Type = 71
	TypeObject   Type = 72
	TypeDone     Type = 73
	TypePage     Type = 74
	TypeFound    Type = 75
	TypeCounters Type = 76
	TypeEvent    Type = 77
	TypeReported Type = 78
	TypeLent     Type = 79
	TypeDemand   Type = 80
)

// String is the name of the type in capitals.
func (t Type) String() string {
	if name := t.name(); name != "" {
		return name
	}
	return fmt.Sprintf("type %d", uint16(t))
}

func (t Type) name() string { return typeNames[t] }

var typeNames = map[Type]string{
	TypeHello:    "HELLO",
	TypeList:     "LIST",
	TypeStat:     "STAT",
	TypeAttach:   "ATTACH",
	TypeResync:   "RESYNC",
	TypeDetach:   "DETACH",
	TypeAck:      "ACK",
	TypeRelease:  "RELEASE",
	TypeCreate:   "CREATE",
	TypeSeal:     "SEAL",
	TypeDelete:   "DELETE",
	TypeWait:     "WAIT",
	TypeLease:    "LEASE",
	TypeMapped:   "MAPPED",
	TypeGrow:     "GROW",
	TypeWrote:    "WROTE",
	TypeLink:     "LINK",
	TypeUnlink:   "UNLINK",
	TypeQuery:    "QUERY",
	TypeCount:    "COUNT",
	TypeWatch:    "WATCH",
	TypeResume:   "RESUME",
	TypeReplace:  "REPLACE",
	TypeReport:   "REPORT",
	TypeRevoke:   "REVOKE",
	TypeJoin:     "JOIN",
	TypeAsk:      "ASK",
	TypeGave:     "GAVE",
	TypeLeave:    "LEAVE",
	TypeTerms:    "TERMS",
	TypeChunks:   "CHUNKS",
	TypePublish:  "PUBLISH",
	TypeRetire:   "RETIRE",
	TypeSealed:   "SEALED",
	TypeDeleted:  "DELETED",
	TypeClosing:  "CLOSING",
	TypeError:    "ERROR",
	TypeListed:   "LISTED",
	TypeObject:   "OBJECT",
	TypeDone:     "DONE",
	TypePage:     "PAGE",
	TypeFound:    "FOUND",
	TypeCounters: "COUNTERS",
	TypeEvent:    "EVENT",
	TypeReported: "REPORTED",
	TypeLent:     "LENT",
	TypeDemand:   "DEMAND",
}

// Header is the first part of a frame.
type Header struct {
	Major, Minor uint8
	Type         Type
	Flags        uint32 // FlagOptional
	FDs          uint16 // that travel with the frame
	Len          uint32 // bytes of payload
	Request      uint32 // the number of a request and of its reply; 0 in an event
	Sequence     uint64 // 1 in the first frame that a side sends, then one more in each
}

// Append appends the header's bytes to b.
func (h Header) Append(b []byte) []byte {
	b = append32(b, magic)
	b = append(b, h.Major, h.Minor)
	b = binary.LittleEndian.AppendUint16(b, uint16(h.Type))
	b = append32(b, h.Flags)
	b = binary.LittleEndian.AppendUint16(b, h.FDs)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = append32(b, h.Len)
	b = append32(b, h.Request)
	return append64(b, h.Sequence)
}

// DecodeHeader decodes the header of packet, which is one whole frame. With an
// ErrVersion it returns the version as well, and no other field.
func DecodeHeader(packet []byte) (Header, error) {
	if len(packet) < HeaderSize {
		return Header{}, protocolf("frame of %d bytes, shorter than a header", len(packet))
	}
	le := binary.LittleEndian
	if m := le.Uint32(packet); m != magic {
		return Header{}, protocolf("frame begins with %#x instead of %#x", m, uint32(magic))
	}
	// The version comes before all other fields: in another one they may differ.
	h := Header{Major: packet[4], Minor: packet[5]}
	if h.Major != Major {
		err := protocolf("peer speaks version %d.%d, not %d.%d", h.Major, h.Minor, Major, Minor)
		err.version = true
		return h, err
	}
	h.Type = Type(le.Uint16(packet[6:]))
	h.Flags = le.Uint32(packet[8:])
	h.FDs = le.Uint16(packet[12:])
	h.Len = le.Uint32(packet[16:])
	h.Request = le.Uint32(packet[20:])
	h.Sequence = le.Uint64(packet[24:])
	if zero := le.Uint16(packet[14:]); zero != 0 {
		return Header{}, protocolf("%v with %#x in a reserved field", h.Type, zero)
	}
	if err := h.check(len(packet)); err != nil {
		return Header{}, err
	}
	return h, nil
}

// check checks a header against the size of its packet and the limits of its type.
func (h Header) check(packet int) error {
	switch {
	case h.Flags&^FlagOptional != 0:
		return protocolf("%v with unknown flags %#x", h.Type, h.Flags)
	case packet > MaxFrame:
		return protocolf("%v of %d bytes, over %d", h.Type, packet, MaxFrame)
	case uint64(h.Len) != uint64(packet-HeaderSize):
		return protocolf("%v with %d bytes of payload instead of %d", h.Type, packet-HeaderSize, h.Len)
	case h.Type.name() == "" && h.Flags&FlagOptional == 0:
		return protocolf("frame of the unknown %v", h.Type)
	case h.Len != 0 && (h.Type == TypeDone || h.Type == TypeCount || h.Type == TypeReport || h.Type == TypeLeave):
		return protocolf("%v with %d bytes of payload", h.Type, h.Len)
	case h.FDs == 0 && (h.Type == TypeChunks || h.Type == TypePage):
		return protocolf("%v without fds", h.Type)
	case h.FDs > h.Type.maxFDs():
		return protocolf("%v with %d fds, over %d", h.Type, h.FDs, h.Type.maxFDs())
	case h.Type == TypeChunks && h.Len != chunksFixed+chunkSize*uint32(h.FDs):
		return protocolf("%v with %d fds and %d bytes of payload", h.Type, h.FDs, h.Len)
	}
	return nil
}

func (t Type) maxFDs() uint16 {
	switch {
	case t == TypeChunks || t.name() == "":
		return MaxFDs
	case t == TypeObject:
		return 2
	case t == TypePage:
		return 1
	}
	return 0
}
