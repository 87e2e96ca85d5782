package repochecks

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// TestWords holds sources and documents to tools/words.txt.
func TestWords(t *testing.T) {
	dir := root(t)
	list, err := os.ReadFile(filepath.Join(dir, "tools", "words.txt"))
	require.NoError(t, err)
	l := newWordList(list)
	require.NotEmpty(t, l.words)
	require.NotEmpty(t, l.names)
	require.Contains(t, l.phrases.String(), "who")
	files := 0
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != dir && (d.Name() == "bin" || strings.HasPrefix(d.Name(), ".")) {
				return fs.SkipDir
			}
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".c", ".h", ".md", ".py", ".yml":
		default:
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if filepath.Base(rel) == "words_test.go" {
			return nil // its examples are such words
		}
		files++
		for _, c := range append(l.wordsIn(filepath.Ext(path), string(text)), l.phrasesIn(filepath.Ext(path), string(text))...) {
			t.Errorf("%s:%s", filepath.ToSlash(rel), c)
		}
		return nil
	})
	require.NoError(t, err)
	require.NotZero(t, files)
}

func TestWordRules(t *testing.T) {
	l := newWordList([]byte("# a comment\nfrob quiesce\n=room ensure\n"))
	for text, want := range map[string]int{
		"func frob() {}":             1,
		"// It frobs.":               0,
		"// It may Frob.":            1,
		"stayFrobbing, frobOff := 1": 1,
		"room := 1 // for the room":  1,
		"x.room()":                   1,
		"// room for more":           0,
		"roomy := \"room\"":          0,
		"x := `a\nroom`; y()":        0,
		"/* a\nroom */ *room = 1":    1,
		"x := '\"'; room := '\"'":    1,
	} {
		require.Len(t, l.wordsIn(".go", "package p\n"+text+"\n"), want, text)
	}
	require.Len(t, l.wordsIn(".md", "There is room to frob."), 1)
}

// TestPhraseRules: a phrase is found over the ends of lines, in comments and documents alone.
func TestPhraseRules(t *testing.T) {
	l := newWordList([]byte("\"Who looks\"   reading it\n\"keeps every error\"  returns it\n"))
	for text, want := range map[string][]string{
		"x() // a man who looks":                   {`2 says "who looks"`},
		"// Two:\n// Who\n// looks asks":           {`3 says "Who looks"`},
		"// who\nf()\n// looks":                    nil,
		"s := \"who looks\"":                       nil,
		"// who  looks, and keeps every\n// error": {`2 says "who looks"`, `2 says "keeps every error"`},
		"// whoever looks, who lookson":            nil,
	} {
		require.Equal(t, want, l.phrasesIn(".go", "package p\n"+text+"\n"), text)
	}
	require.Equal(t, []string{`1 says "who looks"`}, l.phrasesIn(".md", "so who\nlooks asks nothing"))
	require.Empty(t, l.phrasesIn(".c", "// who looks"))
}

// wordList is tools/words.txt: words of prose or parts of names, whole names, and phrases.
type wordList struct {
	words, names map[string]bool
	said         map[string][]string // which words are parts of a name that was met
	phrases      *regexp.Regexp      // all of them
}

func newWordList(list []byte) *wordList {
	l := &wordList{words: map[string]bool{}, names: map[string]bool{}, said: map[string][]string{}}
	var phrases []string
	for line := range strings.Lines(string(list)) {
		first, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case first == "", first[0] == '#':
		case first[0] == '"':
			words := strings.Fields(strings.Split(line, "\"")[1])
			phrases = append(phrases, strings.Join(words, `\s+`))
		case first[0] == '=':
			l.names[first[1:]] = true
		default:
			l.words[first] = true
		}
	}
	l.phrases = regexp.MustCompile(`(?i)\b(?:` + strings.Join(phrases, `|`) + `)\b`)
	return l
}

// notCode matches what is not searched for names: strings, characters, comments and
// C's includes.
var notCode = regexp.MustCompile("(?m)\"(?:[^\"\\\\\n]|\\\\.)*\"|'(?:[^'\\\\\n]|\\\\.)+'|`[^`]*`|//.*$|/\\*(?s:.*?)\\*/|^#include.*$")

// identifiers are the words of a line that can be names.
func identifiers(line string) []string {
	all := strings.FieldsFunc(line, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
	for i := range all {
		all[i] = strings.TrimLeft(all[i], "0123456789")
	}
	return all
}

// wordsOf are the listed words that are parts of a name.
func (l *wordList) wordsOf(id string) []string {
	said, ok := l.said[id]
	if !ok {
		for _, part := range parts(id) {
			if l.words[strings.ToLower(part)] {
				said = append(said, part)
			}
		}
		l.said[id] = said
	}
	return said
}

// wordsIn returns which listed words and names stand in a file, by line.
func (l *wordList) wordsIn(ext string, text string) (found []string) {
	named := false
	for n, line := range strings.Split(text, "\n") {
		for _, id := range identifiers(line) {
			for _, part := range l.wordsOf(id) {
				found = append(found, fmt.Sprintf("%d says %s", n+1, part))
			}
			named = named || l.names[id]
		}
	}
	if !named || ext != ".go" && ext != ".c" && ext != ".h" {
		return found
	}
	// Lines are counted, so those of a comment have to stay.
	code := notCode.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
	for n, line := range strings.Split(code, "\n") {
		for _, id := range identifiers(line) {
			if l.names[id] {
				found = append(found, fmt.Sprintf("%d says %s", n+1, id))
			}
		}
	}
	return found
}

// phrasesIn returns which listed phrases stand in a document, or in the comments of a Go file, by line.
func (l *wordList) phrasesIn(ext string, text string) (found []string) {
	if ext != ".go" && ext != ".md" {
		return nil
	}
	if ext == ".go" { // of each line its comment; a line without one ends a phrase
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			_, comment, ok := strings.Cut(line, "//")
			if lines[i] = comment; !ok {
				lines[i] = "."
			}
		}
		text = strings.Join(lines, "\n")
	}
	for _, at := range l.phrases.FindAllStringIndex(text, -1) {
		said := strings.Join(strings.Fields(text[at[0]:at[1]]), " ")
		found = append(found, fmt.Sprintf("%d says %q", 1+strings.Count(text[:at[0]], "\n"), said))
	}
	return found
}

// parts are the words of a name in camel case or with underscores.
func parts(name string) (all []string) {
	start := 0
	runes := []rune(name)
	for i := 1; i <= len(runes); i++ {
		if i == len(runes) || runes[i] == '_' || unicode.IsUpper(runes[i]) && !unicode.IsUpper(runes[i-1]) {
			all = append(all, strings.Trim(string(runes[start:i]), "_"))
			start = i
		}
	}
	return all
}
