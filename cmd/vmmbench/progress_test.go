package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The time left follows what the groups before took, and the groups to come are in it however
// long the one under way takes.
func TestTimeLeft(t *testing.T) {
	begun := time.Unix(1e9, 0)
	at := func(s int) time.Time { return begun.Add(time.Duration(s) * time.Second) }
	p := &progress{estimates: []time.Duration{10 * time.Second, 10 * time.Second, 5 * time.Second}, begun: begun, groupBegun: begun, n: 1}
	require.Equal(t, "1 of 3, 25 s left: a", p.line("a", begun))
	require.Equal(t, "1 of 3, 21 s left: a", p.line("a", at(4)))
	require.Equal(t, "1 of 3, 15 s left: a", p.line("a", at(17)))
	p.n, p.groupBegun = 2, at(20) // twice as long as estimated
	require.Equal(t, "2 of 3, 30 s left: b", p.line("b", at(20)))
	require.Equal(t, "2 of 3, 10 s left: b", p.line("b", at(60)))
	p.n, p.groupBegun = 3, at(60)
	require.Equal(t, "3 of 3, 15 s left: c", p.line("c", at(60)))
	require.Equal(t, "3 of 3, under 1 s left: c", p.line("c", at(90)))

	require.Equal(t, "119 s", seconds(119*time.Second))
	require.Equal(t, "3 min", seconds(170*time.Second))
}

// A terminal has one line, which is gone at the end.
func TestProgressOnATerminal(t *testing.T) {
	var out strings.Builder
	p := newProgress(&out, "line", []time.Duration{time.Hour, time.Hour})
	p.begin("first")
	p.begin(strings.Repeat("second", 20))
	p.stop()
	p.stop()
	lines := strings.Split(out.String(), clearLine)
	require.Equal(t, []string{"", "1 of 2, 120 min left: first", ""}, lines[:3])
	require.Len(t, lines[3], columns)
	require.Empty(t, lines[4])
	require.NotContains(t, out.String(), "\n")

	out.Reset()
	p = newProgress(&out, "auto", []time.Duration{time.Hour})
	p.begin("only")
	p.stop()
	require.Equal(t, "1 of 1, 60 min left: only\n", out.String())

	out.Reset()
	newProgress(&out, "off", []time.Duration{time.Hour}).begin("only")
	require.Empty(t, out.String())
}
