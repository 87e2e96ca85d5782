package report

import (
	_ "embed" // what words mean
	"regexp"
	"strings"
)

// Word is a word of the tables and what it means.
type Word struct{ Word, Means string }

//go:embed words.txt
var words string

// legend explains the words that occur in tables and their headings.
func legend(pieces []Piece) []Piece {
	var shown strings.Builder
	for _, p := range pieces {
		if p.Table != nil {
			shown.WriteString(p.Heading + "\n" + p.Table.Render() + "\n")
		}
	}
	var list []Word
	for line := range strings.Lines(words) {
		word, means, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if hasWord(shown.String(), word) {
			list = append(list, Word{word, means})
		}
	}
	if len(list) == 0 {
		return nil
	}
	return []Piece{{Heading: "Words", Words: list}}
}

// hasWord reports whether a word stands in a text, and not as a part of another.
func hasWord(s, word string) bool {
	const end = `(?:^|$|[^-_\pL\pN])`
	return strings.Contains(s, word) && regexp.MustCompile(end+regexp.QuoteMeta(word)+end).MatchString(s)
}
