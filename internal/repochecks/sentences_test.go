package repochecks

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mostWords is how long a sentence of a guide may be: a longer one is read twice.
const mostWords = 30

// TestSentences: README.md, start, concepts and guides have no sentence of over 30 words.
func TestSentences(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root(t), "docs", "guides", "*.md"))
	require.NoError(t, err)
	for _, page := range []string{"README.md", "docs/start.md", "docs/concepts.md", "docs/fast.md", "docs/safe.md"} {
		pages = append(pages, filepath.Join(root(t), page))
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, s := range long(string(text)) {
			t.Errorf("%s: %d words: %s", filepath.Base(page), len(strings.Fields(s)), s)
		}
	}
}

// The check finds a long sentence in a paragraph, an item or a note, and nothing in code and tables.
func TestLongSentencesAreFound(t *testing.T) {
	words := strings.TrimSpace(strings.Repeat("word ", mostWords+1))
	for _, text := range []string{words + ".", "One.\n" + words, "- " + words, "> **Note.** " + words, words[:20] + "\n" + words[20:]} {
		require.Len(t, long(text), 1, text)
	}
	for _, text := range []string{"```go\n" + words + "\n```", "| " + words + " |", "    " + words, "# " + words, words[:100] + ". " + words[100:], "[a](" + words + ")"} {
		require.Empty(t, long(text), text)
	}
}

var (
	code     = regexp.MustCompile("(?s)```.*?```|<[^>]*>")
	noProse  = regexp.MustCompile(`(?m)^(\||#|    |!\[).*$`)
	target   = regexp.MustCompile(`\]\([^)]*\)`)
	newBlock = regexp.MustCompile(`\n\s*\n|\n\s*(?:[-*>]|\d+\.) `)
	ends     = regexp.MustCompile(`[.!?:]\W*\s+`)
)

// long returns the sentences of over mostWords words. A colon ends one, too.
func long(text string) (found []string) {
	text = target.ReplaceAllString(noProse.ReplaceAllString(code.ReplaceAllString(text, "\n\n"), "\n"), "]")
	for _, block := range newBlock.Split("\n"+text, -1) {
		for _, s := range ends.Split(strings.TrimSpace(block), -1) {
			s = strings.Join(strings.Fields(s), " ")
			if len(strings.Fields(s)) > mostWords {
				found = append(found, s)
			}
		}
	}
	return found
}
