package report

import (
	_ "embed" // what words mean
	"regexp"
	"slices"
	"strings"
)

// Word is a word of the tables and what it means.
type Word struct{ Word, Means string }

//go:embed words.txt
var wordsText string

// words are those that need an explanation, in the order in which it is printed.
func words() (list []Word) {
	for line := range strings.Lines(wordsText) {
		word, means, _ := strings.Cut(strings.TrimSpace(line), ": ")
		list = append(list, Word{word, means})
	}
	return list
}

// legend explains the words that occur in tables and their headings.
func legend(pieces []Piece) []Piece {
	var shown strings.Builder
	for _, p := range pieces {
		if p.Table != nil {
			shown.WriteString(p.Heading + "\n" + p.Table.Render() + "\n")
		}
	}
	text, found := shown.String(), map[string]bool{}
	// "too noisy" is not "noisy": terms of several words come first, and are cut out.
	for _, several := range []bool{true, false} {
		for _, w := range words() {
			if strings.Contains(w.Word, " ") == several && hasWord(text, w.Word) {
				found[w.Word] = true
				if several {
					text = strings.ReplaceAll(text, w.Word, "")
				}
			}
		}
	}
	list := slices.DeleteFunc(words(), func(w Word) bool { return !found[w.Word] })
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
