// Package said shows on a terminal what somebody else has said: another process, another user, a file.
// Such a text may have escape sequences, which move the cursor, and ends of lines, which forge rows.
//
// In a sentence it is quoted, as %q of package fmt does. Here is the rest: a word that is seldom other
// than plain, and whatever a command prints.
package said

import (
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Word is a text as one word: as it is if it is plain, else quoted as in Go. Plain is what has a
// character, and none but those that can be seen; and no quotation mark.
func Word(text string) string {
	if text == "" || strings.ContainsAny(text, `" `) {
		return strconv.Quote(text)
	}
	return Line(text)
}

// Line is a text as a part of a line: as it is if all its characters can be printed, else quoted as in Go.
func Line(text string) string {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// Screen is w without the characters that a terminal obeys: ends of lines and tabs stay, and of
// others w gets the escapes of Go. It is for one goroutine.
func Screen(w io.Writer) io.Writer { return &screen{to: w} }

type screen struct {
	to   io.Writer
	rest []byte // the first bytes of a character
}

// Write writes all but the first bytes of a character whose others are yet to come.
func (s *screen) Write(p []byte) (int, error) {
	text := append(s.rest, p...)
	shown := make([]byte, 0, len(text))
	for len(text) > 0 && utf8.FullRune(text) {
		r, n := utf8.DecodeRune(text)
		if r == '\n' || r == '\t' || unicode.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			shown = append(shown, text[:n]...)
		} else {
			quoted := strconv.AppendQuote(nil, string(text[:n]))
			shown = append(shown, quoted[1:len(quoted)-1]...)
		}
		text = text[n:]
	}
	s.rest = text
	if _, err := s.to.Write(shown); err != nil {
		return 0, err
	}
	return len(p), nil
}
