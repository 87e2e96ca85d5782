// Package said makes text of others safe to show on a terminal: text of another process, another user or a
// file. It may have escape sequences, which move the cursor, and line feeds, which forge rows.
//
// In a sentence, quote such text with %q of package fmt. This package has the rest: words that are seldom
// quoted, and the whole output of a command.
package said

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Word returns text as it is if it is not empty and has only characters that can be seen, and no quotation
// mark. Otherwise it returns text quoted as in Go.
func Word(text string) string {
	if text == "" || strings.ContainsAny(text, `" `) {
		return strconv.Quote(text)
	}
	return Line(text)
}

// Line returns text as it is if all its characters can be printed, else quoted as in Go.
func Line(text string) string {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// Screen returns a Writer that escapes, as JSON and Go do, what a terminal would interpret. Ends of lines and
// tabs pass. A character of which only the first bytes are written is not shown. It is for one goroutine.
func Screen(w io.Writer) io.Writer { return &screen{to: w} }

type screen struct {
	to   io.Writer
	rest []byte // the first bytes of a character
}

// Write keeps the first bytes of an incomplete character for the next Write.
func (s *screen) Write(p []byte) (int, error) {
	text := append(s.rest, p...)
	shown := make([]byte, 0, len(text))
	for len(text) > 0 && utf8.FullRune(text) {
		r, n := utf8.DecodeRune(text)
		if r == '\n' || r == '\t' || unicode.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			shown = append(shown, text[:n]...)
		} else {
			switch high, low := utf16.EncodeRune(r); {
			case r == utf8.RuneError && n == 1:
				shown = fmt.Appendf(shown, `\x%02x`, text[0])
			case low != utf8.RuneError:
				shown = fmt.Appendf(shown, `\u%04x\u%04x`, high, low)
			default:
				shown = fmt.Appendf(shown, `\u%04x`, r)
			}
		}
		text = text[n:]
	}
	s.rest = text
	if _, err := s.to.Write(shown); err != nil {
		return 0, err
	}
	return len(p), nil
}
