package collective

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

// The members of a group talk over TCP. The side that accepts a connection sends a greeting with a
// nonce. The side that dialed replies with a hello: it has another nonce, and an HMAC over both
// with the group's secret. Then both sides send frames, each with an HMAC over the nonces, the
// direction and the frame's number. So a recorded hello or frame is refused on another connection,
// and later on the same one.
//
// The frames are not encrypted. A program that can read or change what the network carries is not
// kept out: it can read frames, and end connections.
//
// Without a secret the key is empty, and both sides refuse connections between hosts.

const (
	secretVar     = "CUVMM_GROUP_SECRET"
	secretFileVar = "CUVMM_GROUP_SECRET_FILE"
)

// groupSecret returns the secret of the group: own, or that of the file that the environment
// names, without a newline at its end, or else that of the environment. None is nil.
func groupSecret(own []byte, getenv func(string) string) ([]byte, error) {
	if len(own) > 0 {
		return own, nil
	}
	if name := getenv(secretFileVar); name != "" {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", vmm.ErrInvalid, secretFileVar, err)
		}
		text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
		if len(text) == 0 {
			return nil, fmt.Errorf("%w: %s: %s is empty", vmm.ErrInvalid, secretFileVar, name)
		}
		return text, nil
	}
	if text := getenv(secretVar); text != "" {
		return []byte(text), nil
	}
	return nil, nil
}

type nonce [32]byte

// greeting is the first message on a connection. Numbers are little-endian.
type greeting struct {
	Magic [8]byte // with the version of the protocol
	Nonce nonce
}

var meetMagic = [8]byte{'c', 'u', 'v', 'm', 'm', 'g', 'r', '3'}

// hello is how a member, or a probe of one, introduces itself.
type hello struct {
	Magic      [8]byte
	Job        uint64 // of the launcher, at the meeting; then the number that rank 0 has made for the group
	Generation uint64 // 0 at the meeting; another random number after each shrink
	Rank, Size uint32
	TCPPort    uint32 // where this member listens
	Probe      uint32 // 1: only asks whether the other one lives
	Nonce      nonce
}

type signedHello struct {
	Hello hello
	MAC   [sha256.Size]byte
}

var (
	errMAC      = errors.New("not made with this group's secret")
	errStranger = fmt.Errorf("%w: another program replies", ErrMismatch)
)

// mac is the HMAC of the parts with the group's secret.
func mac(secret []byte, label string, parts ...any) []byte {
	h := hmac.New(sha256.New, secret)
	_, _ = io.WriteString(h, label+"\x00") // a hash takes all
	for _, p := range parts {
		_ = binary.Write(h, binary.LittleEndian, p)
	}
	return h.Sum(nil)
}

// greet is the handshake of the side that accepted the connection. For a hello with another secret
// it returns the link as well, for the refusal.
func (m meeting) greet(conn net.Conn, size int) (h hello, l *link, err error) {
	if err := conn.SetDeadline(time.Now().Add(meetTimeout)); err != nil {
		return h, nil, err
	}
	g := greeting{Magic: meetMagic, Nonce: newNonce()}
	if err := binary.Write(conn, binary.LittleEndian, g); err != nil {
		return h, nil, err
	}
	var s signedHello
	if err := binary.Read(conn, binary.LittleEndian, &s); err != nil {
		return h, nil, err
	}
	if s.Hello.Magic != meetMagic {
		return h, nil, errStranger
	}
	l = newLink(conn, m.secret, [2]nonce{g.Nonce, s.Hello.Nonce}, size)
	l.accepted, l.trusting = true, m.trusting
	if !hmac.Equal(s.MAC[:], helloMAC(m.secret, g.Nonce, s.Hello)) && !m.trusting {
		return s.Hello, l, errMAC
	}
	if len(m.secret) == 0 && !isLocal(conn) {
		return s.Hello, l, errNoSecret
	}
	return s.Hello, l, conn.SetDeadline(time.Time{})
}

// introduce is the handshake of the side that dialed. It returns once the other side has admitted
// this one.
func (m meeting) introduce(conn net.Conn, h hello) (*link, error) {
	if len(m.secret) == 0 && !isLocal(conn) {
		return nil, errNoSecret
	}
	var g greeting
	if err := binary.Read(conn, binary.LittleEndian, &g); err != nil {
		return nil, err
	}
	if g.Magic != meetMagic {
		return nil, errStranger
	}
	h.Magic, h.Nonce = meetMagic, newNonce()
	s := signedHello{Hello: h}
	copy(s.MAC[:], helloMAC(m.secret, g.Nonce, h))
	if err := binary.Write(conn, binary.LittleEndian, s); err != nil {
		return nil, err
	}
	l := newLink(conn, m.secret, [2]nonce{g.Nonce, h.Nonce}, int(h.Size))
	l.trusting = m.trusting
	f, err := l.next()
	switch {
	case errors.Is(err, errMAC):
		return nil, fmt.Errorf("%w: the member at %v has another secret: see Options.Secret and %s", vmm.ErrPermission, conn.RemoteAddr(), secretFileVar)
	case err != nil:
		return nil, err
	case f.Type == frameRefused:
		return nil, refusal{f.Code, f.Rank, f.Text}
	case f.Type != frameAdmitted:
		return nil, errStranger
	}
	return l, conn.SetDeadline(time.Time{})
}

func helloMAC(secret []byte, of nonce, h hello) []byte {
	return mac(secret, "cuvmm hello", of, h)
}

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

// newNumber returns a random number that is not 0.
func newNumber() uint64 {
	n := newNonce()
	return binary.LittleEndian.Uint64(n[:]) | 1
}

var errNoSecret = fmt.Errorf("%w: members on several hosts need a secret: see Options.Secret and %s", vmm.ErrInvalid, secretFileVar)

// isLocal reports whether both ends of the connection are on this host.
func isLocal(conn net.Conn) bool {
	l, ok := conn.LocalAddr().(*net.TCPAddr)
	r, also := conn.RemoteAddr().(*net.TCPAddr)
	return ok && also && (r.IP.IsLoopback() || r.IP.Equal(l.IP))
}

// code is why a connection is refused.
type code int

const (
	codeNone code = iota
	codeOtherSize
	codeTwice
	codeOtherJob
	codeRank
	codeSecret
	codeNeedsSecret
	codeElsewhere // not now: the other one is not ready, or follows another leader
	codeLeftOut
	codeMinority
	codeFailed
	codeLate
)

// refusal is the error for a connection that the other side has refused.
type refusal struct {
	code code
	rank int    // of the member that was refused
	text string // of another member's error
}

func (r refusal) Error() string {
	switch r.code {
	case codeOtherSize:
		return fmt.Sprintf("%v: rank %d says another number of members", ErrMismatch, r.rank)
	case codeTwice:
		return fmt.Sprintf("%v: rank %d is there twice", ErrMismatch, r.rank)
	case codeOtherJob:
		return fmt.Sprintf("%v: another job meets at the address of this one's rank 0", ErrMismatch)
	case codeRank:
		return fmt.Sprintf("%v: no member but rank 0 can have rank %d", ErrMismatch, r.rank)
	case codeSecret:
		return fmt.Sprintf("%v: another secret: see Options.Secret and %s", vmm.ErrPermission, secretFileVar)
	case codeNeedsSecret:
		return errNoSecret.Error()
	case codeElsewhere:
		return "the other member is not ready"
	case codeLeftOut:
		return fmt.Sprintf("%v: the others went on without this member", ErrPeerGone)
	}
	if r.text == "" {
		return r.Unwrap().Error()
	}
	return fmt.Sprintf("%v: %q", r.Unwrap(), r.text)
}

// refusalKinds are the kinds of error of the codes; ErrFailed for others.
var refusalKinds = map[code]error{
	codeOtherSize: ErrMismatch, codeTwice: ErrMismatch, codeOtherJob: ErrMismatch, codeRank: ErrMismatch,
	codeSecret: vmm.ErrPermission, codeNeedsSecret: vmm.ErrInvalid,
	codeLeftOut: ErrPeerGone, codeMinority: ErrPeerGone, codeElsewhere: ErrPeerGone,
}

func (r refusal) Unwrap() error { return cmp.Or(refusalKinds[r.code], ErrFailed) }
