package collective

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

// The members of a group talk over TCP. Who accepts a connection sends a greeting with a nonce.
// Who has dialed replies with a hello that has another nonce, and an HMAC over both with the
// group's secret. Then come frames in both directions, each with an HMAC over the nonces, the
// direction and the frame's number. So what was recorded on one connection is worth nothing on
// another, or later on the same one. The frames are not encrypted: they hide nothing from a
// program that reads them on their way.
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

// greeting is the first that is sent on a connection. Numbers are little-endian.
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

// Types of a frame.
const (
	frameAdmitted = 1 + iota // the hello is good
	frameRefused             // Code says why; the connection closes
	frameWelcome             // the group is complete
	framePing
	framePong
	frameGone    // the member of Rank has ended
	frameGoodbye // the sender closes, and has not failed
	framePropose // the leader of a shrink is about to decide
	frameAccept  // the member follows that leader, and no other
)

// frame is what is sent once the secret was shown.
type frame struct {
	Type    int
	Code    code     `json:",omitempty"`
	Rank    int      `json:",omitempty"`
	Text    string   `json:",omitempty"`
	Welcome *welcome `json:",omitempty"`
}

// welcome is what makes a group of those that have come.
type welcome struct {
	ID              []byte
	Job, Generation uint64
	Ranks           []int    // of a shrink: the old ranks of the members
	Addresses       []string // at which the members listen, by their new rank
}

const (
	maxFrame     = 1 << 20
	writeTimeout = 10 * time.Second
)

var (
	errMAC      = errors.New("not made with this group's secret")
	errStranger = fmt.Errorf("%w: another program replies", ErrMismatch)
)

// link is a connection on which the secret was shown.
type link struct {
	conn     net.Conn
	secret   []byte
	nonces   [2]nonce // of who has accepted and of who has dialed
	accepted bool     // by this side
	trusting bool     // for tests: takes any MAC
	address  string   // of the other's listener, as this member sees it

	writeMu sync.Mutex
	sent    uint64 // frames
	read    uint64

	in    chan frame    // those that are neither ping nor pong; closed at the end
	ended chan struct{} // closed when the connection has ended

	mu     sync.Mutex
	ponged chan struct{} // closed at the next pong
}

// newLink: in has room for what an honest member sends while no one looks.
func newLink(conn net.Conn, secret []byte, nonces [2]nonce, size int) *link {
	return &link{conn: conn, secret: secret, nonces: nonces, in: make(chan frame, size+8), ended: make(chan struct{}), ponged: make(chan struct{})}
}

// mac is the HMAC of the parts with the group's secret.
func mac(secret []byte, label string, parts ...any) []byte {
	h := hmac.New(sha256.New, secret)
	_, _ = io.WriteString(h, label+"\x00") // a hash takes all
	for _, p := range parts {
		_ = binary.Write(h, binary.LittleEndian, p)
	}
	return h.Sum(nil)
}

func (l *link) frameMAC(fromAccepted bool, number uint64, body []byte) []byte {
	label := "cuvmm frame of who dialed"
	if fromAccepted {
		label = "cuvmm frame of who accepted"
	}
	return mac(l.secret, label, l.nonces, number, body)
}

// write sends a frame. After an error the connection is closed.
func (l *link) write(f frame) error {
	body, err := json.Marshal(f)
	if err != nil {
		return err
	}
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	text := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	text = append(append(text, body...), l.frameMAC(l.accepted, l.sent, body)...)
	l.sent++
	err = l.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err == nil {
		_, err = l.conn.Write(text)
	}
	if err != nil {
		l.close()
	}
	return err
}

// next reads a frame, of any type.
func (l *link) next() (f frame, err error) {
	var size uint32
	if err := binary.Read(l.conn, binary.LittleEndian, &size); err != nil {
		return f, err
	}
	if size > maxFrame {
		return f, fmt.Errorf("%w: a frame of %d bytes", errMAC, size)
	}
	text := make([]byte, int(size)+sha256.Size)
	if _, err := io.ReadFull(l.conn, text); err != nil {
		return f, err
	}
	body, sum := text[:size], text[size:]
	if !hmac.Equal(sum, l.frameMAC(!l.accepted, l.read, body)) && !l.trusting {
		return f, errMAC
	}
	l.read++
	return f, json.Unmarshal(body, &f)
}

// run reads frames until the connection ends, and replies to pings.
func (l *link) run() {
	defer func() {
		l.close()
		close(l.in)
		close(l.ended)
	}()
	for {
		f, err := l.next()
		if err != nil {
			return
		}
		switch f.Type {
		case framePing:
			if l.write(frame{Type: framePong}) != nil {
				return
			}
		case framePong:
			l.mu.Lock()
			close(l.ponged)
			l.ponged = make(chan struct{})
			l.mu.Unlock()
		default:
			select {
			case l.in <- f:
			default:
				return
			}
		}
	}
}

// isThere reports whether the other side replies to a ping within the time.
func (l *link) isThere(within time.Duration) bool {
	l.mu.Lock()
	ponged := l.ponged
	l.mu.Unlock()
	if l.write(frame{Type: framePing}) != nil {
		return false
	}
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-ponged:
		return true
	case <-l.ended:
	case <-t.C:
	}
	return false
}

func (l *link) hasEnded() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

func (l *link) close() { _ = l.conn.Close() }

// refuse says why the connection closes, and closes it.
func (l *link) refuse(r refusal) {
	_ = l.write(frame{Type: frameRefused, Code: r.code, Rank: r.rank, Text: r.text})
	l.close()
}

// greet is the part of who has accepted the connection. For a hello with another secret it returns
// the link as well, for the refusal.
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

// introduce is the part of who has dialed. It returns once the other side has admitted this one.
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
	return isSameHost(conn.LocalAddr(), conn.RemoteAddr())
}

func isSameHost(local, remote net.Addr) bool {
	l, ok := local.(*net.TCPAddr)
	r, also := remote.(*net.TCPAddr)
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
		return "another secret"
	case codeNeedsSecret:
		return errNoSecret.Error()
	case codeElsewhere:
		return "the other member is not ready"
	case codeLeftOut:
		return fmt.Sprintf("%v: the others went on without this member", ErrPeerGone)
	}
	return strings.TrimSpace(fmt.Sprintf("%v: %s", r.Unwrap(), r.text))
}

func (r refusal) Unwrap() error {
	switch r.code {
	case codeOtherSize, codeTwice, codeOtherJob, codeRank:
		return ErrMismatch
	case codeSecret:
		return vmm.ErrPermission
	case codeNeedsSecret:
		return vmm.ErrInvalid
	case codeLeftOut, codeMinority, codeElsewhere:
		return ErrPeerGone
	}
	return ErrFailed
}
