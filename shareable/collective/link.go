package collective

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Types of a frame.
const (
	frameAdmitted = 1 + iota // the hello is good
	frameRefused             // Code says why; the connection closes
	frameWelcome             // the group is complete
	framePing
	framePong
	frameGone    // the member of Rank has ended
	frameGoodbye // the sender closes, and has not failed
	frameLeads   // the sender shrinks, and leads
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

// link is a connection on which the secret was shown.
type link struct {
	conn     net.Conn
	secret   []byte
	nonces   [2]nonce // of the side that accepted, and of the one that dialed
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

// newLink makes the link of a group of size members. Its channel holds all frames that one member
// sends.
func newLink(conn net.Conn, secret []byte, nonces [2]nonce, size int) *link {
	return &link{conn: conn, secret: secret, nonces: nonces, in: make(chan frame, min(size, maxFrame/32)+8), ended: make(chan struct{}), ponged: make(chan struct{})}
}

func (l *link) frameMAC(fromAccepted bool, number uint64, body []byte) []byte {
	label := "cuvmm frame, dialed"
	if fromAccepted {
		label = "cuvmm frame, accepted"
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

// isThere reports whether the other side replies to a ping within the time, and before ctx ends.
func (l *link) isThere(ctx context.Context, within time.Duration) bool {
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
	case <-ctx.Done():
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
