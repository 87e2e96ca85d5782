package lending

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// line is a connection of this process.
type line struct {
	t    *testing.T
	sent chan wire.Frame
	uid  uint32 // 0: of this user
}

func newLine(t *testing.T) *line { return &line{t: t, sent: make(chan wire.Frame, 64)} }

func (l *line) Cred() wire.Cred          { return wire.Cred{PID: int32(os.Getpid()), UID: l.uid} }
func (*line) PeerPIDFD() (int, error)    { return unix.PidfdOpen(os.Getpid(), 0) }
func (*line) Refuse(uint32, error) error { return nil }
func (*line) Close(error)                {}
func (l *line) says(s *Service, t wire.Type, payload []byte) {
	l.t.Helper()
	require.NoError(l.t, s.Request(l, wire.Frame{Header: wire.Header{Type: t}, Payload: payload}))
}

func (l *line) Reply(t wire.Type, _ uint32, payload []byte, _ ...int) error {
	l.sent <- wire.Frame{Header: wire.Header{Type: t}, Payload: payload}
	return nil
}

func (l *line) next(of wire.Type) []byte {
	l.t.Helper()
	select {
	case f := <-l.sent:
		require.Equal(l.t, of, f.Type)
		return f.Payload
	case <-time.After(10 * time.Second):
		require.FailNow(l.t, "no frame")
		return nil
	}
}

func (l *line) lent() wire.Lent {
	l.t.Helper()
	q, err := wire.DecodeLent(l.next(wire.TypeLent))
	require.NoError(l.t, err)
	return q
}

// TestAskAfterARestart: an urgent ask to a server that knows members of the one before it waits until those are back,
// and no longer than JoinTime; idle memory is lent at once.
func TestAskAfterARestart(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	records := map[string][]byte{}
	open := func(joinTime time.Duration) *Service {
		mu.Lock()
		defer mu.Unlock()
		known := map[string][]byte{}
		for token, r := range records {
			known[token] = r
		}
		s, err := New(Options{
			Budgets: []Budget{{Device: "d", UUID: UUID{1}, Bytes: 100, Memory: 1000}}, Logger: slog.New(slog.DiscardHandler), JoinTime: joinTime, Records: known,
			Keep: func(token string, r []byte) error {
				mu.Lock()
				defer mu.Unlock()
				records[token] = r
				return nil
			},
		})
		require.NoError(t, err)
		return s
	}
	joins := func(s *Service, token byte, lease uint64) *line {
		l := newLine(t)
		l.says(s, wire.TypeJoin, wire.Join{UUID: UUID{1}, Token: [16]byte{token}, Lease: lease, Name: "m"}.Append(nil))
		require.Equal(t, lease, l.lent().More)
		return l
	}
	urgent := wire.Ask{Number: 2, Urgent: true, Need: 40, Want: 40}.Append(nil)

	s := open(time.Millisecond)
	a := joins(s, 1, 0)
	joins(s, 2, 0)
	a.says(s, wire.TypeAsk, wire.Ask{Number: 1, Need: 90, Want: 90}.Append(nil))
	require.EqualValues(t, 90, a.lent().More)
	s.Close()

	s = open(time.Minute)
	b := joins(s, 2, 0)
	b.says(s, wire.TypeAsk, urgent)
	b.says(s, wire.TypeAsk, wire.Ask{Number: 3, Need: 5, Want: 5}.Append(nil))
	require.EqualValues(t, 5, b.lent().More, "one that is not urgent does not wait")
	a = joins(s, 1, 90)
	d, err := wire.DecodeDemand(a.next(wire.TypeDemand))
	require.NoError(t, err)
	a.says(s, wire.TypeGave, wire.Gave{Number: d.Number, Given: 90 - d.Lease, Created: d.Lease}.Append(nil))
	lent := b.lent()
	require.Zero(t, lent.Code, lent.Text)
	require.EqualValues(t, 35, lent.More)
	s.Close()

	s = open(50 * time.Millisecond)
	defer s.Close()
	b = joins(s, 2, 40)
	b.says(s, wire.TypeAsk, wire.Ask{Number: 2, Urgent: true, Need: 50, Want: 50}.Append(nil))
	lent = b.lent()
	require.Equal(t, wire.CodeOutOfMemory, lent.Code)
	require.Contains(t, lent.Text, `"m" is not connected`)
}

// TestAskAfterOneThatWasGivenUp: a member that does not wait for its ask any more asks again, and is lent what others
// give.
func TestAskAfterOneThatWasGivenUp(t *testing.T) {
	t.Parallel()
	s, err := New(Options{Budgets: []Budget{{Device: "d", UUID: UUID{1}, Bytes: 100, Memory: 1000}}, Logger: slog.New(slog.DiscardHandler), JoinTime: time.Nanosecond, Deadline: time.Hour})
	require.NoError(t, err)
	defer s.Close()
	has, asks := newLine(t), newLine(t)
	for token, l := range []*line{has, asks} {
		l.says(s, wire.TypeJoin, wire.Join{UUID: UUID{1}, Token: [16]byte{byte(token + 1)}, Name: "m"}.Append(nil))
		l.lent()
	}
	has.says(s, wire.TypeAsk, wire.Ask{Number: 1, Urgent: true, Need: 100, Want: 100}.Append(nil))
	require.EqualValues(t, 100, has.lent().More)
	asks.says(s, wire.TypeAsk, wire.Ask{Number: 1, Urgent: true, Need: 40, Want: 40}.Append(nil))
	d, err := wire.DecodeDemand(has.next(wire.TypeDemand))
	require.NoError(t, err)
	asks.says(s, wire.TypeAsk, wire.Ask{Number: 2, Urgent: true, Need: 30, Want: 30}.Append(nil))
	has.says(s, wire.TypeGave, wire.Gave{Number: d.Number, Given: 100 - d.Lease, Created: d.Lease}.Append(nil))
	lent := asks.lent()
	require.Zero(t, lent.Code, lent.Text)
	require.EqualValues(t, 2, lent.Number)
	require.GreaterOrEqual(t, lent.More, uint64(30))
}

// TestTermsOfOthers: a user who is neither root nor the server's changes the terms of his own processes alone. A
// refused request changes nothing.
func TestTermsOfOthers(t *testing.T) {
	t.Parallel()
	s, err := New(Options{Budgets: []Budget{{Device: "d", UUID: UUID{1}, Bytes: 100, Memory: 1000}}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer s.Close()
	joins := func(uid uint32, token byte, name string) *line {
		l := newLine(t)
		l.uid = uid
		l.says(s, wire.TypeJoin, wire.Join{UUID: UUID{1}, Token: [16]byte{token}, Name: name}.Append(nil))
		l.lent()
		return l
	}
	changes := func(l *line, q wire.Terms) error {
		return s.Request(l, wire.Frame{Header: wire.Header{Type: wire.TypeTerms, Request: 1}, Payload: q.Append(nil)})
	}
	own, other := joins(0, 1, "own"), joins(12345, 2, "other")
	budget := wire.Terms{Flags: wire.TermsBudget, Budget: 50}
	require.ErrorIs(t, changes(other, budget), vmm.ErrPermission)
	require.ErrorIs(t, changes(other, wire.Terms{Flags: wire.TermsLeast, Least: 1, Member: "own"}), vmm.ErrPermission)
	require.ErrorIs(t, changes(own, wire.Terms{Flags: wire.TermsBudget | wire.TermsLeast, Budget: 50, Member: "none"}), vmm.ErrInvalid)
	require.EqualValues(t, 100, s.Reports()[0].Budget)
	require.NoError(t, changes(other, wire.Terms{Flags: wire.TermsLeast, Least: 1, Member: "other"}))
	require.NoError(t, changes(own, wire.Terms{Flags: wire.TermsLeast, Least: 2, Member: "other"}))
	require.NoError(t, changes(own, budget))
	require.EqualValues(t, 50, s.Reports()[0].Budget)
}

// TestManyMembers: a process is no more than maxOfProcess members, and a report that is sent has those with the largest
// leases, as many as a frame has room for.
func TestManyMembers(t *testing.T) {
	t.Parallel()
	s, err := New(Options{Budgets: []Budget{{Device: "d", UUID: UUID{1}, Bytes: 100, Memory: 1000}}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer s.Close()
	join := func(uid uint32, token byte) error {
		l := newLine(t)
		l.uid = uid
		return s.Request(l, wire.Frame{Header: wire.Header{Type: wire.TypeJoin}, Payload: wire.Join{UUID: UUID{1}, Token: [16]byte{token, byte(uid)}, Name: strings.Repeat("m", wire.MaxName)}.Append(nil)})
	}
	for i := range maxOfProcess {
		for uid := range uint32(3) {
			require.NoError(t, join(uid+1, byte(i+1)))
		}
	}
	require.ErrorIs(t, join(1, 255), vmm.ErrLimit)
	all := s.Reports()
	size := func() int {
		b, err := json.Marshal(all)
		require.NoError(t, err)
		return len(b)
	}
	require.Greater(t, size(), wire.MaxReport)
	all[0].Members[5].Lease = 1
	b, err := Marshal(all, all)
	require.NoError(t, err)
	require.Len(t, b, size())
	require.LessOrEqual(t, len(b), wire.MaxReport)
	require.Greater(t, len(b), wire.MaxReport*3/4)
	require.Equal(t, 3*maxOfProcess, len(all[0].Members)+all[0].LeftOut)
	require.EqualValues(t, 1, all[0].Members[0].Lease)
	_, err = Marshal(strings.Repeat("m", wire.MaxReport), all)
	require.ErrorIs(t, err, vmm.ErrLimit)
}

// TestRecordsInOrder: what a member has given is kept before what another one gets for it. Else a server that dies between
// the two leaves records of more than the budget.
func TestRecordsInOrder(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var kept []string
	s, err := New(Options{
		Budgets: []Budget{{Device: "d", UUID: UUID{1}, Bytes: 100, Memory: 1000}}, Logger: slog.New(slog.DiscardHandler), JoinTime: time.Millisecond,
		Keep: func(_ string, record []byte) error {
			var r Record
			require.NoError(t, json.Unmarshal(record, &r))
			if r.Name == "giver" {
				for range 1000 { // others are faster if they can be
					runtime.Gosched()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			kept = append(kept, fmt.Sprint(r.Name, " ", r.Lease))
			return nil
		},
	})
	require.NoError(t, err)
	defer s.Close()
	joins := func(token byte, name string) *line {
		l := newLine(t)
		l.says(s, wire.TypeJoin, wire.Join{UUID: UUID{1}, Token: [16]byte{token}, Name: name}.Append(nil))
		require.Zero(t, l.lent().More)
		return l
	}
	giver, taker := joins(1, "giver"), joins(2, "taker")
	giver.says(s, wire.TypeAsk, wire.Ask{Number: 1, Urgent: true, Need: 100, Want: 100}.Append(nil))
	require.EqualValues(t, 100, giver.lent().More)
	taker.says(s, wire.TypeAsk, wire.Ask{Number: 1, Urgent: true, Need: 40, Want: 40}.Append(nil))
	d, err := wire.DecodeDemand(giver.next(wire.TypeDemand))
	require.NoError(t, err)
	require.Less(t, d.Within, uint32(5000), "of the deadline, time is left for the reply")
	giver.says(s, wire.TypeGave, wire.Gave{Number: d.Number, Given: 40, Created: 60}.Append(nil))
	require.EqualValues(t, 40, taker.lent().More)
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"giver 60", "taker 40"}, kept[len(kept)-2:])
}
